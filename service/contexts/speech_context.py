"""One stream of speech, from text to encoded audio, for every dialect.

A SpeechContext owns a context's session, driver, admission lease, encoder and metrics. Its outputs
go to a socket (SocketOutput, through the dialect's Renderer) or to an HTTP response
(service.transport.http_response). A dialect only parses requests and renders the outputs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from service.admission import Lease
from service.audio.encoder import Packet
from service.audio.pump import EncoderPump
from service.audio.timeline import Timeline
from service.auth.caller import serving
from service.contexts.driver import ContextDriver
from service.contexts.options import FlushEncoder, SpeechPlan
from service.runtime import Runtime
from streaming import events
from streaming.errors import CapacityError, ErrorCode, TalkwireError
from streaming.playback import PlaybackClock
from streaming.report import ContextReport
from streaming.spec import Samples
from streaming.word_timing import WordTiming

log = logging.getLogger(__name__)

_NOTHING = np.empty(0, np.float32)


class Started(NamedTuple):
    """Audio begins at ``sample_rate`` Hz. The client's decoder delays it by ``delay_samples``."""

    sample_rate: int
    delay_samples: int


class Words(NamedTuple):
    """Words of earlier audio, timed in the codec's audio: ``delay_ms`` later after decoding."""

    timings: tuple[WordTiming, ...]
    delay_ms: float

    def heard(self) -> list[WordTiming]:
        """Return the words with their times in the decoded audio."""
        by_ms = self.delay_ms
        return [
            replace(word, start_ms=word.start_ms + by_ms, end_ms=word.end_ms + by_ms)
            for word in self.timings
        ]


class Audio(NamedTuple):
    """Packets, maybe none yet, of ``codec_samples`` of the codec, and the words that end in them.

    ``is_last``: the context's last audio, if known; ``late``: an underrun preceded it.
    """

    packets: tuple[Packet, ...]
    codec_samples: int
    words: Words
    is_last: bool = False
    late: bool = False

    @property
    def data(self) -> bytes:
        """The bytes of all packets."""
        return b"".join(packet.data for packet in self.packets)

    @property
    def samples(self) -> int:
        """Number of samples after decoding."""
        return sum(packet.samples for packet in self.packets)


#: Outputs of a context; nothing follows ``Cancelled`` or ``Done``.
Output = Started | Audio | Words | events.Flushed | events.Warned | events.Cancelled | events.Done


class OutputSink(Protocol):
    """Takes a context's outputs. Called on the event loop; must not block."""

    def put(self, output: Output, on_written: Callable[[], None] | None = None) -> None:
        """Take the next output. On a socket, ``on_written`` is called when it has been written.
        Raises RequestError or CapacityError for audio that is too long to be sent.
        """

    def revoke(self) -> int:
        """Drop all unwritten audio, and return the number of written samples, as sent."""

    async def room(self, given_samples: int) -> int | None:
        """Wait until more audio may be decoded than the ``given_samples`` of the codec so far; see
        ``service.contexts.driver.Room``.
        """


