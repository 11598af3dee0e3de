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
    univ ave blvd rd hwy misc tel temp incl excl
    jan feb apr jun jul aug sept sep oct nov dec
    mme mlle mgr sra srta dra ud uds núm pág dña bzw ca vgl usw evtl ggf inkl str tlf bl.a
    г-н им ул стр руб тыс млн млрд
"""
_NUMBERED = "no nos nr art fig figs vol pp pg sec ch chap eq ver op"
#: Never the end of a sentence. Lower case, without the last dot; single letters and dotted
#: ones (U.S., p.m., z.B.) need no entry.
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
#: Abbreviations if a digit follows, and sentences if not: "No. 5" and "No. I will not."
NUMBERED = frozenset(_NUMBERED.split())


def is_abbreviation(word: str) -> bool:
    """Whether ``word``, without its last dot and without openers, is an abbreviation."""
    if word.lower() in ABBREVIATIONS:
        return True
    letters = word.split(".")
    # An initial, or letters with dots between them. "I" is nearly always the pronoun.
    return word != "I" and all(len(letter) == 1 and _has_case(letter) for letter in letters)


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
