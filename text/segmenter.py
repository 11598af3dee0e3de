"""Segmentation of incoming text into pieces, usually sentences.

Text arrives in parts of any size. :class:`Segmenter` finds the ends of sentences and clauses, and
never cuts inside a number, an abbreviation, an address or a control tag. :func:`split_long` splits
a text that becomes too long once its numbers are written out as words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from text.units import PER, UNITS
from text.vocabulary import (
    ABBREVIATED,
    ABBREVIATED_TOO,
    BEFORE_ROMAN,
    BOOKS,
    COURT_RULES,
    DAYS,
    DOTTED,
    FOREIGN,
    LABELS,
    MONTHS,
    NUMBERED,
    NUMBERED_TOO,
    STREET_KINDS,
    words_of,
)

#: Sentence marks that need whitespace after them, as a rule.
SPACED_MARKS = frozenset(".!?…‼⁇⁈⁉．")
#: Sentence marks that end a sentence whatever follows: CJK, Indic, Arabic, Urdu, Armenian,
#: Ethiopic, Khmer, Myanmar, Tibetan.
FREE_MARKS = frozenset("。｡！？।॥؟۔։።፧។៕။།")
SENTENCE_MARKS = SPACED_MARKS | FREE_MARKS
#: Clause marks, likewise.
SPACED_CLAUSE_MARKS = frozenset(",;:–")
FREE_CLAUSE_MARKS = frozenset("—，、；：､،؛፣፤၊")
CLAUSE_MARKS = SPACED_CLAUSE_MARKS | FREE_CLAUSE_MARKS
#: Marks at the end of a quotation.
QUOTES = frozenset("\"'”’»›")
#: Characters allowed between a mark and the whitespace after it, and those allowed before a word.
CLOSERS = frozenset("\"'”’»›)]}）］｝」』】》〉〕〗*_~`")
OPENERS = "\"'“‘«‹([{（［｛「『【《〈〔〖*_~`¿¡#-–—"
_CLOSERS = "".join(CLOSERS)
#: Brackets and quotation marks before which a pause is heard, if a space precedes them.
PAUSED_OPENERS = frozenset('("“„«')
#: A line that begins with one of these is a list item.
BULLETS = frozenset("-*•‣◦–—#")

_SHORT_UNITS = {*filter(str.islower, UNITS), *(unit for unit, name in PER.items() if unit != name)}
#: Abbreviations unless a new sentence seems to begin: "10 min. and", but "10 min. Then". "Ft." and
#: "Ms." are before names too.
_MEASURES = (
    {unit.lower() for unit in _SHORT_UNITS if unit.isalpha() and len(unit) > 1}
    | words_of("ea fl in max yrs")
) - words_of("ft hertz ms")
_NAMED = {word.lower() for word in (*DOTTED, *STREET_KINDS, *COURT_RULES)} - words_of("app apt")
_SHORT_MONTHS = {month[:3] for month in MONTHS} | {"sept"}
#: Abbreviations that never end a sentence, in lower case and without the last dot. Single letters
#: and dotted abbreviations (U.S., p.m., z.B.) need no entry.
_ABBREVIATIONS = (
    (ABBREVIATED.keys() | ABBREVIATED_TOO | FOREIGN | _NAMED | _SHORT_MONTHS)
    - _MEASURES
    - words_of("mar may")
)
#: Abbreviations only if a digit follows: "No. 5", but "No. I will not."
_NUMBERED = {word for word in NUMBERED if len(word) > 1} - _ABBREVIATIONS | NUMBERED_TOO
#: Books of the Bible, likewise: "1 Cor. 13:4". "Sam" is mostly a name.
_BOOKS = BOOKS.keys() - DOTTED.keys() - {"Sam"}
#: As measures if capitalised, also before a month: "Sat. Nov. 5", but "the Sun. It shone".
_DATED = {day.capitalize() for day in DAYS} | {"Mar"}
#: Abbreviations that never end a sentence if capitalised; words if not.
_CAPITALS = frozenset({"Apt"})
_LONGEST_LABEL = 24
_GOES_ON = frozenset("([-–—&+/$€£")
_MONTH_LETTERS = 3
#: Words before which people take a breath in a long sentence without marks.
_JOINTS = words_of(
    "although and because but if or since so that though unless until when where which while who"
)
#: Words after which nobody takes a breath: they belong to the next word.
_LEANING = _JOINTS | words_of(
    "a an any as at by each every for from her his in into its my no of on or our some than the "
    "their these this those to very with your"
)
#: Stands for the word before marks that end a sentence unless a small letter follows: an ellipsis,
#: or the last mark of a quotation.
_TRAILING = "…"
#: Maximum characters from such marks to the letter that decides, beside whitespace before them.
_MAX_OPENERS = 4


def ends_sentence(text: str) -> bool:
    """Whether ``text`` ends with a sentence mark, closing quotation marks and brackets aside."""
    return text.rstrip(_CLOSERS)[-1:] in SENTENCE_MARKS


def is_abbreviation(word: str) -> bool:
    """Whether ``word``, without its last dot and without openers, is an abbreviation."""
    if word.lower() in _ABBREVIATIONS or word in _CAPITALS:
        return True
    word = _unit(word) if word[-2:].lower() == ".m" else word  # 9a.m.
    letters = word.split(".")
    # An initial, or letters with dots between them. "I" is nearly always the pronoun.
    return word != "I" and all(len(letter) == 1 and _has_case(letter) for letter in letters)


def may_go_on(word: str) -> bool:
    """Whether the text after ``word`` and its dot decides if the sentence ends there."""
    if word == _TRAILING:
        return True
    is_named = _end_of_days(word) in _DATED or word in _BOOKS
    return is_named or word.lower() in _NUMBERED or _unit(word) in _MEASURES


def goes_on(word: str, following: str, *, labelled: bool = False) -> bool | None:
    """Whether a sentence continues after such a word, its dot and whitespace, according to the
    characters that follow. None if more of them are needed. ``labelled``: the word before it names
    what has a number, as "policy" in "policy no. is".
    """
    if word == _TRAILING:
        if letters := following.lstrip(f"{OPENERS} "):
            return letters[0].islower()
        return False if len(following) > _MAX_OPENERS else None
    word, first = _end_of_days(word), following[0]
    if first.isdigit() or first == "#":  # "Apt. #3"
        return True
    if word in BEFORE_ROMAN and first in "IVX":  # "Art. III", but "Art. I think"
        return following[1] in "IVX" if len(following) > 1 else None
    if word == "Fed" and first == "R":  # "Fed. R. Civ. P. 12"
        return following[1] == "." if len(following) > 1 else None
    if word == "no" and labelled and first.islower():
        return True
    if word in _DATED and first.isupper():
        begun = [month for month in MONTHS if month.capitalize().startswith(following)]
        return len(following) == _MONTH_LETTERS or None if begun else False
    dated_or_measure = word in _DATED or _unit(word) in _MEASURES
    return dated_or_measure and (first.islower() or first in _GOES_ON)


class Held:
    """A word for which ``may_go_on`` is true, with its dot and whitespace, before the next word."""

    def __init__(self) -> None:
        self._word = ""
        self._labelled = False  # whether the word before it names what has a number
        self._at = 0  # where the whitespace ends

    def note(self, word: str, text: list[str]) -> None:
        """Record whitespace at the end of ``text`` after ``word`` and its dot, or after the word
        held.
        """
        if self._word or may_go_on(word):
            if not self._word:
                self._labelled = word == "no" and _is_labelled(text)
            self._word, self._at = self._word or word, len(text)

    def end_before(self, text: list[str], char: str) -> int | None:
        """Return where a sentence ended in ``text`` after the word, as ``char`` shows. None if it
        does not end there, or if more characters are needed.
        """
        if not self._word or (char.isspace() and self._at == len(text)):
            return None
        following = "".join(text[self._at :])
        on = goes_on(self._word, following + char, labelled=self._labelled)
        if on is not None:
            self._word = ""
        return self._at if on is False else None


def _is_labelled(text: list[str]) -> bool:
    """Whether the word before the last one names what has a number."""
    words = "".join(text[-_LONGEST_LABEL:]).split()
    return len(words) > 1 and words[-2].strip(".").lower() in LABELS


def _begins_clause(mark: str, first: str) -> bool:
    """Whether a clause begins with ``first`` after a mark that is heard as a pause, as a rule."""
    if mark == "-":  # "Monday - Friday" and "$5 - $10" are ranges
        return first == "I" or (first.isalpha() and not first.isupper())
    return not first.isdigit()  # "PIN: 4821" is read with its label, "1 (212)" with its code


def _unit(word: str) -> str:
    """The unit in ``word`` after a number, or after a price and a slash: "5lbs", "$15/mo"."""
    return word.lower().rpartition("/")[2].lstrip("0123456789.,-–‑")


def _end_of_days(word: str) -> str:
    """The last day in "Sat.–Sun"; other words as they are."""
    first, _, day = re.sub("[-‑]", "–", word).rpartition("–")
    return day if first.rstrip(".") in _DATED else word


def _is_item(word: str) -> bool:
    """Whether a word with a dot at the beginning of a line numbers an item of a list."""
    if word.isdigit():
        return len(word) <= _MAX_LIST_DIGITS
    return len(word) <= _MAX_ROMAN and bool(word) and set(word.lower()) <= set("ivx")


def _has_case(letter: str) -> bool:
    return letter.lower() != letter.upper()


#: Thai and Lao, Burmese, Khmer, Chinese and Japanese.
_WIDE = (
    ("\u0e00", "\u0eff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
    ("\u3040", "\u9fff"),
    ("\U00020000", "\U0003ffff"),
)


def is_wide(char: str) -> bool:
    """Whether ``char`` belongs to a script that is written without spaces between words."""
    return char >= "\u0e00" and any(first <= char <= last for first, last in _WIDE)


def joins(before: str, after: str) -> bool:
    """Whether a cut between two characters would split one written character.

    This is so within a surrogate pair, before a combining mark, variation selector or skin tone, on
    either side of a zero-width joiner, after a virama, and between two regional indicators (a flag
    is a pair of them).
    """
    if before < "\u0300" and after < "\u0300":
        return False
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    if "\u200d" in (before, after) or unicodedata.category(after) in ("Mn", "Mc", "Me"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True
    if unicodedata.combining(before) == 9:  # a virama joins two consonants
        return True
    return all("\U0001f1e6" <= char <= "\U0001f1ff" for char in (before, after))


#: ``lengths[i]``: number of spoken characters of ``text[:i]``, for 0 <= i <= len(text); -1 if the
#: text on both sides of i is spoken as a unit.
SpokenLengths: TypeAlias = Callable[[str], Sequence[int]]

#: A part may end with a clause if it has at least this share of its even length.
_MIN_SHARE = 0.6
#: Share of its even length by which a part may rather be off than tear a word from the next one.
_LEANING_SHARE = 0.25
#: Share of the maximum at which a sentence without marks is cut once it exceeds the maximum. The
#: rest is then never a word or two, however the sentence continues.
_FAIR_SHARE = 2 / 3
#: A unit is cut if it is at least this many times too long.
_TORN_FROM = 2


def split_long(text: str, lengths: Sequence[int], limit: int) -> list[str]:
    """Split ``text`` into parts of at most ``limit`` spoken characters and about the same length,
    at the end of a clause if there is one, otherwise between words.

    Text that is spoken as a unit (an amount, a date) stays in one part and may be longer. If it is
    twice as long or more (a very long number), it is cut into equal parts. Together the parts are
    the text, except for whitespace at their edges.
    """
    parts: list[str] = []
    begin = 0
    while (left := lengths[-1] - lengths[begin]) > limit:
        even = left / -(-left // limit)
        end = _best(text, lengths, begin, limit, even)
        if end is None:
            break
        parts += _tear(text[begin:end].strip(), lengths[end] - lengths[begin], limit)
        begin = end
    parts += _tear(text[begin:].strip(), lengths[-1] - lengths[begin], limit)
    return [part for part in map(str.strip, parts) if part]


def _best(text: str, lengths: Sequence[int], begin: int, limit: int, even: float) -> int | None:
    """Where the part that begins at ``begin`` ends; None if it reaches to the end of the text."""
    clause = joint = between = None
    off = joint_off = float("inf")  # distances of "between" and "joint" from an even part
    for place in range(begin + 1, len(text)):
        said = lengths[place] - lengths[begin]
        if said <= 0 or not _parts(text, place, lengths):
            continue
        if said > limit:
            return clause or joint or between or place
        distance = abs(said - even)
        torn = distance + (_LEANING_SHARE * even if _leans(text, place) else 0)
        if torn <= off:
            between, off = place, torn
        is_joint = _precedes_joint(text, place) and not _leans(text, place)  # "by which"
        if is_joint and distance <= min(joint_off, (1 - _MIN_SHARE) * even):
            joint, joint_off = place, distance
        if _ends_clause(text, place) and said >= _MIN_SHARE * even:
            clause = place
    return clause or joint or between


def _precedes_joint(text: str, place: int) -> bool:
    word = text[place : place + _LONGEST_LABEL].split(maxsplit=1)[:1]
    return bool(word) and word[0].lower() in _JOINTS


def _leans(text: str, place: int) -> bool:
    """Whether the word that ends at ``place`` belongs to the next one."""
    word = (text[max(0, place - _LONGEST_LABEL) : place].split() or [""])[-1]
    return word.lstrip(OPENERS).lower() in _LEANING


def _parts(text: str, place: int, lengths: Sequence[int]) -> bool:
    """Whether a word ends at ``place``. A tag stays with the text after it."""
    if lengths[place] < 0 or not text[place].isspace() or text.endswith("|>", 0, place):
        return False
    if text[place - 1] != "." or not text[place + 1 : place + 2].isdigit():
        return True
    word = text[max(0, place - _LONGEST_LABEL) : place - 1].split()[-1:]  # "pp. 12"
    return not (word and (may_go_on(word[0].lstrip(OPENERS)) or is_abbreviation(word[0])))


#: "ago - he", "ago -- he"
_SPACED_DASH = re.compile(r"\s--?\Z")


def _ends_clause(text: str, place: int) -> bool:
    at = place - 1
    while at > 0 and text[at] in CLOSERS:
        at -= 1
    if text[at] in CLAUSE_MARKS or text[at] in SENTENCE_MARKS:
        return True
    return text[place + 1 : place + 2] in PAUSED_OPENERS or bool(
        _SPACED_DASH.search(text, max(0, place - 3), place)
    )


def _tear(part: str, said: int, limit: int) -> list[str]:
    """Cut ``part`` into equal parts if it is far too long, otherwise return it whole."""
    if said < _TORN_FROM * limit:
        return [part]
    count = -(-said // limit)
    size = max(1, -(-len(part) // count))
    tags = [tag.span() for tag in _TAG.finditer(part)]
    cuts = [
        next((first for first, end in tags if first < cut < end), cut)
        for cut in range(size, len(part), size)
    ]
    edges = sorted({0, *(cut for cut in cuts if not joins(part[cut - 1], part[cut])), len(part)})
    return [part[start:end] for start, end in pairwise(edges)]


#: ``<|`` opens a tag if it is closed within this many characters, without whitespace.
_MAX_TAG_CHARS = 48
_TAG = re.compile(rf"<\|[^\s>]{{1,{_MAX_TAG_CHARS - 4}}}\|>")
#: Maximum digits of a list item's number ("1. Take a pan."); longer ones are years and the like.
_MAX_LIST_DIGITS = 3
#: Likewise for Roman numerals ("iii. Stir.").
_MAX_ROMAN = 5


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Lengths in characters.

    No piece is longer than ``max_chars``; only a single written character longer than that would be
    cut. A sentence shorter than ``min_chars`` waits for the next one, which costs nothing while
    audio plays. For the first one, at the beginning and after each flush, ``first_min_chars``
    applies instead. If the first one exceeds ``first_max_chars``, it ends with its last clause, so
    that speech begins before the sentence is complete. With ``spoken_lengths`` no piece has more
    than ``max_chars`` spoken characters either, as far as text can be split (see ``split_long``).
    """

    max_chars: int = 300
    min_chars: int = 12
    first_min_chars: int = 1
    spoken_lengths: SpokenLengths | None = None
    first_max_chars: int | None = None

    def __post_init__(self) -> None:
        if self.max_chars < 2 or min(self.min_chars, self.first_min_chars) < 1:
            raise ValueError("max_chars >= 2, min_chars >= 1 and first_min_chars >= 1 are needed")
        if max(self.min_chars, self.first_min_chars) > self.max_chars:
            raise ValueError("the least lengths must not exceed max_chars")

    def part(self, text: str) -> list[str]:
        """Split a text that is too long when spoken. Most are returned as they are."""
        if self.spoken_lengths is None:
            return [text]
        return split_long(text, self.spoken_lengths(text), self.max_chars)