class SpeechContext:
    """Speaks text until the context ends. Its end releases ``lease``, and calls ``closed`` after
    the last output.
    """

    def __init__(
        self,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        plan: SpeechPlan,
        lease: Lease,
        sink: OutputSink,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._plan = plan
        #: Where outputs go.
        self._sink = sink
        #: Called after the last output.
        self._closed = closed
        encoder = plan.encoder
        #: Samples of the codec that are played per second.
        self._playback_rate = runtime.engines.codec.spec.sample_rate * lease.speed
        #: Converts between the codec's samples and samples as sent.
        self._timeline = Timeline(self._playback_rate, encoder.sample_rate, encoder.delay_samples)
        #: Playback of the sent audio, without the client's reports.
        self._clock = PlaybackClock(self._playback_rate)
        request_id = plan.request.request_id
        #: Encodes the audio.
        self._pump = EncoderPump(encoder, tasks, self.fail, request_id=request_id)
        #: The state of the session.
        self.driver = ContextDriver(runtime, plan, self.emit, tasks, self._room, lease.caller)
        self._use(lease)
        #: Total number of the codec's samples, including those in the encoder.
        self._given_samples = 0
        #: Delay of the last encoded samples' words.
        self._words_delay_ms = 0.0
        #: Whether the encoder may hold audio back.
        self._has_unflushed = False
        #: Whether the last output was put.
        self._is_over = False
        #: The session's end, while audio is still in the encoder.
        self._done: events.Done | None = None
        #: When the client requested a cancel.
        self._cancel_requested_at: float | None = None
        #: Whether a cancel is answered.
        self._answers_cancel = True
        #: Whether the client, or its dialect, has ended the text.
        self.has_ended = False
        #: Observes the seconds between chunks.
        self._gap = runtime.metrics.gap.labels(plan.protocol)
        #: Time of the last chunk; inf before the first.
        self._chunk_at = math.inf

    # -- requests of the client

    def append(self, text: str) -> None:
        """Append text; if empty, it only keeps the context alive. Raises RequestError,
        CapacityError.
        """
        if text and not self.driver.is_closed:
            self._require_slot()
        self.driver.post(events.TextAppended(text))

    def change_voice(self, voice: str | None) -> None:
        """Speak the text from here on in another voice, a name from ``voice_of``; None: in the
        context's own. Raises RequestError after the end.
        """
        self._keep_slot()
        self.driver.post(events.VoiceChanged(voice))

    def flush(self, flush_id: str) -> None:
        """Speak all text now. Raises RequestError after the end."""
        self._keep_slot()
        self.driver.post(events.FlushRequested(flush_id))

    def end(self) -> None:
        """End the text. Raises RequestError after the end."""
        self.has_ended = True
        self._keep_slot()
        self.driver.post(events.EndRequested())

    def _require_slot(self) -> None:
        """Take a slot again if the context's was taken back while resting. Raises CapacityError."""
        if not self._lease.is_held:
            past = self._lease
            self._use(self._runtime.admission.acquire(past.caller, past.speed))

    def _use(self, lease: Lease) -> None:
        self._lease = lease
        lease.user = self.driver
        if (frames := self._plan.own_chunk_frames) is not None:
            lease.weight = self._runtime.pace.weight(frames)

    def _keep_slot(self) -> None:
        """Take a slot again for waiting text; without a slot, the context fails."""
        if self.driver.has_pending_text:
            try:
                self._require_slot()
            except CapacityError as error:
                self.fail(error)

    def touch(self, now: float | None = None) -> None:
        """Keep the context alive: its idle time begins ``now``."""
        self.driver.touched_at = time.monotonic() if now is None else now

    def on_played(self, sent_samples: int) -> None:
        """Record how many of the sent samples have been played."""
        self.driver.post(events.PlaybackReported(self._timeline.to_codec(sent_samples)))

    def on_read(self, sent_samples: int) -> None:
        """Record how many of the sent samples the client has read. Called by the connection."""
        with serving(self._lease.caller):
            self.driver.post(events.AudioRead(self._timeline.to_codec(sent_samples)))

    def lift_lead(self) -> None:
        """Let audio run ahead of playback, since the socket is about to close."""
        self.driver.post(events.LeadLifted())

    def fail(self, error: TalkwireError) -> None:
        """End the context with ``error``."""
        self.driver.post(events.Failed(error))

    def cancel(self, played_ms: float | None = None) -> None:
        """Stop, and revoke unwritten audio. ``played_ms`` of the audio was played, if known."""
        if not self._is_over:
            self._cancel_requested_at = time.monotonic()
            self._stop(played_ms)

    def close(self, *, is_answered: bool = True) -> None:
        """Stop, since the connection ends. Without an answer (not ``is_answered``), since the
        server ends it, the client does not take its speech for one that it had cancelled.
        """
        if not self._is_over:
            self._answers_cancel = is_answered
            self._stop(None)

    def _stop(self, played_ms: float | None) -> None:
        self._pump.drop()
        written = self._timeline.to_codec(self._sink.revoke())  # in the codec's samples
        played: int | None = None
        if played_ms is not None:
            sent = played_ms * self._plan.encoder.sample_rate / 1000
            played = self._timeline.to_codec(int(min(sent, self._timeline.sent_samples)))
        request = events.CancelRequested(played, self._given_samples - written)
        if self._done is None:
            self.driver.post(request)
        else:  # all is spoken, but not all encoded
            cancelled = self.driver.cancelled(request, self._done)
            self._answer_cancel(cancelled)
            self._end(self._done.reason, self._done.report, cancelled)

    async def _room(self) -> int | None:
        """See ``service.contexts.driver.Room``."""
        if self._plan.options.buffered:  # no lead keeps the codec from filling the encoder's queue
            await self._pump.room()
        return await self._sink.room(self._given_samples)

    # -- state

    def is_settled(self, now: float) -> bool:
        """Whether a drain need not wait for this context."""
        is_quiet = self._done is None and not self._pump.is_busy
        return self._is_over or (is_quiet and self.driver.is_settled(now))

    @property
    def audio_s(self) -> float:
        """Seconds of audio so far, at the speed of playback."""
        return self._clock.sent_samples / self._playback_rate

    def silent_s(self, now: float) -> float:
        """Return the seconds since all audio was played; 0 with pending work or without audio."""
        if not self._clock.sent_samples or not self.driver.is_idle:
            return 0.0
        return max(0.0, now - max(self._clock.dry_at, self.driver.touched_at))

    def unplayed_s(self, now: float) -> float:
        """Return the seconds of audio that the client has left, if it plays without a pause."""
        return max(0.0, self._clock.dry_at - now)

    # -- outputs of the session

    def emit(self, command: events.OutputCommand) -> None:
        """Encode and send an output of the session."""
        match command:
            case events.SendAudio():
                self._send(command)
            case events.WordsSent(timings):
                self._after_audio(lambda: Words(timings, self._words_delay_ms))
            case events.UtteranceEnded():
                self._flush_encoder(FlushEncoder.EACH_UTTERANCE)
            case events.Flushed():
                self._flush_encoder(FlushEncoder.EACH_FLUSH, FlushEncoder.EACH_UTTERANCE)
                self._after_audio(lambda: command)
            case events.Warned(kind):
                # The message has words of the text, so it is not logged.
                request_id = self._plan.request.request_id
                log.info("markup without effect: %s", kind, extra={"request_id": request_id})
                self._sink.put(command)
            case events.Cancelled():
                self._pump.drop()
                self._answer_cancel(command)
                self._end("cancelled", command.report, command)
            case events.Done():
                if self._has_unflushed and command.error is None:
                    self._encode(_NOTHING, flush=True)
                self._done = command
                self._pump.after(lambda: self._finish(command))

    def _send(self, audio: events.SendAudio) -> None:
        now = time.monotonic()
        if self._chunk_at < math.inf:
            self._gap.observe(now - self._chunk_at)
        self._chunk_at = now
        # the client's playback reports are not trusted here, since they would affect other clients
        gap_s = min(audio.gap_s, now - self._clock.dry_at) if self._clock.sent_samples else 0.0
        audio_s = len(audio.samples) / self._playback_rate
        pace = self._runtime.pace
        if self._plan.own_chunk_frames is None:
            pace.on_sent(id(self), audio_s, gap_s, self._runtime.admission.active)
        self._clock.on_sent(len(audio.samples), now)
        self._given_samples += len(audio.samples)
        if audio.is_first:
            encoder = self._plan.encoder
            self._sink.put(Started(encoder.sample_rate, encoder.delay_samples))
            pace.on_trimmed(audio.trimmed / self._runtime.engines.codec.spec.sample_rate)
        flush = audio.ends_utterance and self._flushes_at(FlushEncoder.EACH_UTTERANCE)
        self._encode(
            audio.samples,
            audio.words,
            ends_utterance=audio.ends_utterance,
            flush=flush,
            is_last=audio.is_last,
            late=audio.late,
        )

    def _flushes_at(self, *moments: FlushEncoder) -> bool:
        """Whether the encoder is to be flushed at one of these moments, or in this pause."""
        when = self._plan.options.flush_encoder
        return when in moments or (when is FlushEncoder.EACH_PAUSE and self.driver.is_idle)

    def _encode(
        self,
        samples: Samples,
        timings: tuple[WordTiming, ...] = (),
        *,
        ends_utterance: bool = False,
        flush: bool,
        is_last: bool = False,
        late: bool = False,
    ) -> None:
        self._has_unflushed = not flush

        def encoded(packets: list[Packet]) -> None:
            self._words_delay_ms = 1000 * self._timeline.late_s  # of these samples' words
            words = Words(timings, self._words_delay_ms)
            audio = Audio(tuple(packets), len(samples), words, is_last, late)
            self._sink.put(audio)
            self._timeline.add(len(samples), audio.samples, ends_utterance=flush)

        self._pump.encode(samples, encoded, ends_utterance=ends_utterance, flush=flush)

    def _flush_encoder(self, *moments: FlushEncoder) -> None:
        """Send what the encoder still holds, if it is to be flushed at one of these moments."""
        if self._has_unflushed and self._flushes_at(*moments):
            self._encode(_NOTHING, flush=True)

    def _after_audio(self, make: Callable[[], Output]) -> None:
        """Put an output that says that all earlier audio was sent, unless some was dropped."""

        def put() -> None:
            if self._pump.failure is None:
                self._sink.put(make())

        self._pump.after(put)

    def _answer_cancel(self, cancelled: events.Cancelled) -> None:
        if not self._answers_cancel:
            return
        requested_at = self._cancel_requested_at
        metric = self._runtime.metrics.cancel

        def observe() -> None:
            if requested_at is not None:  # not for a client that has left
                metric.labels(self._plan.protocol).observe(time.monotonic() - requested_at)

        self._sink.put(cancelled, observe)

    def _finish(self, done: events.Done) -> None:
        error, reason = done.error, done.reason
        if error is None and self._pump.failure is not None:  # failed after the session's end
            error, reason = self._pump.failure, "error"
        if self._plan.options.is_lenient and error is not None:
            if error.code is ErrorCode.INVALID_TEXT:
                error, reason = None, "complete"
            else:
                request_id = self._plan.request.request_id
                self._runtime.errors.count(error, request_id, self._plan.protocol)
        self._sink.put(events.Done(reason, done.report, error))
        self._end(reason, done.report)

    def _end(
        self, outcome: str, report: ContextReport, cancelled: events.Cancelled | None = None
    ) -> None:
        self._is_over = True
        metrics = self._runtime.metrics
        metrics.on_context_closed(self._plan.protocol, outcome, report, cancelled)
        self._lease.release()
        self._closed()
