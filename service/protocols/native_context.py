"""One context in the native protocol's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from service.audio.factory import make_stream_encoder
from service.audio.packet import AudioEncoder, Packet
from service.audio.pump import EncoderPump
from service.audio.timeline import Timeline
from service.metrics import Metrics
from service.outbox import Item, Outbox
from streaming import wire
from streaming.errors import RequestError, TalkwireError
from streaming.events import Cancelled, Done, Flushed, SendAudio
from streaming.report import ContextReport
from streaming.wire_format import AudioFlags, AudioHeader, encode_message
from streaming.words import WordTiming

NAME = "native"
#: How audio travels; see wire.SessionConfigure.
Framing = Literal["header", "raw", "json"]


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds with one decimal."""
    return None if seconds is None else round(1000 * seconds, 1)


def make_context_encoder(audio: wire.AudioOptions, codec_rate: int) -> AudioEncoder:
    """The encoder for ``audio``. Raises RequestError (``unsupported``)."""
    try:
        return make_stream_encoder(
            audio.encoding,
            codec_rate,
            audio.sample_rate,
            audio.frame_ms,
            bit_rate=audio.bitrate,
            speed=audio.speed,
        )
    except RequestError as error:
        raise RequestError(error.code, error.message, param=f"audio.{error.param}") from error


