r"""Halves of surrogate pairs: text that was cut between the two UTF-16 units of one character.

Programs that count in UTF-16 units, as JavaScript does, cut emoji in two and send each half as a
JSON escape (``\ud83d``). No decoder of JSON accepts them into a Python string that can be encoded.
So each lone half is shielded before decoding: it becomes a character at the end of Unicode's last
private plane. ``SurrogateJoiner`` joins two halves that meet in consecutive texts, and replaces a
half that stays alone by U+FFFD, as browsers do.
"""

from __future__ import annotations

import re
from typing import AnyStr

#: The code point of U+D800's shield. The 2,048 surrogates end at U+10FFFF.
_SHIELD = 0x10F800
_HIGH = re.compile("[\U0010f800-\U0010fbff]")
_SHIELDS = re.compile("[\U0010f800-\U0010ffff]")
_PAIRS = re.compile("([\U0010f800-\U0010fbff])([\U0010fc00-\U0010ffff])")
#: One escape sequence of JSON: a pair of surrogates, a single one, or any other.
_ESCAPE = r"\\(?:u([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F])|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)"
_TEXT_ESCAPE = re.compile(_ESCAPE, re.DOTALL)
_BYTES_ESCAPE = re.compile(_ESCAPE.encode(), re.DOTALL)
REPLACEMENT = "\ufffd"


def shield_surrogates(json: AnyStr) -> AnyStr:
    """Return a JSON document in which each lone half of a surrogate pair is a character."""
    if isinstance(json, bytes):
        if b"\\ud" not in json and b"\\uD" not in json:
            return json
        return _BYTES_ESCAPE.sub(
            lambda escape: _shielded(escape[2].decode()).encode() if escape[2] else escape[0], json
        )
    if "\\ud" not in json and "\\uD" not in json:
        return json
    return _TEXT_ESCAPE.sub(lambda escape: _shielded(escape[2]) if escape[2] else escape[0], json)


def _shielded(half: str) -> str:
    """Return the escapes of the shield of a half, which has four hexadecimal digits."""
    offset = _SHIELD + int(half, 16) - 0xD800 - 0x10000
    return f"\\u{0xD800 + (offset >> 10):04x}\\u{0xDC00 + (offset & 0x3FF):04x}"


def _joined(pair: re.Match[str]) -> str:
    high, low = (ord(half) - _SHIELD for half in pair.groups())
    return chr(0x10000 + (high << 10) + (low - 0x400))


def has_surrogates(text: str) -> bool:
    """Return whether a text has shielded halves, which an identifier must not have."""
    return _SHIELDS.search(text) is not None


def replace_surrogates(text: str) -> str:
    """Return ``text`` with shielded halves joined in pairs, and the lone ones replaced."""
    return _SHIELDS.sub(REPLACEMENT, _PAIRS.sub(_joined, text)) if has_surrogates(text) else text


class SurrogateJoiner:
    """Joins halves that meet at the border of two consecutive texts."""

    def __init__(self) -> None:
        self._high = ""

    def push(self, text: str) -> str:
        """Return ``text`` without shields. A high half at its end waits for the next text."""
        if not text:
            return text
        text, self._high = self._high + text, ""
        if _HIGH.match(text[-1]):
            text, self._high = text[:-1], text[-1]
        return replace_surrogates(text)

    def flush(self) -> str:
        """Return what a waiting half becomes if no text follows."""
        waiting, self._high = self._high, ""
        return REPLACEMENT if waiting else ""
