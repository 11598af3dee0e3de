"""Requests that are with the talker process, their rows, and errors while it is down."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import Arrival, RowDemand, RowGenerator, TalkerRows
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

RETRY_AFTER_MS = 2000
_FAILED = "The speech engine could not finish this text."


class RowStream:
    """Rows that have come and not been taken.

    Rows of one piece were made one after another. When more than ``hold_rows`` wait, the request
    should be paused until the consumer comes back; the bound in the meantime is the request's own
    ``max_frames``.
    """

    def __init__(self, num_codebooks: int, hold_rows: int) -> None:
        self._num_codebooks, self._hold_rows = num_codebooks, hold_rows
        self._waiting = 0
        #: How many rows at once the talker process was last asked for.
        self.at_once = 1
        #: Whether the talker process has been asked to pause.
        self.is_paused = False
        self._rows: list[bytes] = []
        self._spoken: list[bytes] = []
        self._came: list[Arrival] = []
        self._finish = ""
        self._error: BackendError | Gone | None = None
        self._news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the talker process has nothing more to say about it."""
        return bool(self._finish) or self._error is not None

    @property
    def is_full(self) -> bool:
        """Whether the consumer is so far behind that making more is no use."""
        return self._waiting > self._hold_rows and not self.is_over

    def put(self, rows: bytes, finish: str, spoken: bytes = b"") -> None:
        """Rows have come, ``[n, K]`` int16; ``finish`` is "" unless they are the last. See
        NewRows for ``spoken``.
        """
        if not self.is_over:
            self._rows.append(rows)
            self._spoken.append(spoken)
            count = len(rows) // (2 * self._num_codebooks)
            self._waiting += count
            self._came.append(Arrival(count, time.monotonic(), count > 1))
            self._finish = finish
            self._news.set()

    def fail(self, error: BackendError | Gone) -> None:
        """There will be no more rows."""
        if not self.is_over:
            self._error = error
            self._news.set()

    def resume(self) -> None:
        """The talker process is asked to go on."""
        self.is_paused = False
        self._came.append(Arrival(0, time.monotonic()))

    async def next(self, delay_s: float = 0.0) -> TalkerRows:
        """All rows that are there after ``delay_s``, in one piece; waits for the first.

        Rows that came before a failure are given first; then it is raised.
        """
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        while not (self._rows or self.is_over):
            self._news.clear()
            await self._news.wait()
        if self._error is not None and not self._rows:
            raise self._error
        codes = np.frombuffer(b"".join(self._rows), np.int16).reshape(-1, self._num_codebooks)
        spoken = np.frombuffer(b"".join(self._spoken), np.float32)
        self._rows.clear()
        self._spoken.clear()
        came, self._came = tuple(self._came), []
        self._waiting = 0
        finish: Literal["stop", "length"] | None = None
        if self._finish:
            finish = "stop" if self._finish == "stop" else "length"
        places = spoken if len(spoken) else None
        return TalkerRows(codes, finish, places, came)


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
