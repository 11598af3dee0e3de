"""The sounds of endings, in the signs of ``text.english.sounds``."""

from __future__ import annotations

import re
from collections.abc import Callable

VOWELS = frozenset("EUAIOQWYæɑɔəɛɜɪʊʌᵊᵻ")
_FLAPPED = re.compile(f"[{''.join(sorted(VOWELS))}r]t$")
_HISSES, _VOICELESS = frozenset("szʃʒʤʧ"), frozenset("ptkfθsʃʧ")


def joined(base: str, ending: str) -> str:
    """Add an ending; a "t" between vowels, or after "r" before a vowel, is flapped."""
    if ending[0] in VOWELS and _FLAPPED.search(base):
        base = base[:-1] + "ɾ"
    return base + ending


def plural(base: str) -> str:
    """Add the ending of a plural, a possessive or a verb's third person."""
    last = base[-1]
    return base + ("ᵻz" if last in _HISSES else "s" if last in _VOICELESS else "z")


def _past(base: str) -> str:
    last = base[-1]
    return joined(base, "ᵻd" if last in "td" else "t" if last in _VOICELESS else "d")


def _going(base: str) -> str:
    return joined(base, "ɪŋ")


def _have(base: str) -> str:
    return base + "əv"


def _will(base: str) -> str:
    return base + ("l" if base[-1] in VOWELS else "ᵊl")


def _would(base: str) -> str:
    return base + ("d" if base[-1] in VOWELS | {"r"} else "əd")


def _are(base: str) -> str:
    return base + "ər"


#: Endings of inflected words, with the function that adds each.
ENDINGS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("'ve", _have), ("'ll", _will), ("'d", _would), ("'re", _are),
    ("'s", plural), ("s", plural), ("ed", _past), ("ing", _going),
)  # fmt: skip
