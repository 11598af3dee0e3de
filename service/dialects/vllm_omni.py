"""vLLM-Omni's ``WS /v1/audio/speech/stream`` (docs/reference/dialects.md).

A *flush* is the text up to an ``input.done``. It is spoken in *sentences*, one if the text is
not split. ``audio.start`` and ``audio.done`` enclose each sentence; ``session.done`` ends each
flush.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import WebSocket
from pydantic import AliasChoices, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from websockets.frames import CloseCode

from service.access.rules import GuardedRouter, Rule
from service.audio.containers import tell_length
from service.audio.formats import AudioFormat
from service.auth.keys import Scope
from service.contexts.options import (
    FlushEncoder,
    SpeechOptions,
    check_options,
    served_talker,
)
from service.contexts.socket_output import Message, Revocable
from service.contexts.speech_context import Audio, Output
from service.dialects.openai.request import FORMATS, Name, SpeechFields, at_most
from service.engines.chunking import max_segment_chars
from service.errors import ErrorTable, parse_json, peek, validation_error
from service.runtime import Runtime
from service.transport.turns import Turns
from service.transport.websocket import Dialect, Socket, SocketClosing, serve_socket
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import Done, Flushed, Warned
from streaming.protocol.field_errors import invalid_field, unsupported
from streaming.protocol.messages import ChunkingOptions
from text.markup.segments import MarkedSegmenter
from text.segmenter import SegmentSettings
from text.surrogates import replace_surrogates

NAME = "vllm-omni"
#: Fields of vLLM-Omni that are not supported here, and refused unless empty.
_UNSERVED = ("speaker_embedding", "word_timestamps", "extra_params")
#: Fields that its clients may send empty.
_MAY_BE_EMPTY = ("ref_audio", "ref_text", "instructions")


class SessionConfig(SpeechFields):
    """Options of the texts that follow. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    model: Name | None = None
    voice: Name | None = Field(None, validation_alias=AliasChoices("voice", "speaker"))
    response_format: Literal["wav", "pcm", "flac", "mp3", "opus", "aac"] = "wav"
    max_new_tokens: StrictInt | None = Field(None, ge=1)
    initial_codec_chunk_frames: StrictInt | None = Field(None, ge=0)
    #: Concerns another model's prompt; without effect.
    non_streaming_mode: StrictBool | None = None
    stream_audio: StrictBool = False
    split_granularity: Literal["none", "sentence"] = "none"

    def options(self, runtime: Runtime) -> SpeechOptions:
        """Translate the options. A token of vLLM-Omni's is a frame here. Raises RequestError."""
        self.check_task_type(runtime)
        if self.x_vector_only_mode and not served_talker(runtime).vector_size:
            message = "This model makes no vectors of speakers."
            raise unsupported("x_vector_only_mode", message)
        is_raw = self.response_format == "pcm"
        first = self.initial_codec_chunk_frames or None
        return SpeechOptions(
            format=AudioFormat(
                FORMATS[self.response_format],
                self.sample_rate,
                speed=self.pace,
                is_chained=not is_raw,  # a file per sentence
            ),
            voice=self.voice,
            model=self.model,
            language=self.language,
            prepare=self.prepare_ref_audio(self.voice, runtime),
            sampling=self.sampling,
            max_frames=at_most(self.max_new_tokens),
            mode="chunked" if self.stream_audio else "whole",
            chunking=ChunkingOptions(first_chunk_frames=first and min(first, 4096)),
            scene=self.scene,
            instructions=self.instructions,
            pronunciations=self.rule_sets(runtime),
            buffered=not self.stream_audio,
            flush_encoder=FlushEncoder.EACH_FLUSH,
        )


@dataclass(frozen=True, slots=True)
class _Session:
    """What a ``session.config`` sets for the texts that follow."""

    config: SessionConfig
    options: SpeechOptions
    sample_rate: int
    #: Sent when the audio of each sentence begins.
    warning: str | None


