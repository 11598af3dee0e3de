"""Requests in flight with the talker process, their rows, and errors while it is down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
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

log = logging.getLogger(__name__)
RETRY_AFTER_MS = 2000
_FAILED = "The speech engine could not finish this text."


class RowStream:
    """Rows that have been received but not yet taken by the consumer.

    The rows of one piece were made one after another. If more than ``hold_rows`` rows wait, the
    request should be paused until the consumer takes them. Until it is, the request's own
    ``max_frames`` is the limit.
    """

    def __init__(self, num_codebooks: int, hold_rows: int, request_id: str = "") -> None:
        self._num_codebooks, self._hold_rows = num_codebooks, hold_rows
        #: The utterance's id in the log.
        self.request_id = request_id
        self._waiting = 0
        #: Number of rows per message that the talker process was last asked for.
        self.at_once = 1
        #: Whether the talker process has been asked to pause.
        self.is_paused = False
        self._rows: list[bytes] = []
        self._spoken: list[bytes] = []
        self._came: list[Arrival] = []
        self._finish: Literal["", "stop", "length"] = ""
        self._error: BackendError | Gone | None = None
        self._news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether no more messages about the request will come from the talker process."""
        return bool(self._finish) or self._error is not None

    @property
    def is_full(self) -> bool:
        """Whether more than ``hold_rows`` rows wait and the request has not ended."""
        return self._waiting > self._hold_rows and not self.is_over

    def put(self, rows: bytes, finish: Literal["", "stop", "length"], spoken: bytes = b"") -> None:
        """Add received rows ``[n, K]`` int16. ``finish`` is "" unless they are the last. See
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
        """End the stream with an error."""
        if not self.is_over:
            self._error = error
            self._news.set()

    def resume(self) -> None:
        """Note that the talker process is asked to resume."""
        self.is_paused = False
        self._came.append(Arrival(0, time.monotonic()))

    async def next(self, delay_s: float = 0.0) -> TalkerRows:
        """Return all rows that are there after ``delay_s``, in one piece; wait for the first.

        Rows received before a failure are returned first; then it is raised.
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
        return TalkerRows(codes, self._finish or None, spoken if len(spoken) else None, came)


class PendingRequests:
    """Keeps for each request the rows that its consumer has not taken yet.

    ``send`` raises BackendError while the process is down. At most ``most`` requests are in flight.
    A request is paused if more than ``hold_rows`` of its rows wait.
    """

    def __init__(self, send: Callable[[FromGateway], None], most: int, hold_rows: int) -> None:
        self._send, self._most, self._hold_rows = send, most, hold_rows
        self._streams: dict[int, RowStream] = {}
        #: The last step that the process reported.
        self.last_step = Step(0, [])

    def __len__(self) -> int:
        return len(self._streams)

    async def speak(
        self, message: Generate, num_codebooks: int, request_id: str = ""
    ) -> RowGenerator:
        """Send a request and yield its rows as they arrive; see ``TalkerProcessEngine``. If the
        process gives up on it, the log names it by ``request_id``.
        """
        handle = message.handle
        if len(self._streams) >= self._most:
            raise CapacityError(
                ErrorCode.OVERLOADED, "The speech engine is full.", retry_after_ms=RETRY_AFTER_MS
            )
        stream = RowStream(num_codebooks, self._hold_rows, request_id)
        demand: RowDemand | None = None
        self._streams[handle] = stream
        try:
            self._send(message)
            while True:
                if stream.is_paused and not stream.is_over:
                    stream.resume()
                    self._tell(Resume(handle))
                if demand is not None:
                    self._send_at_once(handle, stream, demand.at_once)
                rows = await stream.next(0.0 if demand is None else demand.delay_s)
                demand = yield rows
                if rows.finish:
                    return
        finally:
            del self._streams[handle]
            if not stream.is_over:
                self._tell(Abort(handle))

    def _send_at_once(self, handle: int, stream: RowStream, rows: int) -> None:
        if stream.is_over or stream.at_once == rows:
            return
        stream.at_once = rows
        self._tell(StreamInterval(handle, rows))

    def _tell(self, message: FromGateway) -> None:
        """Send a message about a request. If the process is down, ``on_down`` ends the request,
        when the rows have been taken that came before.
        """
        with contextlib.suppress(BackendError):
            self._send(message)

    def on_message(self, message: Step | Failed) -> None:
        """Handle a step of the process, or the failure of a request."""
        if isinstance(message, Failed):
            self._on_failed(message)
            return
        self.last_step = message
        for new in message.rows:
            if stream := self._streams.get(new.handle):
                stream.put(new.rows, new.finish, new.spoken)
                if stream.is_full and not stream.is_paused:
                    stream.is_paused = True
                    self._tell(Pause(new.handle))

    def _on_failed(self, failed: Failed) -> None:
        self.last_step = msgspec.structs.replace(self.last_step, live=failed.live)
        stream = self._streams.get(failed.handle)
        if stream is None:
            return
        if failed.reason == "gone":  # the request is sent again
            stream.fail(Gone())
            return
        told = {"request_id": stream.request_id, "handle": failed.handle, "reason": failed.reason}
        log.warning("the talker gave up a request", extra=told)
        stream.fail(BackendError(ErrorCode.ENGINE_FAILED, _FAILED))

    def on_ready(self) -> None:
        """Reset the last step, since a new process takes requests."""
        self.last_step = Step(0, [])

    def on_down(self, error: Callable[[], BackendError]) -> None:
        """Fail all requests, since the process is gone; ``error`` makes each one's error."""
        for stream in self._streams.values():
            stream.fail(error())


class Downtime:
    """Times the process's starts, the first one included."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._start_s: float | None = None

    def begin(self) -> None:
        """Start timing: the process is down, or started for the first time."""
        self._since = time.monotonic()

    def end(self) -> None:
        """Stop timing: the process is up."""
        if self._since is not None:
            self._start_s = time.monotonic() - self._since
            self._since = None

    def error(self) -> BackendError:
        """The error for requests meanwhile. The hint is the time left if this start takes as long
        as the last one.
        """
        hint = RETRY_AFTER_MS
        if self._start_s is not None and self._since is not None:
            left = self._start_s - (time.monotonic() - self._since)
            hint = max(hint // 4, int(left * 1000))
        return BackendError(
            ErrorCode.ENGINE_RESTARTING,
            "The speech engine is restarting; try again.",
            retry_after_ms=hint,
        )
