"""OpenAI's requests with vLLM-Omni's and SGLang-Omni's extensions, and their translation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from service.audio.formats import AudioFormat
from service.auth.caller import current_caller
from service.contexts.options import (
    SpeechOptions,
    chosen_language,
    ignored_languages,
    require_model,
    served_talker,
)
from service.dialects.openai.captions import CaptionFormat
from service.pronunciations.dictionary import RuleFields
from service.runtime import Runtime
from service.settings import Settings
from service.voices.cloning import Prepare
from streaming.errors import ErrorCode, RequestError
from streaming.events import Done
from streaming.ports import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_RAS,
    MAX_REFERENCES,
    Reference,
    Sampling,
)
from streaming.protocol.field_errors import invalid_parameter, unknown_field, unsupported
from streaming.protocol.messages import (
    MAX_CHUNK_MS,
    MAX_DICTIONARIES,
    MAX_FADE_MS,
    MAX_OWN_RULES,
    MAX_SCENE_CHARS,
    ChunkingOptions,
)
from streaming.report import ContextReport
from text.pronunciation.rules import RuleSet

#: OpenAI's words for the end of a text: complete, or cut at a maximum length.
FinishReason = Literal["stop", "length"]
#: Media type of a response with ``stream_format: "sse"``.
EVENTS = "text/event-stream"


class ReferenceClip(BaseModel):
    """A reference clip in SGLang-Omni's format."""

    audio: str | None = Field(None, description="The clip in base64, or as a `data:` address.")
    audio_path: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="A file under the server's `references_dir`, if it has one."
    )
    text: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="What is said in it, word for word."
    )


def _prepare_clip(clip: ReferenceClip, param: str, runtime: Runtime) -> Prepare:
    if (clip.audio is None) == (clip.audio_path is None):
        raise invalid_parameter(param, f"{param} has either audio or audio_path.")
    if clip.audio is not None:
        return runtime.voices.cloner.prepare(clip.audio, clip.text, f"{param}.audio")
    param = f"{param}.audio_path"
    runtime.voices.cloner.require_able(param)
    folder = runtime.settings.references_dir
    if folder is None:
        message = "This server reads no files of its own for a client; send the clip as audio."
        raise unsupported(param, message)
    path, text = Path(clip.audio_path or ""), (clip.text or "").strip() or None

    async def prepare() -> tuple[Reference, ...]:
        most = runtime.voices.cloner.max_clip_bytes
        data = await asyncio.to_thread(read_under, folder, path, most, param)
        return (await runtime.voices.cloner.one_off(data, text, param),)

    return prepare


def read_under(folder: Path, path: Path, max_bytes: int, param: str) -> bytes:
    """Read a file in ``folder`` or below, after resolving links.

    Raises the same RequestError for a path that is elsewhere, is no file or does not exist, so that
    clients cannot learn which files exist.
    """
    message = "audio_path must be a clip under the server's folder of references."
    wrong, root = invalid_parameter(param, message), folder.resolve()
    try:
        found = (root / path).resolve(strict=True)
        if not (found.is_relative_to(root) and found.is_file()):
            raise wrong
        with found.open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise wrong from error
    if len(data) > max_bytes:
        message = f"A clip has {max_bytes} bytes at most."
        raise RequestError(ErrorCode.INVALID_AUDIO, message, param=param)
    return data


NAME = "openai"
#: Voices of OpenAI, which its clients have to choose from. They stand for the default voice, unless
#: this server has a voice of that name.
OPENAI_VOICES = frozenset(
    (
        "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx",
        "sage", "shimmer", "verse",
    )
)  # fmt: skip
#: Our encodings by OpenAI's names of formats.
FORMATS = {
    "mp3": "mp3",
    "opus": "ogg_opus",
    "aac": "aac",
    "flac": "flac",
    "wav": "wav",
    "pcm": "pcm_s16le",
}
#: OpenAI's documented rate of ``pcm``, which has no header.
_PCM_RATE = 24_000
#: Maximum length of an utterance in a request, in frames.
MOST_FRAMES = 8192
#: A name of a voice or model.
Name = Annotated[str, Field(min_length=1, max_length=256)]


class VoiceId(BaseModel):
    """A voice by its id."""

    model_config = ConfigDict(extra="forbid")
    id: Name = Field(description="The voice's name.")


