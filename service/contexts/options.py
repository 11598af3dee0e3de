"""The options of a context, in any protocol, and its plan: its client's options or the server's."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Literal, NamedTuple

from service.audio.encoder import AudioEncoder
from service.audio.filters import held_back_s
from service.audio.formats import AudioFormat
from service.auth.caller import current_caller
from service.engines.chunking import max_segment_chars, schedule_settings
from service.engines.contracts import RunningTalker
from service.runtime import Runtime
from service.settings import Settings
from service.voices.cloning import Prepare
from streaming.errors import ErrorCode
from streaming.ports import Sampling, SilenceMask, SpeechRequest, TalkerSpec
from streaming.protocol.field_errors import (
    invalid_field,
    invalid_parameter,
    listed,
    unknown_choice,
    unsupported,
)
from streaming.protocol.messages import ChunkingOptions, TextMode
from streaming.session import Session, SessionSettings
from streaming.utterance import QueueSettings
from text.languages import is_read, language_code, language_names, leaves_language
from text.markup.grades import as_delivery
from text.pronunciation.rules import RuleSet
from text.segmenter import SegmentSettings
from text.turns import TurnSettings, chars_within

#: Silence that replaces a text that cannot be spoken, if that is no error.
_SILENCE_S = 0.2
#: A first sentence longer than this is split after a clause, so that speech begins sooner.
_FIRST_CHARS = 90
#: With a shorter lead, a window is asked for only when it may already be late.
_LEAST_LEAD_S = 2.0


class FlushEncoder(Enum):
    """When the encoder is flushed, apart from the end of a context without error."""

    EACH_UTTERANCE = auto()
    #: When no text is waiting to be spoken, for encoders whose flush is audible.
    EACH_PAUSE = auto()
    #: At each of the client's flushes.
    EACH_FLUSH = auto()
    #: Only at the end, for files.
    AT_END = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """What a client wants of a context. What it does not choose is None, or the default."""

    format: AudioFormat
    #: The client's name of a voice.
    voice: str | None = None
    model: str | None = None
    language: str | None = None
    #: Makes the references of a voice to imitate, instead of ``voice``.
    prepare: Prepare | None = None
    sampling: Sampling = field(default_factory=Sampling)
    #: Maximum frames of an utterance.
    max_frames: int | None = None
    #: ``whole``: each utterance is decoded in one piece.
    mode: Literal["chunked", "whole"] = "chunked"
    chunking: ChunkingOptions = field(default_factory=ChunkingOptions)
    #: Maximum audio that is sent and not yet played.
    max_lead_ms: int | None = None
    #: Whether the voice and prosody of an utterance carry over to the next.
    continuity: Literal["context", "none"] | None = None
    #: Whether text is spoken sentence by sentence, or word by word while it arrives.
    text_mode: TextMode = "sentences"
    #: Where and how the text is spoken.
    scene: str | None = None
    #: How the text is spoken, or which voice speaks it, in words.
    instructions: str | None = None
    #: How all text is spoken that does not say so itself: aspects, and the client's words.
    deliveries: tuple[tuple[str, str], ...] = ()
    #: Rules for words that are spoken in another way than they are written.
    pronunciations: tuple[RuleSet, ...] = ()
    #: Whether words are reported with their times.
    timestamps: bool = False
    #: The audio is kept until it is complete, so no lead limits it.
    buffered: bool = False
    flush_encoder: FlushEncoder = FlushEncoder.EACH_UTTERANCE
    #: Text in which nothing can be spoken is no error, since agents' models write emoji. Errors are
    #: counted at the end of the context; other dialects count them when they render them.
    is_lenient: bool = True
    #: The operator may want silence instead of an error for such a text, since this protocol's
    #: clients give up after an error.
    may_be_silent: bool = False
    #: This holds only for a text of symbols, such as an emoji. One in a script that the voice does
    #: not read is an error in any case.
    only_symbols_silent: bool = False


class Line(NamedTuple):
    """Text that one voice speaks, a name from ``voice_of``; None: the context's own."""

    text: str
    voice: str | None = None


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """All parameters of a new context.

    ``protocol`` is the metrics' label. ``options``: what the client wants; its speed is a factor
    of the talker's own. ``own_chunk_frames``: about how many new frames its windows
    have, if the client chose the chunks or a short lead. Its windows and underruns then say nothing
    about other streams.
    """

    protocol: str
    session: Session
    request: SpeechRequest
    encoder: AudioEncoder
    options: SpeechOptions
    own_chunk_frames: int | None = None