def parse_config(message: dict[str, Any], runtime: Runtime) -> _Session:
    """Parse a ``session.config`` and check that it can be served. Raises RequestError."""
    fields = {name: value for name, value in message.items() if name != "type"}
    for name in _UNSERVED:
        if fields.pop(name, None):
            raise unsupported(name, f"{name} is not served here.")
    fields = {name: value for name, value in fields.items() if value or name not in _MAY_BE_EMPTY}
    if fields.get("split_granularity") == "clause":
        raise unsupported("split_granularity", "Text is split at sentences, or not at all.")
    try:
        config = SessionConfig.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error.errors(), SessionConfig.model_fields, rooted=False) from None
    if config.stream_audio and config.response_format != "pcm":
        raise unsupported("response_format", "stream_audio needs the response_format pcm.")
    options, warning = config.options(runtime), None
    check_options(runtime, options)
    if config.ref_audio is not None and not config.x_vector_only_mode:
        warning = runtime.voices.cloner.text_warning([config.ref_text])
    rate = options.format.output_rate(runtime.engines.codec.spec.sample_rate)
    return _Session(config, options, rate, warning)


@dataclass(slots=True)
class _Sentence:
    """A sentence, of which ``sent_bytes`` have been sent. ``held`` audio is sent at its end, and
    is None if it has become too long. ``failure`` is sent in the order of the sentences, also if
    the sentence could not be begun.
    """

    flush: int
    index: int
    text: str
    session: _Session
    failure: TalkwireError | None = None
    started: bool = False
    sent_bytes: int = 0
    held: bytearray | None = field(default_factory=bytearray)
    held_samples: int = 0
    #: Warnings of its text.
    warnings: list[str] = field(default_factory=list)

    def message(self, kind: str, **fields: object) -> str:
        place = {"utterance_index": self.flush, "sentence_index": self.index}
        return json.dumps({"type": kind, **place, **fields})

    def start(self) -> list[str]:
        """Return ``audio.start``, unless it has been sent."""
        if self.started:
            return []
        self.started = True
        session = self.session
        told: dict[str, object] = {
            "format": session.config.response_format,
            "sample_rate": session.sample_rate,
            "channels": 1,
        }
        if warning := " ".join(filter(None, (session.warning, *self.warnings))):
            told["warning"] = warning
        return [self.message("audio.start", sentence_text=self.text, **told)]


def error_fields(error: TalkwireError) -> dict[str, object]:
    """Return an ``error`` message, with ``code`` and ``param`` as extensions of vLLM-Omni's."""
    told = {"type": "error", "message": TABLE.message(error), "code": error.code.value}
    name = TABLE.field(error)
    return {**told} if name is None else {**told, "param": name}


#: Maximum waiting sentences and ends of flushes, and maximum text in flushes of full length.
_MAX_UNITS, _MAX_FLUSHES = 4096, 4


