"""The grammar of marks: where one begins, whether it is complete, and its parts.

A mark is decided at its first character after which no more text could change it, so that the
result does not depend on how the text is divided. Its length is bounded, and with it the text that
waits for a decision.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from text.markup.vocabulary import find_stage_direction, may_begin_stage_direction

#: The longest mark. Longer ones are text.
MAX_MARK_CHARS = 600

_NAME = r"[A-Za-z][\w:.-]{0,30}"
_KEY = r"[A-Za-z_][\w:.-]{0,30}"
# models copy the escapes of JSON, and write curly quotes
_QUOTED = (
    r"\\?\"[^\"<]{0,400}\"|\\?'[^'<]{0,400}'"
    r"|[\u201c\u201d][^\u201c\u201d<]{0,400}[\u201c\u201d]"
)
_BARE = r"[^\s\"'<>`=\\/\u201c\u201d](?:[^\s\"'<>`=\\/\u201c\u201d]|/(?!>)){0,100}"
_OPEN_QUOTED = r"\\?(?:\"[^\"<]{0,400}|'[^'<]{0,400})?|[\u201c\u201d][^\u201c\u201d<]{0,400}"
_ATTRIBUTE = rf"\s{{1,20}}{_KEY}\s{{0,3}}=\s{{0,3}}(?:{_QUOTED}|{_BARE})"
_TAG = re.compile(
    rf"<(?P<close>/)?(?P<name>{_NAME})(?P<attributes>(?:{_ATTRIBUTE}){{0,20}}+)\s{{0,20}}"
    r"(?P<empty>/)?>"
)
_PART_OF_TAG = re.compile(
    rf"<(?:/?(?:{_NAME}(?:{_ATTRIBUTE}){{0,20}}"
    rf"(?:\s{{1,20}}(?:{_KEY}\s{{0,3}}(?:=\s{{0,3}}(?:{_OPEN_QUOTED}|{_BARE})?)?)?)?/?)?)?\Z"
)
_ATTRIBUTES = re.compile(rf"({_KEY})\s{{0,3}}=\s{{0,3}}({_QUOTED}|{_BARE})")
#: Comments, processing instructions, document types.
_DECLARATION = re.compile(r"<!--[\s\S]{0,400}?-->|<\?[A-Za-z][^<>]{0,400}>|<![A-Za-z][^<>]{0,400}>")
_PART_OF_DECLARATION = re.compile(
    r"<(?:!(?:-(?:-(?:(?!-->)[\s\S]){0,402})?|[A-Za-z][^<>]{0,400})?|\?(?:[A-Za-z][^<>]{0,400})?)\Z"
)
#: A talker's control tag, "<|emotion:anger|>".
_CONTROL = re.compile(r"<\|(?P<category>[a-z]{1,20}):(?P<value>\w{1,24})\|>")
_PART_OF_CONTROL = re.compile(r"<\|(?:[a-z]{1,20}(?::(?:\w{1,24}\|?)?)?)?\Z")
#: "[laughs]", and Kokoro's "[word](/phonemes/)".
_BRACKET = re.compile(r"\[(?P<words>[^\[\]\n]{1,80})\]")
_LINK = re.compile(r"\[(?P<words>[^\[\]\n]{1,80})\]\(/(?P<phonemes>[^/()\n]{1,100})/\)")
_PART_OF_LINK = re.compile(r"\[[^\[\]\n]{0,80}(?:\](?:\((?:/(?:[^/()\n]{1,100}/?)?)?)?)?\Z")
#: Deepgram's "\{pause:1s\}" and "\{"word": "…", "pronounce": "…"\}".
_BRACES = re.compile(r"\\\{(?P<inside>[^{}\\\n]{1,300})\\\}")
_PART_OF_BRACES = re.compile(r"\\(?:\{(?:[^{}\\\n]{1,300}\\?)?)?\Z")
_REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d{1,7}|#x[0-9A-Fa-f]{1,6});")
_PART_OF_REFERENCE = re.compile(r"&(?:[a-z]{0,4}|#\d{0,7}|#x[0-9A-Fa-f]{0,6})\Z")


#: "*laughs*".
_STAGE = re.compile(r"\*(?P<words>[A-Za-z][A-Za-z' \t]{0,40})(?<=[A-Za-z])\*")
_PART_OF_STAGE = re.compile(r"\*(?P<words>(?:[A-Za-z][A-Za-z' \t]{0,40})?)\Z")
#: The signs with which marks begin.
SIGNS = re.compile(r"[<\[\\&*]")


class Form(Enum):
    """How a mark is written."""

    OPENING = auto()
    CLOSING = auto()
    EMPTY = auto()
    DECLARATION = auto()
    CONTROL = auto()
    BRACKET = auto()
    LINK = auto()
    BRACES = auto()
    STAGE = auto()
    REFERENCE = auto()


@dataclass(frozen=True, slots=True)
class Mark:
    """A complete mark. ``text``: as written. ``name``: of a tag, in lower case; of others what
    their signs enclose. ``attributes``: of a tag, and ``phonemes`` of a link; keys in lower case.
    """

    form: Form
    text: str
    name: str
    attributes: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.text)


class Undecided(Enum):
    """Why there is no mark: it is plain text, or only the text to come can tell."""

    PLAIN = auto()
    PART = auto()


def read_mark(text: str, at: int, is_direction: Callable[[str], bool]) -> Mark | Undecided:
    """Return the mark that begins at ``at``, with one of ``SIGNS``.

    Args:
        text: The text received.
        at: Where the sign is.
        is_direction: Whether words in brackets are a direction to the speaker.
    """
    sign = text[at]
    if sign == "<":
        return _read_angle(text, at)
    if sign == "*":
        if (stage := _STAGE.match(text, at)) is not None and find_stage_direction(stage["words"]):
            return Mark(Form.STAGE, stage[0], stage["words"])
        part = _PART_OF_STAGE.match(text, at)
        may_be = part is not None and may_begin_stage_direction(part["words"])
        return Undecided.PART if may_be else Undecided.PLAIN
    if sign == "[":
        # before the link, since only the former is decided already at the bracket
        bracket = _BRACKET.match(text, at)
        if bracket is not None and is_direction(bracket["words"]):
            return Mark(Form.BRACKET, bracket[0], bracket["words"])
        if (link := _LINK.match(text, at)) is not None:
            return Mark(Form.LINK, link[0], link["words"], {"phonemes": link["phonemes"]})
        return _part(_PART_OF_LINK, text, at)
    if sign == "\\":
        if (braces := _BRACES.match(text, at)) is not None:
            return Mark(Form.BRACES, braces[0], braces["inside"].strip())
        return _part(_PART_OF_BRACES, text, at)
    if (reference := _REFERENCE.match(text, at)) is not None:
        return Mark(Form.REFERENCE, reference[0], html.unescape(reference[0]))
    return _part(_PART_OF_REFERENCE, text, at)


def _read_angle(text: str, at: int) -> Mark | Undecided:
    if text.startswith("<|", at):
        if (control := _CONTROL.match(text, at)) is not None:
            name, value = control["category"], control["value"]
            return Mark(Form.CONTROL, control[0], name, {"value": value})
        return _part(_PART_OF_CONTROL, text, at)
    if text.startswith(("<!", "<?"), at):
        if (declaration := _DECLARATION.match(text, at)) is not None:
            return Mark(Form.DECLARATION, declaration[0], "")
        return _part(_PART_OF_DECLARATION, text, at)
    tag = _TAG.match(text, at)
    if tag is None:
        return _part(_PART_OF_TAG, text, at)
    form = Form.CLOSING if tag["close"] else Form.EMPTY if tag["empty"] else Form.OPENING
    attributes = {
        key.lower(): _value(written) for key, written in _ATTRIBUTES.findall(tag["attributes"])
    }
    return Mark(form, tag[0], tag["name"].lower(), attributes)


def _value(written: str) -> str:
    """The value of an attribute without its quotes."""
    written = written.removeprefix("\\")
    if written[:1] in ('"', "'", "\u201c", "\u201d"):
        written = written[1:-1].removesuffix("\\")
    return html.unescape(written).strip()


def _part(pattern: re.Pattern[str], text: str, at: int) -> Undecided:
    """Whether the rest of the text may be the beginning of a mark."""
    is_part = len(text) - at < MAX_MARK_CHARS and pattern.match(text, at) is not None
    return Undecided.PART if is_part else Undecided.PLAIN
