"""The reading of web and e-mail addresses and of the names of files."""

from __future__ import annotations

import re

from text import addresses
from text.english import numbers
from text.english.phones import port
from text.english.vocabulary import SHORT_WORDS
from text.english.words import is_pronounceable, read_mixed, read_word, spell
from text.rules import Match, Reading, Rule
from text.vocabulary import words_of

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
    address = addresses.web(match)
    if address is None:
        return None
    words = [_host(address.host), *port(address.port)]
    if address.path:
        words += [",", "slash"] if address.port else ["slash"]
        words.append(_spell_out(address.path))
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
    return [_in_letters(match[0])] if addresses.is_ipv6(match[0]) else None


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


ROOTED = Rule(addresses.PATH, _path, behind=r"[\s(\"'`]?")
RULES: tuple[Rule, ...] = (
    Rule(addresses.IPV6, _ipv6, behind=r"[^A-Za-z0-9:]?"),
    Rule(addresses.MAIL, _mail, behind=addresses.BEHIND),
    *(Rule(rf"{web}(?P<of>'s\b)?", _web, behind=behind) for web, behind in addresses.WEB),
    Rule(addresses.PATH_ON_DRIVE, _path, behind=addresses.BEHIND),
    Rule(addresses.FILE, _file),
)
