"""Two tracks in one id per position.

A prompt's input at a position is the embedding of a text id plus that of an id of the codec
vocabulary. Only four pairs of them occur, so one integer below the frame ids names each: a text id
or a codec id in the low bits, and the kind of pair in the two bits above. Prompts therefore stay
plain ids for the engine and its prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bits of a text id.
KIND_SHIFT = 18
#: Mask of these bits.
LOW = (1 << KIND_SHIFT) - 1
#: Kinds: a text id alone, over the codec's pad, over the codec's begin; a codec id under the text's
#: pad.
ALONE, OVER_PAD, OVER_BOS, CODEC = range(4)


@dataclass(frozen=True, slots=True)
class Track:
    """The ids of a track when the other one has something to say."""

    tts_pad: int
    codec_pad: int
    codec_bos: int


def pack(kind: int, number: int) -> int:
    """Return the id of a pair."""
    return kind << KIND_SHIFT | number


def is_prompt_id(packed: int, text_ids: int, codec_ids: range) -> bool:
    """Whether it names a pair of ids that the model has rows for."""
    kind, low = packed >> KIND_SHIFT, packed & LOW
    if kind == CODEC:
        return low in codec_ids
    return ALONE <= kind < CODEC and low < text_ids
