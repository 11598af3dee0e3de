"""Rules for punctuation and symbols."""

from __future__ import annotations

import re

from embedded.normalisation import numbers
from embedded.normalisation.arithmetic import is_asked
from embedded.normalisation.context import IN_NAME, OF_OPTION, REACH, after, before
from embedded.normalisation.lexicon import LETTERS
from embedded.normalisation.rules import PAUSES, Match, Reading, Rule
from embedded.normalisation.times import IN_FILE
from embedded.normalisation.unicode_fold import PLAIN_DIGITS, RAISED

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
_MONEY = r"[$€£¥₹]"
_KEYS = {"*": "star", "#": "pound"}
_PRESSED = re.compile(
    r"(?i)\b(?:(?:press|dial|hit|push|enter)(?:\s[^.!?\n]{0,24}\s(?:or|then|and|by|is))?(?:\sthe)?"
    r"\s[\"'(]?|dial\s[*#]\d{1,4})$"
)
_OF_MONEY = re.compile(
    r"(?i)\b(?:cost|price|pay|paid|worth|earn|charge|spend|spent|fee|sold|sell)[a-z]{0,3}\b[^.!?;\n]{0,24}$"
)
_SHORT_POWERS = {"2": "squared", "3": "cubed"}

_PLACE = re.compile(rf"{IN_FILE}\d+$")

_LONGEST_LINE = 160
#: A line of a heading, "## Results" or "**Results**", up to its end.
_HEADING = re.compile(r"(?:\A|\n)\s{0,3}(?:#{1,6}\s[^\n]+|\*\*[^*\n]+\*\*:?)\Z")
#: How a line begins that does not continue the one before it: "- ", "2. ", "b) ", "**Name:** ".
_NEW_LINE = re.compile(
    r"(?:[-*+#>]|\d{1,2}[.)]|\(?[A-Za-z]\)|\(?[ivx]{1,4}[.)]|\(\d{1,2}\)|[A-Ha-h]\.)\s+\S"
    r"|\*\*[A-Z][^*\n:]{0,36}(?::\*\*|\*\*:)"
)
#: A line that begins with a label, and the beginning of another one.
_LABELLED = re.compile(r"(?:\A|\n)[*_]{0,3}[A-Z][^\n:]{0,40}:[^\n]+\Z")
_LABEL = re.compile(r"[A-Z][\w'/-]{0,20}(?: [\w'/-]{1,20}){0,2}:\s")


def _pause(mark: str) -> Rule:
    return Rule(re.escape(mark), lambda match: [mark])


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


def _minus(match: Match) -> Reading:
    """A spaced dash between numbers: a subtraction if an equals sign follows, else a range."""
    if "=" in after(match) or is_asked(match):
        return ["minus"]
    return ["to"] if match[0] == " – " else [","]


def _after_fraction(match: Match) -> Reading:
    """ "1½–2 cups", "a score of 2½-1½"; a vulgar fraction has a space after it."""
    equated = re.search(r"=[^,;.?!]*$", before(match)) or re.match(r"[^,;.?!]*=", after(match))
    return ["minus" if equated else "to"]


def _in_name(match: Match) -> Reading:
    """A hyphen in a name of letters and digits: "i7-13700", "INC-2024-00123"."""
    return [] if IN_NAME.search(before(match)) else None


def _subtracted(match: Match) -> Reading:
    """ "x - 2 = 5", "(x - 2)^2", "b² - 4ac"; "Option b - 3 items" has no sign beside it."""
    line = before(match) + after(match)
    return ["minus"] if re.search(r"=|\^[\d(]|[)a-z²]²|\)\s?/\s?[\d(]|\|\s?[<>]", line) else None


def _or(match: Match) -> Reading:
    """ "a || b"; in a line of a table it is an empty cell."""
    return None if before(match).rpartition("\n")[2].lstrip()[:1] == "|" else ["or"]


def _divided(match: Match) -> Reading:
    """A spaced slash: a pause, or a sign between numbers."""
    text, start, end = match.string, match.start(), match.end()
    if not (text[start - 1 : start].isdigit() and text[end : end + 1].isdigit()):
        return [","]
    return ["divided by" if "=" in after(match) else "over"]


def _colon(match: Match) -> Reading:
    """ "3:1", but "line 42:7"."""
    behind = before(match)
    return [","] if _PLACE.search(behind) or OF_OPTION.search(behind) else ["to"]


def _ellipsis(match: Match) -> Reading:
    """A stop, or a pause within a sentence."""
    following = match.string[match.end() : match.end() + 3]
    return [","] if re.match(r"\s*[a-z]|[,;:\d]", following) else ["."]


def _for_each(match: Match) -> Reading:
    """ "5 mg/5 mL", "60 mL/min/1.73 m²"."""
    return ["per"] if re.search(r"\d\s?[A-Za-z]{1,5}(?:/[A-Za-z]{1,3})?$", before(match)) else None


