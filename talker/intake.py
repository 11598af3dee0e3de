"""From a client's request to the message for the talker process: checked and complete."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from streaming.errors import ErrorCode, RequestError
from streaming.ports import SpeechRequest
from talker.checkpoint import Checkpoint
from talker.messages import Generate, VoiceRows
from talker.prompts import PromptBuilder, ReferenceVoice
from talker.sampling import ResolvedSampling, resolve_sampling

#: The model's own voice: no reference rows.
DEFAULT_VOICE = "default"


class VoiceSource(Protocol):
    """Where reference voices come from; ``default`` is the model's own and never asked for."""

    def names(self) -> Sequence[str]:
        """All names that ``get`` knows."""

    def get(self, name: str) -> ReferenceVoice | None:
        """The voice of that name, or None."""


class Intake:
    """Turns requests into messages for one checkpoint. Raises CheckpointError as
    PromptBuilder does.
    """

    def __init__(
        self, checkpoint: Checkpoint, max_positions: int, voices: VoiceSource | None
    ) -> None:
        self._checkpoint, self._max_positions, self._voices = checkpoint, max_positions, voices
        self._prompts = PromptBuilder(checkpoint.tokenizer_file, checkpoint.shape, max_positions)

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if all but the text rules the request out."""
        self._sampling(request)
        self._voice(request.voice)

    def message(self, request: SpeechRequest, handle: int) -> Generate:
        """The message for ``request``. Raises RequestError if it can never be served."""
        sampling, frames = self._sampling(request)
        prompt = self._prompts.build(request.text, self._voice(request.voice))
        rows = None if prompt.voice is None else np.ascontiguousarray(prompt.voice, np.int16)
        return Generate(
            handle=handle,
            ids=prompt.ids,
            max_frames=min(frames, self._max_positions - len(prompt.ids)),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=secrets.randbits(62) if sampling.seed is None else sampling.seed,
            voice=None if rows is None else VoiceRows(rows.tobytes(), prompt.voice_at),
        )

    def _sampling(self, request: SpeechRequest) -> tuple[ResolvedSampling, int]:
        defaults, shape = self._checkpoint.defaults, self._checkpoint.shape
        sampling = resolve_sampling(request.sampling, defaults, shape.codebook_size)
        return sampling, _max_frames(request.max_frames, defaults.max_frames)

    def _voice(self, name: str) -> ReferenceVoice | None:
        if name == DEFAULT_VOICE:
            return None
        voice = self._voices.get(name) if self._voices else None
        if voice is None:
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice"
            )
        return voice


def _max_frames(asked: int | None, default: int) -> int:
    """A request may ask for fewer frames than the checkpoint's own bound, not for more."""
    if asked is None:
        return default
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise RequestError(
            ErrorCode.INVALID_PARAMETER, "max_frames must be at least 1.", param="max_frames"
        )
    return min(asked, default)
