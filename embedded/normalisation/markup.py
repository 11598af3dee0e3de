"""HTML and SSML markup between the words (tags, comments, and named characters), fences of
code in Markdown, marks of citations, and formulas: LaTeX, single Greek letters.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from html.entities import html5
from typing import TypeAlias

from embedded.normalisation.formulas import formula_pieces, formulas
from embedded.normalisation.lexicon import words_of

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
_GREEK = "[\u0370-\u03ff\u1f00-\u1fff]"
_MARKUP = re.compile(
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
    r"|\\[dt]?frac\{(?P<top>[^{}]{1,60})\}\{(?P<bottom>[^{}]{1,60})\}"
    r"|\\(?P<command>cdot|div|pm|leq|geq|neq|sqrt|infty|int)(?![A-Za-z])"
    rf"|(?<!{_GREEK})(?<!{_GREEK}\s)(?P<greek>[α-λν-ωΓΔΘΛΞΠΣΦΨϕ]|μ(?![A-Za-z]))"
    rf"(?P<power>[²³])?(?!{_GREEK}|\s{_GREEK}{{2}})"
    rf"|(?<={_GREEK})μ|μ(?={_GREEK})"
    r"|(?<=\d)\s?[★⭐]\uFE0F?(?P<noun>(?= (?:hotel|rating|review|service|restaurant|resort)s?\b))?"
    r"(?!\s?[★⭐])"
    r"|(?<=[\w)²³|] )−(?= [\w(|√])"
    r"|[▲▼](?=\s?[-+$€£]?\d)"
    r"|\\(?:text|mathrm|mathbf|mathit)(?=\{)|\\(?:left|right)(?=[()\[\]|])"
)
_COMMANDS = {
    "cdot": " times ", "div": " divided by ", "pm": " plus or minus ", "neq": " not equal to ",
    "leq": " less than or equal to ", "geq": " greater than or equal to ",
    "sqrt": " square root of ", "infty": " infinity ", "int": " integral of ",
}  # fmt: skip
_SIGNS = ("<", "&", ">", "```", "[", "\\")
_POWERS = {"²": "squared", "³": "cubed"}
_UP_DOWN = {"▲": " up ", "▼": " down ", "−": "minus"}


def pieces(source: str) -> Iterator[Piece]:
    """Yield the markup of ``source`` in order; lookalikes ("a < b > c") are left out."""
    at = 0
    for start, end in formulas(source):
        yield from _markup(source, at, start)
        yield from formula_pieces(source, start, end)
        at = end
    if source.isascii() and not any(sign in source for sign in _SIGNS):
        return
    yield from _markup(source, at, len(source))


def _markup(source: str, start: int, end: int) -> Iterator[Piece]:
    for match in _MARKUP.finditer(source, start, end):
        said = _read(match)
        if said is not None:
            yield match.start(), match.end(), said


def _read(match: re.Match[str]) -> str | None:
    """Return the text to read instead; None if it is no markup."""
    if name := match["character"]:
        known = name[0] == "#" or f"{name};" in html5
        return html.unescape(match[0]) if known else None
    if match["greek"]:
        return _greek(match)
    if match[0].lstrip()[:1] in ("★", "⭐"):
        return " stars" if match["noun"] is None else " star"
    if top := match["top"]:
        over = "/" if top.isdigit() and match["bottom"].isdigit() else " over "
        return f" {top}{over}{match['bottom']} "
    if not match["name"]:
        command = _COMMANDS.get(match["command"] or "") or _UP_DOWN.get(match[0], "")
        return _STOP if match["fence"] else command
    name = match["name"].lower()
    if (
        match.string[match.start() - 1 : match.start()]
        == match.string[match.end() : match.end() + 1]
        == "`"
    ):
        return f" {'slash ' * bool(match['close'])}{name} "  # it is spoken of
    has_value = "=" in match["attributes"]
    if not match["end"]:
        return "" if has_value else None
    if not (match["close"] or match["end"] == "/>" or has_value or name in _NAMES):
        return None
    return _PAUSE if name in _PAUSES else _STOP if name in _STOPS else ""


def _greek(match: re.Match[str]) -> str:
    """Return the name of a Greek letter that belongs to no Greek word: "π", "β-carotene"."""
    name = unicodedata.name(match["greek"]).split(" LETTER ")[-1].split()[-1].lower()
    name = {"lamda": "lambda", "symbol": "phi"}.get(name, name)
    if match["power"]:
        return f" {name} {_POWERS[match['power']]} "
    following = match.string[match.end() : match.end() + 1]
    return f" {name}" + (" " if following.isalnum() else "")