class NativeContext:
    """A ContextSink that writes native messages and audio frames to the outbox.

    ``tell`` words an error for this context; ``closed`` is called once, at the end. What
    follows audio goes through ``pump``, behind it.
    """

    def __init__(
        self,
        create: wire.ContextCreate,
        handle: int,
        encoder: AudioEncoder,
        pump: EncoderPump,
        timeline: Timeline,
        outbox: Outbox,
        metrics: Metrics,
        *,
        framing: Framing,
        tell: Callable[[TalkwireError, str], None],
        closed: Callable[[str], None],
    ) -> None:
        self.context_id, self.handle = create.context_id, handle
        self._started = wire.AudioStarted(
            create.context_id, create.audio.encoding, encoder.sample_rate, encoder.delay_samples
        )
        self._pump, self._timeline = pump, timeline
        self._outbox, self._metrics = outbox, metrics
        self._framing, self._tell, self._closed = framing, tell, closed
        self._sequence = self._offset = self._given_samples = 0
        self._done: Done | None = None
        self._is_over = False
        self._gaps = metrics.gaps(NAME)
        self.opened_at, self.speed = time.monotonic(), create.audio.speed
        #: None: nobody asked; the client has left.
        self.cancel_asked_at: float | None = None

    @property
    def is_settled(self) -> bool:
        """Whether all audio that it has been given has been handed on."""
        return self._is_over or (self._done is None and not self._pump.is_busy)

    def say(self, message: wire.ServerMessage) -> None:
        """Queue a message."""
        self._outbox.put(Item(encode_message(message)))

    def on_audio(self, audio: SendAudio) -> None:
        """See ContextSink."""
        self._gaps.note(time.monotonic())
        if audio.is_first:
            self.say(self._started)
        self._given_samples += len(audio.samples)
        self._pump.encode(
            audio.samples, lambda packets: self._send(audio, packets), flush=audio.ends_utterance
        )

    def _send(self, audio: SendAudio, packets: list[Packet]) -> None:
        """What the encoder made of ``audio``, which may be nothing yet."""
        flags = AudioFlags.DISCONTINUITY if audio.late else AudioFlags.NONE
        for number, packet in enumerate(packets):
            last = audio.is_last and number == len(packets) - 1
            self._put(packet, flags | (AudioFlags.LAST if last else AudioFlags.NONE))
            flags = AudioFlags.NONE
        sent = sum(packet.samples for packet in packets)
        self._timeline.add(len(audio.samples), sent, ends_utterance=audio.ends_utterance)

    def _put(self, packet: Packet, flags: AudioFlags) -> None:
        if not self._sequence:
            flags |= AudioFlags.FIRST
        header = AudioHeader(self.handle, self._sequence, self._offset, flags)
        self._outbox.put(Item(self._framed(header, packet.data), self.handle, packet.samples))
        self._sequence += 1
        self._offset += packet.samples

    def _framed(self, header: AudioHeader, data: bytes) -> str | bytes:
        match self._framing:
            case "header":
                return header.pack() + data
            case "raw":
                return data
            case "json":
                wrapped = AudioHeader.unpack(header.pack())  # counts wrap as in the header
                return encode_message(wire.Audio(self.context_id, *wrapped, audio=data))

    def words(self, timings: Sequence[WordTiming]) -> None:
        """See ContextSink."""
        words = [wire.Word(w.text, w.start, w.end, w.start_ms, w.end_ms) for w in timings]
        item = Item(encode_message(wire.Timestamps(self.context_id, words)), self.handle)
        # a cancel that takes back the audio takes back its words
        self._pump.after(lambda: self._outbox.put(item))

    def on_flushed(self, flushed: Flushed) -> None:
        """See ContextSink."""
        done = wire.FlushDone(self.context_id, flushed.flush_id)
        self._pump.after(lambda: self.say(done))

    def revoke(self) -> int:
        """Take back all audio that has not been written; return how much that is, in the
        codec's samples. Nothing is sent any more but the answer to a cancel.
        """
        self._pump.drop()
        unsent = self._outbox.drop_audio(self.handle)
        return self._given_samples - self._timeline.to_codec(self._offset - unsent)

    def codec_samples(self, sent_samples: int) -> int:
        """A count of this context's audio as the client has it, in the codec's samples."""
        return self._timeline.to_codec(sent_samples)

    def codec_samples_of_ms(self, sent_ms: float) -> int:
        """The same for milliseconds; more than there is counts as all."""
        sent = min(sent_ms * self._started.sample_rate / 1000, self._offset)
        return self._timeline.to_codec(int(sent))

    def on_cancelled(self, cancelled: Cancelled) -> None:
        """See ContextSink."""
        self._pump.drop()
        if self.cancel_asked_at is not None:
            self._metrics.cancel.labels(NAME).observe(time.monotonic() - self.cancel_asked_at)
        self.say(
            wire.ContextCancelled(
                self.context_id,
                generated_ms=round(1000 * cancelled.generated_s, 1),
                sent_ms=round(1000 * cancelled.sent_s, 1),
                played_ms=round(1000 * cancelled.played_s, 1),
                text_spoken=cancelled.text_spoken,
                text_remaining=cancelled.text_remaining,
            )
        )
        self._end("cancelled", cancelled.report, cancelled)

    def on_done(self, done: Done) -> None:
        """See ContextSink."""
        self._done = done
        self._pump.after(self._finish)

    def abandon(self) -> None:
        """Nobody listens any more: end now, whatever is still being encoded."""
        self._pump.drop()
        if self._done is not None and not self._is_over:
            self._finish()

    def _finish(self) -> None:
        done = self._done
        assert done is not None
        error, reason = done.error, done.reason
        if error is None and self._pump.failure is not None:  # it came after the session's end
            error, reason = self._pump.failure, "error"
        if error is not None:
            self._tell(error, self.context_id)
        self._end(reason, done.report)
        self.say(wire.ContextDone(self.context_id, reason))

    def _end(self, outcome: str, report: ContextReport, cancelled: Cancelled | None = None) -> None:
        self._is_over = True
        self.say(
            wire.Metrics(
                self.context_id,
                queue_ms=milliseconds(report.queue_s),
                ttfa_ms=milliseconds(report.ttfa_s),
                leading_silence_ms=milliseconds(report.leading_silence_s),
                audio_ms=round(1000 * report.audio_s, 1),
                rtf=None if report.rtf is None else round(report.rtf, 4),
                underrun_ms=round(1000 * report.underrun_s, 1),
            )
        )
        self._metrics.on_context_closed(NAME, outcome, report, cancelled)
        self._closed(self.context_id)
