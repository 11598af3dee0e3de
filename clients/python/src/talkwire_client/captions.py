"""Spoken words and their times as captions (SubRip, WebVTT), as JSON and as plain lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from msgspec import to_builtins

from talkwire_client.protocol import Word

#: Limits of broadcasters' guidelines: two lines of 42 characters, and 7 seconds on the screen. Only
#: a single word may be longer.
_LINE_CHARS, _LINES, _MAX_MS = 42, 2, 7000.0
#: A caption ends after a sentence, and at a pause this long.
_PAUSE_MS = 500.0
_SENTENCE_ENDS = tuple(".!?…‼⁇⁈⁉。｡！？．।॥؟۔։።፧")
_CLOSERS = "\"'”’)»›]}）］」』】》〉*_~`"


class TimedWord(Protocol):
    """A spoken word, as ``talkwire_client.protocol.Word`` has it."""

    @property
    def text(self) -> str:
        """As the client wrote it."""

    @property
    def start(self) -> int:
        """Offset of its first character in the context's text."""

    @property
    def end(self) -> int:
        """Offset of its end."""

    @property
    def start_ms(self) -> float:
        """When it begins, in milliseconds of speech from the context's first sample."""

    @property
    def end_ms(self) -> float:
        """When it ends."""


class Caption(NamedTuple):
    """What is shown at a time, in one or two lines."""

    start_ms: float
    end_ms: float
    text: str
    words: Sequence[TimedWord]


def captions(words: Sequence[TimedWord]) -> list[Caption]:
    """Divide words into captions: at ends of sentences and at pauses, and where one would be too
    long to read.
    """
    return [_caption(group) for group in _groups(words)]


def _groups(words: Sequence[TimedWord]) -> Iterator[list[TimedWord]]:
    group: list[TimedWord] = []
    for word in words:
        if group and _begins_caption(group, word):
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _begins_caption(group: list[TimedWord], word: TimedWord) -> bool:
    last = group[-1]
    return (
        last.text.rstrip(_CLOSERS).endswith(_SENTENCE_ENDS)
        or word.start_ms - last.end_ms >= _PAUSE_MS
        or word.end_ms - group[0].start_ms > _MAX_MS
        or len(_joined([*group, word])) > _LINES * _LINE_CHARS
    )


def _joined(words: Sequence[TimedWord]) -> str:
    """Words in a line. They stand apart where the client's text has something between them."""
    line = " ".join(words[0].text.split())
    for before, word in pairwise(words):
        line += (" " if word.start > before.end else "") + " ".join(word.text.split())
    return line


def _caption(words: Sequence[TimedWord]) -> Caption:
    end_ms = max(words[-1].end_ms, words[0].start_ms)
    return Caption(words[0].start_ms, end_ms, _in_lines(_joined(words)), words)


def _in_lines(text: str) -> str:
    """Divide a text in two lines of about the same length if it is too long for one."""
    spaces = [at for at, char in enumerate(text) if char == " "]
    if len(text) <= _LINE_CHARS or not spaces:
        return text
    middle = min(spaces, key=lambda at: abs(2 * at - len(text)))
    return f"{text[:middle]}\n{text[middle + 1 :]}"


def as_srt(words: Sequence[TimedWord]) -> str:
    """Format words as a SubRip file."""
    blocks = []
    for number, one in enumerate(captions(words), 1):
        text = one.text.replace("-->", "→")  # there are no escapes
        blocks.append(f"{number}\n{_times(one, ',')}\n{text}\n")
    return "\n".join(blocks)


def as_vtt(words: Sequence[TimedWord]) -> str:
    """Format words as a WebVTT file (https://www.w3.org/TR/webvtt1/)."""
    blocks = ["WEBVTT\n"]
    for one in captions(words):
        text = one.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{_times(one, '.')}\n{text}\n")
    return "\n".join(blocks)


def as_cues(words: Sequence[TimedWord]) -> list[dict[str, Any]]:
    """Return captions for JSON, with the words of each."""
    return [
        {
            "text": one.text,
            "start_ms": one.start_ms,
            "end_ms": one.end_ms,
            "words": [
                {"text": w.text, "start_ms": w.start_ms, "end_ms": w.end_ms} for w in one.words
            ],
        }
        for one in captions(words)
    ]


def as_json(words: Sequence[Word]) -> str:
    """Format words as a JSON list of objects with the fields of ``Word``."""
    return json.dumps(to_builtins(list(words)), ensure_ascii=False, indent=1) + "\n"


def as_lines(words: Sequence[TimedWord]) -> str:
    """Format words as lines: begin and end in seconds, and the word."""
    return "".join(f"{w.start_ms / 1000:8.3f} {w.end_ms / 1000:8.3f}  {w.text}\n" for w in words)


def _times(one: Caption, point: str) -> str:
    return f"{_clock(one.start_ms, point)} --> {_clock(one.end_ms, point)}"


def _clock(ms: float, point: str) -> str:
    """Format a time: hours, minutes, seconds and, after ``point``, milliseconds."""
    seconds, thousandths = divmod(max(0, round(ms)), 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{point}{thousandths:03d}"
