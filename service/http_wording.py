"""A body that is the encoded audio and nothing else, in any dialect."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Response

from streaming.errors import TalkwireError
from streaming.events import Done


class PlainWording:
    """See service.http_speech.Wording. ``refusal``: the answer to an error before the audio."""

    def __init__(self, media_type: str, refusal: Callable[[TalkwireError], Response]) -> None:
        self.media_type, self._refusal = media_type, refusal

    def audio(self, data: bytes) -> bytes:
        """See Wording."""
        return data

    def done(self, done: Done) -> bytes:
        """Nothing: the body's end says it."""
        return b""

    def broken(self, error: TalkwireError) -> bytes | None:
        """No words: they would be heard."""
        return None

    def refusal(self, error: TalkwireError) -> Response:
        """See Wording."""
        return self._refusal(error)
