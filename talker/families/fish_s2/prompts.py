"""S2 Pro's prompts, encoded part by part as fish-speech does.

Each part of the text is encoded by itself. Joined first, "...text." and a following "\\n\\n" would
become another id, since the vocabulary has ids such as ".\\n\\n". Styles such as ``[whisper]`` are
ordinary text to this model, and so is ``<|speaker:1|>`` unless it is an id of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from streaming.ports import MAX_REFERENCES
from streaming.spec import Codes
from talker.prompts import SPEAKER, Clip, PromptBuilder, PromptSource, TagSet
from talker.shape import CheckpointError
from text.markup.rendering import Rendering

SYSTEM = "convert the provided text to speech"
CLIP_BEFORE = f"{SYSTEM} reference to the following:\n\nText:\n"
CLIP_AFTER = "\n\nSpeech:\n"
_SPEAKER = re.compile(r"<\|speaker:\d+\|>")
#: A speaker stays until the next speaker's tag, whether the vocabulary has an id for it or not.
_SPEAKERS = {f"<|speaker:{number}|>": SPEAKER for number in range(100)}

#: Directions are ordinary text in brackets, in any words.
RENDERING = Rendering(
    own=frozenset(_SPEAKERS),
    deliveries={("speaker", str(number)): tag for number, tag in enumerate(_SPEAKERS)},
    free="[{}]",
)


class FishS2PromptBuilder(PromptBuilder):
    """See PromptBuilder."""

    rendering = RENDERING
    end_token = "<|im_end|>"
    max_references = MAX_REFERENCES
    written_events = re.compile(r"\[[^][]*\]")

    def __init__(self, source: PromptSource) -> None:
        from talker.families.fish_s2 import FishS2Shape

        super().__init__(source)
        shape = source.shape
        assert isinstance(shape, FishS2Shape)
        self._im_start, self._im_end, self._voice, self._audio_pad = (
            self.required(name)
            for name in ("<|im_start|>", "<|im_end|>", "<|voice|>", "<|audio_pad|>")
        )
        # the model ends with it alone, whatever else eos_token_id lists
        self.stop_id = self._im_end
        for code in (0, shape.codebook_size - 1):
            name = f"<|semantic:{code}|>"
            wanted = shape.semantic_begin + code
            if (found := self._control.get(name, wanted)) != wanted:
                raise CheckpointError(
                    f"{name} is {found} in the tokenizer and {wanted} in config.json"
                )
        speakers = frozenset(name for name in self._control if _SPEAKER.fullmatch(name))
        self.allow_tags(TagSet(speakers, delivery=_SPEAKERS))

    @property
    def between_turns(self) -> tuple[int, ...]:
        """See PromptBuilder."""
        return (self._im_end, *self.encode("\n"))

    def clip_rows(self, frames: Codes) -> Codes:
        """Return the frames, since a row is a frame."""
        return frames.copy()

    def head(
        self,
        text: str,
        clips: Sequence[Clip],
        scene: str | None,
        speaker: str | None = None,
        language: str | None = None,
    ) -> tuple[list[int], list[int]]:
        """See PromptBuilder. All transcripts come before all clips."""
        head = [self._im_start, *self.encode("system\n")]
        places = list[int]()
        if clips:
            head += [*self.encode(CLIP_BEFORE), *self._transcript(clips)]
            head += self.encode(CLIP_AFTER)
        else:
            head += self.encode(SYSTEM)
        for clip in clips:
            places.append(len(head))
            # any id will do for the rows: the engine puts their embeddings there
            head += [self._audio_pad] * clip.num_rows
        return [*head, self._im_end, *self.encode("\n")], places

    def turn(self, spoken: list[int]) -> tuple[list[int], int]:
        """See PromptBuilder."""
        before = [self._im_start, *self.encode("user\n")]
        after = [self._im_end, *self.encode("\n"), self._im_start, *self.encode("assistant\n")]
        return [*before, *spoken, *after, self._voice], len(before)

    def _transcript(self, clips: Sequence[Clip]) -> list[int]:
        """Encode the transcripts' lines; each begins with its speaker's tag, as upstream."""
        lines = []
        ids = list[int]()
        for number, clip in enumerate(clips):
            line = clip.transcript or ""
            lines.append(line if _SPEAKER.search(line) else f"<|speaker:{number}|>{line}")
        for piece in self.tag_set.split("\n".join(lines)):
            ids += self.tag_ids(piece) if piece in self._tags else self.encode_transcript(piece)
        return ids