class _Speaker:
    """Speaks sentences in order, and renders their messages.

    A turn takes at most ``max_text_chars``, like a flush. A sentence that exceeds them, and all
    after it, wait for the next turn, which begins when this one has been spoken. ``freed`` is
    called at the end of a turn.
    """

    def __init__(self, socket: Socket, freed: Callable[[], None]) -> None:
        self._socket, self._runtime, self._freed = socket, socket.runtime, freed
        self._turns = Turns(socket, self._rendered, self._on_ended)
        #: Unfinished sentences, and between them the messages that end flushes. The first is a
        #: sentence.
        self._units: deque[_Sentence | str] = deque()
        #: Number of characters of these sentences.
        self._unit_chars = 0
        #: Those of them that no turn has yet.
        self._waiting: deque[_Sentence] = deque()
        #: The sentence that a turn got last, to which warnings belong.
        self._said: _Sentence | None = None

    @property
    def is_busy(self) -> bool:
        return self._turns.context is not None or bool(self._waiting)

    @property
    def has_sentence(self) -> bool:
        """Whether a sentence is waiting or being spoken."""
        return bool(self._units)

    def require_room(self) -> None:
        """Raise CapacityError if too much text is waiting."""
        most = _MAX_FLUSHES * self._runtime.settings.max_text_chars
        if len(self._units) >= _MAX_UNITS or self._unit_chars >= most:
            message = "Too much waits to be spoken; this message was dropped."
            raise CapacityError(ErrorCode.OVERLOADED, message)

    def speak(self, sentence: _Sentence) -> None:
        """Speak a sentence after all earlier ones."""
        self._units.append(sentence)
        self._unit_chars += len(sentence.text)
        self._waiting.append(sentence)
        self._speak_waiting()

    def end_flush(self, flush: int, sentences: int) -> None:
        """Send ``session.done`` once the flush has been spoken."""
        fields = {"utterance_index": flush, "total_sentences": sentences}
        self._units.append(json.dumps({"type": "session.done", **fields}))
        self._send_settled()

    def close(self) -> None:
        self._waiting.clear()

    def _speak_waiting(self) -> None:
        """Pass waiting sentences to the turn, as far as there is room."""
        max_chars = self._runtime.settings.max_text_chars
        while self._waiting:
            chars = self._turns.chars + len(self._waiting[0].text)
            if self._turns.context is not None and chars > max_chars:
                self._turns.finish()
                return
            sentence = self._said = self._waiting.popleft()
            try:
                self._turns.say(sentence.text, sentence.session.options)
            except TalkwireError as error:
                self._fail(sentence, error)
                self._send_settled()
            else:
                self._turns.flush()

    def _on_ended(self) -> None:
        self._speak_waiting()
        self._freed()

    def _rendered(self, output: Output) -> Sequence[Message]:
        match output:
            case Audio(packets):
                return [m for p in packets for m in self._audio(p.data, p.samples)]
            case Flushed():
                return self._flushed()
            case Warned(message=message) if self._said is not None:
                self._said.warnings.append(message)
                return []
            case Done(error=error) if error is not None:
                return self._failed(error)
            case _:
                return []

    def _first(self) -> _Sentence:
        first = self._units[0]
        assert isinstance(first, _Sentence)
        return first

    def _audio(self, data: bytes, samples: int) -> list[Message]:
        sentence = self._first()
        if sentence.session.config.stream_audio:
            sentence.sent_bytes += len(data)
            return [*sentence.start(), Revocable(data, samples)]
        most = self._runtime.settings.max_outbox_bytes // 2
        if sentence.held is None or len(sentence.held) + len(data) > most:
            sentence.held = None
        else:
            sentence.held += data
            sentence.held_samples += samples
        return []

    def _flushed(self) -> list[Message]:
        """End a sentence."""
        sentence, messages = self._first(), list[Message]()
        if sentence.held is None:
            message = "The audio of this text is too long for one message: split it, or stream it."
            self._fail(sentence, RequestError(ErrorCode.TEXT_TOO_LONG, message, param="text"))
        else:
            messages += sentence.start()
            if sentence.held:
                tell_length(
                    sentence.session.config.response_format, sentence.held, sentence.held_samples
                )
                sentence.sent_bytes += len(sentence.held)
                messages.append(Revocable(bytes(sentence.held)))
            messages.append(self._over(failed=False))
        return messages + self._settled()

    def _fail(self, sentence: _Sentence, error: TalkwireError) -> None:
        self._runtime.errors.count(error, self._socket.session_id, NAME)
        sentence.failure = error

    def _failed(self, error: TalkwireError) -> list[str]:
        """Fail all waiting sentences with an error of the context, which has been counted."""
        self._waiting.clear()
        for unit in self._units:
            if isinstance(unit, _Sentence):
                unit.failure = unit.failure or error
        return self._settled()

    def _settled(self) -> list[str]:
        """Return messages that wait for no more audio: ends of flushes, and failed sentences."""
        messages: list[str] = []
        while self._units:
            first = self._units[0]
            if isinstance(first, str):
                messages.append(first)
                self._units.popleft()
            elif first.failure is not None:
                partial = {"partial_audio": True, "action": "discard"} if first.sent_bytes else {}
                told = json.dumps({**error_fields(first.failure), **partial})
                messages += [*first.start(), told, self._over(failed=True)]
            else:
                return messages
        return messages

    def _over(self, *, failed: bool) -> str:
        sentence = self._first()
        self._units.popleft()
        self._unit_chars -= len(sentence.text)
        return sentence.message("audio.done", total_bytes=sentence.sent_bytes, error=failed)

    def _send_settled(self) -> None:
        for message in self._settled():
            self._socket.send(message)


TABLE = ErrorTable(NAME, lambda error, _: error_fields(error))
#: Maximum number of messages that wait for a session.config to take effect.
_MAX_HELD = 64