def plan_speech(
    runtime: Runtime, protocol: str, request_id: str, options: SpeechOptions
) -> SpeechPlan:
    """Return the plan of a context that can be served. Raises RequestError, CapacityError."""
    runtime.lifecycle.require_ready(or_restarting=True)
    format_ = options.format.at_speed(runtime.engines.talker.spec.default_speed)
    options = replace(options, format=format_)
    settings = session_settings(runtime, options)
    request = speech_request(runtime, options, request_id)
    _check_request(runtime, options, request)
    encoder = options.format.encoder(runtime.engines.codec.spec.sample_rate)
    chunk_frames = own_chunk_frames(settings.queue, options)
    return SpeechPlan(protocol, Session(settings), request, encoder, options, chunk_frames)


def check_options(runtime: Runtime, options: SpeechOptions) -> None:
    """Raise RequestError if no context with these options can ever be served."""
    options.format.output_rate(runtime.engines.codec.spec.sample_rate)
    _check_request(runtime, options, speech_request(runtime, options, "check"))


def _check_request(runtime: Runtime, options: SpeechOptions, request: SpeechRequest) -> None:
    """Let the talker check a request, whose reference may have to be prepared yet."""
    if options.prepare is not None:
        request = replace(request, reference=runtime.voices.stand_in())
    runtime.engines.talker.check_options(request)


def own_chunk_frames(queue: QueueSettings, options: SpeechOptions) -> int | None:
    """See SpeechPlan."""
    has_short_lead = options.max_lead_ms is not None and queue.max_lead_s < _LEAST_LEAD_S
    if options.chunking == ChunkingOptions() and not has_short_lead:
        return None
    max_s = min(queue.max_lead_s, queue.schedule.max_chunk_frames * queue.frame_s)
    return max(1, int(max_s / queue.frame_s))


def session_settings(runtime: Runtime, options: SpeechOptions) -> SessionSettings:
    """Return the settings of a new context's Session. Raises RequestError."""
    settings, spec, speed = runtime.settings, runtime.engines.codec.spec, options.format.speed
    talker = runtime.engines.talker.spec
    lead_ms = options.max_lead_ms or min(settings.default_lead_ms, settings.max_lead_ms)
    if lead_ms > settings.max_lead_ms:
        message = f"max_lead_ms may be {settings.max_lead_ms} at most."
        raise invalid_parameter("max_lead_ms", message)
    # Audio that waits for the rest of its message cannot be played, so it must not be all there is.
    held_s = options.format.frame_ms / 1000 + held_back_s(speed, spec.sample_rate)
    if options.mode == "whole" and options.chunking.chunk_ms is not None:
        raise invalid_parameter("mode", "chunk_ms needs the mode chunked.")
    queue = QueueSettings(
        codec=spec,
        schedule=schedule_settings(settings, spec, options.chunking, speed, talker.layout),
        bounds=runtime.pace.bounds,
        mode=options.mode,
        max_lead_s=math.inf if options.buffered else max(lead_ms / 1000, held_s),
        speed=speed,
        layout=talker.layout,
        trim_samples=settings.trim_silence_ms * spec.sample_rate // 1000,
        pauses=talker.pauses,
        end_silence_s=end_silence_s(settings, talker),
        held_back_s=partial(held_back_s, sample_rate=spec.sample_rate),
    )
    segments = SegmentSettings(
        max_segment_chars(settings, runtime.engines.talker),
        spoken_lengths=talker.spoken_lengths,
        first_max_chars=_FIRST_CHARS,
    )
    # A complete text is spoken in one generation if it fits ``max_frames`` and the talker's limit.
    # If the length of pieces is limited, each piece is one generation.
    turn_chars = 0
    if settings.max_segment_chars is None and talker.segment_chars is None:
        frames = min(options.max_frames or talker.max_frames, talker.max_frames)
        turn_chars = max(2, chars_within(frames, spec.frame_s))
    turns = TurnSettings(turn_chars, talker.delivery_tags)
    is_silent = options.may_be_silent and settings.unspeakable_text == "silence"
    silence_s = _SILENCE_S if is_silent else 0.0
    return SessionSettings(
        queue,
        segments,
        turns,
        settings.max_text_chars,
        silence_s,
        options.only_symbols_silent,
        talker.rendering,
        options.pronunciations,
        [one for given in options.deliveries if (one := as_delivery(*given))],
        by_words=_speaks_words(talker, options.text_mode),
    )


def end_silence_s(settings: Settings, talker: TalkerSpec) -> float:
    """Return the seconds of silence that end an utterance; 0: none do."""
    chosen = settings.end_silence_ms
    return talker.end_silence_s if chosen is None else chosen / 1000


