"""Conversion of a client's request into a checked and complete message for the talker process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from streaming.errors import ErrorCode, RequestError
from streaming.ports import SpeechRequest, TalkerSpec
from streaming.protocol.field_errors import invalid_parameter, unsupported
from streaming.spec import Codes
from talker.checkpoint import Checkpoint, choose_front_end
from talker.conversation import Conversation, Order, continued
from talker.messages import AppendText, Generate, TextSpan, VoiceRows
from talker.prompts import Prompt, ReferenceVoice
from talker.row_ceiling import SpeechLength
from talker.sampling import ResolvedSampling, resolve_sampling
from text.front_end import FrontEnd, spoken_lengths

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


class Standalone(NamedTuple):
    """An utterance that continues nothing: its message, the index among the message's ids at which
    the utterance's own begin, and the frames that its own continue (``TalkerRows.continued``).
    """

    message: Generate
    turn_at: int
    #: Length of its text.
    speech: SpeechLength = SpeechLength()
    continued: Codes | None = None


class RequestBuilder:
    """Turns requests into messages for one checkpoint. Raises CheckpointError as PromptBuilder
    does, and if ``front_ends`` lacks the one that the checkpoint names.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        max_positions: int,
        voices: VoiceSource | None,
        front_ends: Mapping[str, FrontEnd],
    ) -> None:
        self._checkpoint = checkpoint
        self._max_positions = max_positions
        self._voices = voices
        front_end = choose_front_end(checkpoint.text_frontend, front_ends)
        self._prompts = checkpoint.prompt_builder(max_positions, front_end)
        self.num_codebooks = checkpoint.shape.num_codebooks
        tags = self._prompts.tag_set
        lengths, rendering = None, self._prompts.rendering
        if front_end is not None:
            lengths = partial(spoken_lengths, front_end, split_tags=tags.split)
            rendering = replace(
                rendering, languages=front_end.languages, signs_of=front_end.signs_of
            )
        self.spec = TalkerSpec(
            layout=checkpoint.shape.layout,
            max_frames=checkpoint.defaults.max_frames,
            max_references=self._prompts.max_references if self._prompts.takes_references else 0,
            needs_reference=self._prompts.needs_reference,
            vector_size=checkpoint.shape.vector_size,
            speakers=self._prompts.speakers,
            takes_instructions=self._prompts.takes_instructions,
            needs_instructions=self._prompts.needs_instructions,
            takes_words=self._prompts.text_end is not None and front_end is None,
            end_silence_s=checkpoint.family.end_silence_s,
            masks_codes=checkpoint.family.masks_codes,
            segment_chars=checkpoint.segment_chars,
            pauses=checkpoint.pauses,
            default_speed=checkpoint.default_speed,
            delivery_tags=tags.delivery,
            rendering=rendering,
            has_word_timings=bool(checkpoint.alignment.heads),
            has_continuity=checkpoint.has_continuity,
            spoken_lengths=lengths,
            folder=checkpoint.folder,
        )

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request is invalid whatever its text."""
        self._sampling(request)
        self._scene(request)
        self._instructions(request)
        voice = self._voice(request)
        if voice is not None and request.reference is not None:
            for one in (voice, *self._others(request)):
                self._prompts.reference_rows(one)

    def order(self, utterance: Standalone, handle: int, talk: Conversation) -> Order:
        """Turn ``utterance`` into the next one of a conversation."""
        return continued(
            msgspec.structs.replace(utterance.message, handle=handle),
            utterance.turn_at,
            talk,
            self._max_positions,
            self._checkpoint.continuation_positions,
            between=self._prompts.between_turns,
            is_delayed=self._checkpoint.shape.is_delayed,
        )

    def build(self, request: SpeechRequest, handle: int = 0) -> Standalone:
        """Build the prompt for ``request`` alone. Raises RequestError if it cannot be served."""
        sampling, frames = self._sampling(request)
        voice = self._voice(request)
        scene = self._scene(request)
        others = self._others(request)
        arriving = request.arriving
        if arriving is not None and not self.spec.takes_words:
            title = self._checkpoint.family.title
            raise unsupported("text_mode", f"{title} needs whole sentences.")
        prompt = self._prompts.build(
            request.text if arriving is None else arriving.text,
            voice,
            request.delivery,
            scene,
            others,
            self._speaker(request),
            request.language,
            self._instructions(request),
            is_arriving=arriving is not None,
        )
        frames = min(frames, self._max_positions - len(prompt.ids))
        is_open = arriving is not None and not arriving.is_complete
        track = prompt.track
        if track is None:
            frames = min(frames, self._checkpoint.row_ceiling.rows(prompt.speech))
        elif not is_open:
            track = (*track, *(self._prompts.text_end or ()))
            frames = min(frames, self._ceiling(prompt.speech, len(track)))
        message = Generate(
            handle=handle,
            ids=prompt.ids,
            max_frames=frames,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=secrets.randbits(62) if sampling.seed is None else sampling.seed,
            clips=_inserted(prompt),
            text=TextSpan(prompt.text_at, prompt.text_starts) if request.word_timings else None,
            ras_win_len=sampling.ras_win_len,
            ras_max_repeat=sampling.ras_max_repeat,
            track=track,
            is_open=is_open,
            mask=() if request.mask is None else (request.mask.frames, *request.mask.codes),
        )
        return Standalone(message, prompt.turn_at, prompt.speech, prompt.continued)

    def appender(self, begin: Standalone) -> Callable[[str, bool], AppendText]:
        """Return what makes the messages that append text to an open request, from more of its text
        and whether it is the last. It raises RequestError (INVALID_TEXT).
        """
        speech = begin.speech
        count = len(begin.message.track or ())

        def append(text: str, is_last: bool) -> AppendText:
            nonlocal speech, count
            ids: list[int] = []
            if text:
                ids, more = self._prompts.encode_more(text)
                speech = SpeechLength(speech.chars + more.chars, speech.tags)
            if is_last:
                ids += self._prompts.text_end or ()
            count += len(ids)
            handle, limit = begin.message.handle, begin.message.max_frames
            frames = min(limit, self._ceiling(speech, count)) if is_last else None
            return AppendText(handle, tuple(ids), frames)

        return append

    def _ceiling(self, speech: SpeechLength, track: int) -> int:
        """Return the maximum rows of a text that arrives while it is spoken: an id for each row, so
        never fewer than these.
        """
        ceiling = self._checkpoint.row_ceiling
        return max(ceiling.rows(speech), ceiling.constant + track)

    def _sampling(self, request: SpeechRequest) -> tuple[ResolvedSampling, int]:
        defaults = self._checkpoint.defaults
        shape = self._checkpoint.shape
        sampling = resolve_sampling(request.sampling, defaults, shape.codebook_size)
        return sampling, _max_frames(request.max_frames, defaults.max_frames)

    def _scene(self, request: SpeechRequest) -> str | None:
        if request.scene is None:
            return None
        if not self._prompts.takes_scene:
            title = self._checkpoint.family.title
            raise unsupported("scene", f"{title} takes no scene.")
        return self._prompts.read_scene(request.scene)

    def _instructions(self, request: SpeechRequest) -> str | None:
        title = self._checkpoint.family.title
        if request.instructions is not None:
            if not self._prompts.takes_instructions:
                raise unsupported("instructions", f"This {title} model takes no instructions.")
            return self._prompts.read_instructions(request.instructions)
        if self._prompts.needs_instructions:
            message = f"instructions must describe the voice: this {title} model has no other."
            raise invalid_parameter("instructions", message)
        return None

    def _others(self, request: SpeechRequest) -> list[ReferenceVoice]:
        limit = self.spec.max_references
        if request.other_references and len(request.other_references) >= limit:
            title = self._checkpoint.family.title
            message = f"{title} takes {limit} reference{'s' * (limit > 1)} at most."
            raise unsupported("references", message)
        return [
            ReferenceVoice(one.codes.T, one.text, one.vector) for one in request.other_references
        ]

    def _speaker(self, request: SpeechRequest) -> str | None:
        """Return the checkpoint's speaker of the voice's name, if there is one."""
        name = request.voice.lower()
        return name if name in self.spec.speakers else None

    def _voice(self, request: SpeechRequest) -> ReferenceVoice | None:
        if request.reference is not None:
            one = request.reference
            return ReferenceVoice(one.codes.T, one.text, one.vector)
        voice = self._voices.get(request.voice) if self._voices else None
        own = (DEFAULT_VOICE, SMART_VOICE)
        if voice is None and request.voice not in own and self._speaker(request) is None:
            raise RequestError(
                ErrorCode.UNKNOWN_VOICE, "There is no voice of that name.", param="voice"
            )
        if voice is None and self._prompts.needs_reference:
            title = self._checkpoint.family.title
            message = (
                f"This {title} model has no voice of its own: name an added one as voice, or send "
                "a clip, as ref_audio or reference."
            )
            raise invalid_parameter("voice", message)
        return voice


def _inserted(prompt: Prompt) -> tuple[VoiceRows, ...]:
    """What takes the place of ids in a prompt, in order."""
    rows = [
        VoiceRows(np.ascontiguousarray(codes, np.int16).tobytes(), at) for codes, at in prompt.clips
    ]
    vectors = [
        VoiceRows(np.ascontiguousarray(vector, np.float32).tobytes(), at, is_vector=True)
        for vector, at in prompt.vectors
    ]
    return tuple(sorted((*vectors, *rows), key=lambda one: one.at))


def _max_frames(requested: int | None, default: int) -> int:
    """Maximum number of frames. A request may ask for fewer than the checkpoint's limit, not for
    more.
    """
    if requested is None:
        return default
    if isinstance(requested, bool) or not isinstance(requested, int) or requested < 1:
        raise invalid_parameter("max_frames", "max_frames must be at least 1.")
    return min(requested, default)
