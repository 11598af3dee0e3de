"""Pieces of text that come without the space between them.

Some clients send an LLM's tokens, which must be joined as they are; others send sentences one
by one, without the space that belongs between two. The segmenter needs it: "there.How" is no
end of a sentence.
"""

from __future__ import annotations

from streaming.script import CLOSERS, OPENERS, SPACED_MARKS


def joined(before: str, text: str) -> tuple[str, str]:
    """``text`` with the spaces that it lacks, and the ``before`` of the next piece.

    A space goes in front of it where a sentence mark came before and no lower-case letter,
    nor the rest of a number, follows. One goes behind it where it is a whole sentence of
    several words, since nothing else may come for long.
    """
    added = text
    if _ends_sentence(before) and _begins_sentence(before, text):
        added = " " + text
    if len(text.split()) > 1 and _ends_sentence(text) and not _ends_number(text):
        added += " "
    return added, (before + added)[-8:]


def _ends_sentence(text: str) -> bool:
    bare = text.rstrip("".join(CLOSERS))
    return bare[-1:] in SPACED_MARKS if bare else False


def _ends_number(text: str) -> bool:
    bare = text.rstrip("".join(CLOSERS | SPACED_MARKS))
    return bare[-1:].isdigit()


def _begins_sentence(before: str, text: str) -> bool:
    first = text[:1]
    if first.isdigit():
        return not _ends_number(before)
    return (first.isalpha() and not first.islower()) or first in OPENERS
