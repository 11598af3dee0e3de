"""The control tags that a client may write into text: ``<|category:value|>``.

These 43 are all that the family documents. Emotion, style, speed, pitch and expressiveness
lead a turn; pauses and sound effects stand inline, and what the sound effect sounds like
follows without a space (``<|sfx:laughter|>haha``).
"""

from __future__ import annotations

import re

TAG_VALUES: dict[str, tuple[str, ...]] = {
    "emotion": (
        "elation", "amusement", "enthusiasm", "determination", "pride", "contentment",
        "affection", "relief", "contemplation", "confusion", "surprise", "awe", "longing",
        "arousal", "anger", "fear", "disgust", "bitterness", "sadness", "shame", "helplessness",
    ),
    "style": ("singing", "shouting", "whispering"),
    "sfx": (
        "cough", "laughter", "crying", "screaming", "burping", "humming", "sigh", "sniff",
        "sneeze",
    ),
    "prosody": (
        "speed_very_slow", "speed_slow", "speed_fast", "speed_very_fast", "pitch_low",
        "pitch_high", "pause", "long_pause", "expressive_high", "expressive_low",
    ),
}  # fmt: skip

CONTROL_TAGS: frozenset[str] = frozenset(
    f"<|{category}:{value}|>" for category, values in TAG_VALUES.items() for value in values
)
#: Tags that make a sound by themselves: text with one of them has something to say.
AUDIBLE_TAGS: frozenset[str] = frozenset(f"<|sfx:{value}|>" for value in TAG_VALUES["sfx"])

_TAG = re.compile("|".join(re.escape(tag) for tag in sorted(CONTROL_TAGS)))


def split_tags(text: str) -> list[str]:
    """Cut text at its tags: pieces of text and tags in turn, text first and last."""
    pieces, at = [], 0
    for match in _TAG.finditer(text):
        pieces += [text[at : match.start()], match.group()]
        at = match.end()
    return [*pieces, text[at:]]
