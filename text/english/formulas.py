"""The words of formulas in LaTeX."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from text.english.vocabulary import LETTERS
from text.vocabulary import words_of

_TOKEN = re.compile(
    r"\\(?P<ends>begin|end)\{[A-Za-z*]{1,20}\}|\\(?P<command>[A-Za-z]{1,20})\*?|\\(?P<escaped>[^A-Za-z])|(?P<script>[_^])"
    r"|(?P<number>\d[\d.,]*(?<![.,]))|(?P<letters>[A-Za-z]{1,20})|(?P<greek>[α-ωΓΔΘΛΞΠΣΦΨΩ])"
    r"|(?P<sign>[-{}'!&~])"
)
_SIMPLE_FRACTION = re.compile(r"\s*(?:\{(\d+)\}\{(\d+)\}|(\d)(\d))")
_DEGREES = re.compile(r"\^(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))")
_POWER = re.compile(r"\^(?:\{([23])\}|([23])(?!\d))")
_POWERS = {"2": " squared ", "3": " cubed "}
_COMPOUND = re.compile(r"[-+=]|\\pm")
_ARGUMENT = re.compile(r"\(([A-Za-z]|\d{1,3})\)")
_OPERATORS = {"sum": ("sum", "from"), "prod": ("product", "from"), "int": ("integral", "from"),
              "lim": ("limit", "as")}  # fmt: skip
_SILENT = words_of(
    """
    left right big Big bigg Bigg bigl bigr displaystyle quad qquad limits text textbf mathrm mathbf
    mathit mathbb mathcal operatorname boxed vec hat bar overline underline
    """
)
_IN_WORDS = words_of("text textbf mathrm operatorname")
_WORDS = {
    "cdot": "times", "div": "divided by", "pm": "plus or minus", "mp": "minus or plus",
    "neq": "not equal to", "ne": "not equal to", "leq": "less than or equal to",
    "le": "less than or equal to", "geq": "greater than or equal to",
    "ge": "greater than or equal to", "lt": "less than", "gt": "greater than",
    "sqrt": "square root of", "infty": "infinity", "sin": "sine", "cos": "cosine",
    "tan": "tangent", "ln": "natural log", "circ": "degrees", "implies": ", so",
    "Rightarrow": ", so", "rightarrow": "to", "iff": "if and only if", "ldots": ", and so on,",
    "dots": ", and so on,", "cdots": ", and so on,", "cup": "union", "cap": "intersection",
    "subset": "subset of", "subseteq": "subset of", "forall": "for all", "exists": "there exists",
    "notin": "not in", "degree": "degrees", "partial": "partial", "angle": "angle",
    "mid": "given", "sim": "about", "equiv": "equals", "propto": "proportional to",
    "perp": "perpendicular to", "parallel": "parallel to", "emptyset": "the empty set",
}  # fmt: skip
_ESCAPED = {"%": " percent ", "$": " dollars ", "&": " and ", "#": " number ", "\\": ", "}
_SIGNS = {"-": " minus ", "'": " prime ", "!": " factorial ", "&": " ", "~": " "}
_FUNCTIONS = frozenset("fghFGPO")


def formula_pieces(source: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield what is read in place of parts of the formula ``source[start:end]``."""
    width = 1 if source[start] == "$" and source[start + 1] != "$" else 2
    yield start, start + width, " "
    yield from _Reader(source, end - width).read(start + width)
    yield end - width, end, " "


