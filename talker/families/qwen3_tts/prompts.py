"""Qwen3-TTS' prompts, with the whole text or only its first id before the first frame.

==================  =======================================  ===================
text track          codec track                              times
==================  =======================================  ===================
im_start, "user\\n",  nothing; only with instructions          1
these, im_end, \\n
im_start, role, \\n  nothing                                  1
tts_pad             nothink, think_bos, think_eos; with a    1
                    language or dialect: think, think_bos,
                    its id, think_eos
tts_pad             speaker, or a clip's vector; nothing      1
                    where instructions make the voice
tts_bos             pad                                      1
a clip's transcript pad                                      each
the text, tts_eos   pad                                      each
tts_pad             bos                                      1
tts_pad             the clip's frames, with its transcript   each
==================  =======================================  ===================

A clip without its transcript is its vector alone. With it, the speech continues the clip.

If the text arrives while it is spoken, the last two lines are its first id over the codec's bos.
Each frame then goes in with the next id of the text, tts_eos after the last, and tts_pad from there
on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streaming.ports import OwnSpeaker
from streaming.spec import Codes
from talker.families.qwen3_tts.tokenizer import read_layout
from talker.families.qwen3_tts.track_ids import CODEC, OVER_BOS, OVER_PAD, pack
from talker.prompts import Clip, PromptBuilder, PromptSource
from talker.shape import CheckpointError
from text.markup.rendering import Rendering

#: The model has no marks; its ten languages are those of the published checkpoints.
RENDERING = Rendering(
    own=frozenset(), languages=("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
)
_CHINESE = "zh"
#: Control tokens, and the names of their ids in config.json.
_NAMES = {
    "<|im_start|>": "im_start", "<|im_end|>": "im_end", "<tts_pad>": "tts_pad",
    "<tts_text_bos>": "tts_bos", "<tts_text_eod>": "tts_eos",
}  # fmt: skip


class Qwen3TTSPromptBuilder(PromptBuilder):
    """See PromptBuilder."""

    end_token = "<|im_end|>"

    def __init__(self, source: PromptSource) -> None:
        from talker.families.qwen3_tts import Qwen3TTSShape

        super().__init__(source)
        shape = source.shape
        assert isinstance(shape, Qwen3TTSShape)
        for token, name in _NAMES.items():
            if self._control.get(token, shape.text[name]) != shape.text[name]:
                raise CheckpointError(
                    f"{token} is {self._control[token]} in the tokenizer and {shape.text[name]} "
                    "in config.json"
                )
        self._tts = shape.text
        self._codec = shape.codec
        self._speakers = shape.speakers
        self._languages = shape.languages
        self._designs_voice = shape.designs_voice
        self._clones = shape.clones
        self._takes_instructions = shape.takes_instructions
        self.rendering = replace(RENDERING, languages=tuple(sorted(shape.languages)))

    @classmethod
    def read_layout(cls, tokenizer_file: Path) -> dict[str, Any]:
        """See PromptBuilder."""
        return read_layout(tokenizer_file.parent)

    @property
    def speakers(self) -> Mapping[str, OwnSpeaker]:
        """See PromptBuilder. Languages are known of those that speak a dialect."""
        return {
            name: OwnSpeaker()
            if speaker.dialect_name is None
            else OwnSpeaker(_CHINESE, speaker.dialect_name.replace("_", " "))
            for name, speaker in self._speakers.items()
        }

    @property
    def _replaced(self) -> int:
        """An id for positions that a clip fills: any will do."""
        return self._tts["tts_pad"]

    @property
    def takes_references(self) -> bool:
        """See PromptBuilder."""
        return self._clones

    @property
    def needs_reference(self) -> bool:
        """See PromptBuilder."""
        return self._clones

    @property
    def takes_instructions(self) -> bool:
        """See PromptBuilder."""
        return self._takes_instructions

    @property
    def needs_instructions(self) -> bool:
        """See PromptBuilder."""
        return self._designs_voice

    def instruction(self, instructions: str) -> list[int]:
        """See PromptBuilder. The role and the words are encoded as one text, as upstream."""
        words = self.encode(f"user\n{instructions}")
        return [self._tts["im_start"], *words, self._tts["im_end"], *self.encode("\n")]

    def clip_rows(self, frames: Codes) -> Codes:
        """Return the frames, since a row is a frame."""
        return frames

    def head(
        self,
        text: str,
        clips: Sequence[Clip],
        scene: str | None,
        speaker: str | None = None,
        language: str | None = None,
    ) -> tuple[list[int], list[int]]:
        """See PromptBuilder. Without a ``speaker`` the first one of config.json speaks, if there is
        one. One of a dialect speaks Chinese in it. The place of a clip is that of its vector.
        """
        named = speaker or next(iter(self._speakers), None)
        found = None if named is None else self._speakers[named]
        codec = self._codec
        spoken = None if language is None else self._languages[language]
        if found is not None and found.dialect is not None and language in (None, _CHINESE):
            spoken = found.dialect
        track = [codec["nothink"], codec["think_bos"], codec["think_eos"]]
        if spoken is not None:
            track = [codec["think"], codec["think_bos"], spoken, codec["think_eos"]]
        if found is not None:
            track.append(found.number)
        role = [self._tts["im_start"], *self.encode("assistant\n")]
        head = [*role, *(pack(CODEC, number) for number in track)]
        places, transcript = list[int](), list[int]()
        for clip in clips:
            places.append(len(head))
            head.append(self._replaced)
            transcript += self.encode_transcript((clip.transcript or "").strip())
        begin = [self._tts["tts_bos"], *transcript]
        return [*head, *(pack(OVER_PAD, number) for number in begin)], places

    def continued(self, clips: Sequence[Clip]) -> list[int]:
        """See PromptBuilder. A clip without a transcript is its vector alone."""
        read = [clip for clip in clips if (clip.transcript or "").strip()]
        return [self._replaced] * sum(clip.num_rows for clip in read)

    def turn(self, spoken: list[int]) -> tuple[list[int], int]:
        """See PromptBuilder."""
        text = [pack(OVER_PAD, number) for number in (*spoken, self._tts["tts_eos"])]
        return [*text, pack(OVER_BOS, self._tts["tts_pad"])], 0

    @property
    def text_end(self) -> tuple[int, ...]:
        """See PromptBuilder."""
        return (self._tts["tts_eos"],)

    def first_turn(self, first: int) -> list[int]:
        """See PromptBuilder."""
        return [pack(OVER_BOS, first)]
