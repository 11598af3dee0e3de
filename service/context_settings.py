"""What a context is made with: a client's wishes, checked against what this service has."""

from __future__ import annotations

import math
import uuid
from functools import partial

from service.auth.caller import current_caller
from service.chunking import schedule_settings
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError
from streaming.line import LineSettings
from streaming.ports import Sampling, SpeechRequest
from streaming.segment import SegmentSettings
from streaming.session import SessionSettings
from streaming.wire import ContextCreate


def session_settings(
    runtime: Runtime, create: ContextCreate, *, is_kept: bool = False
) -> SessionSettings:
    """What a new context's Session is made with. ``is_kept``: its audio is kept until all of it
    is there; nobody plays it meanwhile, so no lead limits it. Raises RequestError.
    """
    mine, spec, speed = runtime.settings, runtime.codec.spec, create.audio.speed
    lead_ms = create.max_lead_ms or min(mine.default_lead_ms, mine.max_lead_ms)
    if lead_ms > mine.max_lead_ms:
        raise RequestError(
            ErrorCode.INVALID_PARAMETER,
            f"max_lead_ms may be {mine.max_lead_ms} at most.",
            param="max_lead_ms",
        )
    line = LineSettings(
        codec=spec,
        schedule=schedule_settings(mine, spec, create.chunking, speed),
        bounds=partial(runtime.engine_pace.bounds, speed),
        mode=create.mode,
        max_lead_s=math.inf if is_kept else lead_ms / 1000,
        speed=speed,
    )
    segments = SegmentSettings(mine.segment_chars, spoken_lengths=runtime.talker.spoken_lengths)
    return SessionSettings(line, segments, mine.max_text_chars)


def speech_request(runtime: Runtime, create: ContextCreate, request_id: str) -> SpeechRequest:
    """The template of a context's talker requests. Raises RequestError."""
    if create.model is not None and create.model != runtime.settings.model_name:
        raise RequestError(
            ErrorCode.UNKNOWN_MODEL, "This server does not serve that model.", param="model"
        )
    sampling, voice = create.sampling, create.voice or runtime.voices[0]
    most = sampling.max_frames
    return SpeechRequest(
        request_id=request_id,
        text="",
        voice=runtime.library.resolve(voice, current_caller().tenant),
        language=create.language,
        sampling=Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed),
        max_frames=None if most is None else most + runtime.codec.spec.delay_rows,
        word_timings=create.timestamps,
        conversation=_conversation(runtime, create),
    )


def continuity(runtime: Runtime) -> list[str]:
    """What ``continuity`` a context may ask for; the first is the default."""
    return ["context", "none"] if runtime.talker.has_continuity else ["none"]


def _conversation(runtime: Runtime, create: ContextCreate) -> str | None:
    possible = continuity(runtime)
    asked = create.continuity or possible[0]
    if asked not in possible:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            "This model cannot go on from what it said before.",
            param="continuity",
        )
    return uuid.uuid4().hex if asked == "context" else None
