"""Higgs Audio v2's prompts: ChatML from ids.

Without a reference the scene of the system text lets the model choose a voice ("smart voice").
Lines ``[SPEAKER0] ...`` are spoken by several voices. A client's own scene may describe a voice in
a line ``SPEAKER0: ...``, as upstream's voice prompts do. A reference with a transcript is an
earlier turn, by its speaker if there are several or the text names speakers. One without a
transcript is part of the system text. Every prompt ends with ``<|audio_out_bos|>`` and
``<|AUDIO_OUT|>``. The latter stands for AUDIO_INIT, the row of eight BOC that upstream never draws,
so that it costs no step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming.delay import apply_delay
from streaming.ports import MAX_REFERENCES
from streaming.spec import Codes
from talker.families.delayed import DelayedShape
from talker.families.higgs_v2.normalisation import EVENTS, RENDERING, TAGS, normalise
from talker.prompts import Clip, PromptBuilder, PromptSource, TextPiece
from talker.shape import CheckpointError

SYSTEM = "Generate audio following instruction."
SCENE = "Audio is recorded from a quiet room."
#: Upstream's system text for several speakers without references.
SPEAKERS_SYSTEM = (
    "You are an AI assistant designed to convert text into speech.\n"
    "If the user's message includes a [SPEAKER*] tag, do not read out the tag and generate speech "
    "for the following text, using the specified voice.\n"
    "If no speaker tag is present, select a suitable voice on your own."
)
_SPEAKER = re.compile(r"\[SPEAKER(\d{1,2})\]")
#: A line of a scene that describes a speaker's voice.
_DESCRIBED = re.compile(r"^SPEAKER(\d{1,2}):", re.MULTILINE)
_VOICES = ("feminine", "masculine")


@dataclass(frozen=True, slots=True, kw_only=True)
class HiggsV2Shape(DelayedShape):
    """``audio_out`` is the id that stands for rows in a prompt, from config.json."""

    audio_out: int


class HiggsV2PromptBuilder(PromptBuilder):
    """See PromptBuilder. Its source has a HiggsV2Shape."""

    tag_set = TAGS
    rendering = RENDERING
    end_token = "<|audio_eos|>"
    max_references = MAX_REFERENCES

    def __init__(self, source: PromptSource) -> None:
        super().__init__(source)
        assert isinstance(source.shape, HiggsV2Shape)
        audio_out = source.shape.audio_out
        #: Begins a prompt.
        self._begin = self.required("<|begin_of_text|>")
        #: Begins and ends the role before a turn.
        self._start_header = self.required("<|start_header_id|>")
        self._end_header = self.required("<|end_header_id|>")
        #: Ends a turn.
        self._end_turn = self.required("<|eot_id|>")
        #: Begins a reference clip.
        self._audio_bos = self.required("<|audio_bos|>")
        #: Ends audio.
        self._audio_eos = self.required("<|audio_eos|>")
        #: Begins the audio to generate.
        self._audio_out_bos = self.required("<|audio_out_bos|>")
        #: Stands for a row.
        self._row = self.required("<|AUDIO_OUT|>")
        #: Begins and ends the description of the scene.
        self._scene_start = self.required("<|scene_desc_start|>")
        self._scene_end = self.required("<|scene_desc_end|>")
        if self._row != audio_out:
            raise CheckpointError(
                f"<|AUDIO_OUT|> is {self._row} in the tokenizer and {audio_out} in config.json"
            )
        marks = {mark for opened, _, closed in EVENTS.values() for mark in (opened, closed)}
        #: Ids of the marks of sounds that the vocabulary has.
        self._marks = {mark: self._control[mark] for mark in marks if mark in self._control}

    @property
    def between_turns(self) -> tuple[int, ...]:
        """See PromptBuilder."""
        return (self._audio_eos, self._end_turn)

    @property
    def takes_scene(self) -> bool:
        """See PromptBuilder."""
        return True

    def pieces(self, text: str) -> list[TextPiece]:
        """See PromptBuilder."""
        return normalise(text)

    def tag_ids(self, tag: str) -> list[int]:
        """See PromptBuilder. Without marks in the vocabulary, only the tag's words."""
        opened, words, closed = EVENTS[tag]
        if opened not in self._marks or closed not in self._marks:
            return self._encode_piece(words).ids
        return [self._marks[opened], *self._encode_piece(words).ids, self._marks[closed]]

    def clip_rows(self, frames: Codes) -> Codes:
        """Return T + 2 + K - 1 rows: a frame of BOC before the clip and one of EOC after it, in the
        delay pattern.
        """
        boc = self._codebook_size
        wrapped = np.pad(frames, ((1, 1), (0, 0)))
        wrapped[0], wrapped[-1] = boc, boc + 1
        return apply_delay(wrapped, boc, boc + 1)

    def head(
        self,
        text: str,
        clips: Sequence[Clip],
        scene: str | None,
        speaker: str | None = None,
        language: str | None = None,
    ) -> tuple[list[int], list[int]]:
        """See PromptBuilder."""
        if clips:
            return self._cloning(text, clips, scene or SCENE)
        scene = scene or SCENE
        speakers = set(map(int, _SPEAKER.findall(text)))
        described = set(map(int, _DESCRIBED.findall(scene)))
        lines = [f"SPEAKER{n}: {_VOICES[n % 2]}" for n in sorted(speakers - described)]
        if lines:
            gap = [] if described else [""]
            scene = "\n".join([scene, *gap, *lines])
        system = self._scene(SPEAKERS_SYSTEM if speakers else SYSTEM, self.encode(scene))
        return [self._begin, *self._turn("system", system)], []

    def _cloning(self, text: str, clips: Sequence[Clip], scene: str) -> tuple[list[int], list[int]]:
        """Build the head: a system text with the clips without a transcript, then a turn per other
        clip.
        """
        names_speakers = len(clips) > 1 or bool(_SPEAKER.search(text))
        places = [0] * len(clips)
        mute = list[int]()
        ahead = f"{scene}\n\n"
        described: list[int] = []
        for number, clip in enumerate(clips):
            if not clip.transcript:
                described += self.encode(f"{ahead}SPEAKER{number}: ")
                described += [self._audio_bos, *[self._row] * clip.num_rows, self._audio_eos]
                mute.append(number)
                ahead = "\n"
        system = self._scene(SYSTEM, described or self.encode(scene))
        head = [self._begin, *self._turn("system", system)]
        begins = (at for at, number in enumerate(head, 1) if number == self._audio_bos)
        for number, at in zip(mute, begins, strict=True):
            places[number] = at
        for number, clip in enumerate(clips):
            if clip.transcript:
                line = clip.transcript.strip()
                if names_speakers and not _SPEAKER.match(line):
                    line = f"[SPEAKER{number}] {line}"
                head += self._turn("user", self.encode_transcript(line))
                head += [*self._header("assistant"), self._audio_out_bos]
                places[number] = len(head)
                head += [*[self._row] * clip.num_rows, self._audio_eos, self._end_turn]
        return head, places

    def turn(self, spoken: list[int]) -> tuple[list[int], int]:
        """See PromptBuilder."""
        before = self._header("user")
        speaking = [self._end_turn, *self._header("assistant"), self._audio_out_bos, self._row]
        return [*before, *spoken, *speaking], len(before)

    def _scene(self, system: str, scene: list[int]) -> list[int]:
        """Build the system text with a scene's ids."""
        opened = [*self.encode(f"{system}\n\n"), self._scene_start, *self.encode("\n")]
        return [*opened, *scene, *self.encode("\n"), self._scene_end]

    def _turn(self, role: str, ids: list[int]) -> list[int]:
        return [*self._header(role), *ids, self._end_turn]

    def _header(self, role: str) -> list[int]:
        name, gap = self.encode(role), self.encode("\n\n")
        return [self._start_header, *name, self._end_header, *gap]
