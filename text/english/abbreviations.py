"""Rules for abbreviations with dots, initials, Roman numerals, and plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from text.english import numbers
from text.english.context import STARTERS, is_labelled, is_spoken, last, sentence_follows, titled
from text.english.streets import DIRECTIONS, KIND, STREET, STREETS
from text.english.vocabulary import COUNTED, LETTERS, REGNAL
from text.english.words import (
    is_plural_acronym,
    is_shouting,
    read_mixed,
    read_word,
    spell,
)
from text.rules import Match, Reading, Rule, after, before, stopped
from text.units import UNITS
from text.vocabulary import (
    ABBREVIATED,
    ACRONYMS_TOO,
    ALSO_WORDS,
    BEFORE_ROMAN,
    COURT_RULES,
    DOTTED,
    LABELS,
    MEASURES_TOO,
    NUMBERED,
    words_of,
)

_LATIN = {
    "cf": ("compare",),
    "e.g": ("for example", ","),
    "i.e": ("that is", ","),
    "a.k.a": ("also known as",),
}
_INNER = {"max": "max", "min": "minimum", "temp": "temperature", "al": "al"}
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_WELL_FORMED = re.compile(r"(?=[XVIL])(?:XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_WORD_BEFORE = re.compile(r"([A-Za-z0-9']+)[.,]?\s+$")
#: Their dot ends a sentence only at the end of the text, since a capital after it begins a name.
_NAMED_AFTER = words_of("mr mrs ms prof vs approx incl excl cllr")
#: Before names, also without a dot.
_PEAKS = {"Mt": "mount", "Ft": "fort", "Pt": "point"}
_JUNIOR = frozenset({"jr", "sr"})
_PLACES = words_of("Ave Ln Apt Ste Univ Assn Co Esq Est Tel Ext")
#: Words, unless they have a capital: "see Fig 3".
_CAPITALS = frozenset({"Fig", "Figs", "Sec", "Apt"})
#: Names of items before a bracket or, in a list, a dot: "a)", "(iv)", "ii. ".
ITEMS = {"a": "ay", "ii": "two", "iii": "three", "iv": "four", "vi": "six", "vii": "seven",
          "viii": "eight", "ix": "nine"}  # fmt: skip
#: Numerals that are letters too, and the one beside which they are numerals.
_PAIRED_ITEMS = {"i": ("(ii)", "one"), "v": ("(iv)", "five"), "x": ("(ix)", "ten")}
_BEFORE_GRADE = r"(?i)\b(?:an?|grade[ds]?|rat(?:ed|ing)|type|blood|got|is|or):?\s$"
_AFTER_GRADE = r"\s(?:grade|rating|average|student)s?\b"
_AUTHOR = r"[A-Z][\w'-]*,? [Ee]t $"
_BLOOD = re.compile(r"(?i)\b(?:blood|type)\b[^.!?\n]{0,24}$")
#: What has a number, before "no." without one.
_HAS_NUMBER = rf"(?i)\b(?:{'|'.join(sorted(LABELS))})\.?\s$"
#: Words that other rules may read as abbreviations or units.
_NEVER_PLAIN = (
    frozenset(ABBREVIATED)
    | words_of("ii iii iv vi vii viii ix xi xii")
    | {sign.split()[0] for sign in UNITS}
)
_IN_CODE = re.compile(r"\w-$")  # DSP-20391-A
_CUP = r"\s(?:milk|flour|sugar|water)\b"
_SERIES = {"2d": "second", "3d": "third", "4th": "fourth", "5th": "fifth"}
#: What happened in a year: "(b. 1850, d. 1912)".
_EVENTS = {"b": "born", "d": "died", "m": "married", "r": "reigned", "fl": "flourished"}
#: "E. coli", "S. aureus", and the letters before the last of "S-M-I-T-H.".
_SPECIES = re.compile(r"\s([a-z]{2,}(?:us|is|i|um|ae|ans|ens|ile|gaster)|rex)\b")
_SPELLED = re.compile(r"(?:(?<![A-Za-z.])[A-Z]-){2}$|(?:(?<![A-Za-z.])[A-Z] ){3}$")
#: Where "I" after "Article" is a number, and small numerals after "vol." are too.
_AFTER_FIRST = re.compile(r"[.,;:)\]]|\s(?:of|and|to|or)\b|\s*$")
_BEFORE_SMALL = (
    rf"(?i)(?:\b|(?<=\d))(?:{'|'.join(sorted(COUNTED))}|pages?|clause|footnote|item|pp?\.|vol\."
    r"|ch\.|fig\.|no\.)\s$"
)
_SMALL = words_of("ii iii iv vi vii viii ix xi xii xiii xiv xv xvi xvii xviii xix xx")
_QUOTES = frozenset("'\"*_")


def _latin(match: Match) -> Reading:
    return [*_LATIN[match["a"].lower().replace(" ", "")]]


def _initials(match: Match) -> Reading:
    """U.S., Ph.D., J.R.R.: letters by their names; a stop if a new sentence surely follows."""
    letters = spell(re.sub(r"'s|[^A-Za-z]", "", match[0]))
    return [f"{letters}'s"] if match[0].endswith("'s") else last(match, letters)


def _initial(match: Match) -> Reading:
    """ "J. Smith", "Mary L. called", but "option B. It is"."""
    letter, behind = match["a"], _WORD_BEFORE.search(before(match))
    word = behind[1] if behind else ""
    ends = is_labelled(match, letter=True) or sentence_follows(match.string, match.end())
    if not ends and (species := _SPECIES.match(after(match))) and species[1] not in STARTERS:
        return [LETTERS[letter.lower()]]
    if letter in "VX" and word.lower() in COUNTED:
        return None  # "Scene X. The king"
    ends = ends or bool(_SPELLED.search(before(match)))
    if ends and letter in _ROMAN and word.lower() in REGNAL:
        return None  # "George V. He reigned"
    if after(match).lstrip()[:1].islower() and (ends or not word[:1].isupper()):
        return None
    return [LETTERS[letter.lower()], *(["."] if ends else [])]


def _dotted(match: Match) -> Reading:
    said = last if match["a"] in _PLACES else titled
    return said(match, DOTTED[match["a"]])


def _cups(match: Match) -> Reading:
    """ "2 c. flour", "3/4 c sugar"."""
    if not (number := re.search(r"(?:(\d)(?:\s{1,2}|-))?(\d{1,3}(?:/\d)?)\s{1,2}$", before(match))):
        return None
    return ["cup" if number[2] == "1" or ("/" in number[2] and not number[1]) else "cups"]


def _of_ordinal(match: Match) -> Reading:
    """ "the 15th c.", "4th-3rd c. BCE", "2nd fl."."""
    named = "century" if match["a"] == "c" else "floor"
    return [named] if re.match(r"\s(?:BCE?|CE|AD)\b", after(match)) else stopped(match, named)


def _included(match: Match) -> Reading:
    """ "Tax incl.", after what is included."""
    return stopped(match, f"{match['a']}cluded")


def _inner(match: Match) -> Reading:
    """ "max. 20", "temp. of 98.6", "Lee et al. found": the dot is within a sentence."""
    return None if is_spoken(match.string) else [_INNER[match["a"].lower()]]


def _rule_of_court(match: Match) -> Reading:
    """ "Fed. R. Civ. P. 12(b)(6)", "Fed. R. Evid. 702"."""
    return ["federal rule of", COURT_RULES[match["a"]]]


def _reporter(match: Match) -> Reading:
    """A series of a reporter: "123 F.3d 456", "5 So. 2d 7"."""
    return [read_word(match["a"]), _SERIES[match["n"]]]


def _event(match: Match) -> Reading:
    """ "b. 1850", "d. c. 1912"."""
    circa = ["circa"] if match["circa"] else []
    return [_EVENTS[match["a"]], *circa, numbers.year(int(match["year"]))]


def _number_of(match: Match) -> Reading:
    """ "Policy no. is", "Tracking no.: 5", but "I said no."."""
    return None if is_spoken(match.string) else ["number"]


def _numbered(match: Match) -> Reading:
    """ "No. 5", "pp 7", but "no 5-star hotel" and "CH 5"."""
    if match["b"]:
        named = NUMBERED[match["b"].lower()]
        is_roman = _WELL_FORMED.fullmatch(match["roman"])
        return [named, numbers.cardinal(_roman_value(match["roman"]))] if is_roman else None
    token = match["a"]
    dotted = match.string[match.end("a") : match.end("a") + 1] == "."
    spelled = token.isupper() and not is_shouting(match.string)
    if not dotted and (spelled or (token.lower() in ALSO_WORDS and token not in _CAPITALS)):
        return None
    return [NUMBERED[token.lower()]]


def _roman(match: Match) -> Reading:
    """ "Henry VIII", "chapter IV", and unmistakable numerals: "III"."""
    written = match["n"]
    if not _WELL_FORMED.fullmatch(written):
        return None
    value = _roman_value(written)
    found = _WORD_BEFORE.search(before(match))
    word, of = found[1] if found else "", match["of"] or ""
    if word.lower() in REGNAL and word[0].isupper() and written not in ("I", "L"):
        return ["the", numbers.ordinal(value) + of]
    sure = written == "II" or (len(written) > 2 and not set(written) & set("LC"))
    sure = sure or before(match).endswith("World War ")
    if written == "I" and found and found[0][-2:-1].isalnum() and word[0].isupper():
        sure = sure or bool(word.lower() in COUNTED and _AFTER_FIRST.match(after(match)))
    if sure or (word.lower() in COUNTED and written != "I"):
        return [numbers.cardinal(value) + of]
    return None


def _stammer(match: Match) -> Reading:
    """ "w-we can", "N-no"; but "t-test"."""
    word, sound = match["word"].lower(), match["sound"].lower()
    repeated = match[0].count("-") > 1
    return [] if word.startswith(sound) and (word in STARTERS or repeated) else None


def _roman_value(written: str) -> int:
    values = [_ROMAN[letter] for letter in written]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < after else value for value, after in pairs)


def _word(match: Match) -> Reading:
    token, next_char = match["a"], match.string[match.end() : match.end() + 1]
    if next_char.isdigit() or before(match)[-1:].isdigit():
        return [read_mixed(token)]
    if token.isupper() and re.match(r"-\d", after(match)):
        return [read_mixed(token)]  # INC-0012
    if token.isalpha() and token.isupper() and "&" in (next_char, before(match)[-1:]):
        return [spell(token)]  # AT&T
    if token == "A" and (
        not (next_char.isspace() or next_char in _QUOTES) or _IN_CODE.search(before(match))
    ):
        return ["ay"]
    if token in _PAIRED_ITEMS and next_char == ")" and before(match)[-1:] == "(":
        other, number = _PAIRED_ITEMS[token]
        if other in match.string:
            return [number]
    if token in ITEMS and (next_char == ")" or (next_char == "." and _line_begins(match))):
        return [ITEMS[token]]
    return [read_word(token, shouting=token.isupper() and is_shouting(match.string))]


def _graded(match: Match) -> Reading:
    """Grades and types of blood: "an A-", "type O-"."""
    signs = ("positive", "negative") if _BLOOD.search(before(match)) else ("plus", "minus")
    return [spell(match["a"]), signs[match["sign"] != "+"]]


def _line_begins(match: Match) -> bool:
    return not before(match).rpartition("\n")[2].strip() and after(match)[1:2] == " "


def _plain(match: Match) -> Reading:
    """Most words, read as the rules after this one would, but faster."""
    word = match[0]
    return None if word in _NEVER_PLAIN else [read_word(word)]


def _abbreviated(match: Match) -> Reading:
    token = match["a"].lower()
    if match["a"].isupper() and not _abbreviates(match, token):
        return None
    if is_plural_acronym(match["a"]):
        return None
    if token in _JUNIOR:
        return last(match, ABBREVIATED[token])
    said = titled if token in _NAMED_AFTER else stopped
    return said(match, ABBREVIATED[token])


def _abbreviates(match: Match, token: str) -> bool:
    """Whether a token in capitals is an abbreviation: "MR. X" and "5 KM", but the HR people."""
    if token not in (MEASURES_TOO if is_shouting(match.string) else ACRONYMS_TOO):
        return not re.match(r"-\d", after(match))
    if re.search(r"\d\s?$", before(match)):
        return True
    named = token in _NAMED_AFTER or token in _JUNIOR
    if not named or not match[0].endswith(".") or sentence_follows(match.string, match.end()):
        return False
    return bool(re.match(r"\s+[A-Z]", after(match)))


def _any(words: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, sorted(words)), key=len, reverse=True))


_START = r"[^A-Za-z0-9]?"
_ENDING = r"(?![A-Za-z0-9])"
_EVER_DOTTED = _any(word for word in ABBREVIATED if word not in STREETS)
PLAIN = Rule(
    r"[a-z]{2,}(?:'[a-z]+)*(?=[,?!]?(?:\s+[^\s\d]|\s*$))|a(?=\s[a-z]{2})", _plain, behind=r"\s?"
)
RULES: tuple[Rule, ...] = (
    *DIRECTIONS,
    Rule(r"Est\.(?=\s(?!(?:in\s)?\d))|est\.(?=\s(?:[$€£~]|\d\d?:\d))",
         "estimated", behind=_START),
    Rule(r"(?P<a>c|fl)(?![\w'])\.?", _of_ordinal, behind=r"(?:st|nd|rd|th) ",
         if_before=r"(?<![\d/])\d{1,2}[a-z]{2} $", unless_after=_CUP),
    Rule(r"Del(?![\w'-])", "delete", behind=r"\+"),
    Rule(r"exp\.(?=\s\d\d?/\d)", "expires", behind=_START),
    Rule(r"(?P<a>cf)\.(?=\s)", _latin, behind=_START),
    Rule(r"c\.?(?=\s(?:flour|sugar|milk|water|butter|oil|rice|oats|cream|stock|broth"
         r"|chopped|shredded|packed|brown|white|warm|all-purpose)\b)", _cups,
         behind=r"\s"),
    Rule(r"(?i:(?P<a>e\.\s?g|i\.\s?e|a\.k\.a)\b\.?,?)", _latin, behind=_START),
    Rule(r"(?:[A-Z][a-z]?\.){2,}(?:[A-Z]\b\.?|'s\b)?|(?:(?:[A-Z]\.)+|Ph\.)[A-Z]\b|(?:[a-z]\.){2,}",
         _initials, behind=_START),
    Rule(r"(?P<a>[A-HJ-Z])\.(?=\s+[A-Za-z])", _initial, behind=_START),
    Rule(r"(?P<a>AB|[A-FO])(?P<sign>[-+])(?=[\s.,;:!?)]|$)", _graded, behind=r"[\s(]?",
         if_before=_BEFORE_GRADE, if_after=_AFTER_GRADE),
    Rule(r"Cir\.(?=\s(?:1[89]|20)\d\d\))", "circuit", behind=r"[a-z\d] "),
    STREET,
    KIND,
    # "Roe v. Wade"
    Rule(r"v\.(?=\s+[A-Z])", "versus", behind=r"\s",
         if_before=r"(?<![A-Za-z0-9'])[A-Z][A-Za-z0-9']*[.,]?\s+$"),
    # "Mr.Smith"
    Rule(r"(?i:(?P<a>mrs?|ms|prof))\.(?=[A-Z][a-z])",
         lambda match: [ABBREVIATED[match["a"].lower()]], behind=_START),
    # "Mt Vernon", "Pt. Reyes", "Ft Worth"
    Rule(rf"(?P<a>{_any(_PEAKS)})\.?(?=\s[A-Z][a-z])", _PEAKS, behind=r"[^A-Za-z0-9]?",
         unless_before=r"\d\s$"),
    Rule(rf"(?P<a>{_any(DOTTED)})\.", _dotted, behind=_START),
    Rule(r"(?i:(?P<a>max|min|temp))\.(?=\s+(?:[$€£]?\d|of\b))", _inner, behind=_START),
    Rule(r"(?<!\d )(?<![Aa] )(?P<a>max|min|temp)\.(?=\s+(?!(?:and|or|then|if|but|so|i)\b)[a-z])",
         _inner, behind=r"\s"),
    Rule(r"(?P<a>Max|Min|Temp)\.(?=\s+[a-z])", _inner, behind=_START),
    Rule(r"c\.(?=\s?(?:1\d{3}(?!\d)|\d{2,4}\s(?:BCE?|CE|AD)\b))", "circa",
         behind=r"[\s(]"),
    Rule(r"(?P<a>[bdmr]|fl)\.\s?(?P<circa>ca?\.\s?)?(?P<year>(?:1\d|20)\d\d)(?!\d|[.,]\d)",
         _event, behind=r"[\s(]?"),
    Rule(rf"Fed\.\sR\.\s(?P<a>{_any(COURT_RULES)})\.(?:\sP\.)?(?=\s\d)", _rule_of_court,
         behind=_START),
    Rule(r"(?P<a>F|P|A|So|Cal|Supp|Ed)\.\s?(?P<n>2d|3d|4th|5th)(?=,?\s\d)", _reporter,
         behind=_START),
    Rule(r"(?P<a>in|ex)cl\.?(?=[,;)]|\.?\s*$|\.\s+[A-Z])", _included, behind=r"[a-z] "),
    Rule(r"(?P<a>in|ex)c\.?(?=\s(?:VAT|GST|tax|p&p|delivery|postage|shipping|service|fees)\b)",
         {"in": "including", "ex": "excluding"}, behind=r"[\s(]"),  # "£5 inc. VAT"
    Rule(r"(?<=[Ee]t )(?P<a>al)\.(?=\s+[a-z(])", _inner, if_before=_AUTHOR),
    Rule(r"[Nn]o\.(?=[:?,]|\s+[a-z]|\s*$)", _number_of, behind=r"\s", if_before=_HAS_NUMBER),
    Rule(rf"(?i:(?P<a>{_any(NUMBERED)}))(?:\.[ \t]*|[ \t]+)(?=\d|[ivx]{{2,5}}(?![\w'-]))"
         rf"|(?P<b>{_any(BEFORE_ROMAN)})\.[ \t](?P<roman>[IVX]{{2,6}})(?!\w)", _numbered,
         behind=_START),
    Rule(rf"(?i:(?P<a>{_EVER_DOTTED})){_ENDING}\.?(?![A-Za-z'])", _abbreviated, behind=_START),
    # "vol. iii", "page xii"
    Rule(rf"(?:{_any(_SMALL)})(?![A-Za-z0-9'-])",
         lambda match: [numbers.cardinal(_roman_value(match[0].upper()))], behind=r"\s",
         if_before=_BEFORE_SMALL),
    Rule(r"(?:(?P<sound>(?i:[b-hj-z]|th|wh|sh))-){1,3}(?=(?P<word>[A-Za-z']{2,}))", _stammer,
         behind=_START),
    Rule(r"(?P<n>[IVXL]{1,7})(?P<of>'s)?(?![A-Za-z0-9'])", _roman, behind=_START),
    Rule(r"[Tt]h'(?=\s[a-z])", "the", behind=r"\s?"),  # "movin' th' box"
    Rule(r"(?i:(?P<a>wi-fi))" + _ENDING, "why fie", behind=_START),
    Rule(r"(?P<a>[A-Za-z]+(?:'[A-Za-z]+)*)", _word),
)  # fmt: skip
