"""The words that English reads for signs, Greek letters and commands of LaTeX.

They take the place of the signs before the rules read the text.
"""

from __future__ import annotations

import re
import unicodedata

from text.english.context import STARTERS
from text.english.formulas import formula_pieces
from text.formatting import Formatting
from text.unicode_fold import Folder

_NAMES = {
    "√": " square root of ", "∞": " infinity ", "‰": " per mille ", "¶": " paragraph ",
    "♯": " sharp ", "♭": " flat ", "⌘": " command ", "⌥": " option ", "⇧": " shift ",
    "⌃": " control ", "↑": " up ", "↓": " down ", "∑": " sum of ", "∫": " integral of ",
    "∛": " cube root of ", "∆": " delta ", "∂": " partial ", "∇": " nabla ", "∈": "  in  ",
    "∝": " proportional to ", "≡": " equals ", "∉": "  not in  ", "∪": "  union  ",
    "∩": "  intersection  ", "⊂": "  subset of  ", "⊆": "  subset of  ", "∅": " the empty set ",
    "∀": " for all ", "∃": " there exists ", "∧": " and ", "∨": " or ", "¬": " not ",
    "∴": " therefore ", "⇔": " if and only if ", "Ω": " ohm ", "№": " number ",
}  # fmt: skip
_GREEK = "[\u0370-\u03ff\u1f00-\u1fff]"
_SIGNS = (
    r"\\[dt]?frac\{(?P<top>[^{}]{1,60})\}\{(?P<bottom>[^{}]{1,60})\}"
    r"|\\(?P<command>cdot|div|pm|leq|geq|neq|sqrt|infty|int)(?![A-Za-z])"
    rf"|(?<!{_GREEK})(?<!{_GREEK}\s)(?P<greek>[α-λν-ωΓΔΘΛΞΠΣΦΨϕ]|μ(?![A-Za-z]))"
    rf"(?P<power>[²³])?(?!{_GREEK}|\s{_GREEK}{{2}})"
    rf"|(?<={_GREEK})μ|μ(?={_GREEK})"
    r"|(?<=\d)\s?[★⭐]\uFE0F?(?P<noun>(?= (?:hotel|rating|review|service|restaurant|resort)s?\b))?"
    r"(?!\s?[★⭐])"
    r"|(?<=[\w)²³|] )−(?= [\w(|√])"
    r"|[▲▼](?=\s?[-+$€£]?\d)"
)
_COMMANDS = {
    "cdot": " times ", "div": " divided by ", "pm": " plus or minus ", "neq": " not equal to ",
    "leq": " less than or equal to ", "geq": " greater than or equal to ",
    "sqrt": " square root of ", "infty": " infinity ", "int": " integral of ",
}  # fmt: skip
_POWERS = {"²": "squared", "³": "cubed"}
_UP_DOWN = {"▲": " up ", "▼": " down ", "−": "minus"}


def _read(match: re.Match[str]) -> str:
    if match["greek"]:
        return _greek(match)
    if match[0].lstrip()[:1] in ("★", "⭐"):
        return " stars" if match["noun"] is None else " star"
    if top := match["top"]:
        over = "/" if top.isdigit() and match["bottom"].isdigit() else " over "
        return f" {top}{over}{match['bottom']} "
    return _COMMANDS.get(match["command"] or "") or _UP_DOWN.get(match[0], "")


def _greek(match: re.Match[str]) -> str:
    """Return the name of a Greek letter that belongs to no Greek word: "π", "β-carotene"."""
    name = unicodedata.name(match["greek"]).split(" LETTER ")[-1].split()[-1].lower()
    name = {"lamda": "lambda", "symbol": "phi"}.get(name, name)
    if match["power"]:
        return f" {name} {_POWERS[match['power']]} "
    following = match.string[match.end() : match.end() + 1]
    return f" {name}" + (" " if following.isalnum() else "")


fold = Folder(_NAMES, STARTERS, Formatting(_SIGNS, _read, formula_pieces, "slash")).fold
