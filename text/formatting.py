"""Formatting between the words: tags and comments of HTML and SSML, named characters, fences of
code in Markdown, marks of citations, and formulas in LaTeX. A language adds its words for formulas
and for more signs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from html.entities import html5
from typing import TypeAlias

from text.vocabulary import words_of

#: ``source[start:end]`` and the text that is read in its place.
Piece: TypeAlias = tuple[int, int, str]

_PAUSE, _STOP = "; ", "\n\n"
_PAUSES = words_of("br break li ul ol dl dt dd td th tr option")
_STOPS = words_of(
    """
    p div h1 h2 h3 h4 h5 h6 hr blockquote pre section article header footer table title tbody
    thead body figure
    """
)
#: Names for which ``<name>`` is a tag. Other names, "<your name>", also need a slash or an
#: attribute with a value.
_NAMES = words_of(
    """
    a abbr acronym aside b big center cite code del details dfn em emphasis figcaption font head
    html i iframe img ins kbd main mark nav p phoneme prosody q s samp say-as script small span
    speak strike strong style sub summary sup svg think thinking tt u var voice wbr
    """
) | (_PAUSES | _STOPS) - {"option"}
_FLAGS = r"(?:checked|controls|disabled|hidden|open|required|selected)(?![\w:.=-])"
_QUOTED = r"(?:\"[^\"<>]{0,400}\"|'[^'<>]{0,400}')"
_KEY = r"[A-Za-z_:@][\w:.@-]{0,60}\s{0,3}=\s{0,3}"
_ATTRIBUTE = rf"(?:{_KEY}(?:{_QUOTED}|[^\s\"'<>`]{{1,400}})|{_FLAGS})"
_ATTRIBUTES = rf"(?:\s{{1,20}}{_ATTRIBUTE}){{0,20}}"
#: A long tag may be split between two utterances, so that its end begins the second one.
_REST_OF_TAG = rf"\A(?:{_KEY}{_QUOTED}\s{{0,20}}){{1,20}}/?>"
_FORMATTING = (
    r"&(?P<character>#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
    rf"|<(?P<close>/)?(?P<name>[A-Za-z][\w:-]{{0,30}})(?P<attributes>{_ATTRIBUTES})\s{{0,20}}"
    r"(?P<end>/?>|\Z)"
    r"|<!--[\s\S]{0,400}?-->|<[!?][A-Za-z][^<>]{0,400}>"
    rf"|{_REST_OF_TAG}"
    r"|(?P<fence>```)[\w+#-]{0,20}(?=[ \t]*(?:\n|\Z))"
    r"|【[^】\n]{0,80}】"
    r"|(?:(?<=[.!?,;%)\"”])|(?<=[a-z])(?=(?:\[\d\d?\])+(?:[.,;]\s|[.,;]?\Z)))"
    r"(?:\[[1-9]\d?(?:, ?\d\d?)*\]){1,6}(?=[\s.,;:!?]|\Z)"
    r"|(?:(?<=[.!?] )|\A)(?:\[[1-9]\d?(?:, ?\d\d?)*\]){1,6}(?= [A-Z]|\s*\Z)"
    r"|\\(?:text|mathrm|mathbf|mathit)(?=\{)|\\(?:left|right)(?=[()\[\]|])"
)
#: Any of these is in each text of ASCII that has formatting.
_SIGNS = ("<", "&", ">", "```", "[", "\\")
_FORMULA = re.compile(
    r"\\\((?P<round>[^\n]{1,300}?)\\\)|\\\[(?P<square>[^\\]?(?:[^\\]|\\[^\]]){1,300}?)\\\]"
    r"|(?<![\w$\\])\$\$(?P<twice>[^$]{1,400})\$\$(?![\w$])"
    r"|(?<![\w$\\])\$(?P<once>(?=[^\s$])[^$\n]{1,200}(?<!\s))\$(?![\w$])"
)
#: What shows that text between dollar signs is a formula: a command, a power, an index; a letter
#: alone or before a sign; a number in an equation or before a letter.
_SURE = re.compile(
    r"\d[\d.,]*\Z|.*[\\^]|.*\b[A-Za-z]_[\w{]|[-+|]?[A-Za-zα-ωΔ]'?(?:!?\Z|[A-Za-z]{0,2}\s?[-+=<>*/(,|])"
    r"|[^A-Za-z]*\d(?:[^A-Za-z]*=|\s?[<>]|[a-z](?:\Z|\s?[-+=<>*/]))|\([a-z\d]{1,3}\s?[-+,]"
)
#: A word, which is in no formula without commands.
_WORD = re.compile(r"[A-Za-z]{4}")


class Formatting:
    """Finds the formatting of a text, and what is read in its place.

    Args:
        signs: A pattern of the signs beyond this module's that the language reads.
        read: Returns what is read for a match of ``signs``.
        formula: Yields the pieces of the formula ``source[start:end]``.
        slash: What is read before the name of a closing tag that the text speaks of: "`</p>`".
    """

    def __init__(
        self,
        signs: str,
        read: Callable[[re.Match[str]], str],
        formula: Callable[[str, int, int], Iterator[Piece]],
        slash: str,
    ) -> None:
        self._pattern = re.compile(f"{_FORMATTING}|(?P<signs>{signs})")
        self._read = read
        self._formula = formula
        self._slash = slash

    def pieces(self, source: str) -> Iterator[Piece]:
        """Yield the formatting of ``source`` in order; lookalikes ("a < b > c") are left out."""
        at = 0
        for start, end in _formulas(source):
            yield from self._between(source, at, start)
            yield from self._formula(source, start, end)
            at = end
        if source.isascii() and not any(sign in source for sign in _SIGNS):
            return
        yield from self._between(source, at, len(source))

    def _between(self, source: str, start: int, end: int) -> Iterator[Piece]:
        for match in self._pattern.finditer(source, start, end):
            said = self._read(match) if match["signs"] else self._said(match)
            if said is not None:
                yield match.start(), match.end(), said

    def _said(self, match: re.Match[str]) -> str | None:
        """Return what is read in place of a match; None if it is plain text."""
        if name := match["character"]:
            known = name[0] == "#" or f"{name};" in html5
            return html.unescape(match[0]) if known else None
        if not match["name"]:
            return _STOP if match["fence"] else ""
        name = match["name"].lower()
        if (
            match.string[match.start() - 1 : match.start()]
            == match.string[match.end() : match.end() + 1]
            == "`"
        ):
            # The text speaks of the tag.
            return f" {self._slash} {name} " if match["close"] else f" {name} "
        has_value = "=" in match["attributes"]
        if not match["end"]:
            return "" if has_value else None
        if not (match["close"] or match["end"] == "/>" or has_value or name in _NAMES):
            return None
        return _PAUSE if name in _PAUSES else _STOP if name in _STOPS else ""


def _formulas(source: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the formulas in ``source``, in order."""
    if "$" not in source and "\\(" not in source and "\\[" not in source:
        return
    for match in _FORMULA.finditer(source):
        inside = match["once"]
        if inside is None or (_SURE.match(inside) and ("\\" in inside or not _WORD.search(inside))):
            yield match.span()