class _StreamDialect(Dialect):
    """See Dialect."""

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self._session: _Session | None = None
        self._speaker = _Speaker(socket, self._go_on)
        self._flush_index = self._sentences = self._chars = 0
        self._segmenter = self._new_segmenter()
        self._text = ""
        self._held: list[str] = []

    def on_text(self, text: str) -> None:
        if self._held:
            self._hold(text)
            return
        try:
            self._dispatch(text)
        except TalkwireError as error:
            if self._session is None:
                self.give_up(error, CloseCode.POLICY_VIOLATION)
            self.tell(error)

    def is_settled(self, now: float) -> bool:
        return not (self._speaker.has_sentence or self._chars)

    def render_error(self, error: TalkwireError) -> str:
        self.runtime.errors.count(error, self.socket.session_id, NAME)
        return json.dumps(error_fields(error))

    def close(self) -> None:
        self._held.clear()
        self._speaker.close()

    def _dispatch(self, text: str) -> None:
        message = _parsed(text)
        kind = message.get("type")
        if kind == "session.config":
            if self._chars:
                raise _invalid("Send input.done before another session.config.", "type")
            if self._speaker.is_busy:
                self._hold(text)
            else:
                self._session = parse_config(message, self.runtime)
        elif self._session is None:
            raise _invalid("The first message is a session.config.", "type")
        elif kind == "input.text":
            self._speaker.require_room()
            self._take(message.get("text", ""))
        elif kind == "input.done":
            self._speaker.require_room()
            self._flush()
        elif kind == "session.close":
            raise SocketClosing(CloseCode.NORMAL_CLOSURE)
        else:
            unknown = "This message type is not known."
            raise RequestError(ErrorCode.UNKNOWN_MESSAGE, unknown, param="type")

    def _hold(self, text: str) -> None:
        """Hold a message until all sentences have been spoken; a close does not wait."""
        if peek(text, "type") == "session.close":
            raise SocketClosing(CloseCode.NORMAL_CLOSURE)
        if len(self._held) >= _MAX_HELD:
            error = _invalid("Too many messages wait for a session.config.")
            self.give_up(error, CloseCode.POLICY_VIOLATION)
        self._held.append(text)

    def _take(self, text: object) -> None:
        if not isinstance(text, str):
            raise invalid_field("text", text, "a string")
        limit = self.runtime.settings.max_text_chars
        if self._chars + len(text) > limit:
            message = f"A flush takes {limit} characters at most; this text was not added."
            raise RequestError(ErrorCode.TEXT_TOO_LONG, message, param="text")
        self._chars += len(text)
        assert self._session is not None
        if self._session.config.split_granularity == "none":
            self._text += text
            return
        for sentence in self._segmenter.push(text):
            self._speak(sentence)

    def _flush(self) -> None:
        whole, self._text = self._text.strip(), ""
        for sentence in [whole] if whole else self._segmenter.flush():
            self._speak(sentence)
        self._speaker.end_flush(self._flush_index, self._sentences)
        self._flush_index += 1
        self._sentences = self._chars = 0
        self._segmenter = self._new_segmenter()

    def _speak(self, text: str) -> None:
        assert self._session is not None
        text = replace_surrogates(text)  # the client gets it back
        sentence = _Sentence(self._flush_index, self._sentences, text, self._session)
        self._sentences += 1
        self._speaker.speak(sentence)

    def _new_segmenter(self) -> MarkedSegmenter:
        talker = self.runtime.engines.talker
        chars = max_segment_chars(self.runtime.settings, talker)
        return MarkedSegmenter(talker.spec.rendering.reader(), SegmentSettings(chars))

    def _go_on(self) -> None:
        """Handle the held messages, up to the next one that must wait."""
        held, self._held = self._held, []
        for text in held:
            self.on_text(text)


def _parsed(text: str) -> dict[str, Any]:
    message = parse_json(text)
    if not isinstance(message, dict):
        raise _invalid("A message is an object.")
    return message


def _invalid(message: str, param: str | None = None) -> RequestError:
    return RequestError(ErrorCode.INVALID_MESSAGE, message, param=param)


def vllm_omni_router(runtime: Runtime) -> GuardedRouter:
    """Create the route of this dialect."""
    router = GuardedRouter(Rule(Scope.SPEAK, TABLE))

    @router.websocket("/v1/audio/speech/stream")
    async def stream(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, _StreamDialect, TABLE)

    return router
