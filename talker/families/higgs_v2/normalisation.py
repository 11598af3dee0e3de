"""Upstream's text normalisation, with which the model has always been used.

The rules of ``examples/generation.py`` of boson-ai/higgs-audio: full-width punctuation to ASCII,
brackets to spaces, degrees in words, events to the model's own marks, white space collapsed line by
line, and a full stop at the end of text without one. Each character's offset in the client's text
is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from streaming.ports import MAX_REFERENCES
from talker.prompts import SPEAKER, TagSet, TextPiece
from text.markup.rendering import Rendering

#: Events that a client may write, and the model's form of each: mark, words, mark.
EVENTS: dict[str, tuple[str, str, str]] = {
    "[laugh]": ("<SE>", "[Laughter]", "</SE>"),
    "[humming start]": ("<SE_s>", "[Humming]", "</SE_s>"),
    "[humming end]": ("<SE_e>", "[Humming]", "</SE_e>"),
    "[music start]": ("<SE_s>", "[Music]", "</SE_s>"),
    "[music end]": ("<SE_e>", "[Music]", "</SE_e>"),
    "[music]": ("<SE>", "[Music]", "</SE>"),
    "[sing start]": ("<SE_s>", "[Singing]", "</SE_s>"),
    "[sing end]": ("<SE_e>", "[Singing]", "</SE_e>"),
    "[applause]": ("<SE>", "[Applause]", "</SE>"),
    "[cheering]": ("<SE>", "[Cheering]", "</SE>"),
    "[cough]": ("<SE>", "[Cough]", "</SE>"),
}
#: A speaker stays until the next speaker's tag.
_SPEAKERS = {f"[SPEAKER{number}] ": SPEAKER for number in range(100)}
TAGS = TagSet(frozenset(EVENTS), frozenset(EVENTS), _SPEAKERS)
RENDERING = Rendering(
    own=frozenset(EVENTS),
    deliveries={
        ("speaker", str(number)): f"[SPEAKER{number}] " for number in range(MAX_REFERENCES)
    },
    sounds={
        "applause": "[applause]", "cheering": "[cheering]", "cough": "[cough]",
        "laughter": "[laugh]", "music": "[music]",
    },
)  # fmt: skip
#: Tags that count as the end of a text.
_ENDS = frozenset(tag for tag, marks in EVENTS.items() if marks[2] in ("</SE>", "</SE_e>"))
_TERMINATORS = tuple(".!?,;\"'")

_READINGS = {
    "°F": " degrees Fahrenheit", "°C": " degrees Celsius",
    "，": ", ", "。": ".", "：": ":", "；": ";", "？": "?", "！": "!", "（": " ", "）": " ",
    "(": " ", ")": " ", "【": "[", "】": "]", "《": "<", "》": ">", "“": '"', "”": '"',
    "‘": "'", "’": "'", "「": '"', "」": '"', "『": '"', "』": '"', "、": ",", "—": "-",
    "…": "...", "·": ".",
}  # fmt: skip
_REPLACED = re.compile("|".join(map(re.escape, _READINGS)))
#: White space with a line break, from its beginning: tried at each blank, it would be quadratic.
_LINE_BREAKS = re.compile(r"(?<!\s)\s*\n\s*")
_SPACES = re.compile(r"[^\S\n]+")
#: Stands for the tags while the words around them are normalised; not a letter of any script.
_MARK = "\ue000"


def normalise(text: str) -> list[TextPiece]:
    """Return the words and tags of ``text`` in the model's form."""
    cut = TAGS.split(text.replace(_MARK, " "))
    tags = cut[1::2]
    origins: list[int] = []
    places: list[int] = []
    at = 0
    for index, piece in enumerate(cut):
        if index % 2:
            places.append(at)
            origins.append(at)
        else:
            origins += range(at, at + len(piece))
        at += len(piece)
    words = _MARK.join(cut[::2])
    words, origins = _replace(_REPLACED, _READINGS.__getitem__, words, origins)
    words, origins = _replace(_LINE_BREAKS, lambda _: "\n", words, origins)
    words, origins = _replace(_SPACES, lambda _: " ", words, origins)
    words, origins = _strip(words, origins)
    has_end = words.endswith(_TERMINATORS) or (words.endswith(_MARK) and tags[-1] in _ENDS)
    if words and not has_end:
        words, origins = words + ".", [*origins, origins[-1]]
    pieces: list[TextPiece] = []
    begin = 0
    for tag, place in zip(tags, places, strict=True):
        end = words.index(_MARK, begin)
        pieces += [TextPiece(words[begin:end], origins[begin:end]), TextPiece(tag, [place], tag)]
        begin = end + 1
    return [*pieces, TextPiece(words[begin:], origins[begin:])]


def _replace(
    pattern: re.Pattern[str], change: Callable[[str], str], text: str, origins: list[int]
) -> tuple[str, list[int]]:
    """``pattern.sub``, also for ``origins``: a replacement has the origin of its match's start."""
    parts: list[str] = []
    places: list[int] = []
    at = 0
    for match in pattern.finditer(text):
        new = change(match.group())
        parts += [text[at : match.start()], new]
        places += origins[at : match.start()] + [origins[match.start()]] * len(new)
        at = match.end()
    return "".join([*parts, text[at:]]), places + origins[at:]


def _strip(text: str, origins: list[int]) -> tuple[str, list[int]]:
    begin = len(text) - len(text.lstrip())
    end = max(begin, len(text.rstrip()))
    return text[begin:end], origins[begin:end]
