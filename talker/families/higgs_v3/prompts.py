"""Higgs Audio v3's control tags and prompt layout.

Layout: ``<|tts|> [<|ref_text|> transcript] [<|ref_audio|> voice rows] <|text|> text <|audio|>``.
The 43 tags are all that the family documents. Emotion, style, speed, pitch and expressiveness lead
a turn. Pauses and sound effects stand inline, and the sound effect's spelling follows it without a
space (``<|sfx:laughter|>haha``).
"""

from __future__ import annotations

from collections.abc import Sequence

from streaming.delay import apply_delay
from streaming.spec import Codes
from talker.prompts import Clip, PromptBuilder, PromptSource, TagSet
from text.markup.rendering import Rendering

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
#: Tags that lead a turn and affect all of it; pauses and sound effects apply where they stand.
DELIVERY_TAGS: dict[str, str] = {
    f"<|{category}:{value}|>": value.partition("_")[0] if category == "prosody" else category
    for category in ("emotion", "style", "prosody")
    for value in TAG_VALUES[category]
    if value not in ("pause", "long_pause")
}
#: Tags that make a sound by themselves, so text with one of them can be spoken.
AUDIBLE_TAGS: frozenset[str] = frozenset(f"<|sfx:{value}|>" for value in TAG_VALUES["sfx"])
TAGS = TagSet(CONTROL_TAGS, AUDIBLE_TAGS, DELIVERY_TAGS)
#: The spelling that follows each sound effect's tag.
_SPELLINGS = {
    "cough": "Ahem", "laughter": "Haha", "crying": "Sob", "screaming": "Aaah", "burping": "Burp",
    "humming": "Hmm", "sigh": "Ahh", "sniff": "Sff", "sneeze": "Achoo",
}  # fmt: skip
RENDERING = Rendering(
    own=CONTROL_TAGS,
    deliveries={
        (aspect, tag.strip("<|>").partition(":")[2].removeprefix(f"{aspect}_")): tag
        for tag, aspect in DELIVERY_TAGS.items()
    },
    sounds={name: f"<|sfx:{name}|>{said}" for name, said in _SPELLINGS.items()},
)


class HiggsV3PromptBuilder(PromptBuilder):
    """See PromptBuilder. References need ``<|ref_audio|>`` in the vocabulary."""

    tag_set = TAGS
    end_token = "<|endoftext|>"

    def __init__(self, source: PromptSource) -> None:
        super().__init__(source)
        self._tts, self._text_mark, self._audio = (
            self.required(name) for name in ("<|tts|>", "<|text|>", "<|audio|>")
        )
        self._ref_audio = self._control.get("<|ref_audio|>")
        self._ref_text = self._control.get("<|ref_text|>")
        self.rendering = RENDERING.only(self._tags)

    @property
    def takes_references(self) -> bool:
        """See PromptBuilder."""
        return self._ref_audio is not None

    def clip_rows(self, frames: Codes) -> Codes:
        """T + K - 1 rows in the delay pattern."""
        size = self._codebook_size
        return apply_delay(frames, size, size + 1)

    def head(
        self,
        text: str,
        clips: Sequence[Clip],
        scene: str | None,
        speaker: str | None = None,
        language: str | None = None,
    ) -> tuple[list[int], list[int]]:
        """See PromptBuilder."""
        head = [self._tts]
        if not clips:
            return head, []
        transcript, num_rows = clips[0]
        if transcript and self._ref_text is not None:
            head += [self._ref_text, *self.encode_transcript(transcript)]
        assert self._ref_audio is not None
        head.append(self._ref_audio)
        # any id will do for the rows: the engine puts their embeddings there
        return [*head, *[self._ref_audio] * num_rows], [len(head)]

    def turn(self, spoken: list[int]) -> tuple[list[int], int]:
        """See PromptBuilder."""
        return [self._text_mark, *spoken, self._audio], 1
