"""The elements of marked-up text, in the order of the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class _Source:
    """Characters ``[start, end)`` of the client's text, counted from its beginning."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Text(_Source):
    """Text that is spoken as it is written. ``is_mark``: a mark that the family reads itself."""

    text: str
    is_mark: bool = False


@dataclass(frozen=True, slots=True)
class Substitute(_Source):
    """Text that is spoken instead of the source."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause(_Source):
    """Silence of exactly this length."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Phoneme(_Source):
    """A word with its pronunciation. ``alphabet``: ``ipa`` or another name in lower case."""

    word: str
    alphabet: str
    phonemes: str


@dataclass(frozen=True, slots=True)
class Delivery(_Source):
    """How the text from here on is spoken. ``aspect``: emotion, style, speed, pitch, and so on.
    ``value``: the standard name if the client's ``word`` has one, else the word itself.
    """

    aspect: str
    value: str
    word: str


@dataclass(frozen=True, slots=True)
class DeliveryEnd(_Source):
    """The text from here on is spoken as it was before the ``aspect`` was set."""

    aspect: str


@dataclass(frozen=True, slots=True)
class Shape(_Source):
    """The samples of the text from here on are changed, since the talker has no mark for it.
    ``factor``: of the ``speed`` or ``volume``.
    """

    aspect: str
    factor: float


@dataclass(frozen=True, slots=True)
class Sound(_Source):
    """A sound that is not speech, such as laughter. ``word``: as the client wrote it."""

    name: str
    word: str


@dataclass(frozen=True, slots=True)
class Language(_Source):
    """The text from here on is in this language, a tag of BCP 47 as the client wrote it."""

    language: str


@dataclass(frozen=True, slots=True)
class Closed(_Source):
    """The end of an element, which belongs to the text before it."""


@dataclass(frozen=True, slots=True)
class Ignored(_Source):
    """Markup without effect. ``kind`` is a short name of it, ``message`` a text for people."""

    kind: str
    message: str


Element: TypeAlias = (
    Text
    | Substitute
    | Pause
    | Phoneme
    | Delivery
    | DeliveryEnd
    | Sound
    | Language
    | Closed
    | Ignored
)