def _unknown_sum(match: Match) -> Reading:
    """ "costs $x", but "echo $x"."""
    return [LETTERS[match["x"]], "dollars"] if _OF_MONEY.search(before(match)) else None


def _price_of(match: Match) -> Reading:
    """ "$300/axle"."""
    return ["per"] if re.search(r"[$€£]\d[\d,.]*[kKM]?$", before(match)) else None


def _blank(match: Match) -> Reading:
    """An empty line ends a sentence, and so does the end of a heading's line. There is a pause
    before items of a list and lines that begin with a label, and at a hard break.
    """
    if match[0].count("\n") != 1:
        return ["."] if "\n" in match[0] else []
    text, start, end = match.string, match.start(), match.end()
    if _HEADING.search(text, max(0, start - _LONGEST_LINE), start):
        return ["."]
    is_hard = match[0].startswith("  ") or text[start - 1 : start] == "\\"
    following = text[end : end + REACH]
    if is_hard or _NEW_LINE.match(following):
        return [","]
    is_label = _LABEL.match(following) and _LABELLED.search(
        text, max(0, start - _LONGEST_LINE), start
    )
    return [","] if is_label else []


def _options(match: Match) -> Reading:
    """Letters of a command's options: "ls -la", "docker run -it"."""
    if not _COMMAND.search(before(match)):
        return None
    return ["dash", *(LETTERS[letter] for letter in match["letters"].lower())]


def _next_option(match: Match) -> Reading:
    """The "-d" in "docker run -p 80:80 -d nginx"."""
    return ["dash"] if OF_OPTION.search(before(match).rstrip()) else None


def _stage(match: Match) -> Reading:
    """A direction to the speaker: "*laughs* Right.", but "press *pause*"."""
    return [] if before(match).rstrip()[-1:] in ("", ".", "!", "?", ",", "]") else None


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


def says(pattern: str, words: str = "", behind: str | None = None) -> Rule:
    """Make a rule with a fixed reading: a pause, words, or nothing."""
    reading = [words] if words else []
    return Rule(pattern, lambda match: reading, behind=behind)


