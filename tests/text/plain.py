"""A front end without a language: words and numbers as they are written.

It has what a second language begins with, so that nothing of that depends on English.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from text import addresses, punctuation
from text.formatting import Formatting, Piece
from text.reader import Reader
from text.rules import Match, Reading, Rule, Rules
from text.unicode_fold import Folder


def _formula(source: str, start: int, end: int) -> Iterator[Piece]:
    yield start, end, " "


def _web(match: Match) -> Reading:
    if (address := addresses.web(match)) is None:
        return None
    return re.findall("[a-z]+|[0-9]+", f"{address.host} {address.path}".lower())


_WEB = tuple(Rule(pattern, _web, behind=behind) for pattern, behind in addresses.WEB)
_FORMATTING = Formatting("☎", lambda match: " tel ", _formula, "-")
READER = Reader(
    Folder({"№": " nr "}, ["und", "aber"], _FORMATTING).fold,
    letters=Rules((*_WEB, Rule(r"[A-Za-z]+(?:'[A-Za-z]+)*", lambda match: [match[0].lower()]))),
    digits=Rules((*_WEB, Rule(r"\d+", lambda match: [match[0]]))),
    signs=Rules(
        (
            *punctuation.COMMON, *punctuation.LINKS, *punctuation.ARROWS, punctuation.DASH,
            punctuation.BLANK, *punctuation.FACES, punctuation.ELLIPSIS, punctuation.BRACKET,
            *punctuation.STOPS,
        )
    ),
    word=re.compile(r"[a-z]+(?:'[a-z]+)*|[0-9]+"),
)  # fmt: skip
