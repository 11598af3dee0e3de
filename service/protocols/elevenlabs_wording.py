"""ElevenLabs' HTTP answers that hold the times of characters beside the audio."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence

from fastapi import Response

from service.audio.pcm import tell_wav_length
from service.audio.timeline import later
from service.http_wording import PlainWording
from service.protocols.elevenlabs_alignment import Aligner
from streaming.errors import TalkwireError
from streaming.events import Done
from streaming.words import WordTiming

_JSON = "application/json"
_OPENING = b'{"audio_base64": "'
#: What base64 makes four characters of.
_GROUP_BYTES = 3
#: Whole groups that hold a WAV file's header, which can be told the length only at the end.
_HEAD_BYTES = 48


class TimedLines(PlainWording):
    """One JSON object per line: audio and the characters that end in it. Times are from the
    beginning, of what a decoder makes of the audio: ``late_ms`` after the words' own.
    """

    def __init__(
        self,
        aligner: Aligner,
        refusal: Callable[[TalkwireError], Response],
        late_ms: float = 0.0,
    ) -> None:
        super().__init__(_JSON, refusal)
        self._aligner, self._late_ms = aligner, late_ms
        self._words: list[WordTiming] = []

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Words of the audio that comes next."""
        self._words += later(timings, self._late_ms)

    def audio(self, data: bytes) -> bytes:
        """A line."""
        return b"".join((_OPENING, base64.b64encode(data), self._closing(), b"\n"))

    def done(self, done: Done) -> bytes:
        """Words whose audio the encoder gave before."""
        return self.audio(b"") if self._words else b""

    def _closing(self) -> bytes:
        """What follows the audio: the characters of the words so far, under both names."""
        times, self._words = self._aligner.take(self._words), []
        alignment = json.dumps(None if times is None else times.in_seconds())
        return f'", "alignment": {alignment}, "normalized_alignment": {alignment}}}'.encode()


class TimedWhole(TimedLines):
    """One JSON object for everything, when everything is there. The audio is put into base64 as
    it comes: all of it at once would keep the event loop from others. With ``is_wav`` its header
    is told the length.
    """

    def __init__(
        self,
        aligner: Aligner,
        refusal: Callable[[TalkwireError], Response],
        late_ms: float = 0.0,
        *,
        is_wav: bool = False,
    ) -> None:
        super().__init__(aligner, refusal, late_ms)
        self._is_wav, self._size = is_wav, 0
        self._head, self._rest = bytearray(), bytearray()
        self._encoded: list[bytes] = []

    def audio(self, data: bytes) -> bytes:
        """Nothing yet."""
        self._size += len(data)
        missing = _HEAD_BYTES - len(self._head)
        self._head += data[:missing]
        self._rest += data[missing:]
        groups = len(self._rest) - len(self._rest) % _GROUP_BYTES
        self._encoded.append(base64.b64encode(self._rest[:groups]))
        del self._rest[:groups]
        return b""

    def done(self, done: Done) -> bytes:
        """All of it."""
        if self._is_wav:
            tell_wav_length(self._head, self._size)
        head, rest = map(base64.b64encode, (self._head, self._rest))
        return b"".join((_OPENING, head, *self._encoded, rest, self._closing()))
