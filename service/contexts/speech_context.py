"""One stream of speech, from text to encoded audio, for every dialect.

A SpeechContext owns a context's session, driver, admission lease, encoder and metrics. Its outputs
go to a socket (SocketOutput, through the dialect's Renderer) or to an HTTP response
(service.transport.http_response). A dialect only parses requests and renders the outputs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from service.admission import Lease
from service.audio.encoder import Packet
from service.audio.pump import EncoderPump
from service.audio.timeline import Timeline
from service.auth.caller import serving
from service.contexts.driver import ContextDriver, ContextSink, Room
from service.contexts.options import FlushEncoder, SpeechPlan
from service.contexts.outbox import Item, Outbox
from service.dialects.errors import count_error
from service.runtime import Runtime
from streaming import events
from streaming.errors import CapacityError, ErrorCode, TalkwireError
from streaming.playback import PlaybackClock
from streaming.report import ContextReport
from streaming.spec import Samples
from streaming.word_timing import WordTiming

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
Output = Started | Audio | Words | events.Flushed | events.Cancelled | events.Done


class OutputSink(Protocol):
    """Takes a context's outputs. Called on the event loop; must not block."""

    def put(self, output: Output, on_written: Callable[[], None] | None = None) -> None:
        """Take the next output. On a socket, ``on_written`` is called when it has been written.
        Raises RequestError or CapacityError for audio that is too long to be sent.
        """

    def revoke(self) -> int:
        """Drop all unwritten audio, and return the number of written samples, as sent."""


