"""Rules for web and e-mail addresses, file names and handles."""

from __future__ import annotations

import re

from embedded.normalisation import numbers
from embedded.normalisation.lexicon import SHORT_WORDS, words_of
from embedded.normalisation.phones import port
from embedded.normalisation.rules import Match, Reading, Rule
from embedded.normalisation.words import is_pronounceable, read_mixed, read_word, spell

_TOP = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|co|dev|app|uk|us|eu|de|fr|es|it|nl|ch|at|ca|au|"
    "jp|cn|in|me|tv|xyz|shop|online|tech|cloud|gg|ly|fm|be|se|no|dk|fi|pl|nz|ie|example|test"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"(?P<host>(?:{_LABEL}\.){{1,6}}(?P<top>(?i:{_TOP})))(?![A-Za-z0-9-])"
#: After "http://" any host is accepted: with any ending or none, or an address in numbers.
_SURE_LABEL = r"[A-Za-z0-9](?:[\w-]{0,61}[A-Za-z0-9])?"
_SURE_HOST = rf"(?P<host>\[[0-9A-Fa-f:.]{{2,45}}\]|{_SURE_LABEL}(?:\.{_SURE_LABEL}){{0,8}})"
_USER = r"(?:[^\s/?#\"<>]{0,200}@)?"
_PATH = (
    r"(?::(?P<port>\d{1,5})(?!\d))?(?P<path>(?:/(?:[\w~%+@-]|\.(?=[\w~%+@/-])){0,200}){0,12})"
    r"(?:[?#][^\s\"'<>)]{0,400}(?<![.,!?]))?(?P<of>'s\b)?"
)
_IN_NUMBERS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
#: Top-level domains that are read as words; the others are spelled.
_TOP_WORDS = words_of("com org net gov mil info biz dev app shop online tech cloud")
_SIGNS = {".": "dot", "-": "dash", "_": "underscore", "@": "at", "/": "slash", "+": "plus",
          "~": "tilde", "%": "percent", ":": "colon", "\\": "backslash"}  # fmt: skip
#: Parts of addresses that are not read as the abbreviations they would be in a sentence.
_PIECES_READ = {"corp": "korp", "inc": "ink", "gmail": "jee mail",
                "etc": "ee tee see"}  # fmt: skip
_PIECES = re.compile(r"[A-Za-z0-9]+|[._@/+~%:\\-]")


def _web(match: Match) -> Reading:
    """Read the host without ``www.``, the port and the path; not the user, query and fragment."""
    host = match["host"]
    if host[:4].lower() == "www." and "." in host[4:]:
        host = host[4:]
    bare = match["scheme"] is None and host == match["host"]
    if bare and not match["path"] and not match["port"]:
        last = host.rsplit(".", 2)[-1]
        if last != last.lower():
            return None  # a full stop without its space: "Yes.It is"
    path = match["path"].strip("/").rstrip(".")
    words = [_host(host), *port(match["port"])]
    if path:
        words += [",", "slash"] if match["port"] else ["slash"]
        words.append(_spell_out(path))
    words[-1] += match["of"] or ""
    return words


def _mail(match: Match) -> Reading:
    return [_spell_out(match["local"]), "at", _host(match["host"])]


def _host(host: str) -> str:
    if host[0] == "[":
        return _in_letters(host[1:-1])
    if _IN_NUMBERS.fullmatch(host):
        return " dot ".join(map(numbers.digits, host.split(".")))
    *names, top = host.split(".")
    words = [_spell_out(name) for name in names]
    return " dot ".join([*words, _ending(top) if names else _spell_out(top)])


def _ending(top: str) -> str:
    lower = top.lower()
    if lower in _TOP_WORDS or (len(top) == 3 and lower in SHORT_WORDS):
        return lower
    if top.isalpha() and (len(top) <= 3 or not is_pronounceable(lower)):
        return spell(top)
    return _spell_out(top)


def _ipv6(match: Match) -> Reading:
    """ "fe80::1", "2001:db8:0:0:8:800:200c:417a"."""
    written = match[0]
    whole = "::" in written or written.count(":") == 7
    return [_in_letters(written)] if whole and any(map(str.isdigit, written)) else None


def _in_letters(host: str) -> str:
    """Read an IPv6 address, ``2001:db8::1``, sign by sign."""
    return " ".join(
        numbers.digits(char) if char.isdigit() else spell(char) if char.isalpha() else _SIGNS[char]
        for char in host
    )


def _spell_out(text: str) -> str:
    """Read parts of an address: words if they look like words, names of signs."""
    return " ".join(_SIGNS.get(piece) or _piece(piece) for piece in _PIECES.findall(text))


def _piece(piece: str) -> str:
    if piece.islower() and (word := _PIECES_READ.get(piece)):
        return word
    if piece.isalpha() and len(piece) > 1 and not is_pronounceable(piece.lower()):
        return read_mixed(piece) if len(piece) > 5 else spell(piece)
    return read_mixed(piece)


def _path(match: Match) -> Reading:
    """ "/etc/hosts", "C:\\Users\\x"."""
    return [_spell_out(match[0].rstrip("/\\"))]


def _file(match: Match) -> Reading:
    name, ending = match["name"], match["end"]
    plain = len(ending) > 3 and ending.isalpha() and is_pronounceable(ending)
    return [read_mixed(name), "dot", read_word(ending) if plain else read_mixed(ending)]


#: A path from the root has two slashes or more.
ROOTED = Rule(r"/(?:[A-Za-z._][\w.+~-]{0,60}/){1,12}(?:[\w.+~-]{0,60}[\w+~-])?", _path,
              behind=r"[\s(\"'`]?")  # fmt: skip
RULES: tuple[Rule, ...] = (
    Rule(r"[0-9A-Fa-f]{1,4}(?:::?[0-9A-Fa-f]{1,4}){1,7}(?![A-Za-z0-9:])", _ipv6,
         behind=r"[^A-Za-z0-9:]?"),
    Rule(rf"(?P<local>[A-Za-z0-9][\w.+-]{{0,63}})@{_HOST}", _mail, behind=r"[^A-Za-z0-9]?"),
    Rule(rf"(?P<scheme>(?i:https?|wss?|ftp)://){_USER}{_SURE_HOST}{_PATH}", _web),
    Rule(rf"(?P<scheme>(?i:www)\.)(?=[^\s/?#:]{{1,200}}\.[A-Za-z0-9]){_SURE_HOST}{_PATH}", _web,
         behind=r"[^A-Za-z0-9]?"),
    Rule(rf"(?P<scheme>)(?P<host>localhost)(?=:\d){_PATH}", _web, behind=r"[^A-Za-z0-9]?"),
    Rule(rf"(?P<scheme>www\.)?(?!\d+\.\d)(?!\w{{1,40}}\.\s){_HOST}{_PATH}", _web,
         behind=r"[^A-Za-z0-9]?"),
    Rule(r"[A-Za-z]:\\(?:[\w.+~-]{1,60}\\){0,12}(?:[\w.+~-]{0,60}[\w+~-])?", _path,
         behind=r"[^A-Za-z0-9]?"),
    Rule(r"(?P<name>[A-Za-z][A-Za-z0-9]{1,40})\.(?P<end>[a-z][a-z0-9]{0,5})(?![A-Za-z0-9.])",
         _file),
)  # fmt: skip