class _Reader:
    """Reads a formula from left to right."""

    def __init__(self, source: str, end: int) -> None:
        self._source, self._end = source, end
        #: The open braces: their meaning, and where their contents begin.
        self._open: list[tuple[str, int]] = []
        self._next = ""  # the meaning of the next brace, sign or letter
        self._limits = ""  # "from" or "as" while the limits of a sum are read

    def read(self, at: int) -> Iterator[tuple[int, int, str]]:
        while match := _TOKEN.search(self._source, at, self._end):
            meaning, opens = self._next, match[0] == "{"
            self._next = ""
            at, said = (match.end(), "") if opens else self._token(match, meaning)
            if opens:
                self._open.append((meaning, at))
            elif match["command"] in _SILENT:
                self._next = self._next or meaning
            elif meaning and not match["script"]:
                said = said or match[0]
                said += self._after(meaning, said, at)
            if said is not None:
                yield match.start(), at, said

    def _token(self, match: re.Match[str], meaning: str) -> tuple[int, str | None]:
        """Return the end of a token, and what is read in its place; None if it is read as it is."""
        at, end = match.start(), match.end()
        if match["ends"]:
            return end, ", "
        if match["command"]:
            return self._command(match["command"], end)
        if match["script"]:
            return self._script(match["script"], at)
        if match["letters"]:
            return self._letters(match)
        if match["number"]:
            return end, None
        if match["greek"]:
            name = unicodedata.name(match[0]).split()[-1].lower().replace("lamda", "lambda")
            return end, f" {name} "
        if match["escaped"]:
            return end, _ESCAPED.get(match["escaped"], " ")
        if match["sign"] == "}":
            kind, begin = self._open.pop() if self._open else ("", at)
            return end, self._after(kind, self._source[begin:at], end)
        return end, None if self._in_words() else _SIGNS[match["sign"]]

    def _command(self, name: str, end: int) -> tuple[int, str]:
        if name in ("frac", "dfrac", "tfrac"):
            if simple := _SIMPLE_FRACTION.match(self._source, end, self._end):
                top, bottom = simple[1] or simple[3], simple[2] or simple[4]
                return simple.end(), f" {top}/{bottom} "
            self._next = "top"
            return end, " "
        if name in _OPERATORS:
            said, limits = _OPERATORS[name]
            self._limits = limits if self._source[end : end + 1] in ("_", "^") else ""
            return end, f" {said} " + ("" if self._limits else "of ")
        if name == "to" and self._limits:
            return end, " approaches "
        if name in _SILENT:
            self._next = "words" if name in _IN_WORDS else ""
            return end, ""
        if name == "sqrt":
            self._next = "root"
            if self._source.startswith("[3]", end):
                return end + 3, " cube root of "
        return end, f" {_WORDS.get(name, name)} "

    def _script(self, sign: str, at: int) -> tuple[int, str]:
        for pattern in (_DEGREES, _POWER):
            if not self._limits and (known := pattern.match(self._source, at, self._end)):
                powers = known.lastindex and _POWERS[known[known.lastindex]]
                return known.end(), powers or " degrees "
        if self._limits:
            self._next = "limit"
            return at + 1, f" {self._limits} " if sign == "_" else " to "
        self._next = "power" if sign == "^" else "index"
        is_number = self._source[at + 1 : at + 2].isdigit()
        return at + 1, " to the power of " if sign == "^" else " " if is_number else " sub "

    def _letters(self, match: re.Match[str]) -> tuple[int, str | None]:
        """Variables; words and units are read as they are."""
        letters, at, end = match[0], match.start(), match.end()
        is_unit = self._source[at - 1] == " " and self._source[at - 2].isdigit()
        if self._in_words() or len(letters) > 2 or is_unit:
            return end, None
        named = " ".join(LETTERS[letter] for letter in letters.lower())
        if letters in _FUNCTIONS and self._source.startswith("(", end):
            if argument := _ARGUMENT.match(self._source, end, self._end):
                inner = argument[1]
                return argument.end(), f" {named} of {LETTERS.get(inner.lower(), inner)} "
            return end + 1, f" {named} of "
        return end, f" {named} "

    def _in_words(self) -> bool:
        return bool(self._open) and self._open[-1][0] == "words"

    def _after(self, kind: str, inside: str, at: int) -> str:
        """Return what is read after a group: between the parts of a fraction, after limits."""
        pause = ", " if _COMPOUND.search(inside) else " "
        if kind == "top":
            self._next = "bottom"
            return ", all over " if pause == ", " else " over "
        if kind == "limit" and self._source[at : at + 1] not in ("_", "^"):
            self._limits = ""
            return " of "
        return pause if kind in ("bottom", "root", "power", "index") else ""
