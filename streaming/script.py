"""What the segmenter knows about writing: marks, closers, abbreviations, joined characters."""

from __future__ import annotations

import unicodedata

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
#: What may stand between a mark and the whitespace after it, and before a word.
CLOSERS = frozenset("\"'”’»›)]}）］｝」』】》〉〕〗*_~`")
OPENERS = "\"'“‘«‹([{（［｛「『【《〈〔〖*_~`¿¡#-–—"
#: A line that begins with one of these is an item of a list.
BULLETS = frozenset("-*•‣◦–—#")

_ABBREVIATIONS = """
    mr mrs ms mx dr prof rev hon gov sen rep pres gen col sgt cpl capt cmdr lt maj st mt ft
    jr sr esq ph.d phd vs viz cf al etc approx appt dept est ext inc ltd co corp bros assn
    univ ave blvd rd hwy ste misc tel temp incl excl govt messrs
    jan feb apr jun jul aug sept sep oct nov dec
    mme mlle mgr sra srta dra ud uds núm pág dña bzw ca vgl usw evtl ggf inkl str tlf bl.a
    г-н им ул стр руб тыс млн млрд
"""
_NUMBERED = "no nos nr art fig figs vol pp pg ch chap eq ver op apt"
_MEASURES = """
    km cm mm nm mi yd kg mg oz lb lbs ml gal qt tsp tbsp sec secs min mins hr hrs wk wks mo mos
    yr yrs px cal kcal sqm kph mph kbps rpm bpm fps dpi
"""
_DATED = "Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun Mar"
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
#: Never the end of a sentence. Lower case, without the last dot; single letters and dotted
#: ones (U.S., p.m., z.B.) need no entry.
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
#: Abbreviations if a digit follows, and sentences if not: "No. 5" and "No. I will not."
NUMBERED = frozenset(_NUMBERED.split())
#: Abbreviations unless a new sentence seems to begin: "10 min. and" and "10 min. Then".
MEASURES = frozenset(_MEASURES.split())
#: Likewise, with their capital, and before a month too: "Sat. Nov. 5" and "the Sun. It shone".
DATED = frozenset(_DATED.split())
#: Never the end of a sentence with their capital; a word without it.
_CAPITALS = frozenset({"Apt"})
_GOES_ON = frozenset("([-–—&+/")
_MONTH_LETTERS = 3


def is_abbreviation(word: str) -> bool:
    """Whether ``word``, without its last dot and without openers, is an abbreviation."""
    if word.lower() in ABBREVIATIONS or word in _CAPITALS:
        return True
    word = _unit(word) if word[-2:].lower() == ".m" else word  # 9a.m.
    letters = word.split(".")
    # An initial, or letters with dots between them. "I" is nearly always the pronoun.
    return word != "I" and all(len(letter) == 1 and _has_case(letter) for letter in letters)


def may_go_on(word: str) -> bool:
    """Whether what follows ``word`` and its dot decides if a sentence ends there."""
    return word.lower() in NUMBERED or word in DATED or _unit(word) in MEASURES


def goes_on(word: str, following: str) -> bool | None:
    """Whether a sentence goes on after such a word, its dot and whitespace, by the characters
    that follow; None while more of them are needed.
    """
    first = following[0]
    if first.isdigit():
        return True
    if word in DATED and first.isupper():
        begun = [month for month in _MONTHS.split() if month.startswith(following)]
        return len(following) == _MONTH_LETTERS or None if begun else False
    dated_or_measure = word in DATED or _unit(word) in MEASURES
    return dated_or_measure and (first.islower() or first in _GOES_ON)


class Held:
    """A word of which ``may_go_on`` is true, with its dot and whitespace, before the next."""

    def __init__(self) -> None:
        self._word = ""
        self._at = 0  # where the whitespace ends

    def note(self, word: str, at: int) -> None:
        """Whitespace up to ``at`` was read after ``word`` and its dot, or after more of it."""
        if self._word or may_go_on(word):
            self._word, self._at = self._word or word, at

    def end_before(self, text: list[str], char: str) -> int | None:
        """Where a sentence ended in ``text`` after the word, as ``char`` tells; None if it
        does not, or not yet.
        """
        if not self._word or (char.isspace() and self._at == len(text)):
            return None
        following = "".join(text[self._at :])
        on = goes_on(self._word, following + char)
        if on is not None:
            self._word = ""
        return self._at if on is False else None


def _unit(word: str) -> str:
    """What a number, or a price and a slash, stand before: "5lbs", "$15/mo"."""
    return word.lower().rpartition("/")[2].lstrip("0123456789.,")


def _has_case(letter: str) -> bool:
    return letter.lower() != letter.upper()


def is_wide(char: str) -> bool:
    """Whether ``char`` belongs to a script that is written without spaces between words."""
    return "\u3040" <= char <= "\u9fff" or "\U00020000" <= char <= "\U0003ffff"


def joins(before: str, after: str) -> bool:
    """Whether a cut between two characters would tear one written character apart.

    That is so within a surrogate pair, before a combining mark, variation selector or skin
    tone, on either side of a zero-width joiner, after a virama, and between two regional
    indicators (a flag is a pair of them).
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
