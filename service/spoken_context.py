"""What every dialect's context does alike: admission, its session and driver, encoding, credit,
figures and its end. ``binary_context.py`` and ``worded_context.py`` add how it is said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from service.audio.packet import AudioEncoder
from service.audio.pump import EncoderPump
from service.audio.timeline import Timeline
from service.context import ContextDriver, ContextSink
from service.context_settings import session_settings, speech_request
from service.http_speech import count_error
from service.outbox import Outbox
from service.runtime import Runtime
from streaming import wire
from streaming.errors import ErrorCode, TalkwireError
from streaming.events import (
    AudioRead,
    Broke,
    CancelAsked,
    Cancelled,
    Done,
    EndAsked,
    FlushAsked,
    SendAudio,
    TextAppended,
)
from streaming.report import ContextReport
from streaming.session import Session


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """What a context is opened with.

    ``protocol`` is the metrics' label; ``handle`` is the context's among those of its outbox.
    ``is_kept`` (see ``session_settings``): nothing is known of how far it has been read, either.
    """

    protocol: str
    handle: int
    request_id: str
    create: wire.ContextCreate
    encoder: AudioEncoder
    is_kept: bool = False


class SpokenContext(ContextSink):
    """Half of a ContextSink, with its driver. ``closed`` is called once, at the end.

    Raises RequestError or CapacityError if the context cannot be opened.
    """

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        plan: ContextPlan,
        closed: Callable[[], None],
    ) -> None:
        runtime.require_ready()
        session = Session(session_settings(runtime, plan.create, is_kept=plan.is_kept))
        request = speech_request(runtime, plan.create, plan.request_id)
        runtime.talker.check_options(request)
        runtime.admission.enter(plan.create.audio.speed)
        self._runtime, self._outbox = runtime, outbox
        self._protocol, self._handle = plan.protocol, plan.handle
        self._request_id, self._speed = plan.request_id, plan.create.audio.speed
        self._closed = closed
        self._heard_rate = runtime.codec.spec.sample_rate * self._speed
        encoder = plan.encoder
        self._timeline = Timeline(self._heard_rate, encoder.sample_rate, encoder.delay_samples)
        self._pump = EncoderPump(encoder, tasks, lambda error: self._driver.post(Broke(error)))
        room = self._pump.room if plan.is_kept else None  # nothing else would hold the codec back
        self._driver = ContextDriver(
            runtime, session, request, self, tasks, room, protocol=plan.protocol
        )
        if not plan.is_kept:
            outbox.reading.follow(plan.handle, self._on_read)
        self._given_samples = 0
        self._done: Done | None = None
        self._is_over = False
        self._cancel_asked_at: float | None = None
        self._opened_at = time.monotonic()
        self._gaps = runtime.metrics.gaps(plan.protocol)

    # -- what the client wants

    def append(self, text: str) -> None:
        """More text. Raises RequestError."""
        self._driver.post(TextAppended(text))

    def flush(self, flush_id: str) -> None:
        """Speak what is there. Raises RequestError once the context was ended."""
        self._driver.post(FlushAsked(flush_id))

    def end(self) -> None:
        """No more text. Raises RequestError once the context was ended."""
        self._driver.post(EndAsked())

    def cancel(self) -> None:
        """Stop now: what has not been written is taken back."""
        if self._is_over:
            return
        self._cancel_asked_at = time.monotonic()
        self._pump.drop()
        written = self._timeline.to_codec(self._take_back())
        if self._done is None:
            self._driver.post(CancelAsked(None, self._given_samples - written))
        else:  # all was spoken; only its encoding was left
            self._say_cancelled()
            self._end(self._done.reason, self._done.report)

    def _on_read(self, sent_samples: int) -> None:
        self._driver.post(AudioRead(self._timeline.to_codec(sent_samples)))

    # -- how it stands

    def is_settled(self, now: float) -> bool:
        """Whether a server that ends need not wait for it."""
        is_quiet = self._done is None and not self._pump.is_busy
        return self._is_over or (is_quiet and self._driver.is_settled(now))

    def idle_s(self, now: float) -> float:
        """Seconds since anything happened, or 0 while there is work to do."""
        return self._driver.idle_s(now)

    # -- what a kind of context adds

    def _take_back(self) -> int:
        """Drop all audio that has not been written; samples that were, as encoded."""
        raise NotImplementedError

    def _say_cancelled(self) -> None:
        """Tell the client that the context was cancelled, if the dialect has a word for it."""

    def _say_done(self, error: TalkwireError | None) -> None:
        """Tell the client that the context is over, without a cancel."""
        raise NotImplementedError

    # -- what the session says: see ContextSink

    def _note_audio(self, audio: SendAudio) -> float:
        """Count what was given; the time."""
        now = time.monotonic()
        self._gaps.note(now)
        self._given_samples += len(audio.samples)
        return now

    def on_cancelled(self, cancelled: Cancelled) -> None:
        """The context was cancelled."""
        if self._cancel_asked_at is not None:
            taken = time.monotonic() - self._cancel_asked_at
            self._runtime.metrics.cancel.labels(self._protocol).observe(taken)
        self._say_cancelled()
        self._end("cancelled", cancelled.report, cancelled)

    def on_done(self, done: Done) -> None:
        """The context is closed."""
        self._done = done
        self._pump.after(self._finish)

    def _finish(self) -> None:
        done = self._done
        assert done is not None
        error = done.error or self._pump.failure  # which may have come after the session's end
        reason: str = done.reason if error is None else "error"
        if error is not None and error.code is ErrorCode.INVALID_TEXT:
            error, reason = None, "complete"  # agents' models write emoji: that is no fault
        if error is not None:
            count_error(self._runtime, error, self._request_id)
        self._say_done(error)
        self._end(reason, done.report)

    def _end(self, outcome: str, report: ContextReport, cancelled: Cancelled | None = None) -> None:
        self._is_over = True
        self._outbox.reading.forget(self._handle)
        self._runtime.metrics.on_context_closed(self._protocol, outcome, report, cancelled)
        self._runtime.admission.leave(time.monotonic() - self._opened_at, self._speed)
        self._closed()
