"""From a client's request to the message for the talker process: checked and complete."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from streaming.delay import apply_delay
from streaming.errors import ErrorCode, RequestError
from streaming.ports import Reference, SpeechRequest
from talker.checkpoint import Checkpoint
from talker.conversation import Conversation, Order, continued
from talker.messages import Generate, TextSpan, VoiceRows
from talker.prompts import PromptBuilder, ReferenceVoice
from talker.sampling import ResolvedSampling, resolve_sampling
from talker.text_front_end import TextFrontEnd, choose_front_end, spoken_lengths

#: The model's own voice: no reference rows.
DEFAULT_VOICE = "default"


class VoiceSource(Protocol):
    """Where reference voices come from. For ``default`` None means the model's own voice, which
    takes no reference.
    """

    def names(self) -> Sequence[str]:
        """All names that ``get`` knows."""

    def get(self, name: str) -> ReferenceVoice | None:
        """The voice of that name, or None."""


class Intake:
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
        #: See ``streaming.fit``; None where the model is given text as it is written.
        self.spoken_lengths = None if front_end is None else partial(spoken_lengths, front_end)
        self._prompts = PromptBuilder(
            checkpoint.tokenizer_file, checkpoint.shape, max_positions, front_end
        )

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if all but the text rules the request out."""
        self._sampling(request)
        self._voice(request)

    def message(self, request: SpeechRequest, handle: int) -> Generate:
        """The message for ``request`` alone. Raises RequestError if it can never be served."""
        return self._message(request, handle)[0]

    def order(self, request: SpeechRequest, handle: int, talk: Conversation) -> Order:
        """The message for ``request`` as the next of a conversation. Raises as ``message``."""
        whole, turn_at = self._message(request, handle)
        longest = self._checkpoint.continuation_positions
        return continued(whole, turn_at, talk, self._max_positions, longest)

    def _message(self, request: SpeechRequest, handle: int) -> tuple[Generate, int]:
        """The message, and where in its ids the utterance's own begin."""
        sampling, frames = self._sampling(request)
        prompt = self._prompts.build(request.text, self._voice(request))
        rows = None if prompt.voice is None else np.ascontiguousarray(prompt.voice, np.int16)
        message = Generate(
            handle=handle,
            ids=prompt.ids,
            max_frames=min(frames, self._max_positions - len(prompt.ids)),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=secrets.randbits(62) if sampling.seed is None else sampling.seed,
            voice=None if rows is None else VoiceRows(rows.tobytes(), prompt.voice_at),
            text=TextSpan(prompt.text_at, prompt.text_starts) if request.word_timings else None,
        )
        return message, prompt.text_at - 1  # <|text|> stands before its text

    def _sampling(self, request: SpeechRequest) -> tuple[ResolvedSampling, int]:
        defaults, shape = self._checkpoint.defaults, self._checkpoint.shape
        sampling = resolve_sampling(request.sampling, defaults, shape.codebook_size)
        return sampling, _max_frames(request.max_frames, defaults.max_frames)

    def _voice(self, request: SpeechRequest) -> ReferenceVoice | None:
        if request.reference is not None:
            return self._one_off(request.reference)
        voice = self._voices.get(request.voice) if self._voices else None
        if voice is None and request.voice != DEFAULT_VOICE:
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice"
            )
        return voice

    def _one_off(self, reference: Reference) -> ReferenceVoice:
        size, frames = self._checkpoint.shape.codebook_size, reference.codes.T
        if reference.codes.ndim != 2 or not frames.size or frames.max() >= size:
            raise RequestError(
                ErrorCode.INVALID_PARAMETER, "This model cannot speak in that voice.", param="voice"
            )
        return ReferenceVoice(apply_delay(frames, size, size + 1), reference.text)


def _max_frames(asked: int | None, default: int) -> int:
    """A request may ask for fewer frames than the checkpoint's own bound, not for more."""
    if asked is None:
        return default
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise RequestError(
            ErrorCode.INVALID_PARAMETER, "max_frames must be at least 1.", param="max_frames"
        )
    return min(asked, default)