_COMMAND = re.compile(
    r"(?:^|[\s`$])(?:cp|curl|df|docker|du|grep|git|kubectl|ln|ls|mkdir|mv|netstat|ps|rm"
    r"|rsync|scp|ssh|sudo|tar|unzip|wget|zip)\s(?:[\w./-]{1,20}\s){0,2}$"
)
_STAGE = (
    r"(?i:(?:laugh|chuckle|giggle|sigh|pause|smile|gasp|cough|yawn|whisper)s?"
    r"|clears (?:my |his |her )?throat)(?:\s[a-z]{1,12}ly)?"
)
#: Units of the sides of a thing: "10 × 12 ft".
_SIDES = r"(?:ft|feet|foot|in|inch|inches|cm|mm|m|px|pixels|meters?)\b|[\"']"
_LETTER_OR_DIGIT = r"[A-Za-z0-9%]"
#: The address in a Markdown link, with a title: an address, or a path within a site.
_TARGET = (
    r"\]\((?:[A-Za-z][\w+.-]{0,20}:|[#/?.]|(?=[^\s()]{1,200}[./]))[^\s()]{0,400}"
    r"(?:\([^\s()]{0,100}\)[^\s()]{0,200})?(?:\s\"[^\"\n]{0,200}\")?\)"
)
#: Most spaces, commas and stops, before all other rules, which is faster. None of these reads one.
COMMON: tuple[Rule, ...] = (
    says(r" (?=[A-Za-z])"),
    says(r",(?=\s)", ","),
    says(r"\.(?=\s[A-Za-z]|\Z)", ".", behind=r"[a-z]"),
)
RULES: tuple[Rule, ...] = (
    says(r"\.{1,3}\s?(?=(?:[KQRBN][a-h1-8]?x?|[a-h]x)?[a-h][1-8](?![\w-])|O-O)", ",", behind=r"\d"),
    Rule(rf"(?P<n>[{RAISED}]?)(?P<sign>[+⁻])(?![\w{RAISED}])", _charge, behind=r"[A-Za-z0-9)]"),
    says(r"⁻¹(?!\w)", "to the power of minus one", behind=r"[a-z]"),
    Rule(
        rf"(?:(?<![A-Za-z]{{3}})|(?<=sin)|(?<=cos)|(?<=tan)|(?<=sec)|(?<=log))(?P<minus>⁻)?(?P<n>[{RAISED}]+)",
        _raised,
        behind=r"[A-Za-z0-9)]",
    ),
    # links, footnotes, tasks
    says(rf"!\[(?=[^\[\]\n]{{0,200}}{_TARGET})", ","),
    says(rf"\[(?=[^\[\]\n]{{1,200}}{_TARGET})"),
    says(_TARGET),
    says(r"\[\^[^\]\s]{1,30}\]:?"),
    says(r"(?<=[-*+.] )\[[ xX]\](?=\s)"),
    Rule(rf"(?:\*{_STAGE}\*|\[{_STAGE}\]|\({_STAGE}\))(?=\s|$)", _stage, behind=r"\s?"),
    # arrows
    says(r"[-=]{1,9}>", ","),
    says(r"[ \t]>[ \t](?=[*_\"'`]{0,4}[A-Z])", ",", behind=r"[A-Za-z0-9*_\"'`)]"),
    # dashes
    says(r"(?:(?<=UTC)|(?<=GMT))[-–](?=\d)", "minus"),
    Rule(r"-(?=\d)", _in_name, behind=r"\d"),
    says(r"-(?=\d{1,12}(?:\.\d{1,12})?\s?=)", "minus", behind=r"\d"),
    says(rf"[-–—](?!0\d)(?={_MONEY}?\.?\d)", "to", behind=r"[\d%°]"),
    says(rf"(?<!\*-\*\*)(?<!\*\*\*)[-–](?={_MONEY}?\.?\d)", "minus", behind=r"[\s(\[{|,=<>*/+^]?"),
    Rule(r"(?<=[1-9]/[2-9])(?: [-–](?=\d)| -  ?(?=\d\d?/\d)|  [-–]  ?(?=\d))", _after_fraction),
    Rule(r"[ \t][-–][ \t](?=\d)", _minus, behind=r"\d"),
    Rule(
        r"(?:(?<=\A[b-hj-z])|(?<=[|(]a)|(?<=[\s\d(^*/+=-][b-hj-z])|(?<=[\d)²³]))[ \t][-–][ \t]"
        r"(?=\d|\(|[b-hj-z](?![A-Za-z']))",
        _subtracted,
    ),
    says(r"(?<=[1-9]/[2-9] )-(?=[a-z])"),  # ½-inch
    says(r"-(?=[A-Za-z0-9])", "", behind=_LETTER_OR_DIGIT),
    says(r"(?<=[A-Z]\.)-(?=[a-z])"),  # U.S.-based
    # options of a command
    says(r"--(?=[A-Za-z])", "dash dash", behind=r"[\s\"'`(]"),
    Rule(r"-(?P<letters>[A-Za-z]{2,4})(?![A-Za-z'-])", _options, behind=r"[ \t]"),
    says(r"(?<=[A-Za-z]{2}\s)-(?=[A-Za-z](?:\s|$))", "dash"),
    Rule(r"-(?=[A-Za-z](?:\s|$))", _next_option, behind=r"\s"),
    says(r"-(?=,?\s(?:and|or|to)\s[\w-]*-)", "", behind=_LETTER_OR_DIGIT),  # 6- or 12-month
    says(r"–(?=[A-Z][a-z])", "", behind=r"[a-z]"),  # Beijing–Shanghai
    says(r"[-–—]+", ","),
    Rule(r"[ \t]/[ \t](?=\S)", _divided),
    says(r"\s\*\*\s(?=\d)", "to the power of", behind=r"[A-Za-z0-9)]"),
    says(r"[ \t]\*[ \t](?=\d)", "times", behind=r"[A-Za-z0-9)]"),
    says(r"(?:(?<=\b[A-Za-z])|(?<=[\d)]))[ \t]\*[ \t](?=[A-Za-z]\b|\()", "times"),
    Rule(r"\s+", _blank),
    # slashes, stars and the like
    says(r"(?<=\bQ[1-4])/(?=\d\d)"),
    says(r"(?<=\bf)/(?=\d\d?(?:\.\d)?(?![\d/]))"),  # f/2.8
    says(r"/(?=-?\d)", ",", behind=r"°"),
    Rule(
        r"/(?=\d{1,4}(?:\.\d{1,3})?\s?(?:mL|ml|L|dL|kg|m²|m2|min)\b)", _for_each, behind=r"[A-Za-z]"
    ),
    says(r"/(?=\d)", "slash", behind=r"\d"),
    says(r"/(?=\d\d?\s?(?:h|hrs?|hours)\b)", "per", behind=r"[A-Za-z]"),
    Rule(r"/(?=[a-z]{3})", _price_of, behind=r"[\dkKM]"),
    says(r"/(?=[A-Za-z0-9])", "slash", behind=r"[A-Za-z0-9]"),
    says(r"\*\*(?=\d)", "to the power of", behind=r"[\d)]"),
    says(r"(?<![A-Za-z0-9][A-Za-z])\*\*(?=\d)", "to the power of", behind=r"[A-Za-z]"),
    says(r"\*(?=\d)", "times", behind=r"\d"),
    says(rf"×(?=(?:\s?\d+(?:\.\d+)?\s?×)?\s?\d+(?:\.\d+)?\s?(?:{_SIDES}))", "by"),
    says(r"×(?=\s?\d{1,3}\s(?:days?|weeks?|wks?|months?|nights?)\b)", "for", behind=r"[A-Za-z.)] "),
    says(r"×(?=\d{3,4}(?!\d|\s?=))", "by", behind=r"\d{3}"),
    says(r"×(?=\s?\d)", "times", behind=r"[\d\s]"),
    says(r"\^2(?!\.?\d|[A-Za-z])", "squared", behind=r"[A-Za-z0-9)]"),
    says(r"\^3(?!\.?\d|[A-Za-z])", "cubed", behind=r"[A-Za-z0-9)]"),
    says(r"\^(?=[-({]{0,2}[A-Za-z0-9])", "to the power of", behind=r"[A-Za-z0-9)]"),
    says(rf"~(?=\s?{_MONEY}?\d)|~(?=[A-Z][a-z]{{2,8}}\.? \d)", "about", behind=r"[^\w~]?"),
    Rule(r"#(?=\s?\d|[A-Z]{1,5}-?\d)", _hash),
    Rule(r"(?<=[a-z] )#(?=:|\s(?:is|was)\b)", _hash),
    says(r"#(?=[A-Za-z])", "hashtag", behind=r"[\s(]?"),
    says(r"<=", "less than or equal to"),
    says(r">=", "greater than or equal to"),
    says(r"=/=", "not equal to"),
    says(rf"<(?=\s?{_MONEY}?\.?\d)", "less than"),
    says(rf">(?=\s?{_MONEY}?\.?\d)", "greater than"),
    says(r"<[-=]+", ","),
    says(r"={2,}", "equals"),
    # marks
    says(r"[:;]-?[)(DPp](?=\s+[A-Z]|\s*$)", "."),
    says(r"[:;]-?[)(DPp](?!\w)"),
    says(r"\.{1,2}/(?=[A-Za-z.])", behind=r"[\s(\"'`]?"),
    says(r"\.[-–](?=[\s.,;:)]|$)", "", behind=r"\d"),  # 250.-
    Rule(r"\.{2,}|\.\s\.\s\.", _ellipsis),
    says(r"\.(?=[\"')\]]{0,2}[,;:])"),  # an abbreviation's, which ends no sentence
    says(r"\.(?=[a-z0-9])", "dot", behind=r"[A-Za-z0-9]"),
    says(r"\.(?=[a-z]|[A-Z]{2})", "dot", behind=r"[\s(\"'`/]?"),
    says(r"\.(?=NET\b)", "dot", behind=r"[A-Z]"),
    Rule(r":(?=\d)", _colon, behind=r"\d"),
    says(r"·", ",", behind=r"\s"),
    says(r"·(?=\d)", "times", behind=r"\d"),
    says(r"\(s\)", "", behind=r"[a-z]"),
    Rule(r"\|\|(?=\s)", _or, behind=r"[\w)\]\"'`]\s"),
    says(r"[:;()\[\]{}|]", ","),
    says(r"&&", "and"),
    says(r"°\s?C(?![A-Za-z0-9])", "degrees celsius"),
    says(r"°\s?F(?![A-Za-z0-9])", "degrees fahrenheit"),
    Rule(r"\$(?P<x>[a-z])(?![A-Za-z0-9_])", _unknown_sum),
    says(r"\$(?=[a-z_])|(?<=[)\]}*+])\$(?!\s?\d)"),  # $x, ^[a-z]+$
    says(r"(?<=\s)\*(?=\s(?:FROM|from)\b)|(?<=\w\()\*(?=\))", "star"),  # SELECT *, count(*)
    says(r"\$(?=[A-Z][A-Z_]{1,20}(?![A-Za-z0-9])|\{[A-Z_]{2,20}\}|\([a-z])"),  # $AAPL, $HOME
    Rule(r"\*\*|[*#]", _key),
    Rule(r"§§|[&@+=%±×÷≈≤≥≠§°$€£¥¢₹₩₽₿฿₺₫₪₴₦₱]", _named),
    *map(_pause, PAUSES),
)
#: Short forms that contain a sign, tried before words.
SLASHED = Rule(r"(?:(?i:and/or|w/o|w/|n/a|c/o|tl;dr|m&ms)|b/c|A/[BC]|I/O|P/E)"
               r"(?![A-Za-z0-9/])|(?<!/)(?i:w/)(?=\w)|K/D|(?<=\d )y/o|(?<=\d)y/o"
               r"|C\+\+|c#|[A-G]#(?=(?:m|maj|min|dim|aug|sus|add)?"
               r"(?:[5679]|1[13])?(?![A-Za-z0-9]))", _slashed, behind=r"[^A-Za-z0-9]?")  # fmt: skip