class SpeechContext(ContextSink):
    """Speaks text until the context ends. Its end releases ``lease``, and calls ``closed`` after
    the last output. ``room`` is awaited before each window is decoded.
    """

    def __init__(
        self,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        plan: SpeechPlan,
        lease: Lease,
        sink: OutputSink,
        closed: Callable[[], None] = lambda: None,
        room: Room | None = None,
    ) -> None:
        self._runtime, self._plan, self._lease = runtime, plan, lease
        lease.user = self
        self._sink, self._closed = sink, closed
        encoder = plan.encoder
        self._heard_rate = runtime.codec.spec.sample_rate * lease.speed
        self._timeline = Timeline(self._heard_rate, encoder.sample_rate, encoder.delay_samples)
        self._clock = PlaybackClock(self._heard_rate)
        request_id = plan.request.request_id
        self._pump = EncoderPump(encoder, tasks, self.fail, request_id=request_id)
        self._driver = ContextDriver(runtime, plan, self, tasks, room, lease.caller)
        #: Total number of the codec's samples, including those in the encoder.
        self.given_samples = 0
        self._words_delay_ms = 0.0
        self._has_unflushed = self._is_over = False
        self._done: events.Done | None = None
        self._cancel_asked_at: float | None = None
        self._is_told = True
        self._gap, self._chunk_at = runtime.metrics.gap.labels(plan.protocol), math.inf

    # -- requests of the client

    def append(self, text: str) -> None:
        """Append text; if empty, it only keeps the context alive. Raises RequestError,
        CapacityError.
        """
        if text and not self.is_closed:
            self._require_slot()
        self._driver.post(events.TextAppended(text))

    def flush(self, flush_id: str) -> None:
        """Speak all text now. Raises RequestError after the end."""
        self._keep_slot()
        self._driver.post(events.FlushAsked(flush_id))

    def end(self) -> None:
        """End the text. Raises RequestError after the end."""
        self._keep_slot()
        self._driver.post(events.EndAsked())

    def _require_slot(self) -> None:
        """Take a slot again if the context's was taken back while resting. Raises CapacityError."""
        if not self._lease.is_held:
            self._lease = self._runtime.admission.acquire(self._lease.caller, self._lease.speed)
            self._lease.user = self

    def _keep_slot(self) -> None:
        """Take a slot again for waiting text; without a slot, the context fails."""
        if self._driver.has_pending_text:
            try:
                self._require_slot()
            except CapacityError as error:
                self.fail(error)

    def touch(self, now: float | None = None) -> None:
        """Keep the context alive: its idle time begins ``now``."""
        self._driver.touched_at = time.monotonic() if now is None else now

    def on_played(self, sent_samples: int) -> None:
        """Record how many of the sent samples have been played."""
        self._driver.post(events.PlaybackReported(self._timeline.to_codec(sent_samples)))

    def on_read(self, sent_samples: int) -> None:
        """Record how many of the sent samples the client has read. Called by the connection."""
        with serving(self._lease.caller):
            self._driver.post(events.AudioRead(self._timeline.to_codec(sent_samples)))

    def lift_lead(self) -> None:
        """Let audio run ahead of playback, since the socket is about to close."""
        self._driver.post(events.LeadLifted())

    def fail(self, error: TalkwireError) -> None:
        """End the context with ``error``."""
        self._driver.post(events.Failed(error))

    def cancel(self, played_ms: float | None = None) -> None:
        """Stop, and revoke unwritten audio. ``played_ms`` of the audio was played, if known."""
        if not self._is_over:
            self._cancel_asked_at = time.monotonic()
            self._stop(played_ms)

    def close(self, *, is_told: bool = True) -> None:
        """Stop, since the connection ends. If the server ends it (not ``is_told``), the client gets
        no answer, since it would take its speech for one that it had cancelled.
        """
        if not self._is_over:
            self._is_told = is_told
            self._stop(None)

    def _stop(self, played_ms: float | None) -> None:
        self._pump.drop()
        written = self._timeline.to_codec(self._sink.revoke())  # in the codec's samples
        played: int | None = None
        if played_ms is not None:
            sent = played_ms * self._plan.encoder.sample_rate / 1000
            played = self._timeline.to_codec(int(min(sent, self._timeline.sent_samples)))
        asked = events.CancelAsked(played, self.given_samples - written)
        if self._done is None:
            self._driver.post(asked)
        else:  # all is spoken, but not all encoded
            cancelled = self._driver.cancelled(asked, self._done)
            self._answer_cancel(cancelled)
            self._end(self._done.reason, self._done.report, cancelled)

    async def encoder_room(self) -> None:
        """Wait for room in the encoder's queue."""
        await self._pump.room()

    # -- state

    @property
    def is_closed(self) -> bool:
        """Whether no more text is accepted. Audio may still be in the encoder."""
        return self._driver.is_closed

    @property
    def has_pending_text(self) -> bool:
        """Whether only text without the end of its sentence is waiting."""
        return self._driver.has_pending_text

    def is_settled(self, now: float) -> bool:
        """Whether a drain need not wait for this context."""
        is_quiet = self._done is None and not self._pump.is_busy
        return self._is_over or (is_quiet and self._driver.is_settled(now))

    def resting_s(self, now: float) -> float:
        """See service.admission.SlotUser."""
        return self._driver.resting_s(now)

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last event; 0 while there is work to do."""
        return self._driver.idle_s(now)

    @property
    def audio_s(self) -> float:
        """Seconds of audio so far, at the speed of playback."""
        return self._clock.sent_samples / self._heard_rate

    def silent_s(self, now: float) -> float:
        """Return the seconds since all audio was played; 0 with pending work or without audio."""
        if not self._clock.sent_samples or not self._driver.is_idle:
            return 0.0
        return max(0.0, now - max(self._clock.dry_at, self._driver.touched_at))

    def unplayed_s(self, now: float) -> float:
        """Return the seconds of audio that the client has left, if it plays without a pause."""
        return max(0.0, self._clock.dry_at - now)

    # -- outputs of the session

    def on_audio(self, audio: events.SendAudio, words: Sequence[WordTiming]) -> None:
        """See ContextSink."""
        now = time.monotonic()
        if self._chunk_at < math.inf:
            self._gap.observe(now - self._chunk_at)
        self._chunk_at = now
        # the client's playback reports are not trusted here, since they would affect other clients
        gap_s = min(audio.gap_s, now - self._clock.dry_at) if self._clock.sent_samples else 0.0
        audio_s = len(audio.samples) / self._heard_rate
        pace = self._runtime.engine_pace
        pace.on_sent(id(self), audio_s, gap_s, self._runtime.admission.active)
        self._clock.on_sent(len(audio.samples), now)
        self.given_samples += len(audio.samples)
        if audio.is_first:
            encoder = self._plan.encoder
            self._sink.put(Started(encoder.sample_rate, encoder.delay_samples))
            pace.on_trimmed(audio.trimmed / self._runtime.codec.spec.sample_rate)
        flush = audio.ends_utterance and self._flushes_at(FlushEncoder.EACH_UTTERANCE)
        self._encode(audio.samples, words, flush=flush, is_last=audio.is_last, late=audio.late)

    def _flushes_at(self, *moments: FlushEncoder) -> bool:
        """Whether the encoder is to be flushed at one of these moments, or in this pause."""
        when = self._plan.flush_encoder
        return when in moments or (when is FlushEncoder.EACH_PAUSE and self._driver.is_idle)

    def _encode(
        self,
        samples: Samples,
        timings: Sequence[WordTiming] = (),
        *,
        flush: bool,
        is_last: bool = False,
        late: bool = False,
    ) -> None:
        self._has_unflushed = not flush

        def encoded(packets: list[Packet]) -> None:
            self._words_delay_ms = 1000 * self._timeline.late_s  # of these samples' words
            words = Words(tuple(timings), self._words_delay_ms)
            audio = Audio(tuple(packets), len(samples), words, is_last, late)
            self._sink.put(audio)
            self._timeline.add(len(samples), audio.samples, ends_utterance=flush)

        self._pump.encode(samples, encoded, flush=flush)

    def on_word_timings(self, timings: Sequence[WordTiming]) -> None:
        """See ContextSink."""
        self._after_audio(lambda: Words(tuple(timings), self._words_delay_ms))

    def on_utterance_ended(self) -> None:
        """See ContextSink."""
        self._flush_encoder(FlushEncoder.EACH_UTTERANCE)

    def _flush_encoder(self, *moments: FlushEncoder) -> None:
        """Send what the encoder still holds, if it is to be flushed at one of these moments."""
        if self._has_unflushed and self._flushes_at(*moments):
            self._encode(_NOTHING, flush=True)

    def on_flushed(self, flushed: events.Flushed) -> None:
        """See ContextSink."""
        self._flush_encoder(FlushEncoder.EACH_FLUSH, FlushEncoder.EACH_UTTERANCE)
        self._after_audio(lambda: flushed)

    def _after_audio(self, make: Callable[[], Output]) -> None:
        """Put an output that says that all earlier audio was sent, unless some was dropped."""

        def put() -> None:
            if self._pump.failure is None:
                self._sink.put(make())

        self._pump.after(put)

    def on_cancelled(self, cancelled: events.Cancelled) -> None:
        """See ContextSink."""
        self._pump.drop()
        self._answer_cancel(cancelled)
        self._end("cancelled", cancelled.report, cancelled)

    def _answer_cancel(self, cancelled: events.Cancelled) -> None:
        if not self._is_told:
            return
        asked_at, taken = self._cancel_asked_at, self._runtime.metrics.cancel

        def observe() -> None:
            if asked_at is not None:  # not for a client that has left
                taken.labels(self._plan.protocol).observe(time.monotonic() - asked_at)

        self._sink.put(cancelled, observe)

    def on_done(self, done: events.Done) -> None:
        """See ContextSink."""
        if self._has_unflushed and done.error is None:
            self._encode(_NOTHING, flush=True)
        self._done = done
        self._pump.after(lambda: self._finish(done))

    def _finish(self, done: events.Done) -> None:
        error, reason = done.error, done.reason
        if error is None and self._pump.failure is not None:  # failed after the session's end
            error, reason = self._pump.failure, "error"
        if self._plan.is_lenient and error is not None:
            if error.code is ErrorCode.INVALID_TEXT:
                error, reason = None, "complete"
            else:
                request_id = self._plan.request.request_id
                count_error(self._runtime, error, request_id, self._plan.protocol)
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


# -- on a socket


class Revocable(NamedTuple):
    """A message that a cancel revokes: ``samples`` samples of audio, or information about it."""

    data: str | bytes
    samples: int = 0


Message = str | bytes | Revocable


def _data(message: Message) -> str | bytes:
    return message.data if isinstance(message, Revocable) else message


class Renderer(Protocol):
    """Renders the outputs of one context as messages of a dialect."""

    def render(self, output: Output) -> Sequence[Message]:
        """Return the messages for an output, in order."""


class SocketOutput:
    """Puts a context's outputs, rendered by its dialect, into the outbox of its socket. Audio is
    sent at ``sample_rate``. With ``is_whole``, that of an utterance may be too long to be put.
    """

    def __init__(
        self,
        outbox: Outbox,
        handle: int,
        renderer: Renderer,
        sample_rate: int,
        *,
        is_whole: bool = False,
        context_id: str | None = None,
    ) -> None:
        self._outbox, self._handle, self._renderer = outbox, handle, renderer
        self._sample_rate, self._context_id = sample_rate, context_id
        self._is_whole = is_whole
        self._put_samples = 0

    def put(self, output: Output, on_written: Callable[[], None] | None = None) -> None:
        """See OutputSink."""
        messages = self._renderer.render(output)
        if self._is_whole and isinstance(output, Audio):
            self._outbox.require_fit(sum(len(_data(message)) for message in messages))
        for number, message in enumerate(messages, 1):
            if isinstance(message, Revocable):
                data, samples = message
                audio_s, name = samples / self._sample_rate, self._context_id
                item = Item(data, self._handle, samples, audio_s=audio_s, context_id=name)
                self._outbox.put(item)
                self._put_samples += samples
            else:
                told = on_written if number == len(messages) else None
                self._outbox.put(Item(message, on_written=told))

    def revoke(self) -> int:
        """See OutputSink."""
        return self._put_samples - self._outbox.drop_audio(self._handle)


#: Maximum audio in one text message; a multiple of every sample size.
_PIECE_BYTES = 48 * 1024


class TextRenderer:
    """A base class of Renderers whose messages are all text, such as JSON. Those of ``speech`` are
    revocable.
    """

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """Return messages for audio and the words that end in it; either may be empty."""
        raise NotImplementedError

    def flushed(self, flush_id: str) -> Sequence[Message]:
        """Return messages for a flush of which all audio was sent; by default none."""
        return []

    def done(self, error: TalkwireError | None) -> Sequence[Message]:
        """Return messages for the end: all audio was sent, or ``error`` has the reason."""
        raise NotImplementedError

    def cancelled(self) -> list[str]:
        """Return messages for a cancel by the client; by default none."""
        return []

    def render(self, output: Output) -> Sequence[Message]:
        """See Renderer."""
        match output:
            case Audio():
                return list(self._pieces(output))
            case Words():
                return [Revocable(message) for message in self.speech(b"", output.heard())]
            case events.Flushed(flush_id):
                return self.flushed(flush_id)
            case events.Cancelled():
                return self.cancelled()
            case events.Done(error=error):
                return self.done(error)
            case Started():
                return []

    def _pieces(self, audio: Audio) -> Iterator[Revocable]:
        """Yield messages of bounded size; words go with the first, samples with a part's last."""
        data, samples, words = audio.data, audio.samples, audio.words.heard()
        if not (data or words):
            return
        left = samples
        for at in range(0, max(1, len(data)), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            mine = left if at + _PIECE_BYTES >= len(data) else samples * len(piece) // len(data)
            left -= mine
            messages = self.speech(piece, words)
            yield from map(Revocable, messages[:-1])
            yield from (Revocable(last, mine) for last in messages[-1:])
            words = []
