"""One context on a socket that sends audio as binary messages, with words of the dialect's own
between them (``BinaryWording``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from service.audio.packet import Packet
from service.outbox import Item, Outbox
from service.runtime import Runtime
from service.spoken_context import ContextPlan, SpokenContext
from streaming.errors import TalkwireError
from streaming.events import Flushed, SendAudio
from streaming.words import WordTiming

_NOTHING = np.empty(0, np.float32)


class BinaryWording(Protocol):
    """What a dialect sends. Binary messages are audio, which a cancel takes back."""

    def audio(self, data: bytes, samples: int) -> list[str | bytes]:
        """For encoded audio, as it comes; a decoder makes ``samples`` of it."""

    def flushed(self, flush_id: str) -> list[str | bytes]:
        """Everything before that flush has been given to ``audio``."""

    def done(self, error: TalkwireError | None) -> list[str | bytes]:
        """The context is over, without a cancel."""


@dataclass(frozen=True, slots=True)
class BinaryPlan(ContextPlan):
    """The encoder is flushed at the end of each utterance, or (``flush_units``) of each flush."""

    flush_units: bool = False


class BinaryContext(SpokenContext):
    """A ContextSink with its driver: see SpokenContext."""

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        plan: BinaryPlan,
        wording: BinaryWording,
        closed: Callable[[], None],
    ) -> None:
        super().__init__(runtime, outbox, tasks, plan, closed)
        self._wording, self._flush_units = wording, plan.flush_units
        self._put_samples = 0

    def on_audio(self, audio: SendAudio) -> None:
        """Samples to send."""
        self._note_audio(audio)
        flush = audio.ends_utterance and not self._flush_units
        self._pump.encode(
            audio.samples,
            lambda packets: self._send(packets, len(audio.samples), ends=flush),
            flush=flush,
        )

    def _send(self, packets: list[Packet], codec_samples: int, *, ends: bool) -> None:
        for packet in packets:
            self._say(self._wording.audio(packet.data, packet.samples), packet.samples)
        sent = sum(packet.samples for packet in packets)
        self._timeline.add(codec_samples, sent, ends_utterance=ends)

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Nobody asks for words here."""

    def on_flushed(self, flushed: Flushed) -> None:
        """A flush is done."""
        if self._flush_units:
            self._pump.encode(
                _NOTHING, lambda packets: self._send(packets, 0, ends=True), flush=True
            )
        self._pump.after(lambda: self._say(self._wording.flushed(flushed.flush_id)))

    def _take_back(self) -> int:
        return self._put_samples - self._outbox.drop_audio(self._handle)

    def _say_done(self, error: TalkwireError | None) -> None:
        self._say(self._wording.done(error))

    def _say(self, messages: list[str | bytes], samples: int = 0) -> None:
        """Queue messages; ``samples`` is what the binary ones hold in all."""
        for message in messages:
            if isinstance(message, bytes):
                self._outbox.put(Item(message, self._handle, samples))
                self._put_samples += samples
                samples = 0
            else:
                self._outbox.put(Item(message))