def text_modes(talker: TalkerSpec) -> Sequence[TextMode]:
    """Return the possible values of ``text_mode``; the first is the default."""
    return ("sentences", "words") if talker.takes_words else ("sentences",)


def _speaks_words(talker: TalkerSpec, mode: TextMode) -> bool:
    """Whether text is spoken word by word. Raises RequestError (``unsupported``)."""
    if mode not in (modes := text_modes(talker)):
        allowed = f"{listed(modes)} with this model, which needs the whole text"
        raise invalid_field("text_mode", mode, allowed, ErrorCode.UNSUPPORTED)
    return mode == "words"


def require_model(settings: Settings, name: str | None) -> None:
    """Raise RequestError (``unknown_model``) unless ``name`` is None or served, or the settings let
    the served model speak for any.
    """
    if name is not None and not settings.accepts_unknown_models:
        require_served(settings, name)


def require_served(settings: Settings, name: str) -> None:
    """Raise RequestError (``unknown_model``) unless ``name`` is one of the served model."""
    if name not in settings.model_names:
        raise unknown_choice("model", name, settings.model_names, ErrorCode.UNKNOWN_MODEL)


def served_talker(runtime: Runtime) -> TalkerSpec:
    """Return the model's properties. Raises CapacityError before the engines have started."""
    runtime.lifecycle.require_ready(or_restarting=True)
    return runtime.engines.talker.spec


def served_languages(runtime: Runtime) -> tuple[str, ...]:
    """Return the languages that the model reads; none if it follows the text. Raises CapacityError
    as ``served_talker`` does.
    """
    return served_talker(runtime).languages


def require_language(name: str, value: str | None, languages: Sequence[str]) -> None:
    """Raise RequestError (``unsupported``) if the field ``name`` asks for a language other than
    those that the model reads.
    """
    if value is not None and not (leaves_language(value) or is_read(value, languages)):
        allowed = f"{listed(languages)} (this voice reads {language_names(languages)})"
        raise invalid_field(name, value, allowed, ErrorCode.UNSUPPORTED)


def ignored_languages(runtime: Runtime, fields: Mapping[str, str | None]) -> list[str]:
    """Check the fields of a request that name a language. Returns those without effect, which are
    all if the model follows the text. Raises RequestError as ``require_language`` does.
    """
    if not (languages := served_languages(runtime)):
        return [name for name, value in fields.items() if value]
    for name, value in fields.items():
        require_language(name, value, languages)
    return []


def chosen_language(runtime: Runtime, fields: Mapping[str, str | None]) -> str | None:
    """Return the first language that the fields of a request name; None if they leave it to the
    model, or the model follows the text. Raises RequestError as ``require_language`` does.
    """
    if ignored_languages(runtime, fields):
        return None
    return next((value for value in fields.values() if not leaves_language(value)), None)


def speech_request(runtime: Runtime, options: SpeechOptions, request_id: str) -> SpeechRequest:
    """Return the template of a context's talker requests. Raises RequestError."""
    require_model(runtime.settings, options.model)
    language = None if leaves_language(options.language) else options.language
    if language is not None:
        if not (languages := runtime.engines.talker.spec.languages):
            message = "This model takes no language: it follows the text's."
            raise unsupported("language", message)
        require_language("language", language, languages)
    possible, max_frames = continuity(runtime.engines.talker), options.max_frames
    if (chosen := options.continuity or possible[0]) not in possible:
        raise unsupported("continuity", "This model cannot go on from what it said before.")
    engines = runtime.engines
    delay_rows = engines.talker.spec.layout.delay_rows(engines.codec.spec)
    frames = runtime.settings.mask_silence_frames
    return SpeechRequest(
        request_id=request_id,
        text="",
        voice=voice_of(runtime, options.voice),
        sampling=options.sampling,
        max_frames=None if max_frames is None else max_frames + delay_rows,
        word_timings=options.timestamps,
        conversation=uuid.uuid4().hex if chosen == "context" else None,
        scene=options.scene,
        instructions=options.instructions,
        language=None if language is None else language_code(language),
        mask=SilenceMask(frames, codes) if (codes := runtime.leading_silence.codes) else None,
    )


def voice_of(runtime: Runtime, name: str | None) -> str:
    """Return the talker's name of a voice. Raises RequestError (``unknown_voice``)."""
    named = runtime.voices.resolve(name)
    return runtime.voices.library.resolve(named, current_caller().tenant)


def continuity(talker: RunningTalker) -> list[str]:
    """Return the possible values of ``continuity``; the first is the default."""
    return ["context", "none"] if talker.spec.has_continuity else ["none"]
