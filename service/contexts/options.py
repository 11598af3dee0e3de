"""The plan of one context: its client's options, or else the server's."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import msgspec

from service.audio.encoder import AudioEncoder
from service.audio.filters import held_back_s
from service.auth.caller import current_caller
from service.contexts.chunking import schedule_settings
from service.dialects.voice_aliases import resolve_voice
from service.runtime import Runtime
from service.voices.cloning import Prepare
from streaming.errors import ErrorCode
from streaming.ports import Sampling, SpeechRequest
from streaming.protocol.field_errors import invalid_parameter, unknown_choice, unsupported
from streaming.protocol.messages import ContextCreate
from streaming.segmenter import SegmentSettings
from streaming.session import Session, SessionSettings
from streaming.turns import TurnSettings, chars_within
from streaming.utterance import QueueSettings

#: Silence that replaces a text that cannot be spoken, if that is no error.
_SILENCE_S = 0.2
#: A first sentence longer than this is split after a clause, so that speech begins sooner.
_FIRST_CHARS = 90
#: Protocols whose clients give up after an error for such a text.
_GET_SILENCE = frozenset(("openai", "elevenlabs", "cartesia", "deepgram"))


class FlushEncoder(Enum):
    """When the encoder is flushed, apart from the end of a context without error."""

    EACH_UTTERANCE = auto()
    #: When no text is waiting to be spoken, for encoders whose flush is audible.
    EACH_PAUSE = auto()
    #: At each of the client's flushes.
    EACH_FLUSH = auto()
    #: Only at the end, for files.
    AT_END = auto()


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """All parameters of a new context.

    ``protocol`` is the metrics' label. With ``is_lenient``, text in which nothing can be spoken is
    no error, since agents' models write emoji. Other dialects count errors when rendering them.
    """

    protocol: str
    session: Session
    request: SpeechRequest
    encoder: AudioEncoder
    prepare: Prepare | None = None
    buffered: bool = False
    flush_encoder: FlushEncoder = FlushEncoder.EACH_UTTERANCE
    is_lenient: bool = True


def plan_speech(
    runtime: Runtime,
    protocol: str,
    request_id: str,
    create: ContextCreate,
    encoder: AudioEncoder,
    *,
    prepare: Prepare | None = None,
    buffered: bool = False,
    flush_encoder: FlushEncoder = FlushEncoder.EACH_UTTERANCE,
    is_lenient: bool = True,
) -> SpeechPlan:
    """Return the plan of a context that can be served. Raises RequestError, CapacityError."""
    runtime.require_ready(or_restarting=True)
    session = Session(session_settings(runtime, create, buffered=buffered, protocol=protocol))
    request = speech_request(runtime, create, request_id)
    runtime.talker.check_options(request)
    return SpeechPlan(
        protocol, session, request, encoder, prepare, buffered, flush_encoder, is_lenient
    )


def session_settings(
    runtime: Runtime, create: ContextCreate, *, buffered: bool = False, protocol: str = ""
) -> SessionSettings:
    """Return the settings of a new context's Session. Raises RequestError.

    Args:
        runtime: The service's settings and engines.
        create: The client's options.
        buffered: The audio is kept until it is complete, so no lead limits it.
        protocol: The dialect; some get silence for text that cannot be spoken.
    """
    mine, spec, speed = runtime.settings, runtime.codec.spec, create.audio.speed
    lead_ms = create.max_lead_ms or min(mine.default_lead_ms, mine.max_lead_ms)
    if lead_ms > mine.max_lead_ms:
        raise invalid_parameter("max_lead_ms", f"max_lead_ms may be {mine.max_lead_ms} at most.")
    # Audio that waits for the rest of its message cannot be played, so it must not be all there is.
    held_s = create.audio.frame_ms / 1000 + held_back_s(speed, spec.sample_rate)
    if create.mode == "whole" and create.chunking.chunk_ms is not None:
        raise invalid_parameter("mode", "chunk_ms needs the mode chunked.")
    layout = runtime.talker.row_layout
    queue = QueueSettings(
        codec=spec,
        schedule=schedule_settings(mine, spec, create.chunking, speed, layout),
        bounds=partial(runtime.engine_pace.bounds, speed),
        mode=create.mode,
        max_lead_s=math.inf if buffered else max(lead_ms / 1000, held_s),
        speed=speed,
        layout=layout,
        trim_samples=mine.trim_silence_ms * spec.sample_rate // 1000,
    )
    segments = SegmentSettings(
        runtime.segment_chars,
        spoken_lengths=runtime.talker.spoken_lengths,
        first_max_chars=_FIRST_CHARS,
    )
    gets_silence = protocol in _GET_SILENCE and mine.unspeakable_text == "silence"
    # A complete text is spoken in one generation if it fits ``max_frames`` and the talker's limit.
    # If the length of pieces is limited, each piece is one generation.
    talker, most = runtime.talker, 0
    if mine.max_segment_chars is None and talker.segment_chars is None:
        frames = min(create.sampling.max_frames or talker.max_frames, talker.max_frames)
        most = max(2, chars_within(frames, spec.frame_s))
    turns = TurnSettings(most, talker.delivery_tags)
    silence_s = _SILENCE_S if gets_silence else 0.0
    return SessionSettings(queue, segments, turns, mine.max_text_chars, silence_s)


def require_model(runtime: Runtime, name: str | None) -> None:
    """Raise RequestError (``unknown_model``) unless ``name`` is None or served."""
    names = runtime.settings.model_names
    if name is not None and name not in names:
        raise unknown_choice("model", name, names, ErrorCode.UNKNOWN_MODEL)


def speech_request(runtime: Runtime, create: ContextCreate, request_id: str) -> SpeechRequest:
    """Return the template of a context's talker requests. Raises RequestError."""
    require_model(runtime, create.model)
    if create.language is not None:  # no family's prompts contain a language
        raise unsupported("language", "No served model takes a language: they follow the text's.")
    voice = runtime.library.resolve(resolve_voice(create.voice, runtime), current_caller().tenant)
    possible, most = continuity(runtime), create.sampling.max_frames
    asked = create.continuity or possible[0]
    if asked not in possible:
        raise unsupported("continuity", "This model cannot go on from what it said before.")
    return SpeechRequest(
        request_id=request_id,
        text="",
        voice=voice,
        sampling=msgspec.convert(create.sampling, Sampling, from_attributes=True),
        max_frames=None if most is None else most + runtime.codec.spec.delay_rows,
        word_timings=create.timestamps,
        conversation=uuid.uuid4().hex if asked == "context" else None,
        scene=create.scene,
    )


def continuity(runtime: Runtime) -> list[str]:
    """Return the possible values of ``continuity``; the first is the default."""
    return ["context", "none"] if runtime.talker.has_continuity else ["none"]
