"""Rules for web and e-mail addresses, file names and handles."""

from __future__ import annotations

import re

from embedded.reading.lexicon import words_of
from embedded.reading.rules import Match, Reading, Rule
from embedded.reading.words import is_pronounceable, read_mixed, read_word, spell

_TOP = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|co|dev|app|uk|us|eu|de|fr|es|it|nl|ch|at|ca|au|"
    "jp|cn|in|me|tv|xyz|shop|online|tech|cloud|gg|ly|fm|be|se|no|dk|fi|pl|nz|ie|example|test"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"(?P<host>(?:{_LABEL}\.){{1,6}}(?P<top>(?i:{_TOP})))(?![A-Za-z0-9-])"
_PATH = (
    r"(?::\d{1,5})?(?P<path>(?:/(?:[\w~%+@-]|\.(?=[\w~%+@/-])){0,200}){0,12})"
    r"(?:[?#][^\s\"'<>)]{0,400}(?<![.,!?]))?"
)
#: Ends of names that are read as words; the others are spelled.
_TOP_WORDS = words_of("com org net gov mil info biz dev app shop online tech cloud")
_SIGNS = {".": "dot", "-": "dash", "_": "underscore", "@": "at", "/": "slash", "+": "plus",
          "~": "tilde", "%": "percent"}  # fmt: skip
_PIECES = re.compile(r"[A-Za-z0-9]+|[._@/+~%-]")


def _web(match: Match) -> Reading:
    """The host without ``www.`` and the path; the query and the fragment are not read."""
    host = match["host"].removeprefix("www.")
    if match["scheme"] is None and not match["path"] and host == match["host"]:
        last = host.rsplit(".", 2)[-1]
        if last != last.lower():
            return None  # a full stop without its space: "Yes.It is"
    path = match["path"].strip("/").rstrip(".")
    return [_host(host), *(["slash", _spell_out(path)] if path else [])]


def _mail(match: Match) -> Reading:
    return [_spell_out(match["local"]), "at", _host(match["host"])]


def _host(host: str) -> str:
    *names, top = host.split(".")
    words = [_spell_out(name) for name in names]
    return " dot ".join([*words, top.lower() if top.lower() in _TOP_WORDS else spell(top)])


def _spell_out(text: str) -> str:
    """Parts of an address: words where they look like words, names of signs."""
    return " ".join(_SIGNS.get(piece) or _piece(piece) for piece in _PIECES.findall(text))


def _piece(piece: str) -> str:
    if piece.isalpha() and len(piece) > 1 and not is_pronounceable(piece.lower()):
        return read_mixed(piece) if len(piece) > 5 else spell(piece)
    return read_mixed(piece)


def _file(match: Match) -> Reading:
    name, ending = match["name"], match["end"]
    plain = len(ending) > 3 and ending.isalpha() and is_pronounceable(ending)
    return [read_mixed(name), "dot", read_word(ending) if plain else read_mixed(ending)]


RULES: tuple[Rule, ...] = (
    Rule(rf"(?P<local>[A-Za-z0-9][\w.+-]{{0,63}})@{_HOST}", _mail, behind=r"[^A-Za-z0-9]?"),
    Rule(rf"(?P<scheme>(?i:https?|wss?|ftp)://){_HOST}{_PATH}", _web),
    Rule(rf"(?P<scheme>www\.)?(?!\d+\.\d)(?!\w{{1,40}}\.\s){_HOST}{_PATH}", _web,
         behind=r"[^A-Za-z0-9]?"),
    Rule(r"(?P<name>[A-Za-z][A-Za-z0-9]{1,40})\.(?P<end>[a-z][a-z0-9]{0,5})(?![A-Za-z0-9.])",
         _file),
)  # fmt: skip
