"""Bounded work for what clients send: received bytes are parsed in slices, client by client, for
some milliseconds in a turn of the event loop.

uvloop passes on up to 8 MB of a connection in one turn, and parsers in Python need microseconds
for the smallest frame or chunk, so one client could block the loop for seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable

log = logging.getLogger(__name__)

#: Bytes that are parsed at a time: 340 of the smallest WebSocket frames or HTTP chunks.
SLICE_BYTES = 2048
#: Seconds of processor time in a turn of the event loop after which no slice is parsed any more, of
#: any client. On the wall clock, a busy machine would parse one slice in a turn.
_TURN_S = 0.004
#: Connections that are read again in a turn after more than a slice of theirs was parsed. What TLS
#: costs before the intake, up to 5 us for a record of a byte, is so bounded too.
_READS = 4


class ParseTurns:
    """Shares the turns of the event loop among all clients with unparsed data, and those of a
    client among its connections.
    """

    def __init__(self) -> None:
        #: Connections that wait, by client; those whose turn is next are first.
        self._waiting: OrderedDict[str, deque[Intake]] = OrderedDict()
        #: Processor time when parsing ends in this turn; None before it has begun.
        self._ends_at: float | None = None

    def has_time(self) -> bool:
        """Return whether new data may be parsed in this turn."""
        now = time.thread_time()
        if self._ends_at is None:
            self._begin(now)
            return True
        return now < self._ends_at

    def join(self, intake: Intake) -> None:
        """Call ``intake.take_turn`` after those of the clients and connections that wait."""
        self._waiting.setdefault(intake.client, deque()).append(intake)
        if self._ends_at is None:
            self._begin(time.thread_time())

    def _begin(self, now: float) -> None:
        self._ends_at = now + _TURN_S
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._ends_at = None
        reads = 0
        while self._waiting and self.has_time() and reads < _READS:
            client, intakes = self._waiting.popitem(last=False)
            intake = intakes.popleft()
            if intakes:
                self._waiting[client] = intakes
            reads += intake.take_turn()


class Intake:
    """Received data of one connection, which is not read while some is unparsed, or while its
    protocol has paused reading.
    """

    def __init__(
        self,
        turns: ParseTurns,
        transport: asyncio.Transport,
        parse: Callable[[bytes], None],
        client: str,
    ) -> None:
        self._turns = turns
        self._transport = transport
        #: Gets a slice. A protocol that takes the connection over replaces it.
        self.parse = parse
        #: Whose turns the connection takes.
        self.client = client
        self._unparsed = bytearray()
        #: Whether the protocol has paused reading.
        self._is_held = False
        #: Whether the transport is not read.
        self._is_paused = False
        #: Whether a turn is due.
        self._is_waiting = False
        #: Whether more than a slice has come since reading was paused.
        self._is_large = False
        #: Whether data are dropped.
        self._is_discarding = False

    @property
    def has_unparsed(self) -> bool:
        """Whether the client has sent more than was parsed."""
        return bool(self._unparsed)

    def put(self, data: bytes) -> None:
        """Take received data. A slice or less is parsed at once, if there is time."""
        is_next = not (self._unparsed or self._is_held) and len(data) <= SLICE_BYTES
        if is_next and self._turns.has_time():
            if not self._is_discarding:
                self.parse(data)
            return
        self._unparsed += data
        self._is_large |= len(self._unparsed) > SLICE_BYTES
        if self._is_paused:  # uvicorn resumes reading after the body of a refused request
            self._transport.pause_reading()
        self._update()

    def take_turn(self) -> bool:
        """Parse a slice or, if there is none, read again. Return whether the latter."""
        self._is_waiting = False
        if self._is_held or self._transport.is_closing():
            return False
        if not self._unparsed:
            self._resume()
            return True
        if self._is_discarding:
            self._unparsed.clear()
        else:
            data = bytes(self._unparsed[:SLICE_BYTES])
            del self._unparsed[:SLICE_BYTES]
            try:
                self.parse(data)
            except Exception:
                log.exception("a connection broke")
                self._transport.abort()
                self.discard()
        is_done = not (self._unparsed or self._is_large or self._is_held)
        if is_done and not self._transport.is_closing():
            self._resume()
        self._update()
        return False

    def _resume(self) -> None:
        self._is_paused = self._is_large = False
        self._transport.resume_reading()

    def pause_reading(self) -> None:
        """Parse nothing until ``resume_reading``."""
        self._is_held = True
        self._update()

    def resume_reading(self) -> None:
        """Parse again."""
        self._is_held = False
        self._update()

    def discard(self) -> None:
        """Parse nothing any more. What still comes is read and dropped."""
        self._is_discarding, self._is_held = True, False
        self._unparsed.clear()
        self._update()

    def _update(self) -> None:
        """Stop reading if something is unparsed or held; else, or to parse it, wait for a turn."""
        if self._transport.is_closing():
            return
        if not self._is_paused and (self._unparsed or self._is_held):
            self._is_paused = True
            self._transport.pause_reading()
        if self._is_paused and not (self._is_held or self._is_waiting):
            self._is_waiting = True
            self._turns.join(self)
