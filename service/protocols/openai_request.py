"""What OpenAI's clients ask for, checked and put into the core's words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.audio.factory import make_stream_encoder
from service.context_settings import session_settings, speech_request
from service.http_speech import HttpContext
from service.runtime import Runtime
from service.talker_feed import Prepare
from streaming import wire
from streaming.errors import ErrorCode, RequestError
from streaming.session import Session

NAME = "openai"
#: Names that OpenAI's clients must choose from; here each is the default voice, unless this
#: server has a voice of that name.
OPENAI_VOICES = frozenset(
    (
        "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx",
        "sage", "shimmer", "verse",
    )
)  # fmt: skip
#: OpenAI's names of formats and ours.
FORMATS = {
    "mp3": "mp3",
    "opus": "ogg_opus",
    "aac": "aac",
    "flac": "flac",
    "wav": "wav",
    "pcm": "pcm_s16le",
}
#: What OpenAI promises of ``pcm``, which has no header to say so.
_PCM_RATE = 24_000
_MOST_FRAMES = 8192
_Int = Annotated[int, Field(strict=True)]
_Float = Annotated[float, Field(strict=True)]
_Bool = Annotated[bool, Field(strict=True)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]


class VoiceId(BaseModel):
    """A voice by its id."""

    model_config = ConfigDict(extra="forbid")
    id: _Name = Field(description="The voice's name.")


class SpeechBody(BaseModel):
    """The body of `POST /v1/audio/speech`. Fields that are not listed are refused."""

    model_config = ConfigDict(extra="forbid")

    input: str = Field(description="The text to speak.")
    model: _Name | None = Field(
        None,
        description="A name of `GET /v1/models`: the served model's or an alias. "
        "Without it, the served model.",
    )
    voice: _Name | VoiceId | None = Field(
        None,
        description='A name of `GET /v1/audio/voices`, also as `{"id": name}`. OpenAI\'s own '
        "names (alloy, ash, ...) stand for the default voice.",
    )
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = Field(
        "mp3", description="`opus` is Ogg Opus; `pcm` is s16le, mono, 24 kHz, without a header."
    )
    speed: _Float = Field(
        1.0, ge=0.25, le=4.0, description="How many times as fast, at the same pitch."
    )
    bitrate: _Int | None = Field(
        None,
        ge=1,
        description="Bits per second of mp3, opus and aac. Without it, the format's own.",
    )
    stream_format: Literal["audio", "sse"] = Field(
        "audio",
        description="`audio`: the body is the audio. `sse`: server-sent events, "
        "`speech.audio.delta` with base64 audio and at last `speech.audio.done`.",
    )
    stream: _Bool = Field(
        True, description="Accepted, without effect: the body is always sent as it is made."
    )
    instructions: str | None = Field(None, description="Only an empty text is served.")
    language: _Name | None = Field(None, description="The text's language, as a hint.")
    seed: _Int | None = Field(
        None, ge=0, lt=2**53, description="The same seed and text give the same audio."
    )
    temperature: _Float | None = Field(
        None, ge=0, le=2, description="0 is greedy; without it, the model's own."
    )
    top_p: _Float | None = Field(None, gt=0, le=1, description="Without it, the model's own.")
    top_k: _Int | None = Field(None, ge=1, le=1024, description="Without it, the model's own.")
    max_frames: _Int | None = Field(
        None, ge=1, le=_MOST_FRAMES, description="The most codec frames that one sentence may have."
    )
    ref_audio: str | None = Field(
        None,
        description="A clip to speak like, instead of a voice: WAV, FLAC, MP3 or Ogg, 1 to 30 s, "
        "at most 10 MiB; in base64, bare or as a `data:` address. It is not stored.",
    )
    ref_text: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="What is said in `ref_audio`, word for word."
    )
    max_new_tokens: _Int | None = Field(
        None, ge=1, description="vLLM-Omni's name for `max_frames`; more than 8192 is 8192."
    )
    task_type: Literal["CustomVoice", "Base"] | None = Field(
        None,
        description="vLLM-Omni's: `Base` goes with `ref_audio`, `CustomVoice` with a voice.",
    )
    mode: Literal["chunked", "whole"] = Field(
        "chunked", description="`whole` decodes each sentence in one piece before it is sent."
    )


def model_names(runtime: Runtime) -> list[str]:
    """The served model's name, and after it the names that stand for it."""
    served = runtime.settings.model_name
    return [served, *(n for n in runtime.settings.openai_model_aliases if n != served)]