class Segmenter:
    """Cuts one context's text into pieces.

    In order they are the text itself, except for whitespace at their edges.
    """

    def __init__(self, settings: SegmentSettings) -> None:
        self._settings = settings
        self._max_tag = min(_MAX_TAG_CHARS, settings.max_chars // 2)
        self._first = True
        self._done: list[str] = []
        self._begin()

    @property
    def pending_chars(self) -> int:
        """Number of characters held back, at most ``max_chars``."""
        return len(self._text)

    def push(self, text: str) -> list[str]:
        """Add text; return the pieces that it completes, in order."""
        for char in text:
            self._step(char)
        done, self._done = self._done, []
        return done

    def flush(self) -> list[str]:
        """End the text here; return the text held back: at most one piece, or its parts if it is
        too long when spoken.
        """
        rest = self.cut()
        self._first = True
        return rest

    def cut(self) -> list[str]:
        """End the piece here, though the text goes on; return the text held back."""
        rest = "".join(self._text).strip()
        self._first = self._first and not rest
        self._begin()
        return self._settings.part(rest) if rest else []

    def _begin(self) -> None:
        """Reset the state for a new piece."""
        self._text: list[str] = []
        self._speakable = False  # holds a letter or digit outside tags
        self._word = 0  # where the current word begins
        self._line_starts = True  # nothing before the word in its line
        self._mark = ""  # the last of the run of sentence marks just read
        self._dot: int | None = None  # where that run is, if it is a single dot
        self._marks_at = 0  # where that run begins
        self._is_ellipsis = False  # whether that run is an ellipsis
        self._held = Held()  # "No. " was read: does a digit follow?
        self._clause = ""  # the clause mark just read, or an ellipsis
        self._line_break = False  # only whitespace since a line break
        self._tag: int | None = None  # where the open tag begins
        self._last_tag = (0, 0)  # the last closed tag, [start, end)
        self._clause_cut = 0  # the end of the last clause
        self._space_cut = 0  # the end of a word, such that a fair share of the text is left
        self._joint_cut = 0  # likewise, before a word that joins clauses
        self._leans = False  # whether the last word belongs to the next one
        self._unsure_cut = 0  # where a clause ends if the next letter or digit agrees
        self._unsure_after = ""  # the mark there: a colon, a dash, a bracket, a quotation mark

    def _step(self, char: str) -> None:
        if not self._text and char.isspace():
            return
        if self._tag is not None:
            self._read_in_tag(char)
        else:
            end = self._held.end_before(self._text, char)
            if self._ends_before(char):
                end = len(self._text)
            if end is not None and self._speakable:
                if end >= self._min_chars():
                    self._emit(end)
                    return self._step(char)
                self._clause_cut = end
            self._note_cut(char)
            self._text.append(char)
            self._read(char)
        if len(self._text) > self._settings.max_chars:
            self._emit(self._cut())
        elif end := self._early_end():
            self._emit(end)

    def _min_chars(self) -> int:
        settings = self._settings
        return settings.first_min_chars if self._first else settings.min_chars

    def _emit(self, length: int) -> None:
        """Emit the first ``length`` characters as a piece, and read the rest again."""
        text = self._text
        self._done += self._settings.part("".join(text[:length]).strip())
        self._first = False
        self._begin()
        for char in text[length:]:
            self._step(char)

    # -- ends of sentences

    def _ends_before(self, char: str) -> bool:
        """Whether the text read is a whole sentence, given that ``char`` follows."""
        if self._line_break and (char == "\n" or char in BULLETS):
            return True
        if not self._mark or char in SENTENCE_MARKS or char in CLOSERS:
            return False
        if self._mark in FREE_MARKS:
            return True
        if char.isspace():
            return not (self._is_inner_dot() or self._is_stammer() or self._trails_off())
        return char == "<" or (self._mark in "!?．" and is_wide(char))

    def _is_inner_dot(self) -> bool:
        """Whether the single dot just read is part of its word."""
        word = self._dotted_word()
        if self._line_starts and _is_item(word):
            return True
        return may_go_on(word) or is_abbreviation(word)

    def _is_stammer(self) -> bool:
        """Whether an ellipsis after a single letter was read: "I... I'm sorry."."""
        word = "".join(self._text[self._word : self._marks_at]).lstrip(OPENERS)
        return self._is_ellipsis and len(word) == 1 and _has_case(word)

    def _trails_off(self) -> bool:
        """Whether the next letter decides if the sentence ends: "It is... so", "'No!' he said"."""
        if not self._mark or self._is_stammer():
            return False
        is_asked = self._mark in "!?…" and not QUOTES.isdisjoint(self._text[self._marks_at :])
        return self._is_ellipsis or is_asked

    def _dotted_word(self) -> str:
        """The word before the single dot just read; empty if there is none."""
        if self._dot is None:
            return ""
        return "".join(self._text[self._word : self._dot]).lstrip(OPENERS)

    # -- reading

    def _read(self, char: str) -> None:
        """Update the state for ``char``, which was just added outside a tag."""
        if char.isspace():
            word = _TRAILING if self._trails_off() else self._dotted_word()
            self._held.note(word, self._text)
            self._mark, self._clause, self._dot = "", "", None
            self._line_break = self._line_break or char == "\n"
            if self._word < len(self._text) - 1:
                self._line_starts = False
            self._line_starts = self._line_starts or char == "\n"
            self._word = len(self._text)
            return
        self._line_break = False
        if char in SENTENCE_MARKS:
            is_first = not self._mark
            self._dot = len(self._text) - 1 if char == "." and is_first else None
            if is_first:
                self._marks_at = len(self._text) - 1
            self._is_ellipsis = char == "…" or (char == "." and not is_first)
            self._mark = char
            self._clause = char if self._is_ellipsis and not self._is_stammer() else ""
        elif char in CLAUSE_MARKS:
            self._mark, self._clause, self._dot = "", char, None
            if char == "—":  # "my doctor—Dr. Lee—"
                self._word, self._line_starts = len(self._text), False
        elif char == "-" and (self._clause == "-" or self._text[-2:-1] in ([" "], ["\t"])):
            self._mark, self._clause, self._dot = "", "-", None
        elif char not in CLOSERS:
            self._mark, self._clause, self._dot = "", "", None
            self._speakable = self._speakable or char.isalnum()
            if char == "|" and len(self._text) > 1 and self._text[-2] == "<":
                self._tag = len(self._text) - 2

    def _read_in_tag(self, char: str) -> None:
        start, length = self._tag or 0, len(self._text) + 1 - (self._tag or 0)
        if char.isspace() or length > self._max_tag:  # not a tag
            self._tag = None
            inside = self._text[start:]
            self._speakable = self._speakable or any(map(str.isalnum, inside))
            return self._step(char)
        self._text.append(char)
        if char == ">" and self._text[-2] == "|" and length > 3:
            self._tag = None
            self._last_tag = (start, len(self._text))
            self._word = len(self._text)

    # -- cutting long text

    def _note_cut(self, char: str) -> None:
        """Remember the position before ``char`` if it is a weaker boundary."""
        here = len(self._text)
        if not self._speakable or self._last_tag[1] == here:
            return  # a tag stays with the text after it
        if self._clause and (
            char.isspace() or (self._clause in FREE_CLAUSE_MARKS and char not in CLOSERS)
        ):
            if self._clause in ":-":
                self._unsure_cut, self._unsure_after = here, self._clause
            else:
                self._clause_cut, self._unsure_cut = here, 0
        elif char in PAUSED_OPENERS and self._text[-1].isspace():
            self._unsure_cut, self._unsure_after = here, char
        elif self._unsure_cut and not (char.isspace() or char in OPENERS):
            if _begins_clause(self._unsure_after, char):
                self._clause_cut = self._unsure_cut
            self._unsure_cut = 0
        if char.isspace() and not self._text[-1].isspace():
            limit = self._settings.max_chars
            is_fair = here <= _FAIR_SHARE * limit
            word, has_cut = self._last_word(), self._space_cut * 3 >= limit
            leans = word in _LEANING
            if not has_cut or (is_fair and not leans):
                self._space_cut = here
            if is_fair and self._word * 3 >= limit and word in _JOINTS and not self._leans:
                self._joint_cut = self._word
            self._leans = leans

    def _last_word(self) -> str:
        """The word being read, in small letters."""
        return "".join(self._text[self._word :]).lstrip(OPENERS).lower()

    def _early_end(self) -> int:
        """Where the first piece ends before its sentence does; 0 if not yet."""
        limit = self._settings.first_max_chars
        if not self._first or limit is None or len(self._text) <= limit:
            return 0
        return self._clause_end(limit)

    def _clause_end(self, limit: int) -> int:
        """Where the last clause ended; 0 if that is in the first third of ``limit`` characters: the
        piece would be short, and reading the rest again expensive.
        """
        return self._clause_cut if self._clause_cut * 3 >= limit else 0

    def _cut(self) -> int:
        """Length of the piece to cut from ``max_chars + 1`` characters: at least 1."""
        limit = self._settings.max_chars
        if end := self._clause_end(limit):
            return end
        if end := self._joint_cut or self._space_cut:
            return end
        start, end = self._last_tag if self._tag is None else (self._tag, limit + 1)
        cut = start if start < limit < end else limit
        while cut and joins(self._text[cut - 1], self._text[cut]):
            cut -= 1
        return cut or limit
