"""Rules for punctuation and symbols."""

from __future__ import annotations

import re

from text import punctuation
from text.english import numbers
from text.english.between import MONEY
from text.english.context import OPTION_WITH_VALUE
from text.english.times import IN_FILE
from text.english.vocabulary import LETTERS
from text.rules import Match, Reading, Rule, after, before
from text.unicode_fold import PLAIN_DIGITS, RAISED

_NAMES = {
    "&": "and", "@": "at", "+": "plus", "=": "equals", "%": "percent", "±": "plus or minus",
    "×": "times", "÷": "divided by", "≈": "about", "≤": "less than or equal to",
    "≥": "greater than or equal to", "≠": "not equal to",
    "§": "section", "°": "degrees", "$": "dollars", "€": "euros", "£": "pounds", "¥": "yen",
    "¢": "cents", "₹": "rupees", "₩": "won", "₽": "rubles", "₿": "bitcoins",
    "฿": "baht", "₺": "lira", "₫": "dong", "₪": "shekels", "₴": "hryvnias", "₦": "naira",
    "₱": "pesos",
}  # fmt: skip
_SLASHED = {"and/or": "and or", "w/o": "without", "w/": "with", "n/a": "not applicable",
            "c/o": "care of", "b/c": "because",
            "a/c": "ay see", "k/d": "kay dee", "y/o": "year old",
            "i/o": "eye oh", "p/e": "pee ee", "a/b": "ay bee",
            "tl;dr": "tee ell dee ar", "m&ms": "em and ems",
            "c++": "see plus plus"}  # fmt: skip
_KEYS = {"*": "star", "#": "pound"}
_PRESSED = re.compile(
    r"(?i)\b(?:(?:press|dial|hit|push|enter)(?:\s[^.!?\n]{0,24}\s(?:or|then|and|by|is))?(?:\sthe)?"
    r"\s[\"'(]?|dial\s[*#]\d{1,4})$"
)
_OF_MONEY = (
    r"(?i)\b(?:cost|price|pay|paid|worth|earn|charge|spend|spent|fee|sold|sell)[a-z]{0,3}\b"
    r"[^.!?;\n]{0,24}$"
)
_SHORT_POWERS = {"2": "squared", "3": "cubed"}

#: "line 42:7", "-p 80:80"
_NO_RATIO = rf"(?:{IN_FILE}\d+|{OPTION_WITH_VALUE})$"


def _named(match: Match) -> Reading:
    if match[0] == "+" and _is_bullet(match):
        return []
    if match[0] == "°" and re.search(r"\([^\w(]*$", before(match)):
        return []  # (°□°)
    return ["sections" if len(match[0]) > 1 else _NAMES[match[0]]]


def _is_bullet(match: Match) -> bool:
    """Whether words follow a sign at the beginning of a line."""
    rest = after(match).partition("\n")[0]
    if "=" in rest or not re.match(r"\s+[^\d\s]", rest):
        return False
    return not before(match).rpartition("\n")[2].strip()


def _key(match: Match) -> Reading:
    """The keys of a telephone: "press * or #", "dial *67", "#31#"."""
    alone = re.match(r"[^\w*#]|$", match.string[match.end() : match.end() + 1])
    if not alone and not re.match(r"\d{2,3}(?![\d*])", after(match)):
        return None
    names = " ".join(_KEYS[key] for key in match[0])
    return [names] if _PRESSED.search(before(match)) else None


def _hash(match: Match) -> Reading:
    """ "#5", "order #A-10", "Order #: 5", but "dial #31#"."""
    return _key(match) or ["number"]


def _divided(match: Match) -> Reading:
    """A spaced slash: a pause, or a sign between numbers."""
    text, start, end = match.string, match.start(), match.end()
    if not (text[start - 1 : start].isdigit() and text[end : end + 1].isdigit()):
        return [","]
    return ["divided by" if "=" in after(match) else "over"]


def _unknown_sum(match: Match) -> Reading:
    return [LETTERS[match["x"]], "dollars"]


def _options(match: Match) -> Reading:
    """Letters of a command's options: "ls -la", "docker run -it"."""
    return ["dash", *(LETTERS[letter] for letter in match["letters"].lower())]


def _raised(match: Match) -> Reading:
    """An exponent: "x²", "10⁻⁸"."""
    power = match["n"].translate(PLAIN_DIGITS)
    if match["minus"] or power not in _SHORT_POWERS:
        minus = ["minus"] if match["minus"] else []
        return ["to the power of", *minus, numbers.amount(power)]
    return [_SHORT_POWERS[power]]


def _charge(match: Match) -> Reading:
    """The charge of an ion: "Fe³⁺", "Cl⁻"."""
    if match["sign"] == "+" and not match["n"]:
        return None
    number = [numbers.amount(match["n"].translate(PLAIN_DIGITS))] if match["n"] else []
    return [*number, "plus" if match["sign"] == "+" else "minus"]


