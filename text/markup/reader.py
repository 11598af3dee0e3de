"""The reader of marked-up text: characters in, elements out, as they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from text.markup import elements, spelling
from text.markup.elements import Element
from text.markup.grades import value_of
from text.markup.tags import SIGNS, Form, Mark, Undecided, read_mark
from text.markup.vocabulary import (
    PAUSE_LENGTHS,
    PAUSES,
    Direction,
    find_direction,
    find_stage_direction,
    sound_name,
)
from text.vocabulary import words_of

#: The longest timed pause.
MAX_PAUSE_S = 5.0
#: The most text between the tags of an element that is read as a whole, such as ``say-as``.
_MAX_CONTENT_CHARS = 400
_MAX_SCOPES = 32
#: Blocks of HTML and SSML, before and after which a sentence ends.
_BLOCKS = words_of(
    """
    article blockquote body div figure footer h1 h2 h3 h4 h5 h6 head header hr ol p pre s section
    table tbody thead title ul dl
    """
)
_LINES = words_of("br dd dt li td th tr")
#: Formatting without a sound.
_INLINE = words_of(
    """
    a abbr acronym aside b big center cite code del details dfn em figcaption font html i iframe
    img ins kbd main nav q samp script small span speak strike strong style summary sup svg
    think thinking token tt u var w wbr
    """
)
_BLOCK_BREAK, _LINE_BREAK = "\n\n", "  \n"
_UNHEARD = {
    "audio": "Recordings cannot be inserted.",
    "desc": "Descriptions are not spoken.",
    "lexicon": "Lexicons are not loaded.",
    "mark": "Marks are not reported.",
    "meta": "Metadata has no effect.",
    "metadata": "Metadata has no effect.",
    "voice": "The voice does not change within a text.",
}
_LENGTH = re.compile(
    r"\s*(?P<number>\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})\s?(?P<unit>ms|msec|milliseconds?|s|secs?|seconds?)?\s*",
    re.IGNORECASE,
)
_TIMED = re.compile(
    r"\s*(?:pause|break|silence)\s?[:= ]\s?(?P<length>[\d.]{1,10}\s?[a-z]{0,12})\s*", re.I
)
_SPEAKER = re.compile(r"\s*S(?P<number>[1-9])\s*", re.IGNORECASE)
_UNFINISHED = re.compile(r"</?[A-Za-z][\w:.-]*\s+[A-Za-z_][\w:.-]*\s*=")


@dataclass(slots=True)
class _Content:
    """An open element whose text is read as a whole. ``make`` returns its elements from the text
    and the client's offsets of its beginning and end.
    """

    name: str
    make: Callable[[str, int, int], Iterable[Element]]
    start: int
    text: str = ""


@dataclass(slots=True)
class _Scope:
    """An open element that sets aspects of the delivery until its end."""

    name: str
    aspects: list[str] = field(default_factory=list)


class MarkupReader:
    """Reads the markup of one context's text.

    The elements do not depend on how the text is divided. All but a bounded end of the text is
    read at once.

    Args:
        own: Marks that the talker's family reads itself; they stay text, and the control tags of
            other families are read. None: all control tags stay text.
        keeps_brackets: Whether the family takes any direction in brackets as text.
    """

    def __init__(self, own: frozenset[str] | None = None, *, keeps_brackets: bool = False) -> None:
        self._own = own
        self._keeps_brackets = keeps_brackets
        #: Text that waits for a decision.
        self._held = ""
        #: The character before the first one held.
        self._before = ""
        #: Whether a clause begins at the first character held.
        self._clause_begins = True
        #: The client's offset of the first character held.
        self._at = 0
        #: Elements that have not been returned.
        self._done: list[Element] = []
        #: The open element that is read as a whole.
        self._content: _Content | None = None
        #: Open elements that set the delivery, outermost first.
        self._scopes: list[_Scope] = []
        #: Whether the text is within ``speak``.
        self._is_document = False
        #: Whether the last spoken character is a space, or none is spoken yet.
        self._is_after_space = True

    @property
    def pending_chars(self) -> int:
        """Number of characters that wait for the end of a mark or of an element."""
        return len(self._held) + (0 if self._content is None else len(self._content.text))

    @property
    def position(self) -> int:
        """The client's offset of the first character that is not read."""
        return self._at

    def push(self, text: str) -> list[Element]:
        """Add text. Returns the elements that are complete, in order."""
        self._held += text
        self._read()
        return self._take()

    def flush(self, *, is_last: bool = False) -> list[Element]:
        """End the turn here: no element continues. Returns the rest. Only the beginning of what
        must be a tag still waits, unless ``is_last``, since models write tags in parts.
        """
        self._read(is_final=True, is_last=is_last)
        if self._content is not None:
            self._ignore("unclosed", f"<{self._content.name}> is not closed.", self._at, self._at)
            self._end_content(self._at)
        self._scopes.clear()
        self._is_after_space = True
        return self._take()

    def _take(self) -> list[Element]:
        done, self._done = self._done, []
        return done

    # -- marks

    def _read(self, *, is_final: bool = False, is_last: bool = False) -> None:
        held, begin, at = self._held, 0, 0
        while (sign := SIGNS.search(held, at)) is not None:
            at = sign.start()
            if sign[0] == "&" and not self._is_document:
                at += 1
                continue
            before = held[at - 1] if at else self._before
            if before == "`":  # it is spoken of
                at += 1
                continue
            if sign[0] == "*" and (before == "*" or not self._begins_clause(at)):
                at += 1
                continue
            mark = read_mark(held, at, self._is_direction)
            if mark is Undecided.PART:
                is_tag = _UNFINISHED.match(held, at) is not None
                if is_tag and is_last:
                    self._add_text(held[begin:at], self._at + begin)
                    place, begin = self._at + at, len(held)
                    at = begin
                    self._ignore("unfinished", "A tag has no end.", place, self._at + at)
                if is_tag or not is_final:
                    break
            if isinstance(mark, Undecided):
                at += 1
                continue
            self._add_text(held[begin:at], self._at + begin)
            begin, at = at, at + len(mark)
            if self._on_mark(mark, self._at + begin, self._at + at):
                begin = at
        else:
            at = len(held)
        self._add_text(held[begin:at], self._at + begin)
        if at:
            self._clause_begins = self._begins_clause(at)
            self._before = held[at - 1]
        self._at, self._held = self._at + at, held[at:]

    def _begins_clause(self, at: int) -> bool:
        """Whether a clause begins at ``at``, so that no word stands before it."""
        held = self._held
        while at and held[at - 1].isspace():
            if held[at - 1] == "\n":
                return True
            at -= 1
        return self._clause_begins if not at else not held[at - 1].isalnum()

    def _is_direction(self, words: str) -> bool:
        if _TIMED.fullmatch(words) or _SPEAKER.fullmatch(words):
            return True
        return not self._keeps_brackets and find_direction(words) is not None

    def _on_mark(self, mark: Mark, start: int, end: int) -> bool:
        """Add what a mark stands for. Returns False if it is text after all."""
        if mark.form is Form.CONTROL if self._own is None else mark.text in self._own:
            if self._content is not None:
                return False
            self._add(elements.Text(start, end, mark.text, is_mark=True))
            return True
        match mark.form:
            case Form.DECLARATION:
                return True
            case Form.REFERENCE:
                self._substitute(mark.name, start, end)
                return True
            case Form.BRACKET:
                return self._on_bracket(mark.name, start, end)
            case Form.LINK:
                return self._on_link(mark, start, end)
            case Form.BRACES:
                return self._on_braces(mark, start, end)
            case Form.STAGE:
                return self._on_stage(mark.name, start, end)
            case Form.CONTROL:
                return self._on_control(mark.name, mark.attributes["value"], start, end)
            case _:
                return self._on_tag(mark, start, end)

    def _on_bracket(self, words: str, start: int, end: int) -> bool:
        if (timed := _TIMED.fullmatch(words)) is not None:
            self._pause(_seconds(timed["length"]), start, end)
        elif (speaker := _SPEAKER.fullmatch(words)) is not None:
            number = str(int(speaker["number"]) - 1)
            self._add(elements.Delivery(start, end, "speaker", number, words))
        else:
            self._direct(words, start, end)
        return True

    def _on_stage(self, words: str, start: int, end: int) -> bool:
        found = find_stage_direction(words)
        if found is not None:
            self._follow(found, words, start, end)
        return found is not None

    def _on_link(self, mark: Mark, start: int, end: int) -> bool:
        """Kokoro's "[word](/phonemes/)". A link to "/docs/" has no letters of phonetics."""
        phonemes = mark.attributes["phonemes"]
        if phonemes.isascii():
            return False
        word = mark.name
        self._add(elements.Phoneme(start + 1, start + 1 + len(word), word, "ipa", phonemes))
        self._done.append(elements.Closed(start, end))
        return True

    def _on_braces(self, mark: Mark, start: int, end: int) -> bool:
        if (timed := _TIMED.fullmatch(mark.name)) is not None:
            self._pause(_seconds(timed["length"]), start, end)
            return True
        try:
            fields = json.loads(f"{{{mark.name}}}")
        except (ValueError, RecursionError):
            return False
        word, phonemes = fields.get("word"), fields.get("pronounce")
        at = mark.text.find(word, mark.text.find(":")) if isinstance(word, str) and word else -1
        if at < 0 or not isinstance(phonemes, str):
            return False
        self._add(elements.Phoneme(start + at, start + at + len(word), word, "ipa", phonemes))
        self._done.append(elements.Closed(start, end))
        return True

    def _on_control(self, category: str, value: str, start: int, end: int) -> bool:
        """A control tag of another family, "<|prosody:speed_fast|>"."""
        word = value.replace("_", " ")
        if category == "prosody" and value in ("pause", "long_pause"):
            self._direct(value, start, end)
        elif category == "prosody" and value.startswith(("speed_", "pitch_", "expressive_")):
            aspect, _, value = value.partition("_")
            self._deliver(aspect, value, word, start, end)
        elif category in ("emotion", "style"):
            self._deliver(category, value, word, start, end)
        elif category == "sfx":
            self._add(elements.Sound(start, end, value, word))
        elif category == "speaker":
            self._add(elements.Delivery(start, end, "speaker", value, word))
        else:
            return False
        return True

    # -- tags

    def _on_tag(self, mark: Mark, start: int, end: int) -> bool:
        name = mark.name.rpartition(":")[2]
        if name == "speak":
            self._is_document = mark.form is Form.OPENING
        if mark.form is Form.CLOSING:
            return self._on_closing(name, start, end)
        if name in _BLOCKS or name in _LINES:
            self._substitute(_BLOCK_BREAK if name in _BLOCKS else _LINE_BREAK, start, end)
        elif name == "break":
            self._pause(_break_s(mark.attributes), start, end)
        elif (make := self._content_of(name, mark.attributes)) is not None:
            self._open_content(name, make, end, is_empty=mark.form is Form.EMPTY)
        elif name == "lang":
            language = mark.attributes.get("xml:lang", "")
            if language:
                self._add(elements.Language(start, end, language))
        elif name in _INLINE or (name == "sub" and not mark.attributes):
            pass
        elif name in _UNHEARD:
            self._ignore(name, _UNHEARD[name], start, end)
        else:
            return self._on_delivery_tag(name, mark, start, end)
        return True

    def _on_closing(self, name: str, start: int, end: int) -> bool:
        """A closing tag; one without its opening tag has no effect."""
        if self._content is not None and self._content.name == name:
            self._end_content(start)
        elif name in _BLOCKS or name in _LINES:
            self._substitute(_BLOCK_BREAK if name in _BLOCKS else _LINE_BREAK, start, end)
        at = next((i for i, s in enumerate(reversed(self._scopes), 1) if s.name == name), 0)
        if at:
            for aspect in self._scopes.pop(-at).aspects:
                self._add(elements.DeliveryEnd(start, end, aspect))
        self._done.append(elements.Closed(start, end))
        return True

    def _on_delivery_tag(self, name: str, mark: Mark, start: int, end: int) -> bool:
        count, given = len(self._done), mark.attributes
        value = next(
            (given[key] for key in ("value", "label", "ratio", "name") if key in given), ""
        )
        if name == "expr":
            self._on_expr(given.get("type", ""), value, start, end)
        elif name == "prosody":
            for attribute, aspect in (("rate", "speed"), ("pitch", "pitch"), ("volume", "volume")):
                if attribute in given:
                    self._deliver(aspect, given[attribute], given[attribute], start, end)
        elif name in ("speed", "volume", "pitch") and value:
            self._deliver(name, value, value, start, end)
        elif name in ("emotion", "expression") and value:
            self._direct(value, start, end, "emotion")
        elif name == "express-as" and "style" in given:
            self._direct(given["style"], start, end, "emotion")
        elif name == "emphasis":
            level = given.get("level", "moderate")
            self._deliver("emphasis", level, level, start, end)
        elif name in ("sound", "sfx") and value:
            self._add(elements.Sound(start, end, sound_name(value) or value, value))
        elif find_direction(name) is not None:
            self._direct(name, start, end)
        elif mark.form is Form.EMPTY or given:
            self._ignore("tag", f"The tag <{name}> is unknown.", start, end)
        else:
            return False  # "<your name>" has no closing tag either
        if mark.form is Form.OPENING and len(self._scopes) < _MAX_SCOPES:
            set_here = self._done[count:]
            aspects = [one.aspect for one in set_here if isinstance(one, elements.Delivery)]
            self._scopes.append(_Scope(name, aspects))
        return True

    def _on_expr(self, kind: str, label: str, start: int, end: int) -> None:
        """LiveKit's marker."""
        if kind == "break":
            self._pause(_seconds(label), start, end)
        elif kind == "sound" and label:
            self._add(elements.Sound(start, end, sound_name(label) or label, label))
        elif kind in ("expression", "prosody") and label:
            self._direct(label, start, end, "emotion" if kind == "expression" else "style")
        else:
            self._ignore("tag", f"<expr> of type {kind[:40]!r} is unknown.", start, end)

    # -- deliveries, sounds and pauses

    def _direct(self, words: str, start: int, end: int, aspect: str = "") -> None:
        """Follow a direction in words. Unknown words are a delivery in this ``aspect``."""
        if (found := find_direction(words)) is None:
            self._deliver(aspect, words, words, start, end)
        else:
            self._follow(found, words, start, end)

    def _follow(self, found: Direction, words: str, start: int, end: int) -> None:
        if found.aspect == "pause":
            self._pause(PAUSE_LENGTHS[found.value], start, end)
        elif found.aspect == "sound":
            self._add(elements.Sound(start, end, found.value, words))
        else:
            self._deliver(found.aspect, found.value, words, start, end)

    def _deliver(self, aspect: str, value: str, word: str, start: int, end: int) -> None:
        if (known := value_of(aspect, value)) is None:
            self._add(elements.DeliveryEnd(start, end, aspect))
        else:
            self._add(elements.Delivery(start, end, aspect, known, word.strip()))

    def _pause(self, seconds: float | None, start: int, end: int) -> None:
        if seconds is None:
            self._ignore("pause", "A pause has no valid length.", start, end)
            return
        if seconds > MAX_PAUSE_S:
            message = f"Pauses are {MAX_PAUSE_S:g} seconds at most."
            self._ignore("pause", message, start, start)
        if seconds > 0:
            self._add(elements.Pause(start, end, min(seconds, MAX_PAUSE_S)))
            self._is_after_space = True

    # -- elements that are read as a whole

    def _content_of(
        self, name: str, given: dict[str, str]
    ) -> Callable[[str, int, int], Iterable[Element]] | None:
        """Return what makes the elements of such an element; None if it is no such element."""
        if name == "spell" or (name == "expr" and given.get("type") == "spell"):
            return lambda text, start, end: [elements.Substitute(start, end, spelling.spell(text))]
        if name == "sub" and "alias" in given:
            return lambda text, start, end: [elements.Substitute(start, end, given["alias"])]
        if name == "phoneme":
            alphabet, phonemes = given.get("alphabet", "ipa").lower(), given.get("ph", "")
            return lambda text, start, end: [elements.Phoneme(start, end, text, alphabet, phonemes)]
        if name != "say-as":
            return None
        kind = given.get("interpret-as", "").lower()
        if (reading := spelling.READINGS.get(kind)) is not None:
            order = given.get("format", "")
            return lambda text, start, end: [_reading(start, end, text, reading(text, order))]
        if kind in ("expletive", "bleep"):
            return lambda text, start, end: []
        message = f"say-as does not know {kind[:40]!r}."
        return lambda text, start, end: [
            elements.Ignored(start, start, "say-as", message),
            _reading(start, end, text, text),
        ]

    def _open_content(
        self,
        name: str,
        make: Callable[[str, int, int], Iterable[Element]],
        at: int,
        *,
        is_empty: bool,
    ) -> None:
        if self._content is not None:
            self._end_content(at)
        self._content = _Content(name, make, at)
        if is_empty:
            self._end_content(at)

    def _end_content(self, end: int) -> None:
        content, self._content = self._content, None
        if content is not None:
            for element in content.make(content.text, content.start, end):
                self._add(element)

    # -- elements out

    def _add_text(self, text: str, at: int) -> None:
        content = self._content
        if content is not None and text:
            room = _MAX_CONTENT_CHARS - len(content.text)
            content.text += text[:room]
            at += len(text[:room])
            text = text[room:]
            if not text:
                return
            self._ignore("unclosed", f"<{content.name}> is not closed.", at, at)
            self._end_content(at)
        if text:
            self._done.append(elements.Text(at, at + len(text), text))
            self._is_after_space = text[-1].isspace()

    def _substitute(self, text: str, start: int, end: int) -> None:
        if self._content is not None:
            self._content.text += text if text.strip() else " "
        else:
            self._add(elements.Substitute(start, end, text))

    def _ignore(self, kind: str, message: str, start: int, end: int) -> None:
        self._add(elements.Ignored(start, end, kind, message))

    def _add(self, element: Element) -> None:
        """Add an element; one without words of its own keeps the words beside it apart."""
        if self._content is not None and not isinstance(element, elements.Ignored):
            self._end_content(element.start)
        match element:
            case elements.Substitute(text=text) | elements.Text(text=text):
                if not text:
                    return
                self._is_after_space = text[-1].isspace()
            case elements.Phoneme():
                self._is_after_space = False
            case elements.Delivery() | elements.Sound() | elements.Ignored():
                if not self._is_after_space and element.end > element.start:
                    space = elements.Substitute(element.start, element.start, " ")
                    self._done.append(space)
                    self._is_after_space = True
        self._done.append(element)


def _reading(start: int, end: int, written: str, said: str) -> Element:
    """Return what is said for the source, which may contain marks beside the text ``written``."""
    is_source = said == written and len(written) == end - start
    return (elements.Text if is_source else elements.Substitute)(start, end, said)


def _seconds(length: str) -> float | None:
    """Return the seconds of "1.5s", "300ms" or "2"; None if it is no length."""
    found = _LENGTH.fullmatch(length)
    if found is None:
        return None
    is_milli = (found["unit"] or "s").lower().startswith("m")
    return float(found["number"]) / (1000 if is_milli else 1)


def _break_s(given: dict[str, str]) -> float | None:
    """Return the seconds of a ``break`` with these attributes; None if they are invalid."""
    if "time" in given:
        return _seconds(given["time"])
    return PAUSES.get(given.get("strength", "medium").lower())
