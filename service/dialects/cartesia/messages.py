"""Cartesia's requests, messages and errors, and their translation."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from service.audio.formats import AudioFormat
from service.contexts.options import SpeechOptions
from service.contexts.socket_output import Revocable, TextRenderer
from service.errors import ErrorTable
from streaming.errors import ErrorCode, TalkwireError
from streaming.protocol.field_errors import FieldError, invalid_field, missing_field, unsupported
from streaming.word_timing import WordTiming
from text.markup.vocabulary import manner_of

NAME = "cartesia"
_FORMAT = dict.fromkeys(("encoding", "sample_rate", "bitrate"), "output_format")


def error_fields(error: TalkwireError, request_id: str) -> dict[str, Any]:
    """Return the common fields of all error formats."""
    return {
        "title": error.code.value.replace("_", " ").capitalize(),
        "message": TABLE.message(error),
        "error_code": error.code.value,
        "status_code": TABLE.status(error),
        "request_id": request_id,
    }


TABLE = ErrorTable(
    NAME, error_fields, fields={"text": "transcript", "speed": "generation_config.speed", **_FORMAT}
)


def error_event(
    error: TalkwireError, context_id: str | None, request_id: str, *, done: bool = True
) -> dict[str, Any]:
    """Return an ``error`` message. It always has ``context_id``, maybe null: clients index it.
    ``error`` is the ``message`` for LiveKit's JavaScript plugin, which skips messages without it.
    """
    event = {"type": "error", "context_id": context_id, "done": done, "error": TABLE.message(error)}
    return event | error_fields(error, request_id)


class CartesiaErrorBody(BaseModel):
    """The body of a refusal."""

    title: str
    message: str
    error_code: str
    status_code: int
    request_id: str


#: Fields of a request that name a language.
LANGUAGE_FIELDS = ("language", "locale")


class OutputFormat(BaseModel):
    """Container, encoding and rates."""

    container: Literal["raw", "wav", "mp3"] = Field(description="On the socket and as SSE: `raw`.")
    encoding: Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"] = Field(
        "pcm_s16le", description="Of `raw` and `wav`."
    )
    sample_rate: Annotated[int, Field(ge=1, le=2**31)]
    bit_rate: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="Of `mp3`, in bits per second."
    )

    def audio_format(self, speed: float) -> AudioFormat:
        """Return our format."""
        name: str = self.encoding if self.container == "raw" else self.container
        if self.container == "wav" and self.encoding != "pcm_s16le":
            name = self.encoding.replace("pcm", "wav")
        bit_rate = self.bit_rate if self.container == "mp3" else None
        return AudioFormat(name, self.sample_rate, bit_rate=bit_rate, speed=speed)


class VoiceObject(BaseModel):
    """A voice by its id."""

    id: str | None = None
    mode: str = "id"


class GenerationConfig(BaseModel):
    """How all of the text is spoken that does not say so itself."""

    speed: Annotated[float, Field(ge=0.25, le=4)] | None = Field(
        None, description="How many times as fast, at the same pitch."
    )
    volume: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="Times the normal amplitude."
    )
    emotion: Annotated[str, Field(max_length=80)] | None = Field(
        None, description="In words. Where the model has none, a warning says so."
    )

    @property
    def deliveries(self) -> tuple[tuple[str, str], ...]:
        """See SpeechOptions."""
        chosen: list[tuple[str, str]] = []
        if self.emotion:
            chosen.append((manner_of(self.emotion)[0], self.emotion))
        if self.volume is not None:
            chosen.append(("volume", f"{self.volume:g}"))
        return tuple(chosen)


class SpeechBody(BaseModel):
    """The body of HTTP requests. Cartesia's other fields are accepted, without effect."""

    transcript: str = Field("", description="The text to speak.")
    voice: str | VoiceObject | None = Field(None, description='A name, or `{"id": name}`.')
    output_format: OutputFormat | None = None
    model_id: str | None = Field(None, description="Any name; the served model speaks.")
    language: str | None = Field(
        None,
        description="A language that the model reads, such as `en`. Without effect, and named as "
        "ignored, where the model follows the text.",
    )
    locale: str | None = Field(None, description="The same.")
    generation_config: GenerationConfig | None = Field(
        None, description="Speed, volume and emotion."
    )
    speed: Any = Field(None, description="Only `normal`; see `generation_config`.")
    pronunciation_dict_id: str | None = Field(
        None, description="A dictionary to speak by: its id or name."
    )
    add_timestamps: bool | None = Field(
        None, description="Words with their times, where the model has them."
    )
    add_phoneme_timestamps: bool | None = Field(None, description="Not served.")
    save: bool | None = Field(None, description="Not served.")
    context_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None

    @property
    def languages(self) -> dict[str, str | None]:
        """The fields that name a language."""
        return {name: getattr(self, name) for name in LANGUAGE_FIELDS}

    def require_format(self, *containers: str) -> AudioFormat:
        """Return the audio's format. Raises RequestError unless it has one of ``containers``."""
        if self.output_format is None:
            raise missing_field("output_format")
        container, allowed = self.output_format.container, f"{' or '.join(containers)} here"
        if container not in containers:
            code = ErrorCode.UNSUPPORTED
            raise invalid_field("output_format.container", container, allowed, code)
        config = self.generation_config
        speed = config.speed if config is not None and config.speed else 1.0
        return self.output_format.audio_format(speed)


class ContextRequest(SpeechBody):
    """A message on the socket: text for a context, or a cancel."""

    continue_: bool | None = Field(None, alias="continue")
    flush: bool | None = None
    cancel: bool | None = None
    max_buffer_delay_ms: Annotated[int, Field(ge=0, le=5000)] | None = None


