"""The text of a speech as LiveKit's timed words."""

from __future__ import annotations

from collections.abc import Sequence

from livekit.agents.types import TimedString

from talkwire_client import Word


class TimedText:
    """Splits a text at its words, so that the parts join to the text again: LiveKit makes its
    transcript of them. Each part is a word with what stands before it.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        #: Position after the last word, in code points.
        self._end = 0
        #: Time at which the last word ended.
        self._end_s = 0.0

    def add(self, text: str) -> None:
        """Append text that was sent."""
        self._parts.append(text)

    def take(self, words: Sequence[Word]) -> list[TimedString]:
        """Return the parts up to these words.

        Args:
            words: The next words, with positions in the text.

        Returns:
            A part for each of them, with times in seconds from the first sample.
        """
        text = "".join(self._parts)
        parts = []
        for word in words:
            start_s, self._end_s = word.start_ms / 1000, word.end_ms / 1000
            parts.append(TimedString(text[self._end : word.end], start_s, self._end_s))
            self._end = word.end
        return parts

    def take_rest(self) -> list[TimedString]:
        """Return what follows the last word, such as an emoji, as one part or none."""
        rest = "".join(self._parts)[self._end :]
        self._end += len(rest)
        return [TimedString(rest, self._end_s, self._end_s)] if rest.strip() else []