def require_model(runtime: Runtime, name: str | None) -> None:
    """Raise RequestError (``unknown_model``) unless ``name`` is None or served."""
    if name is not None and name not in model_names(runtime):
        raise RequestError(
            ErrorCode.UNKNOWN_MODEL, "This server does not serve that model.", param="model"
        )


def http_context(
    body: SpeechBody, runtime: Runtime, request_id: str, *, is_kept: bool = False
) -> HttpContext:
    """What ``body`` asks for, ready to be spoken (``is_kept``: see ``session_settings``). Raises
    RequestError, CapacityError.
    """
    if body.instructions:
        raise _unsupported("instructions", "This server's voices take no instructions.")
    _check_vllm_omni(body)
    require_model(runtime, body.model)
    runtime.require_ready()
    create = _create(body, runtime, request_id)
    request = speech_request(runtime, create, request_id)
    runtime.talker.check_options(request)
    prepare = _clone(body, runtime)
    rate = _PCM_RATE if body.response_format == "pcm" else None
    encoder = make_stream_encoder(
        FORMATS[body.response_format],
        runtime.codec.spec.sample_rate,
        rate,
        bit_rate=body.bitrate,
        speed=body.speed,
    )
    session = Session(session_settings(runtime, create, is_kept=is_kept))
    return HttpContext(NAME, body.input, session, request, encoder, prepare)


def _check_vllm_omni(body: SpeechBody) -> None:
    """Raise RequestError if what its clients add contradicts the rest."""
    if body.task_type is not None and (body.task_type == "Base") != (body.ref_audio is not None):
        raise RequestError(
            ErrorCode.INVALID_PARAMETER,
            "The task_type Base goes with ref_audio, CustomVoice with a voice.",
            param="task_type",
        )
    if body.max_new_tokens is not None and body.max_frames is not None:
        raise RequestError(
            ErrorCode.INVALID_PARAMETER,
            "max_new_tokens is another name for max_frames; give one of them.",
            param="max_new_tokens",
        )


def _clone(body: SpeechBody, runtime: Runtime) -> Prepare | None:
    """How to make the reference that the body brings, if it brings one."""
    if body.ref_audio is None:
        if body.ref_text is not None:
            raise RequestError(
                ErrorCode.INVALID_PARAMETER, "ref_text goes with ref_audio.", param="ref_text"
            )
        return None
    if body.voice is not None:
        raise RequestError(
            ErrorCode.INVALID_PARAMETER, "Give a voice or ref_audio, not both.", param="ref_audio"
        )
    return runtime.cloner.prepare(body.ref_audio, body.ref_text, "ref_audio")


def _create(body: SpeechBody, runtime: Runtime, request_id: str) -> wire.ContextCreate:
    most = body.max_frames
    if body.max_new_tokens is not None:
        most = min(body.max_new_tokens, _MOST_FRAMES)
    return wire.ContextCreate(
        request_id,
        voice=_voice(body.voice, runtime),
        language=body.language,
        audio=wire.AudioOptions(speed=body.speed),
        sampling=wire.SamplingOptions(body.temperature, body.top_p, body.top_k, body.seed, most),
        mode=body.mode,
        max_lead_ms=runtime.settings.max_lead_ms,
    )


def _voice(voice: str | VoiceId | None, runtime: Runtime) -> str | None:
    name = voice.id if isinstance(voice, VoiceId) else voice
    stands_for_default = name in OPENAI_VOICES and name not in runtime.voices
    return None if stands_for_default else name


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.UNSUPPORTED, message, param=param)