def speech_options(
    body: SpeechBody, format_: AudioFormat, *, has_word_timings: bool
) -> SpeechOptions:
    """Translate ``body``, but for its dictionary. Raises RequestError."""
    config = body.generation_config
    if body.speed not in (None, "normal", 0):
        message = "The speed is set in generation_config."
        raise FieldError(ErrorCode.UNSUPPORTED, message, param="speed")
    if body.add_phoneme_timestamps:
        raise unsupported("add_phoneme_timestamps", "This server has no phonemes.")
    if body.save:
        raise unsupported("save", "This server keeps no audio.")
    voice = body.voice
    if isinstance(voice, VoiceObject):
        if voice.mode != "id":
            raise unsupported("voice", "A voice is named by its id.")
        voice = voice.id
    if not voice:
        raise missing_field("voice")
    timestamps = bool(body.add_timestamps) and has_word_timings
    deliveries = () if config is None else config.deliveries
    return SpeechOptions(
        format=format_,
        voice=voice,
        timestamps=timestamps,
        may_be_silent=True,
        deliveries=deliveries,
    )


def page_of(
    ids: Sequence[str], limit: int, starting_after: str | None, ending_before: str | None
) -> tuple[int, int, str | None]:
    """Return where a page of a list begins and ends, and the cursor of the page after it, in the
    direction in which the client goes. Raises RequestError for a cursor that is none of ``ids``.
    """

    def place(name: str, cursor: str) -> int:
        if cursor not in ids:
            allowed = "the id of an entry in this list"
            raise invalid_field(name, cursor, allowed, ErrorCode.INVALID_PARAMETER)
        return ids.index(cursor)

    if ending_before:
        end = place("ending_before", ending_before)
        begin = max(0, end - limit)
        return begin, end, ids[begin] if begin else None
    begin = place("starting_after", starting_after) + 1 if starting_after else 0
    end = begin + limit
    return begin, end, ids[end - 1] if len(ids) > end else None


#: Id of flushes that the client did not request, which are not reported.
OWN_FLUSH = "own"


class InheritedState(NamedTuple):
    """The state that a context inherits from an expired one with the same id, since they are one
    context to the client. ``heard_s``: the end of its audio on the clock of the client's word
    times. ``flush_id``: the number of its reported flushes, plus one.
    """

    heard_s: float = 0.0
    flush_id: int = 1


#: The state of a context that continues no other.
NOTHING_INHERITED = InheritedState()


class EventRenderer:
    """Renders messages of one context, which continues from ``inherited``, as objects."""

    def __init__(
        self,
        context_id: str | None,
        inherited: InheritedState = NOTHING_INHERITED,
        request_id: str = "",
    ) -> None:
        self._id, self._request_id = context_id, request_id
        self._began_s, self.flush_id = inherited
        self._stepped_at = time.monotonic()

    def _event(self, kind: str, *, done: bool = False, **fields: object) -> dict[str, Any]:
        event = {"type": kind, "done": done, "status_code": 200 if done else 206}
        return event | ({} if self._id is None else {"context_id": self._id}) | fields

    def chunk(self, audio: bytes) -> dict[str, Any]:
        """Return a message with audio."""
        now = time.monotonic()
        step_ms, self._stepped_at = 1000 * (now - self._stepped_at), now
        data = base64.b64encode(audio).decode()
        return self._event("chunk", data=data, step_time=round(step_ms, 3))

    def timestamps(self, words: Sequence[WordTiming]) -> dict[str, Any]:
        """Return a message with words, in seconds from the context's first sample."""
        times = {
            "words": [word.text for word in words],
            "start": [round(self._began_s + word.start_ms / 1000, 3) for word in words],
            "end": [round(self._began_s + word.end_ms / 1000, 3) for word in words],
        }
        return self._event("timestamps", word_timestamps=times)

    def flush_done(self) -> dict[str, Any]:
        """Return the message after all audio before a flush."""
        flush_id, self.flush_id = self.flush_id, self.flush_id + 1
        return self._event("flush_done", flush_done=True, flush_id=flush_id)

    def end(self) -> dict[str, Any]:
        """Return the message after all audio."""
        return self._event("done", done=True)

    def error(self, error: TalkwireError) -> dict[str, Any]:
        """Return the message for an error of the context."""
        return error_event(error, self._id, self._request_id)


class SocketRenderer(EventRenderer, TextRenderer):
    """See TextRenderer. All messages are revocable, since nothing may follow a cancel: clients
    would take the ``done`` of a context that they have forgotten for another's.
    """

    #: Whether the context ends without a message, since it has only expired.
    is_quiet = False

    def opened(self, handle: int, request_id: str) -> None:
        """See Renderer."""
        self._request_id = request_id

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """See TextRenderer. Words precede their audio: clients apply them to the next audio."""
        events = [self.timestamps(words)] if words else []
        if audio:
            events.append(self.chunk(audio) | self.take_warning())
        return [encoded({**event, "flush_id": self.flush_id}) for event in events]

    def flushed(self, flush_id: str) -> list[Revocable]:
        """Return ``flush_done`` for a flush of the client."""
        return [] if flush_id == OWN_FLUSH else [Revocable(encoded(self.flush_done()))]

    def done(self, error: TalkwireError | None) -> list[Revocable]:
        """Return the context's last message, if any."""
        if self.is_quiet:
            return []
        return [Revocable(encoded(self.end() if error is None else self.error(error)))]


def encoded(event: dict[str, Any]) -> str:
    """Encode a message as text."""
    return json.dumps(event, separators=(",", ":"))
