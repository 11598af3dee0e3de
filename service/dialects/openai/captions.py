"""Captions in the answers of OpenAI's API and of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from streaming.word_timing import WordTiming
from talkwire_client.captions import as_cues, as_srt, as_vtt

CaptionFormat = Literal["srt", "vtt", "json"]
#: Media types of captions that are texts.
CAPTION_TYPES: dict[CaptionFormat, str] = {"srt": "application/x-subrip", "vtt": "text/vtt"}
#: The writer of each format.
_WRITERS = {"srt": as_srt, "vtt": as_vtt, "json": as_cues}


def captioned(format_: CaptionFormat | None, words: Sequence[WordTiming]) -> dict[str, Any]:
    """Return the field ``captions`` of a result, a text or a list, or none."""
    return {} if format_ is None else {"captions": _WRITERS[format_](words)}


def accepted_captions(accept: str) -> CaptionFormat | None:
    """The format of which a client's header ``accept`` names the media type. JSON is not among
    them, since many clients accept JSON whatever they ask for.
    """
    named = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    return next((name for name, kind in CAPTION_TYPES.items() if kind in named), None)
