"""ElevenLabs' HTTP answers that hold the times of characters beside the audio."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Response

from service.http_wording import PlainWording
from service.protocols.elevenlabs_alignment import Aligner, CharTimes
from streaming.errors import TalkwireError
from streaming.events import Done
from streaming.words import WordTiming

_JSON = "application/json"


def _worded(audio: bytes, times: CharTimes | None) -> dict[str, Any]:
    alignment = None if times is None else times.in_seconds()
    return {
        "audio_base64": base64.b64encode(audio).decode(),
        "alignment": alignment,
        "normalized_alignment": alignment,
    }


class TimedLines(PlainWording):
    """One JSON object per line: audio and the characters that end in it. Times are from the
    beginning.
    """

    def __init__(self, aligner: Aligner, refusal: Callable[[TalkwireError], Response]) -> None:
        super().__init__(_JSON, refusal)
        self._aligner = aligner
        self._words: list[WordTiming] = []

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Words of the audio that comes next."""
        self._words += timings

    def audio(self, data: bytes) -> bytes:
        """A line."""
        times, self._words = self._aligner.take(self._words), []
        return json.dumps(_worded(data, times)).encode() + b"\n"

    def done(self, done: Done) -> bytes:
        """Words whose audio the encoder gave before."""
        return self.audio(b"") if self._words else b""


class TimedWhole(TimedLines):
    """One JSON object for everything, when everything is there."""

    def __init__(self, aligner: Aligner, refusal: Callable[[TalkwireError], Response]) -> None:
        super().__init__(aligner, refusal)
        self._audio = bytearray()

    def audio(self, data: bytes) -> bytes:
        """Nothing yet."""
        self._audio += data
        return b""

    def done(self, done: Done) -> bytes:
        """All of it."""
        return json.dumps(_worded(bytes(self._audio), self._aligner.take(self._words))).encode()