class SpeechFields(BaseModel):
    """Options of speech, common to all requests in OpenAI's and vLLM-Omni's formats."""

    speed: StrictFloat | None = Field(
        None,
        ge=0.25,
        le=4.0,
        description="How many times as fast, at the same pitch. Without it, 1.0.",
    )
    language: Name | None = Field(
        None,
        description="A language that the model reads, such as `en`. Without effect, and named as "
        "ignored, where the model follows the text.",
    )
    seed: StrictInt | None = Field(
        None, ge=0, lt=2**53, description="The same seed and text give the same audio."
    )
    temperature: StrictFloat | None = Field(
        None, ge=0, le=2, description="0 is greedy; without it, the model's own."
    )
    top_p: StrictFloat | None = Field(None, gt=0, le=1, description="Without it, the model's own.")
    top_k: StrictInt | None = Field(None, ge=1, le=1024, description="Without it, the model's own.")
    ras_win_len: StrictInt | None = Field(
        None,
        ge=0,
        le=MAX_RAS,
        description="A code that repeats among so many of its codebook's last ones is drawn again, "
        "for models that do so; 0: never. Without it, the model's own.",
    )
    ras_max_repeat: StrictInt | None = Field(
        None,
        ge=1,
        le=MAX_RAS,
        description="How often a code must be among them for that. Without it, the model's own.",
    )
    sample_rate: StrictInt | None = Field(
        None, description="Without it, the format's own; of `pcm` over HTTP, 24000."
    )
    ref_audio: str | None = Field(
        None,
        description="A clip to speak like, instead of a voice: WAV, FLAC, MP3, M4A, Ogg, WebM and "
        "others, 1 to 30 s, at most 10 MiB; in base64, bare or as a `data:` address. It is not "
        "stored.",
    )
    ref_text: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="What is said in `ref_audio`, word for word."
    )
    x_vector_only_mode: StrictBool | None = Field(
        None,
        description="vLLM-Omni's: imitate only the vector of `ref_audio`'s speaker, not its words, "
        "for models that make one. Over HTTP without effect, and named as ignored, with others.",
    )
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = Field(
        None,
        description="vLLM-Omni's: `Base` goes with `ref_audio`, or with any voice where the model "
        "has none of its own, `VoiceDesign` with a model that "
        "makes a voice from `instructions`, `CustomVoice` with a voice.",
    )
    instructions: str | None = Field(
        None,
        description=f"How it is spoken, or which voice speaks it, in words: "
        f"{MAX_INSTRUCTIONS_CHARS} characters at most. Over HTTP without effect, and named as "
        "ignored, where the model takes none.",
    )
    scene: Annotated[str, Field(min_length=1, max_length=MAX_SCENE_CHARS)] | None = Field(
        None, description="Where and how it is spoken, for models that take a scene."
    )
    pronunciations: Annotated[list[Name], Field(max_length=MAX_DICTIONARIES)] | None = Field(
        None, description="Names of dictionaries of the server; an earlier one comes first."
    )
    pronunciation_rules: Annotated[list[RuleFields], Field(max_length=MAX_OWN_RULES)] | None = (
        Field(None, description="Rules that come before all dictionaries.")
    )

    @property
    def pace(self) -> float:
        """The factor of the speed."""
        return 1.0 if self.speed is None else self.speed

    def check_task_type(self, runtime: Runtime) -> None:
        """Raise RequestError if vLLM-Omni's ``task_type`` contradicts the rest, or the model has
        another one.
        """
        if self.task_type is None:
            return
        talker = served_talker(runtime)
        designs = talker.needs_instructions
        if self.task_type == "VoiceDesign" and not designs:
            message = "This model has no task_type VoiceDesign: it makes no voice from words."
            raise unsupported("task_type", message)
        if talker.needs_reference:
            if self.task_type != "Base":
                message = f"This model has no task_type {self.task_type}: it clones, which is Base."
                raise unsupported("task_type", message)
            return
        own = "VoiceDesign" if designs else "CustomVoice"
        if self.task_type != (own if self.ref_audio is None else "Base"):
            message = f"The task_type Base goes with ref_audio, {own} with none."
            raise invalid_parameter("task_type", message)

    def prepare_ref_audio(self, voice: object, runtime: Runtime) -> Prepare | None:
        """Return a function that makes the reference of ``ref_audio``, if any. Raises RequestError
        if the clip cannot be used, there is a ``voice`` too, or ``ref_text`` comes alone.
        """
        if self.ref_audio is None:
            if self.ref_text is not None:
                raise invalid_parameter("ref_text", "ref_text goes with ref_audio.")
            return None
        if voice is not None:
            raise invalid_parameter("ref_audio", "Give a voice or ref_audio, not both.")
        return runtime.voices.cloner.prepare(
            self.ref_audio,
            self.ref_text,
            "ref_audio",
            vector_only=self.is_vector_only(runtime),
        )

    def is_vector_only(self, runtime: Runtime) -> bool:
        """Whether ``ref_audio`` is to be imitated without its text, and the model can do so."""
        return bool(self.x_vector_only_mode) and served_talker(runtime).vector_size > 0

    def rule_sets(self, runtime: Runtime) -> tuple[RuleSet, ...]:
        """Return the rules of pronunciation. Raises RequestError."""
        own = [rule.model_dump() for rule in self.pronunciation_rules or ()]
        tenant = current_caller().tenant
        return runtime.pronunciations.resolve(self.pronunciations or (), tenant, own)

    @property
    def sampling(self) -> Sampling:
        """The parameters of sampling."""
        return Sampling(
            self.temperature,
            self.top_p,
            self.top_k,
            self.seed,
            self.ras_win_len,
            self.ras_max_repeat,
        )


