"""Conversion of a client's request into a checked and complete message for the talker process."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from streaming.errors import ErrorCode, RequestError
from streaming.ports import SpeechRequest
from streaming.protocol.field_errors import invalid_parameter, unsupported
from streaming.spec import Codes
from talker.checkpoint import Checkpoint
from talker.conversation import Conversation, Order, continued
from talker.messages import Generate, TextSpan, VoiceRows
from talker.prompts import ReferenceVoice
from talker.sampling import ResolvedSampling, resolve_sampling
from talker.text_front_end import TextFrontEnd, choose_front_end, spoken_lengths

#: The voice of the default clip, or without one the model's own: no reference rows.
DEFAULT_VOICE = "default"
#: No reference rows, whatever the default: the model chooses a speaker for each context.
SMART_VOICE = "smart_voice"


class VoiceSource(Protocol):
    """The source of reference voices. For ``default`` and ``smart_voice`` None means the model's
    own voice, without a reference.
    """

    def names(self) -> Sequence[str]:
        """All names that ``get`` knows."""

    def get(self, name: str) -> ReferenceVoice | None:
        """Return the voice of that name, or None."""


class RequestBuilder:
    """Turns requests into messages for one checkpoint. Raises CheckpointError as PromptBuilder
    does, and if ``front_ends`` lacks the one that the checkpoint names.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        max_positions: int,
        voices: VoiceSource | None,
        front_ends: Mapping[str, TextFrontEnd],
    ) -> None:
        self._checkpoint, self._max_positions, self._voices = checkpoint, max_positions, voices
        front_end = choose_front_end(checkpoint.text_frontend, front_ends)
        self._prompts = checkpoint.prompt_builder(max_positions, front_end)
        #: See ``streaming.segmenter``; None if the model has no text front end.
        self.spoken_lengths = None
        if front_end is not None:
            split = self._prompts.tag_set.split
            self.spoken_lengths = partial(spoken_lengths, front_end, split_tags=split)

    @property
    def delivery_tags(self) -> Mapping[str, str]:
        """See ``TagSet.delivery``."""
        return self._prompts.tag_set.delivery

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request is invalid whatever its text."""
        self._sampling(request)
        self._scene(request)
        voice = self._voice(request)
        if voice is not None and request.reference is not None:
            for one in (voice, *self._others(request)):
                self._prompts.reference_rows(one)

    def message(self, request: SpeechRequest, handle: int) -> Generate:
        """Build the message for ``request`` alone. Raises RequestError if it cannot be served."""
        return self._message(request, handle)[0]

    def order(self, request: SpeechRequest, handle: int, talk: Conversation) -> Order:
        """Build the message for the next ``request`` of a conversation. Raises as ``message``."""
        whole, turn_at = self._message(request, handle)
        return continued(
            whole,
            turn_at,
            talk,
            self._max_positions,
            self._checkpoint.continuation_positions,
            between=self._prompts.between_turns,
            is_delayed=self._checkpoint.shape.is_delayed,
        )

    def _message(self, request: SpeechRequest, handle: int) -> tuple[Generate, int]:
        """Return the message, and the index among its ids at which the utterance's own begin."""
        sampling, frames = self._sampling(request)
        voice, scene = self._voice(request), self._scene(request)
        others = self._others(request)
        prompt = self._prompts.build(request.text, voice, request.delivery, scene, others)
        message = Generate(
            handle=handle,
            ids=prompt.ids,
            max_frames=min(frames, self._max_positions - len(prompt.ids)),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=secrets.randbits(62) if sampling.seed is None else sampling.seed,
            clips=tuple(_rows(codes, at) for codes, at in prompt.clips),
            text=TextSpan(prompt.text_at, prompt.text_starts) if request.word_timings else None,
            ras_win_len=sampling.ras_win_len,
            ras_max_repeat=sampling.ras_max_repeat,
        )
        return message, prompt.turn_at

    def _sampling(self, request: SpeechRequest) -> tuple[ResolvedSampling, int]:
        defaults, shape = self._checkpoint.defaults, self._checkpoint.shape
        sampling = resolve_sampling(request.sampling, defaults, shape.codebook_size)
        return sampling, _max_frames(request.max_frames, defaults.max_frames)

    def _scene(self, request: SpeechRequest) -> str | None:
        if request.scene is None:
            return None
        if not self._prompts.takes_scene:
            title = self._checkpoint.family.title
            raise unsupported("scene", f"{title} takes no scene.")
        return self._prompts.read_scene(request.scene)

    @property
    def max_references(self) -> int:
        """Maximum number of references per request."""
        return self._prompts.max_references

    def _others(self, request: SpeechRequest) -> list[ReferenceVoice]:
        if len(request.other_references) >= (most := self.max_references):
            title = self._checkpoint.family.title
            message = f"{title} takes {most} reference{'s' * (most > 1)} at most."
            raise unsupported("references", message)
        return [ReferenceVoice(one.codes.T, one.text) for one in request.other_references]

    def _voice(self, request: SpeechRequest) -> ReferenceVoice | None:
        if request.reference is not None:
            return ReferenceVoice(request.reference.codes.T, request.reference.text)
        voice = self._voices.get(request.voice) if self._voices else None
        if voice is None and request.voice not in (DEFAULT_VOICE, SMART_VOICE):
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice"
            )
        return voice


def _rows(codes: Codes, at: int) -> VoiceRows:
    return VoiceRows(np.ascontiguousarray(codes, np.int16).tobytes(), at)


def _max_frames(asked: int | None, default: int) -> int:
    """Maximum number of frames. A request may ask for fewer than the checkpoint's limit, not for
    more.
    """
    if asked is None:
        return default
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise invalid_parameter("max_frames", "max_frames must be at least 1.")
    return min(asked, default)
