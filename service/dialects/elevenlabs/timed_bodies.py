"""Bodies of ElevenLabs' responses with times of characters."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from service.audio.pcm import tell_wav_length
from service.dialects.elevenlabs.messages import Aligner, CharTimes
from service.transport.http_response import BodyRenderer
from streaming.events import Done
from streaming.word_timing import WordTiming

_OPENING = b'{"audio_base64": "'
#: Whole base64 groups with a WAV file's header, whose length is known only at the end.
_HEAD_BYTES = 48


class TimedLines(BodyRenderer):
    """One JSON object per line, with audio and the characters that end in it. Times are from the
    beginning of the decoded audio.
    """

    def __init__(self, aligner: Aligner, *, is_wav: bool = False) -> None:
        super().__init__("application/json")
        self._aligner, self._is_wav = aligner, is_wav
        self._words: list[WordTiming] = []

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Take the words of the next audio."""
        self._words += timings

    def audio(self, data: bytes) -> bytes:
        """Render a line."""
        return b"".join((_OPENING, base64.b64encode(data), self._closing(self._times()), b"\n"))

    def done(self, done: Done) -> bytes:
        """Render the words whose audio was sent before, and the text after the last of them."""
        times = self._times(is_last=True)
        return b"" if times is None else b"".join((_OPENING, self._closing(times), b"\n"))

    def _closing(self, times: CharTimes | None) -> bytes:
        """Render the characters after the audio."""
        return f'", {json.dumps(self.fields(times))[1:]}'.encode()

    def fields(self, times: CharTimes | None) -> dict[str, Any]:
        """Return the fields after the audio: the characters, under both names."""
        alignment = None if times is None else times.in_seconds()
        return {"alignment": alignment, "normalized_alignment": alignment}

    def _times(self, *, is_last: bool = False) -> CharTimes | None:
        """Return the characters of the words so far."""
        times, self._words = self._aligner.take(self._words), []
        if is_last and (tail := self._aligner.finish()) is not None:
            times = tail if times is None else times + tail
        return times


class TimedWhole(TimedLines):
    """One JSON object with everything, at the end. The audio is encoded as base64 as it comes,
    since all of it at once would block the event loop. With ``is_wav`` the length is written into
    its header.
    """

    def __init__(self, aligner: Aligner, *, is_wav: bool) -> None:
        super().__init__(aligner, is_wav=is_wav)
        self._size = 0
        self._head, self._rest = bytearray(), bytearray()
        self._encoded: list[bytes] = []

    def audio(self, data: bytes) -> bytes:
        """Take audio; render nothing yet."""
        self._size += len(data)
        missing = _HEAD_BYTES - len(self._head)
        self._head += data[:missing]
        self._rest += data[missing:]
        groups = len(self._rest) - len(self._rest) % 3  # whole groups of base64
        self._encoded.append(base64.b64encode(self._rest[:groups]))
        del self._rest[:groups]
        return b""

    def done(self, done: Done) -> bytes:
        """Render everything."""
        if self._is_wav:
            tell_wav_length(self._head, self._size)
        head, rest = map(base64.b64encode, (self._head, self._rest))
        closing = self._closing(self._times(is_last=True))
        return b"".join((_OPENING, head, *self._encoded, rest, closing))
