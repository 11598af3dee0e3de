"""The context of a position in the text: names, labels, beginnings of sentences."""

from __future__ import annotations

import functools
import re

from text.rules import Match, after, before
from text.vocabulary import words_of

#: Words that begin a sentence after "Elm St." or "option B." and are never part of a name.
STARTERS = words_of(
    """
    the this that these those there then they their he she it we you i my your our his her its
    a an in on at to from for by with as if when while once after before because since until
    and but or so yet also now next just here please what where who why how is are was were do
    does did can could would should have has had let not no yes some many most all each every
    both another any although though however instead finally first turn take go keep continue
    head walk drive follow cross look stay make call press say visit see ask thanks thank sorry
    okay ok great hi hello hey dear
    """
)
#: A letter, or a number with a letter, after one of these is a name: "seat 12B", "option C".
LABELS = words_of(
    """
    seat gate room apt apartment unit suite ste bus flight row floor door platform track
    terminal lot bay box building bldg block booth aisle section zone hall table tray locker
    studio level stall berth cabin coach carriage line route exit pier dock class schedule
    chapter page figure exhibit appendix item court ward wing lane runway
    """
)
#: After one of these too, a letter is a name; a number with a letter may still be an amount.
_GRADED = words_of(
    """
    option plan type vitamin hepatitis choice answer part group team grade category tier version
    model pool side column letter point step question form train stand player exercise assignment
    task phase round
    """
)
#: The beginning of a name of letters and digits, before a hyphen: "i7", "INC-2024", "Llama-3.1",
#: "5.15.0", "#12345".
IN_NAME = (
    r"(?:(?:[A-Za-z]|(?<![A-Za-z])[A-Z]{2,5}-)\d+(?:-\d+)*|[A-Za-z]-\d+\.\d+|\d+\.\d+\.\d+"
    r"|#\d{4,})"
)
#: An option of a command before its value, and with its value: "-p 80", "--port=80".
OPTION = r"(?:^|\s)--?[A-Za-z][A-Za-z-]{0,20}[ =]"
OPTION_WITH_VALUE = rf"{OPTION}[^\s-]\S{{0,30}}"
_WRITTEN = re.compile(r"[^a-z' ,.?!]")
_LABEL = re.compile(r"([A-Za-z]+)\.?\s+#?(?:\d+[A-Za-z]?(?:,?\s(?:and|or|to)|,)\s)?$")
_WORD = re.compile(r"[\"')\]*_]*\s+[\"'(\[*_]*([A-Z][a-z]*)(?![A-Za-z0-9.])")


@functools.lru_cache(maxsize=2)
def is_spoken(text: str) -> bool:
    """Whether a text may be the result of the front end, which is not abbreviated again."""
    return not _WRITTEN.search(text)


def sentence_follows(text: str, end: int) -> bool:
    """Whether a new sentence surely begins after ``end``, with a word that begins no name."""
    found = _WORD.match(text, end)
    return found is not None and found[1].lower() in STARTERS


def is_labelled(match: Match, *, letter: bool = False) -> bool:
    """Whether a label precedes a number or, with ``letter``, a single letter."""
    found = _LABEL.search(before(match))
    if not found:
        return False
    word = found[1].lower()
    known = (LABELS | _GRADED) if letter else LABELS
    return word in known or word.removesuffix("s") in known


def titled(match: Match, words: str) -> list[str]:
    """As ``stopped``, for an abbreviation before a name, whose capital begins no sentence."""
    at_end = match[0].endswith(".") and not after(match).strip(" \t\n\"')]*_")
    return [words, "."] if at_end else [words]


def last(match: Match, words: str) -> list[str]:
    """As ``titled``, but with a stop if a new sentence surely follows."""
    if match[0].endswith(".") and sentence_follows(match.string, match.end()):
        return [words, "."]
    return titled(match, words)