def _slashed(match: Match) -> Reading:
    short = match[0].lower()
    if short[-1] == "#":
        return [f"{LETTERS[short[0]]} sharp"]
    return [_SLASHED[short]]


_COMMAND = (
    r"(?:^|[\s`$])(?:cp|curl|df|docker|du|grep|git|kubectl|ln|ls|mkdir|mv|netstat|ps|rm"
    r"|rsync|scp|ssh|sudo|tar|unzip|wget|zip)\s(?:[\w./-]{1,20}\s){0,2}$"
)
_STAGE = (
    r"(?i:(?:laugh|chuckle|giggle|sigh|pause|smile|gasp|cough|yawn|whisper)s?"
    r"|clears (?:my |his |her )?throat)(?:\s[a-z]{1,12}ly)?"
)
_LETTER_OR_DIGIT = r"[A-Za-z0-9%]"
RULES: tuple[Rule, ...] = (
    Rule(r"\.{1,3}\s?(?=(?:[KQRBN][a-h1-8]?x?|[a-h]x)?[a-h][1-8](?![\w-])|O-O)", ",", behind=r"\d"),
    Rule(rf"(?P<n>[{RAISED}]?)(?P<sign>[+⁻])(?![\w{RAISED}])", _charge, behind=r"[A-Za-z0-9)]"),
    Rule(r"⁻¹(?!\w)", "to the power of minus one", behind=r"[a-z]"),
    Rule(
        rf"(?:(?<![A-Za-z]{{3}})|(?<=sin)|(?<=cos)|(?<=tan)|(?<=sec)|(?<=log))(?P<minus>⁻)?(?P<n>[{RAISED}]+)",
        _raised,
        behind=r"[A-Za-z0-9)]",
    ),
    # links, footnotes, tasks
    *punctuation.LINKS,
    # a direction to the speaker; others are read by text/markup
    Rule(rf"\({_STAGE}\)(?=\s|$)", "", behind=r"\s?", if_before=r"(?:^|[.!?,\]])\s*$"),
    # arrows
    *punctuation.ARROWS,
    # dashes
    Rule(r"(?<=[1-9]/[2-9] )-(?=[a-z])", ""),  # ½-inch
    Rule(r"-(?=[A-Za-z0-9])", "", behind=_LETTER_OR_DIGIT),
    Rule(r"(?<=[A-Z]\.)-(?=[a-z])", ""),  # U.S.-based
    # options of a command
    Rule(r"--(?=[A-Za-z])", "dash dash", behind=r"[\s\"'`(]"),
    Rule(
        r"-(?P<letters>[A-Za-z]{2,4})(?![A-Za-z'-])", _options, behind=r"[ \t]", if_before=_COMMAND
    ),
    Rule(r"(?<=[A-Za-z]{2}\s)-(?=[A-Za-z](?:\s|$))", "dash"),
    # the "-d" in "docker run -p 80:80 -d nginx"
    Rule(r"-(?=[A-Za-z](?:\s|$))", "dash", behind=r"\s", if_before=rf"{OPTION_WITH_VALUE}\s*$"),
    Rule(r"-(?=,?\s(?:and|or|to)\s[\w-]*-)", "", behind=_LETTER_OR_DIGIT),  # 6- or 12-month
    Rule(r"–(?=[A-Z][a-z])", "", behind=r"[a-z]"),  # Beijing–Shanghai
    punctuation.DASH,
    Rule(r"[ \t]/[ \t](?=\S)", _divided),
    Rule(r"\s\*\*\s(?=\d)", "to the power of", behind=r"[A-Za-z0-9)]"),
    Rule(r"[ \t]\*[ \t](?=\d)", "times", behind=r"[A-Za-z0-9)]"),
    Rule(r"(?:(?<=\b[A-Za-z])|(?<=[\d)]))[ \t]\*[ \t](?=[A-Za-z]\b|\()", "times"),
    punctuation.BLANK,
    # slashes, stars and the like
    Rule(r"(?<=\bQ[1-4])/(?=\d\d)", ""),
    Rule(r"(?<=\bf)/(?=\d\d?(?:\.\d)?(?![\d/]))", ""),  # f/2.8
    Rule(r"/(?=-?\d)", ",", behind=r"°"),
    Rule(r"/(?=\d)", "slash", behind=r"\d"),
    Rule(r"/(?=[A-Za-z0-9])", "slash", behind=r"[A-Za-z0-9]"),
    Rule(r"\*\*(?=\d)", "to the power of", behind=r"[\d)]"),
    Rule(r"(?<![A-Za-z0-9][A-Za-z])\*\*(?=\d)", "to the power of", behind=r"[A-Za-z]"),
    Rule(r"\*(?=\d)", "times", behind=r"\d"),
    Rule(r"\^2(?!\.?\d|[A-Za-z])", "squared", behind=r"[A-Za-z0-9)]"),
    Rule(r"\^3(?!\.?\d|[A-Za-z])", "cubed", behind=r"[A-Za-z0-9)]"),
    Rule(r"\^(?=[-({]{0,2}[A-Za-z0-9])", "to the power of", behind=r"[A-Za-z0-9)]"),
    Rule(rf"~(?=\s?{MONEY}?\d)|~(?=[A-Z][a-z]{{2,8}}\.? \d)", "about", behind=r"[^\w~]?"),
    Rule(r"#(?=\s?\d|[A-Z]{1,5}-?\d)", _hash),
    Rule(r"(?<=[a-z] )#(?=:|\s(?:is|was)\b)", _hash),
    Rule(r"#(?=[A-Za-z])", "hashtag", behind=r"[\s(]?"),
    Rule(r"<=", "less than or equal to"),
    Rule(r">=", "greater than or equal to"),
    Rule(r"=/=", "not equal to"),
    Rule(rf"<(?=\s?{MONEY}?\.?\d)", "less than"),
    Rule(rf">(?=\s?{MONEY}?\.?\d)", "greater than"),
    Rule(r"<[-=]+", ","),
    Rule(r"={2,}", "equals"),
    # marks
    *punctuation.FACES,
    Rule(r"\.{1,2}/(?=[A-Za-z.])", "", behind=r"[\s(\"'`]?"),
    Rule(r"\.[-–](?=[\s.,;:)]|$)", "", behind=r"\d"),  # 250.-
    punctuation.ELLIPSIS,
    Rule(r"\.(?=[\"')\]]{0,2}[,;:])", ""),  # an abbreviation's, which ends no sentence
    Rule(r"\.(?=[a-z0-9])", "dot", behind=r"[A-Za-z0-9]"),
    Rule(r"\.(?=[a-z]|[A-Z]{2})", "dot", behind=r"[\s(\"'`/]?"),
    Rule(r"\.(?=NET\b)", "dot", behind=r"[A-Z]"),
    Rule(r":(?=\d)", ",", behind=r"\d", if_before=_NO_RATIO),
    Rule(r":(?=\d)", "to", behind=r"\d"),
    Rule(r"·", ",", behind=r"\s"),
    Rule(r"·(?=\d)", "times", behind=r"\d"),
    Rule(r"\(s\)", "", behind=r"[a-z]"),
    # "a || b"; in a line of a table it is an empty cell
    Rule(r"\|\|(?=\s)", "or", behind=r"[\w)\]\"'`]\s", unless_before=r"(?:^|\n)[^\S\n]*\|[^\n]*$"),
    punctuation.BRACKET,
    Rule(r"&&", "and"),
    Rule(r"°\s?C(?![A-Za-z0-9])", "degrees celsius"),
    Rule(r"°\s?F(?![A-Za-z0-9])", "degrees fahrenheit"),
    # "costs $x", but "echo $x"
    Rule(r"\$(?P<x>[a-z])(?![A-Za-z0-9_])", _unknown_sum, if_before=_OF_MONEY),
    Rule(r"\$(?=[a-z_])|(?<=[)\]}*+])\$(?!\s?\d)", ""),  # $x, ^[a-z]+$
    Rule(r"(?<=\s)\*(?=\s(?:FROM|from)\b)|(?<=\w\()\*(?=\))", "star"),  # SELECT *, count(*)
    Rule(r"\$(?=[A-Z][A-Z_]{1,20}(?![A-Za-z0-9])|\{[A-Z_]{2,20}\}|\([a-z])", ""),  # $AAPL, $HOME
    Rule(r"\*\*|[*#]", _key),
    Rule(r"§§|[&@+=%±×÷≈≤≥≠§°$€£¥¢₹₩₽₿฿₺₫₪₴₦₱]", _named),
    *punctuation.STOPS,
)
#: Short forms that contain a sign, tried before words.
SLASHED = Rule(r"(?:(?i:and/or|w/o|w/|n/a|c/o|tl;dr|m&ms)|b/c|A/[BC]|I/O|P/E)"
               r"(?![A-Za-z0-9/])|(?<!/)(?i:w/)(?=\w)|K/D|(?<=\d )y/o|(?<=\d)y/o"
               r"|C\+\+|c#|[A-G]#(?=(?:m|maj|min|dim|aug|sus|add)?"
               r"(?:[5679]|1[13])?(?![A-Za-z0-9]))", _slashed, behind=r"[^A-Za-z0-9]?")  # fmt: skip
