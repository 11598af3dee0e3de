"""Rules for numbers within names: flights, forms, tyres, parts, verses of the Bible."""

from __future__ import annotations

import re

from text.english import numbers
from text.english.streets import BEFORE_STREET
from text.english.words import spell
from text.rules import Match, Reading, Rule, after, before, paused
from text.vocabulary import BOOKS, HAS_NUMBER, words_of

#: Before three or four digits that are read in pairs: "flight 837", "Flight BA 2490", "UA837".
_FLIGHT = (
    r"(?:\b[Ff]lights?\s(?:(?:number|no\.)\s)?#?(?:[A-Z][A-Z0-9]\s?)?"
    r"|\b(?:AA|UA|DL|BA|LH|EK|QF|QR|SQ|JL|EY|CX))$"
)
#: Before and after four digits that are read in pairs.
_NUMBERED = r"\b(?:[Ff]orms?|[Rr]oom|[Ss]uite|[Rr]oute|[Bb]us|[Mm]odel|Highway|Hwy|RTX|GTX|RX)\s#?$"
#: Elements whose symbols have two letters, formulas like "NaCl" or "H2SO4", and those of ions.
_ELEMENT = "Na|Mg|Al|Ca|Fe|Cu|Zn|Ag|Ba|Pb|Hg|Li|Si|Mn|Ni|Cr|Ti|Cl|Br"
_COMPOUND = re.compile(
    rf"(?=.*(?:{_ELEMENT})).*(?:\d|Cl|Br|OH|O$)|(?:SO|NO|PO)[2-4]|.*[A-Z]\d+[A-Z]"
)
#: A move in chess but a pawn's step, and what shows it.
_MOVE = (
    r"(?:(?P<piece>[KQRBN])(?P<from>[a-h]?[1-8]?)(?P<takes>x)?(?P<to>[a-h][1-8])"
    r"|(?P<file>[a-h])x(?P<taken>[a-h][1-8])|(?P<step>[a-h][1-8])(?==[QRBN]|[+#](?!\w)))"
    r"(?:=(?P<new>[QRBN]))?(?P<end>[+#]?)(?![A-Za-z0-9])"
)
_CHESS = re.compile(
    r"\b(?:[KQRBN][a-h]?x?[a-h][1-8]\b|[a-h]x[a-h][1-8]\b|\d{1,2}\.{1,3}\s?[a-h][1-8]\b|O-O|White\b"
    r"|Black\b|[Cc]hess|[Kk]night|[Bb]ishop|[Rr]ook|[Pp]awn|[Cc]heckmate)"
)
#: Before "Nf3", which is a code and no move.
_CODE = rf"(?i)\b(?:code|{HAS_NUMBER})\s(?:(?:number\s)?is\s)?$"
#: How a move begins as an element, a chord or a square does.
_AMBIGUOUS = words_of("Ba Be Ra Re Rb Nb Nd Ne Bb Qa Na") | {
    f"{file}{rank}" for file in "abcdefgh" for rank in "12345678"
}
#: "The Kh2 project" is no move.
_DETERMINED = re.compile(r"\b(?:[Tt]he|[Aa]n?|[Oo]ur|[Yy]our|[Mm]y)\s$")
_PIECES = {"K": "king", "Q": "queen", "R": "rook", "B": "bishop", "N": "knight"}
_IN_FULL = (
    "Daniel|Surah|Quran|Qur'an|Acts|Job|Ruth|Esther|Ezra|Amos|Joel|Psalms|Peter|Titus|Mark|Luke|"
    + "|".join(name.capitalize() for name in {*BOOKS.values()} - {"mark", "luke", "peter"})
)
_NUMBERED_BOOKS = frozenset({"Sam", "Tim", "Pet", "Kgs", "Cor", "Thess", "Chr", "Chron"})
_FIRST_BOOK = {"1": "first", "2": "second", "3": "third"}
_BOOK = rf"\b(?:{_IN_FULL}|(?:{'|'.join(BOOKS)})\.?)\s$"
#: What has a number with a hyphen that is no range: "P/N 12-3456", "case no. 21-118".
_HAS_CODE = (
    r"(?i)(?:\b[ps]/n|\bsku|\bissn|\brx"
    rf"|\b(?:{HAS_NUMBER}|docket|lot)\.?\s(?:no\.|number|num\.|\#)):?\s?\#?$"
)
#: What has a version, whose parts are numbers: "Python 3.10", "3.10 and 3.12".
_VERSIONED = (
    r"\b(?:[Vv]ersions?|Python|Django|Node(?:\.js)?|PHP|Ruby|Rails|Kotlin|Scala|Rust|Java|Swift|Perl"
    r"|Kubernetes|Ubuntu|Debian|Android|iOS|macOS|Postgres|PostgreSQL|MySQL|NumPy|TensorFlow|PyTorch"
    r"|npm|pip|GCC|CUDA|Unity|Blender|Minecraft)\s(?:v?\d{1,2}\.\d{1,2}(?:,|,?\s(?:and|or|to))\s){0,2}$"
)
_NO_PART = r"(?![\dA-Za-z%]|[-.,/:]\d)"
#: After such a number: "1099-INT", "2490 Elm St.".
_FORM_OR_STREET = rf"-[A-Z]{{1,5}}\b|\s+(?:(?:[NSEW]|[NS][EW])\.?\s+)?{BEFORE_STREET}"
_PRICED = (
    r"\s?(?:/|per\s|each\b"
    r"|an?\s(?:cup|mug|glass|pint|bottle|pound|lb|kilo|kg|bag|shot|pop|piece)\b)"
)


