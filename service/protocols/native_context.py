"""One context in the native protocol's words."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.audio.packet import AudioEncoder, Packet
from service.metrics import Metrics
from service.outbox import Item, Outbox
from streaming import wire
from streaming.errors import TalkwireError
from streaming.events import Cancelled, Done, Flushed, SendAudio
from streaming.report import ContextReport
from streaming.spec import AudioFormat
from streaming.wire_format import AudioFlags, AudioHeader, encode_message

NAME = "native"


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds with one decimal."""
    return None if seconds is None else round(1000 * seconds, 1)


class NativeContext:
    """A ContextSink that writes native messages and audio frames to the outbox.

    ``tell`` words an error for this context; ``closed`` is called once, at the end.
    """

    def __init__(
        self,
        create: wire.ContextCreate,
        handle: int,
        encoder: AudioEncoder,
        outbox: Outbox,
        metrics: Metrics,
        *,
        raw: bool,
        tell: Callable[[TalkwireError, str], None],
        closed: Callable[[str], None],
    ) -> None:
        self.context_id, self.handle = create.context_id, handle
        self._format = AudioFormat(create.audio.encoding, create.audio.sample_rate)
        self._encoder, self._outbox, self._metrics = encoder, outbox, metrics
        self._raw, self._tell, self._closed = raw, tell, closed
        self._sequence = self._offset = 0
        self._last_audio: float | None = None
        self.opened_at = time.monotonic()
        self.cancel_asked_at = 0.0

    def say(self, message: wire.ServerMessage) -> None:
        """Queue a message."""
        self._outbox.put(Item(encode_message(message)))

    def on_audio(self, audio: SendAudio) -> None:
        """See ContextSink."""
        now = time.monotonic()
        if self._last_audio is not None:
            self._metrics.gap.labels(NAME).observe(now - self._last_audio)
        self._last_audio = now
        if audio.is_first:
            self.say(
                wire.AudioStarted(self.context_id, self._format.encoding, self._format.sample_rate)
            )
        packets = self._encoder.encode(audio.samples)
        if audio.ends_utterance:
            packets += self._encoder.flush()
        flags = AudioFlags.DISCONTINUITY if audio.late else AudioFlags.NONE
        for number, packet in enumerate(packets):
            last = audio.is_last and number == len(packets) - 1
            self._put(packet, flags | (AudioFlags.LAST if last else AudioFlags.NONE))
            flags = AudioFlags.NONE

    def _put(self, packet: Packet, flags: AudioFlags) -> None:
        if not self._sequence:
            flags |= AudioFlags.FIRST
        header = AudioHeader(self.handle, self._sequence, self._offset, flags)
        data = packet.data if self._raw else header.pack() + packet.data
        self._outbox.put(Item(data, self.handle, packet.samples))
        self._sequence += 1
        self._offset += packet.samples

    def on_flushed(self, flushed: Flushed) -> None:
        """See ContextSink."""
        self.say(wire.FlushDone(self.context_id, flushed.flush_id))

    def on_cancelled(self, cancelled: Cancelled) -> None:
        """See ContextSink."""
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
        self._end("cancelled", cancelled.report)

    def on_done(self, done: Done) -> None:
        """See ContextSink."""
        if done.error is not None:
            self._tell(done.error, self.context_id)
        self._end(done.reason, done.report)
        self.say(wire.ContextDone(self.context_id, done.reason))

    def _end(self, outcome: str, report: ContextReport) -> None:
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
        self._metrics.on_context_closed(NAME, outcome, report)
        self._closed(self.context_id)
