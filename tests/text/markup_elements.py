"""The elements of marked-up text that arrives in parts."""

from __future__ import annotations

from text.markup.elements import Element, Text
from text.markup.reader import MarkupReader


def read(*parts: str, own: frozenset[str] = frozenset(), keeps: bool = False) -> list[Element]:
    """Return the elements of a text that arrives in these parts; text that follows text joined."""
    reader = MarkupReader(own, keeps_brackets=keeps)
    joined: list[Element] = []
    for element in [e for part in parts for e in reader.push(part)] + reader.flush(is_last=True):
        last = joined[-1] if joined else None
        if isinstance(element, Text) and isinstance(last, Text) and last.end == element.start:
            joined[-1] = Text(last.start, element.end, last.text + element.text)
        else:
            joined.append(element)
    return joined
