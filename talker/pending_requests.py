"""Requests in flight with the talker process, their rows, and errors while it is down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Literal, get_args

import msgspec
import numpy as np

from streaming.errors import (
    BackendError,
    CapacityError,
    ErrorCode,
    RequestError,
    TalkwireError,
)
from streaming.ports import Arrival, RowDemand, RowGenerator, TalkerRows
from streaming.spec import Codes
from talker.conversation import Gone
from talker.messages import (
    Abort,
    AppendText,
    Failed,
    FailureReason,
    FromGateway,
    Generate,
    NewRows,
    Pause,
    Resume,
    Step,
    StreamInterval,
)

log = logging.getLogger(__name__)
RETRY_AFTER_MS = 2000
#: Seconds for which a request without a deadline lets others go first. Afterwards new ones wait for
#: it, so that it is spoken in any case.
_PATIENCE_S = 30.0
_FAILED = "The speech engine could not finish this text."
#: Failures of the model itself, of which a client is told more.
_FAILED_BY = {
    "logits": f"{_FAILED} The model computed values that are not finite.",
    "code": f"{_FAILED} The model made a code that its codebook does not have.",
}


def _unhurried() -> float:
    return time.monotonic() + _PATIENCE_S


class RowStream:
    """Rows that have been received but not yet taken by the consumer.

    The rows of one piece were made one after another. If more than ``hold_rows`` rows wait, the
    request should be paused until the consumer takes them. Until it is, the request's own
    ``max_frames`` is the limit.
    """

    def __init__(self, num_codebooks: int, hold_rows: int, request_id: str = "") -> None:
        self._num_codebooks = num_codebooks
        self._row_bytes = 2 * num_codebooks
        self._hold_rows = hold_rows
        #: The utterance's id in the log.
        self.request_id = request_id
        #: Number of rows that wait.
        self._waiting = 0
        #: Number of rows per message that was last requested of the talker process.
        self.at_once = 1
        #: Returns its deadline: see SpeechRequest.
        self.due: Callable[[], float] = _unhurried
        #: Whether the talker process was sent a Pause.
        self.is_paused = False
        #: Whether its last message said that the request waits for text.
        self._waits = False
        #: The rows that wait, by message.
        self._rows: list[bytes] = []
        #: Their positions in the text, by message.
        self._spoken: list[bytes] = []
        #: When they came, by message.
        self._came: list[Arrival] = []
        #: The reason of the end; "" before it.
        self._finish: Literal["", "stop", "length"] = ""
        #: The error that ended the stream.
        self._error: TalkwireError | Gone | None = None
        #: Done when rows or the end have come; None while nobody waits for them.
        self._news: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether no more messages about the request will come from the talker process."""
        return bool(self._finish) or self._error is not None

    @property
    def is_full(self) -> bool:
        """Whether more than ``hold_rows`` rows wait and the request has not ended."""
        return self._waiting > self._hold_rows and not self.is_over

    def put(self, new: NewRows, now: float) -> None:
        """Add rows that were received ``now``."""
        if self._finish or self._error is not None:
            return
        count = len(new.rows) // self._row_bytes
        self._rows.append(new.rows)
        if new.spoken:
            self._spoken.append(new.spoken)
        self._came.append(Arrival(count, now, count > 1))
        self._waiting += count
        self._finish = new.finish
        self._waits = new.waits
        self._wake()

    def fail(self, error: TalkwireError | Gone) -> None:
        """End the stream with an error."""
        if not self.is_over:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def resume(self) -> None:
        """Record that the talker process is sent a Resume."""
        self.is_paused = False
        self._came.append(Arrival(0, time.monotonic()))

    def on_text(self) -> None:
        """Record that the talker process is sent more text."""
        if self._waits:
            self._waits = False
            self._came.append(Arrival(0, time.monotonic()))

    async def next(self, delay_s: float = 0.0) -> TalkerRows:
        """Return all rows that are there after ``delay_s``, in one piece; wait for the first.

        Rows received before a failure are returned first; then it is raised.
        """
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        while not (self._rows or self.is_over):
            self._news = asyncio.get_running_loop().create_future()
            await self._news
            self._news = None
        if self._error is not None and not self._rows:
            raise self._error
        codes = np.frombuffer(b"".join(self._rows), np.int16).reshape(-1, self._num_codebooks)
        spoken = np.frombuffer(b"".join(self._spoken), np.float32) if self._spoken else None
        self._rows.clear()
        self._spoken.clear()
        came = tuple(self._came)
        self._came = []
        self._waiting = 0
        return TalkerRows(codes, self._finish or None, spoken, came, self._waits)


