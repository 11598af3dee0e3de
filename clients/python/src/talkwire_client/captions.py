"""Spoken words and their times as subtitles (SubRip), as JSON and as plain lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

from msgspec import to_builtins

from talkwire_client.protocol import Word

#: A caption is one line of at most this length; it ends after a sentence and at a pause this long.
_LINE_CHARS, _PAUSE_MS = 42, 500.0
_SENTENCE_ENDS = ".!?…。！？।"


def captions(words: Sequence[Word]) -> list[list[Word]]:
    """Group words into captions of one line."""
    lines = [[word] for word in words[:1]]
    for before, word in pairwise(words):
        line = lines[-1]
        length = len(" ".join(w.text for w in [*line, word]))
        ends = before.text.rstrip("\"'”’)»")[-1:] in _SENTENCE_ENDS and before.text != ""
        if ends or length > _LINE_CHARS or word.start_ms - before.end_ms >= _PAUSE_MS:
            lines.append([word])
        else:
            line.append(word)
    return lines


def as_srt(words: Sequence[Word]) -> str:
    """Format words as a SubRip file. Scripts without spaces are joined as they were written."""
    blocks = []
    for number, line in enumerate(captions(words), 1):
        text = line[0].text
        for before, word in pairwise(line):
            text += (" " if word.start > before.end else "") + word.text
        times = f"{_clock(line[0].start_ms)} --> {_clock(line[-1].end_ms)}"
        blocks.append(f"{number}\n{times}\n{text}\n")
    return "\n".join(blocks)


def as_json(words: Sequence[Word]) -> str:
    """Format words as a JSON list of objects with the fields of ``Word``."""
    return json.dumps(to_builtins(list(words)), ensure_ascii=False, indent=1) + "\n"


def as_lines(words: Sequence[Word]) -> str:
    """Format words as lines: begin and end in seconds, and the word."""
    return "".join(f"{w.start_ms / 1000:8.3f} {w.end_ms / 1000:8.3f}  {w.text}\n" for w in words)


def _clock(ms: float) -> str:
    """Format a time as SubRip does: hours, minutes, seconds and milliseconds."""
    seconds, thousandths = divmod(round(ms), 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d},{thousandths:03d}"
