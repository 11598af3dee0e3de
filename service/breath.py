"""Audio and the words that it speaks, kept until both are there, so that they travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from service.audio.packet import Packet
from service.outbox import Item, Outbox
from streaming.errors import TalkwireError
from streaming.words import WordTiming

#: Audio in one message, in whole samples of any size.
_PIECE_BYTES = 48 * 1024


class SpokenWording(Protocol):
    """How a dialect words what happens to one context: messages, in order."""

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """Audio, and the words whose speech ends in it; either may be missing."""

    def flushed(self, flush_id: str) -> list[str]:
        """Everything before that flush was sent."""

    def done(self, error: TalkwireError | None) -> list[str]:
        """Everything was sent, or ``error`` says why not. Text without anything that can be
        spoken is no error here.
        """

    def cancelled(self) -> list[str]:
        """The client has had it stopped."""


class Breath:
    """What a context says in one turn of the event loop: its words come after their audio, but
    before the loop does anything else. ``handle`` is the context's in the outbox.
    """

    def __init__(self, wording: SpokenWording, outbox: Outbox, handle: int) -> None:
        self._wording, self._outbox, self._handle = wording, outbox, handle
        self._audio, self._samples = b"", 0
        self._words: list[WordTiming] = []
        self._is_releasing = False
        self._sent_samples = 0

    def add_audio(self, packets: Sequence[Packet]) -> int:
        """What the encoder made; returns how many samples it is for a decoder."""
        samples = sum(packet.samples for packet in packets)
        self._audio += b"".join(packet.data for packet in packets)
        self._samples += samples
        self._release_soon()
        return samples

    def add_words(self, timings: Sequence[WordTiming]) -> None:
        """Words of the audio that was added last."""
        self._words += timings
        self._release_soon()

    def _release_soon(self) -> None:
        if not self._is_releasing:
            self._is_releasing = True
            asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        """Send what is held."""
        self._is_releasing = False
        audio, samples, words = self._audio, self._samples, tuple(self._words)
        self._forget()
        if not (audio or words):
            return
        self._sent_samples += samples
        left = samples
        for at in range(0, max(1, len(audio)), _PIECE_BYTES):
            piece = audio[at : at + _PIECE_BYTES]
            mine = left if at + _PIECE_BYTES >= len(audio) else samples * len(piece) // len(audio)
            left -= mine
            messages = self._wording.speech(piece, words)
            for message in messages[:-1]:
                self._outbox.put(Item(message, self._handle))
            for message in messages[-1:]:  # once that is written, all of it is
                self._outbox.put(Item(message, self._handle, mine))
            words = ()

    def take_back(self) -> int:
        """Drop what was not written; return how many samples were."""
        self._forget()
        return self._sent_samples - self._outbox.drop_audio(self._handle)

    def _forget(self) -> None:
        self._audio, self._samples, self._words = b"", 0, []
