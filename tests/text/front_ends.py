"""All front ends, and what any of them promises for any text."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.text import plain
from text.english.sounds import SIGNS
from text.front_end import TextFrontEnd, origins, spoken_lengths
from text.registry import FRONT_ENDS

#: Words with one space between them, and at most one mark after each.
_SPOKEN = re.compile(r"(?:[^ ,.?!]+(?:[,.?!]? |[,.?!]?$))*")
_LETTERS = frozenset(string.ascii_lowercase + "' ,.?!")


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A front end, and what is known of its readings.

    Args:
        read: Reads a text.
        alphabet: The characters of its readings.
        is_stable: Whether a reading is read as itself.
    """

    read: TextFrontEnd
    alphabet: frozenset[str]
    is_stable: bool


_KNOWN = {
    "english": (_LETTERS, True),
    "english-sounds": (_LETTERS | set(SIGNS), False),
}
CASES: Mapping[str, FrontEnd] = {
    # Without their caches, so that work is counted.
    **{name: FrontEnd(inspect.unwrap(one.read), *_KNOWN[name]) for name, one in FRONT_ENDS.items()},
    "plain": FrontEnd(plain.READER.read, _LETTERS | set(string.digits), True),
}


def check(front_end: FrontEnd, source: str) -> None:
    """Assert what a front end promises for ``source``."""
    reading = front_end.read(source)
    text = reading.text
    assert set(text) <= front_end.alphabet, text
    assert _SPOKEN.fullmatch(text), text
    words = [match.span() for match in re.finditer("[^ ,.?!]+", text)]
    assert [(span.start, span.end) for span in reading.spans] == words
    sources = [(span.source_start, span.source_end) for span in reading.spans]
    assert all(0 <= start < end <= len(source) for start, end in sources)
    assert all(one == next_ or one[1] <= next_[0] for one, next_ in pairwise(sources))
    if front_end.is_stable:
        assert front_end.read(text).text == text

    places = origins(reading, len(source))
    assert len(places) == len(text)
    assert all(before <= after for before, after in pairwise(places))
    for span in reading.spans:
        spoken_at = places[span.start : span.end]
        assert all(span.source_start <= place < span.source_end for place in spoken_at)

    lengths = spoken_lengths(front_end.read, source)
    assert len(lengths) == len(source) + 1
    known = [length for length in lengths if length >= 0]
    assert all(before <= after for before, after in pairwise(known))
    assert lengths[0] == 0
    assert lengths[-1] == (reading.spans[-1].end if reading.spans else 0)