class PendingRequests:
    """Keeps for each request the rows that its consumer has not taken yet.

    ``send`` raises BackendError while the process is down. At most ``max_pending`` requests are in
    flight.
    A request is paused if more than ``hold_rows`` of its rows wait.
    """

    def __init__(
        self, send: Callable[[FromGateway], None], max_pending: int, hold_rows: int
    ) -> None:
        self._send = send
        self.max_pending = max_pending
        self._hold_rows = hold_rows
        self._streams: dict[int, RowStream] = {}
        #: The last step that the process reported.
        self.last_step = Step(0, [])
        #: Number of requests that failed, by reason, without those that were sent again.
        self.failures = dict.fromkeys((r for r in get_args(FailureReason) if r != "gone"), 0)

    def __len__(self) -> int:
        return len(self._streams)

    async def speak(
        self,
        message: Generate | Callable[[], Generate],
        num_codebooks: int,
        request_id: str = "",
        continued: Codes | None = None,
        deadline: Callable[[], float] | None = None,
    ) -> RowGenerator:
        """Send a request, whose message may be made only now, and yield its rows as they arrive;
        see ``TalkerProcessEngine``. If the process gives up on it, the log names it by
        ``request_id``. ``continued``: see TalkerRows. ``deadline``: see SpeechRequest.
        """
        if not isinstance(message, Generate):
            message = message()
        handle = message.handle
        if len(self._streams) >= self.max_pending:
            raise CapacityError(
                ErrorCode.OVERLOADED, "The speech engine is full.", retry_after_ms=RETRY_AFTER_MS
            )
        stream = RowStream(num_codebooks, self._hold_rows, request_id)
        demand: RowDemand | None = None
        self._streams[handle] = stream
        try:
            stream.due = deadline or _unhurried
            self._send(msgspec.structs.replace(message, deadline_s=stream.due()))
            while True:
                if stream.is_paused and not stream.is_over:
                    stream.resume()
                    self._tell(Resume(handle, stream.due()))
                if demand is not None:
                    self._send_at_once(handle, stream, demand.at_once)
                rows = await stream.next(0.0 if demand is None else demand.delay_s)
                if continued is not None:
                    rows = msgspec.structs.replace(rows, continued=continued)
                    continued = None
                demand = yield rows
                if rows.finish:
                    return
        finally:
            del self._streams[handle]
            if not stream.is_over:
                self._tell(Abort(handle))

    def appender(
        self, read: Callable[[str, bool], AppendText], handle: int
    ) -> Callable[[str, bool], None]:
        """Return what sends more text of a request, as messages that ``read`` makes. Text that
        cannot be spoken ends the request with an error.
        """

        def append(text: str, is_last: bool) -> None:
            stream = self._streams.get(handle)
            if stream is None or stream.is_over:
                return
            try:
                message = read(text, is_last)
            except RequestError as error:
                stream.fail(error)
                self._tell(Abort(handle))
                return
            stream.on_text()
            self._tell(msgspec.structs.replace(message, deadline_s=stream.due()))

        return append

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
        now = time.monotonic()
        for new in message.rows:
            if stream := self._streams.get(new.handle):
                stream.put(new, now)
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
        extra = {"request_id": stream.request_id, "handle": failed.handle, "reason": failed.reason}
        log.warning("the talker gave up a request", extra=extra)
        self.failures[failed.reason] += 1
        message = _FAILED_BY.get(failed.reason, _FAILED)
        stream.fail(BackendError(ErrorCode.ENGINE_FAILED, message))

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