def at_most(frames: int | None) -> int | None:
    """Limit the frames of an utterance, of which vLLM-Omni's clients may ask for any number."""
    return None if frames is None else min(frames, MOST_FRAMES)


class TextFields(SpeechFields):
    """Options of an HTTP request besides its text, or of a batch for all of its texts."""

    model_config = ConfigDict(extra="allow")

    voice: Name | VoiceId | None = Field(
        None,
        validation_alias=AliasChoices("voice", "speaker"),
        description='A name of `GET /v1/audio/voices`, also as `{"id": name}`. OpenAI\'s own '
        "names (alloy, ash, ...) stand for the default voice. vLLM-Omni's name is `speaker`.",
    )
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = Field(
        None,
        description="`opus` is Ogg Opus; `pcm` is s16le, mono, without a header. "
        "Without it, the server's default, which is `mp3` unless it is set; in a batch, `wav`.",
    )
    bitrate: StrictInt | None = Field(
        None,
        ge=1,
        description="Bits per second of mp3, opus and aac. Without it, the format's own.",
    )
    captions: CaptionFormat | None = Field(
        None,
        description="Captions of the words beside the audio, as SubRip, WebVTT or a JSON array: in "
        "`speech.audio.done`, or in the results of a batch. For models with word timings.",
    )
    max_frames: StrictInt | None = Field(
        None, ge=1, le=MOST_FRAMES, description="The most codec frames that one sentence may have."
    )
    references: Annotated[list[ReferenceClip], Field(max_length=MAX_REFERENCES)] | None = Field(
        None,
        description="SGLang-Omni's name for `ref_audio` and `ref_text`: a list of one clip, and of "
        "one for each speaker of the text where the model knows several.",
    )


class SpeechBody(TextFields):
    """The body of `POST /v1/audio/speech`. Unknown fields have no effect, and are named in the
    response's header `x-talkwire-ignored`. A server may refuse them instead.
    """

    input: str = Field(description="The text to speak.")
    model: Name | None = Field(
        None,
        description="A name of `GET /v1/models`: the served model's or an alias. "
        "Without it, the served model.",
    )
    stream_format: Literal["audio", "sse"] | None = Field(
        "audio",
        description="`audio`, or null: the body is the audio. `sse`: server-sent events, "
        "`speech.audio.delta` with base64 audio and at last `speech.audio.done`.",
    )
    stream: StrictBool = Field(
        True, description="Accepted, without effect: the body is always sent as it is made."
    )
    initial_codec_chunk_frames: StrictInt | None = Field(
        None,
        ge=0,
        description="Codec frames of the first chunk; without it, or 0, the server's own.",
    )
    max_new_tokens: StrictInt | None = Field(
        None, ge=1, description="vLLM-Omni's name for `max_frames`; more than 8192 is 8192."
    )
    chunk_ms: StrictInt | None = Field(
        None,
        ge=1,
        le=MAX_CHUNK_MS,
        description="Chunks of so many milliseconds, where the mode is `chunked`; "
        "without it, the server's own.",
    )
    fade_in_ms: StrictInt = Field(
        0, ge=0, le=MAX_FADE_MS, description="Over how much audio the beginning fades in."
    )
    mode: Literal["chunked", "whole"] = Field(
        "chunked", description="`whole` decodes each sentence in one piece before it is sent."
    )


def prepare_reference(body: SpeechBody, runtime: Runtime) -> Prepare | None:
    """Return a function that makes the body's references, if any. Raises RequestError."""
    if not body.references:
        return body.prepare_ref_audio(body.voice, runtime)
    if body.ref_audio is not None or body.ref_text is not None:
        raise invalid_parameter("references", "Give references or ref_audio, not both.")
    runtime.voices.cloner.require_count(len(body.references), "references")
    named = [(clip, f"references.{at}") for at, clip in enumerate(body.references)]
    return runtime.voices.cloner.prepare_together([_prepare_clip(*one, runtime) for one in named])


