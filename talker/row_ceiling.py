"""The ceiling of an utterance's rows, which follows its text.

Trained talkers sometimes miss the end of a text. They repeat a word, or go on with room tone until
the checkpoint's maximum, which may be 82 s for "Yes.". The ceiling ends such a generation earlier.
It is so wide that it cuts no utterance that only reads its text, however slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from text.turns import SLOW_CHARS_PER_S

#: Seconds for pauses and breaths before, within and after the text.
_PAUSES_S = 8.0
#: Seconds for a control tag: a sound effect, a pause, or slower or sung speech.
_TAG_S = 5.0


@dataclass(frozen=True, slots=True)
class SpeechLength:
    """Length of a text as it is read.

    Attributes:
        chars: Spoken letters at most (see ``text.turns.max_speech_chars``).
        tags: Number of control tags and written events, except for speakers.
    """

    chars: int = 0
    tags: int = 0


@dataclass(frozen=True, slots=True)
class RowCeiling:
    """Maximum number of rows of an utterance: ``constant``, and more by its text.

    Attributes:
        constant: Rows of any utterance.
        per_char: Rows for each spoken letter.
        per_tag: Rows for each control tag.
    """

    constant: int
    per_char: float
    per_tag: int

    @classmethod
    def of_slow_speech(cls, frames_per_s: float) -> RowCeiling:
        """Return the ceiling for a codec of so many frames a second."""
        return cls(
            constant=math.ceil(_PAUSES_S * frames_per_s),
            per_char=frames_per_s / SLOW_CHARS_PER_S,
            per_tag=math.ceil(_TAG_S * frames_per_s),
        )

    def rows(self, speech: SpeechLength) -> int:
        """Return the maximum number of rows of an utterance with this text."""
        return self.constant + math.ceil(self.per_char * speech.chars) + self.per_tag * speech.tags
