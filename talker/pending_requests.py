"""Requests that are with the talker process, and errors while it is down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec

from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import RowDemand, RowGenerator
from talker.conversation import Gone
from talker.messages import (
    Abort,
    Failed,
    FromGateway,
    Generate,
    Pause,
    Resume,
    Step,
    StreamInterval,
)
from talker.row_stream import RowStream

RETRY_AFTER_MS = 2000
_FAILED = "The speech engine could not finish this text."


class PendingRequests:
    """Keeps for each request the rows that its consumer has not taken yet.

    ``send`` raises BackendError while the process is down. ``most`` requests at once; more than
    ``hold_rows`` rows that wait pause theirs.
    """

    def __init__(self, send: Callable[[FromGateway], None], most: int, hold_rows: int) -> None:
        self._send, self._most, self._hold_rows = send, most, hold_rows
        self._streams: dict[int, RowStream] = {}
        #: What the process said last.
        self.last_step = Step(0, [])

    def __len__(self) -> int:
        return len(self._streams)

    async def speak(self, message: Generate, num_codebooks: int) -> RowGenerator:
        """Send a request off and yield its rows as they come; see ``TalkerProcessEngine``."""
        handle = message.handle
        if len(self._streams) >= self._most:
            raise CapacityError(
                ErrorCode.OVERLOADED, "The speech engine is full.", retry_after_ms=RETRY_AFTER_MS
            )
        stream = RowStream(num_codebooks, self._hold_rows)
        demand: RowDemand | None = None
        self._streams[handle] = stream
        try:
            self._send(message)
            while True:
                if stream.is_paused and not stream.is_over:
                    stream.resume()
                    self._send(Resume(handle))
                if demand is not None:
                    self._send_at_once(handle, stream, demand.at_once)
                rows = await stream.next(0.0 if demand is None else demand.delay_s)
                demand = yield rows
                if rows.finish:
                    return
        finally:
            del self._streams[handle]
            if not stream.is_over:
                with contextlib.suppress(BackendError):
                    self._send(Abort(handle))

    def _send_at_once(self, handle: int, stream: RowStream, rows: int) -> None:
        if stream.is_over or stream.at_once == rows:
            return
        stream.at_once = rows
        with contextlib.suppress(BackendError):
            self._send(StreamInterval(handle, rows))

    def on_message(self, message: Step | Failed) -> None:
        """The process has made a step, or given up on a request."""
        if isinstance(message, Failed):
            self.last_step = msgspec.structs.replace(self.last_step, live=message.live)
            failed = BackendError(ErrorCode.ENGINE_FAILED, _FAILED)
            if stream := self._streams.get(message.handle):
                stream.fail(Gone() if message.reason == "gone" else failed)
            return
        self.last_step = message
        for new in message.rows:
            if stream := self._streams.get(new.handle):
                stream.put(new.rows, new.finish, new.spoken)
                if stream.is_full and not stream.is_paused:
                    stream.is_paused = True
                    with contextlib.suppress(BackendError):
                        self._send(Pause(new.handle))

    def on_ready(self) -> None:
        """A new process takes requests; it has said nothing yet."""
        self.last_step = Step(0, [])

    def on_down(self, error: Callable[[], BackendError]) -> None:
        """The process is gone, and all requests with it; ``error`` makes what each is told."""
        for stream in self._streams.values():
            stream.fail(error())


class Downtime:
    """Times the process's starts, the first one included."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._start_s: float | None = None

    def begin(self) -> None:
        """The process is down, or being started for the first time."""
        self._since = time.monotonic()

    def end(self) -> None:
        """The process is up."""
        if self._since is not None:
            self._start_s = time.monotonic() - self._since
            self._since = None

    def error(self) -> BackendError:
        """The retry hint is what is left of a start as long as the last one."""
        hint = RETRY_AFTER_MS
        if self._start_s is not None and self._since is not None:
            left = self._start_s - (time.monotonic() - self._since)
            hint = max(hint // 4, int(left * 1000))
        return BackendError(
            ErrorCode.ENGINE_RESTARTING,
            "The speech engine is restarting; try again.",
            retry_after_ms=hint,
        )