def _compound(match: Match) -> Reading:
    """ "NaCl", "H2SO4", "SO4", "Fe" in "Fe³⁺"."""
    if not (re.fullmatch(_ELEMENT, match[0]) or _COMPOUND.match(match[0])):
        return None
    return [_each_part(match[0])]


def _each_part(written: str) -> str:
    return " ".join(
        numbers.amount(part) if part.isdigit() else spell(part)
        for part in re.findall(r"[A-Za-z]+|\d+", written)
    )


def _move(match: Match) -> Reading:
    """ "Nf3", "exd4", "Qxe8+", "e8=Q" in chess."""
    is_sure = match["takes"] or match["file"] or match["new"] or match[0][:2] not in _AMBIGUOUS
    is_sure = is_sure and not (_DETERMINED.search(before(match)) and not match["takes"])
    if not (is_sure or _CHESS.search(before(match)) or _CHESS.search(after(match))):
        return None
    words = [_PIECES[match["piece"]] if match["piece"] else ""]
    words += [_each_part(match["from"] or match["file"] or "")]
    words += ["takes" if match["takes"] or match["file"] else ""]
    words += [_each_part(match["to"] or match["taken"] or match["step"])]
    words += [_PIECES[match["new"]] if match["new"] else ""]
    words += [{"+": "check", "#": "mate"}.get(match["end"], "")]
    return [word for word in words if word]


def _paired(match: Match) -> Reading:
    return [numbers.paired(match[0])]


def _version(match: Match) -> Reading:
    """ "Python 3.10", "version 2.10"; other numbers have decimals."""
    return [" point ".join(map(numbers.amount, match[0].split(".")))]


def _airliner(match: Match) -> Reading:
    """ "737-800", "787-9"."""
    return [numbers.paired(match["type"]), numbers.paired(match["n"])]


def _verse(match: Match) -> Reading:
    """ "Romans 8:28", "1 Cor. 13:4-7"."""
    return [numbers.cardinal(int(match["chapter"])), numbers.cardinal(int(match["verse"]))]


def _book(match: Match) -> Reading:
    """ "Gen. 1:1", "2 Tim. 3:16"."""
    if match["a"] in _NUMBERED_BOOKS and not re.search(r"\b[123]\s$", before(match)):
        return None  # Sam
    return [BOOKS[match["a"]]]


def _coded(match: Match) -> Reading:
    """ "P/N 12-3456", "invoice no. 2024-118"."""
    return paused(map(numbers.digits, match[0].split("-")))


def _tyre(match: Match) -> Reading:
    """ "205/55R16 91V", "P225/45ZR17"."""
    words = [numbers.paired(match["width"]), numbers.cardinal(int(match["share"]))]
    words += [spell(match["kind"]), numbers.cardinal(int(match["rim"]))]
    if match["load"]:
        words += [",", numbers.cardinal(int(match["load"])), spell(match["speed"])]
    return words


def _week(match: Match) -> Reading:
    """ "2026-W48"."""
    return [numbers.year(int(match["year"])), "week", numbers.cardinal(int(match["week"]))]


def _season(match: Match) -> Reading:
    """ "2024/25", "FY26/27"."""
    first, last = int(match["first"]) % 100, int(match["last"])
    if last != (first + 1) % 100:
        return None
    return [numbers.number(match["first"]), numbers.paired(match["last"])]


def _oil(match: Match) -> Reading:
    """ "5W-30"."""
    return [numbers.amount(match["n"]), spell("w"), numbers.amount(match["d"])]