def speech_options(
    body: SpeechBody,
    runtime: Runtime,
    prepare: Callable[[SpeechBody, Runtime], Prepare | None] = prepare_reference,
) -> SpeechOptions:
    """Translate ``body``. ``prepare`` makes its references. Raises RequestError, CapacityError."""
    if runtime.settings.unknown_fields == "refuse":
        if body.model_extra:
            raise unknown_field(min(body.model_extra), sorted(SpeechBody.model_fields))
        for name in _ignored_names(body, runtime):
            raise unsupported(name, f"This server's voices take no {name}.")
    body.check_task_type(runtime)
    if body.max_new_tokens is not None and body.max_frames is not None:
        raise invalid_parameter(
            "max_new_tokens", "max_new_tokens is another name for max_frames; give one of them."
        )
    require_model(runtime.settings, body.model)
    if body.captions is not None and not runtime.engines.talker.spec.has_word_timings:
        raise unsupported("captions", "This model reports no word timings.")
    format_ = response_format(body, runtime.settings)
    first = body.initial_codec_chunk_frames or None
    return SpeechOptions(
        format=AudioFormat(
            FORMATS[format_],
            pcm_rate(body) if format_ == "pcm" else body.sample_rate,
            bit_rate=body.bitrate,
            speed=body.pace,
            fade_in_ms=body.fade_in_ms,
        ),
        voice=None if body.references else _voice(body.voice, runtime),
        language=chosen_language(runtime, {"language": body.language}),
        prepare=prepare(body, runtime),
        sampling=body.sampling,
        max_frames=body.max_frames or at_most(body.max_new_tokens),
        mode=body.mode,
        chunking=ChunkingOptions(
            first_chunk_frames=first and min(first, MOST_FRAMES), chunk_ms=body.chunk_ms
        ),
        scene=body.scene,
        instructions=(body.instructions or None)
        if served_talker(runtime).takes_instructions
        else None,
        timestamps=body.captions is not None,
        pronunciations=body.rule_sets(runtime),
        may_be_silent=True,
    )


def response_format(body: SpeechBody, settings: Settings) -> str:
    """Return the requested format, or else the server's default."""
    return body.response_format or settings.default_response_format


def pcm_rate(body: SpeechBody) -> int:
    """Return the rate of ``pcm``."""
    return _PCM_RATE if body.sample_rate is None else body.sample_rate


def ignored_fields(body: SpeechBody, runtime: Runtime) -> list[str]:
    """Return the body's fields without effect."""
    ignored = _ignored_names(body, runtime)
    if not body.references and runtime.voices.is_replaced(_voice(body.voice, runtime)):
        ignored.append("voice")
    if body.model is not None and body.model not in runtime.settings.model_names:
        ignored.append("model")
    return ignored + sorted(body.model_extra or ())


def _ignored_names(body: SpeechBody, runtime: Runtime) -> list[str]:
    talker = served_talker(runtime)
    is_ignored = body.instructions and not talker.takes_instructions
    ignored = ["instructions"] if is_ignored else []
    if body.x_vector_only_mode and (body.ref_audio is None or not talker.vector_size):
        ignored.append("x_vector_only_mode")
    return ignored + ignored_languages(runtime, {"language": body.language})


def token_usage(report: ContextReport, frame_s: float) -> dict[str, int]:
    """Return the usage of a text. Tokens are its characters and the frames of its audio, which last
    ``frame_s`` seconds as they are heard.
    """
    came, made = report.characters, round(report.audio_s / frame_s)
    return {"input_tokens": came, "output_tokens": made, "total_tokens": came + made}


def finish_reason(done: Done) -> FinishReason:
    """Return why a text's audio ended: ``length`` if an utterance of it was cut off."""
    return "length" if done.reason == "length" else "stop"


def heard_frame_s(body: SpeechBody, runtime: Runtime) -> float:
    """Return the seconds of audio that a frame becomes at the requested speed."""
    asked = AudioFormat("pcm_s16le", speed=body.pace)
    played = asked.at_speed(runtime.engines.talker.spec.default_speed)
    return runtime.engines.codec.spec.frame_s / played.speed


def warning_header(body: SpeechBody, runtime: Runtime) -> dict[str, str]:
    """Return a header that warns of a clip without a text, if there is no recogniser."""
    texts = [clip.text for clip in body.references or ()]
    if body.ref_audio is not None and not body.is_vector_only(runtime):
        texts.append(body.ref_text)
    warning = runtime.voices.cloner.text_warning(texts)
    return {} if warning is None else {"x-talkwire-warning": warning}


def _voice(voice: str | VoiceId | None, runtime: Runtime) -> str | None:
    name = voice.id if isinstance(voice, VoiceId) else voice
    known = (*runtime.voices.names, *runtime.settings.voice_aliases)
    return None if name in OPENAI_VOICES and name not in known else name
