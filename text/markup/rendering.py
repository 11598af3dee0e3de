"""What a talker's family can render of the markup, and the text that it speaks for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from text.languages import is_read, language_names
from text.markup.elements import (
    Closed,
    Delivery,
    DeliveryEnd,
    Element,
    Ignored,
    Language,
    Pause,
    Phoneme,
    Shape,
    Sound,
    Substitute,
    Text,
)
from text.markup.grades import FACTOR_LIMITS, factor_of, is_number
from text.markup.reader import MarkupReader
from text.pronunciation.alphabets import AlphabetError, to_ipa
from text.pronunciation.in_band import sounded, without_sounds

#: Aspects that a direction in words cannot set.
_NOT_IN_WORDS = frozenset({"speaker", "emphasis"})
#: Directions in words for aspects that clients grade.
_GRADED = {"speed": "{}", "volume": "{}", "pitch": "{} pitch", "expressive": "{} expressiveness"}
_MAX_WORDS_CHARS = 80
_SIGNS = re.compile(r"[\[\](){}<>|\n]")
_NO_PHONEMES = "The voice speaks no phonemes; the word is spoken as it is written."
_MAX_PHONEMES = 400
#: What is rendered as one thing or nothing.
_Single = Text | Substitute | Pause | Shape | Sound | Language | Closed | Ignored
#: What a session speaks and does.
Rendered = Text | Substitute | Pause | DeliveryEnd | Shape | Closed | Ignored


@dataclass(frozen=True)
class Rendering:
    """The marks with which a family renders deliveries and sounds; by default it has none.

    Attributes:
        own: Its marks, which clients may write themselves; None: all control tags, since the family
            is not known.
        deliveries: Its mark by aspect and value.
        sounds: Its mark by the sound's name.
        free: The form of a direction in the client's words, with ``{}`` in their place, for
            families that take any. Such a family reads all directions in brackets as they are.
        languages: What the model reads, as ISO 639 codes; empty: it follows the text.
        signs_of: Returns the words of a pronunciation in the signs of the voice's front end; None
            if it does not know the sounds. None without such a front end.
    """

    own: frozenset[str] | None = None
    deliveries: Mapping[tuple[str, str], str] = field(default_factory=dict)
    sounds: Mapping[str, str] = field(default_factory=dict)
    free: str = ""
    languages: tuple[str, ...] = ()
    signs_of: Callable[[str], Sequence[str] | None] | None = None

    def only(self, known: Iterable[str]) -> Rendering:
        """Return the rendering without the marks that a checkpoint's vocabulary lacks. ``known``:
        the marks that it has.
        """
        known = tuple(known)
        deliveries = {key: mark for key, mark in self.deliveries.items() if mark in known}
        sounds = {name: mark for name, mark in self.sounds.items() if mark.startswith(known)}
        own = None if self.own is None else self.own.intersection(known)
        return replace(self, own=own, deliveries=deliveries, sounds=sounds)

    def sets(self, aspect: str) -> bool:
        """Whether the family has marks for an aspect of the delivery."""
        return any(known == aspect for known, _ in self.deliveries)

    def reader(self) -> MarkupReader:
        """Return a reader of a context's text for this family."""
        return MarkupReader(self.own, keeps_brackets=bool(self.free))

    def render(self, elements: Iterable[Element]) -> Iterator[Rendered]:
        """Yield what is spoken for elements. What the family lacks is left out, with a reason: a
        word with a pronunciation is spoken as it is written.
        """
        for element in elements:
            match element:
                case Phoneme():
                    yield from self._pronounce(element)
                case Delivery():
                    yield from self._deliver(element)
                case DeliveryEnd(start, end, aspect):
                    yield element
                    if aspect in FACTOR_LIMITS:
                        yield Shape(start, end, aspect, 1.0)
                case _:
                    if (rendered := self._render(element)) is not None:
                        yield rendered

    def _pronounce(self, element: Phoneme) -> Iterator[Rendered]:
        start, end, word = element.start, element.end, element.word
        signs, reason = self._signs(element)
        if signs:
            yield Substitute(start, end, sounded(signs, is_capital=word[:1].isupper()))
            return
        yield Ignored(start, start, "phoneme", reason)
        if word:
            is_source = len(word) == end - start
            yield (Text if is_source else Substitute)(start, end, without_sounds(word))

    def _signs(self, element: Phoneme) -> tuple[Sequence[str] | None, str]:
        """Return the words of a pronunciation in the front end's signs, or why there are none."""
        if self.signs_of is None:
            return None, _NO_PHONEMES
        shown = f"{element.phonemes[:40]!r}; the word is spoken as it is written."
        if len(element.phonemes) > _MAX_PHONEMES:
            return None, f"Phonemes are {_MAX_PHONEMES} characters at most: {shown}"
        try:
            ipa = to_ipa(element.alphabet, element.phonemes)
        except AlphabetError as error:
            return None, f"The phonemes cannot be read, since {error}: {shown}"
        return self.signs_of(ipa), f"The voice does not know all sounds of {shown}"

    def _deliver(self, element: Delivery) -> Iterator[Rendered]:
        """A delivery by the family's own mark, else by what can be done to the samples. No mark
        stands for a volume in numbers, which is exact, nor for a speed that has no name.
        """
        start, end, aspect, word = element.start, element.end, element.aspect, element.word
        factor = factor_of(aspect, word)
        mark = ""
        is_exact = is_number(word) and (aspect == "volume" or is_number(element.value))
        if factor is None or not is_exact:
            mark = self.deliveries.get((aspect, element.value), "")
            mark = mark or self._freely(aspect, element.value, word)
        if mark or factor is None:
            if aspect in FACTOR_LIMITS:
                yield Shape(start, start, aspect, 1.0)
            yield _marked(start, end, mark, aspect, word)
            return
        least, most = FACTOR_LIMITS[aspect]
        if not least <= factor <= most:
            message = f"A {aspect} is {least:g} to {most:g} times the normal, not {word[:40]!a}."
            yield Ignored(start, start, aspect, message)
        yield Shape(start, end, aspect, min(max(factor, least), most))

    def _render(self, element: _Single) -> Rendered | None:
        match element:
            case Sound(start, end, name, word):
                mark = self.sounds.get(name) or self._freely("sound", name, word)
                return _marked(start, end, mark, "sound", word)
            case Text(text=text) | Substitute(text=text) if not text.isascii():
                return replace(element, text=without_sounds(text))
            case Language(start, end, language):
                if not self.languages or is_read(language, self.languages):
                    return None
                names = language_names(self.languages)
                message = f"The voice reads {names}, and reads {language[:40]!a} as if it were."
                return Ignored(start, end, "language", message)
            case _:
                return element

    def _freely(self, aspect: str, value: str, word: str) -> str:
        if not self.free or aspect in _NOT_IN_WORDS:
            return ""
        if (graded := _GRADED.get(aspect)) is not None:  # the word may be a number
            word = graded.format(value.replace("_", " "))
        return self.free.format(_SIGNS.sub("", word)[:_MAX_WORDS_CHARS])


def _marked(start: int, end: int, mark: str, kind: str, word: str) -> Substitute | Ignored:
    if mark:
        return Substitute(start, end, mark)
    message = f"The voice has no {kind} {word[:40]!a}; it is left out."
    return Ignored(start, end, kind, message)