def _every(match: Match) -> Reading:
    """How often a drug is taken: "q4h", "q4-6h"."""
    to = ["to", numbers.amount(match["to"])] if match["to"] else []
    return ["every", numbers.amount(match["n"]), *to, "hours" if match["of"] == "h" else "days"]


def _meter(match: Match) -> Reading:
    """ "in 6/8 time"."""
    return [numbers.amount(match["beats"]), numbers.amount(match["of"])]


#: For names that begin with letters.
LETTERS: tuple[Rule, ...] = (
    Rule(
        rf"(?:(?:{_ELEMENT}|[HCNOSPKFI])\d{{0,2}}){{2,10}}(?![A-Za-z0-9]|'s)"
        rf"|(?:{_ELEMENT})(?=[²³]?[+⁻](?!\w)|[23]\+(?!\w))",
        _compound,
        behind=r"[^A-Za-z]?",
    ),
    Rule(_MOVE, _move, behind=r"[^A-Za-z0-9]?", unless_before=_CODE),
    Rule(
        r"O-O(?P<long>-O)?(?![\w-])",
        lambda match: ["castles queenside" if match["long"] else "castles"],
        behind=r"[^\w-]?",
    ),
    Rule(
        rf"(?P<a>{'|'.join(BOOKS)})\.?\s(?=\d{{1,3}}:\d{{1,3}}(?!\s?[AaPp]\.?[Mm]|:))",
        _book,
        behind=r"[^A-Za-z0-9]?",
    ),
    Rule(
        r"[qQ](?P<n>\d\d?)(?:[-–](?P<to>\d\d?))?(?P<of>[hd])(?:rs?)?(?![A-Za-z0-9])",
        _every,
        behind=r"[\s(]?",
    ),
    Rule(r"(?P<a>Pss?)\.?(?=\s\d{1,3}(?![\d.]))", _book, behind=r"[^A-Za-z0-9]?"),
)
RULES: tuple[Rule, ...] = (
    Rule(r"(?P<n>0|5|10|15|20|25)W-(?P<d>[1-6]0|8|16)(?![\dA-Za-z-])", _oil),
    Rule(r"(?:1080|1440|2160|4320)(?=[pi]\b)", _paired),
    Rule(r"\d{1,2}\.[1-9]\d(?![\d%]|[.,]\d)", _version, behind=r"\s",
         if_before=_VERSIONED, unless_after=_PRICED),
    Rule(r"(?P<chapter>\d{1,3}):(?P<verse>\d{1,3})(?![\d:])", _verse, behind=r"\s",
         if_before=_BOOK),
    Rule(rf"(?P<a>[123])\s(?=(?:{'|'.join(BOOKS)})\.?\s\d{{1,3}}:\d)", _FIRST_BOOK,
         behind=r"[^A-Za-z0-9.]?"),
    Rule(r"\d{1,6}(?:-\d{2,7})+(?![\w-])", _coded, behind=r"[\s#:]", if_before=_HAS_CODE),
    Rule(r"(?P<width>\d{3})/(?P<share>\d\d)(?P<kind>Z?R)(?P<rim>\d\d)(?!\d)"
         r"(?:\s(?P<load>\d{2,3})(?P<speed>[A-Z])(?!\w))?", _tyre),
    Rule(r"(?P<beats>[2-9]|12)/(?P<of>[248]|16)"
         r"(?=\s(?:time|meter|beat|groove|waltz|march)\b)", _meter,
         behind=r"[^A-Za-z0-9/.-]?"),
    Rule(r"(?P<year>20\d\d)-W(?P<week>\d\d)(?![\w-])", _week, behind=r"[^A-Za-z0-9-]?"),
    Rule(r"(?P<first>(?:19|20)\d\d|(?<=FY)\d\d)/(?P<last>\d\d)(?![\d/]|[.,-]\d)", _season,
         behind=r"[^0-9./-]?"),
    # "flight BA2490", "Form 1040"
    Rule(rf"\d{{3,4}}{_NO_PART}", _paired, behind=r"[^0-9.,/:-]?", if_before=_FLIGHT),
    Rule(rf"\d{{4}}{_NO_PART}", _paired, behind=r"[^0-9.,/:-]?", if_before=_NUMBERED,
         if_after=_FORM_OR_STREET),
    Rule(r"(?P<type>7[0-8]7)-(?P<n>[1-9]00|(?<=787-)(?:8|9|10))(?:(?=ER\b)|(?![\w-]|[.,]\d))",
         _airliner, behind=r"[^A-Za-z0-9.,/-]?"),
)  # fmt: skip
