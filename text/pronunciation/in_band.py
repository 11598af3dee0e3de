"""Sounds within a text: how the text of an utterance says how a word is pronounced.

Between the markup and the front end a text is a plain string, which is segmented, measured and cut.
A word whose sounds are given is written into it by them, between characters that no text of a
client has: those that stand for halves of surrogate pairs (text/surrogates.py). To all that comes
between, it is a word like others. The front end that declared that it takes such words reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from text.surrogates import REPLACEMENT

#: The beginning of a word that is written with a capital, of another one, and the end of a word.
_CAPITAL, _SMALL, _END = "\U0010fff0", "\U0010fff1", "\U0010fff2"
_RESERVED = re.compile(f"[{_CAPITAL}-{_END}]")
#: A word: whether it is written with a capital, and its ``sounds``.
SOUNDED = re.compile(
    f"(?:(?P<capital>{_CAPITAL})|{_SMALL})(?P<sounds>[^\\s{_CAPITAL}-{_END}]+){_END}"
)


def sounded(words: Sequence[str], *, is_capital: bool) -> str:
    """Return words, each given by its sounds, for the text of an utterance."""
    first = _CAPITAL if is_capital else _SMALL
    return " ".join(f"{first}{sounds}{_END}" for sounds in words)


def without_sounds(text: str) -> str:
    """Return a text in which a client may have written such characters, without these."""
    return text if text.isascii() else _RESERVED.sub(REPLACEMENT, text)
