"""ElevenLabs' text-to-dialogue sockets: contexts whose lines have voices."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field
from websockets.frames import CloseCode

from service.contexts.socket_output import Message
from service.contexts.speech_context import Audio, Output, Started
from service.dialects.elevenlabs.dialogue import MAX_LINES, MAX_VOICES, DialogueInput, known_voice
from service.dialects.elevenlabs.messages import (
    TABLE,
    CharTimes,
    ClientMessage,
    StreamRenderer,
    error_fields,
)
from service.dialects.elevenlabs.pronunciations import Locators
from service.dialects.elevenlabs.request import StreamOptions, VoiceSettings
from service.dialects.elevenlabs.streams import MAX_ALL, MultiStreamDialect, StreamContext
from service.errors import parse_message, too_many_contexts
from service.transport.websocket import Socket
from streaming.errors import RequestError, TalkwireError
from streaming.protocol.field_errors import invalid_field, listed, missing_field

#: Pipecat's service registers a context of this name, which never gets text.
_PIPECAT = "pipecat-keepalive"
#: The context of a socket that has only one.
_ONLY = "default"


class StreamInput(DialogueInput):
    """Text of a line. ``new_turn``: it begins a line, even if the voice is the last one."""

    new_turn: bool | None = None


class DialogueMessage(BaseModel):
    """Any message of a client; its fields determine its meaning."""

    context_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    voices: Annotated[list[str], Field(min_length=1, max_length=MAX_VOICES)] | None = None
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: Locators | None = None
    inputs: Annotated[list[StreamInput], Field(max_length=MAX_LINES)] = []
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    keep_alive: bool | None = None


@dataclass
class _Registration:
    """A context's voices: the client's names, and the talker's. It is opened by the first text."""

    voices: Mapping[str, str]
    first: ClientMessage
    heard_at: float = field(default_factory=time.monotonic)


class DialogueRenderer(StreamRenderer):
    """See StreamRenderer. Alignments count from the beginning of their message's audio or, with
    ``follows``, from the end of the last alignment, as Pipecat's service reads them: in ElevenLabs'
    messages, which all have one, both are the same.
    """

    def __init__(self, context_id: str | None, *, has_alignment: bool, follows: bool) -> None:
        super().__init__(context_id, sync=False)
        self._has_alignment, self._follows = has_alignment, follows
        self._sent_ms, self._rate = 0.0, 1

    def render(self, output: Output) -> Sequence[Message]:
        """See Renderer."""
        if isinstance(output, Started):
            self._rate = output.sample_rate
        messages = super().render(output)
        if isinstance(output, Audio):
            self._sent_ms += 1000 * output.samples / self._rate
        return messages

    def _message(
        self, audio: bytes, times: CharTimes | None, since_ms: int
    ) -> dict[str, Any] | None:
        message = super()._message(audio, None, since_ms) or {}
        if times is not None and self._has_alignment:
            found = times.relative(since_ms if self._follows else round(self._sent_ms))
            message["alignment"] = {
                "chars": found["chars"],
                "char_start_times_ms": found["charStartTimesMs"],
                "char_durations_ms": found["charDurationsMs"],
            }
        return message or None

    def flushed(self, flush_id: str) -> Sequence[Message]:
        """Tell that all audio before a flush was sent."""
        return [self._encoded({"is_final_audio_for_turn": True})]

    def _final(self) -> str:
        return self._encoded({"is_final": True})

    def _error(self, error: TalkwireError) -> str:
        return dialogue_error(error, self.context_id)

    def _encoded(self, message: dict[str, Any]) -> str:
        if self.context_id is not None:
            message["context_id"] = self.context_id
        return json.dumps(message, separators=(",", ":"))


def dialogue_error(error: TalkwireError, context_id: str | None) -> str:
    """Return a socket's message for an error."""
    message = error_fields(error)
    if (param := TABLE.field(error)) is not None:
        message["param"] = param
    return json.dumps(message if context_id is None else message | {"context_id": context_id})


class DialogueContext(StreamContext):
    """See StreamContext. Its inputs name their voices, of ``registration``."""

    def __init__(
        self,
        socket: Socket,
        options: StreamOptions,
        registration: _Registration,
        renderer: DialogueRenderer,
        closed: Callable[[], None],
        *,
        ends_unflushed: bool,
    ) -> None:
        super().__init__(socket, options, registration.first, renderer, closed)
        #: The client's names of voices, and the talker's.
        self.voices = registration.voices
        self._voice = next(iter(self.voices))
        self._ends_unflushed = ends_unflushed
        #: Whether the text so far ends with whitespace.
        self._is_apart = True

    def take_inputs(self, message: DialogueMessage) -> None:
        """Handle text and flush. Raises RequestError."""
        for number, one in enumerate(message.inputs, 1):
            if one.text and (one.new_turn or one.voice_id != self._voice):
                self._begin_line(one.voice_id)
            self._is_apart = one.text[-1].isspace() if one.text else self._is_apart
            is_last = number == len(message.inputs)
            self._say(one.text, flush=is_last and message.flush)
        if message.flush and not message.inputs:
            self._say(flush=True)

    def _say(self, text: str | None = None, *, flush: bool | None = None) -> None:
        self.take(ClientMessage(text=text, context_id=None, flush=flush))

    def _begin_line(self, voice: str) -> None:
        if self.speech.has_ended:
            return  # ``take`` refuses its text
        if not self._is_apart:  # words of two lines are not one
            self._say(" ")
        self._aligner.flush()
        self._voice = voice
        self.speech.change_voice(self.voices[voice])

    def finish(self) -> None:
        """Speak all text to its end, also what is not flushed, as ElevenLabs does, unless a close
        without a flush is the client's interruption.
        """
        if self._ends_unflushed:
            self.end()
        else:
            super().finish()


class DialogueStreamDialect(MultiStreamDialect):
    """``multi-stream-input``, or ``stream-input``, which has one context (not ``has_contexts``).

    Neither LiveKit's plugin nor Pipecat's service tells that a turn was interrupted whose text is
    complete; see MultiStreamDialect. Pipecat's flushes a turn before its close, unless it was
    interrupted.
    """

    def __init__(self, socket: Socket, options: StreamOptions, *, has_contexts: bool) -> None:
        super().__init__(socket, options)
        self._has_contexts = has_contexts
        #: Contexts without text, by id.
        self._registered: dict[str, _Registration] = {}
        self._is_pipecat = False

    def on_text(self, text: str) -> None:
        """Handle a message. After ``close_socket``, messages are ignored."""
        if self._is_closing:
            return
        try:
            message = parse_message(DialogueMessage, text)
            context_id = message.context_id if self._has_contexts else _ONLY
            if message.close_socket:
                self._close_all()
                return
            if context_id is None:
                raise missing_field("context_id")
        except RequestError as error:
            self.give_up(error)
        try:
            self._take(context_id, message)
        except TalkwireError as error:
            if not self._has_contexts:
                self.give_up(error)
            self._registered.pop(context_id, None)
            self._report(error, context_id)

    def _take(self, context_id: str, message: DialogueMessage) -> None:
        if message.voices is not None:
            self._register(context_id, message)
        registered, context = self._registered.get(context_id), self._contexts.get(context_id)
        voices = context.voices if isinstance(context, DialogueContext) else None
        if voices is None and registered is not None:
            registered.heard_at, voices = time.monotonic(), registered.voices
        for number, one in enumerate(message.inputs):
            if voices is None:
                raise missing_field("voices")
            if one.voice_id not in voices:
                allowed = f"one of the context's voices, {listed(voices)}"
                raise invalid_field(f"inputs.{number}.voice_id", one.voice_id, allowed)
        if registered is not None and any(one.text for one in message.inputs):
            context = self._open_registered(context_id, registered)
        if isinstance(context, DialogueContext):
            if message.inputs or message.flush:
                context.take_inputs(message)
            elif message.keep_alive:
                context.speech.touch()
        if message.close_context:
            self._close_one(context_id)

    def _register(self, context_id: str, message: DialogueMessage) -> None:
        assert message.voices is not None
        if context_id in self._registered or context_id in self._contexts:
            allowed = "only in the first message of a context"
            raise invalid_field("voices", message.voices, allowed)
        if len(self._registered) + len(self._contexts) >= MAX_ALL:
            raise too_many_contexts(MAX_ALL)
        voices = {
            name: known_voice(self.runtime, f"voices.{number}", name)
            for number, name in enumerate(message.voices)
        }
        first = ClientMessage(
            context_id=None,
            voice_settings=message.voice_settings,
            pronunciation_dictionary_locators=message.pronunciation_dictionary_locators,
        )
        self._registered[context_id] = _Registration(voices, first)
        if context_id == _PIPECAT:
            self._is_pipecat = self._tells_no_interruption = True

    def _open_registered(self, context_id: str, registered: _Registration) -> StreamContext:
        self._open(context_id, registered.first)
        del self._registered[context_id]
        return self._contexts[context_id]

    def _make(self, context_id: str, message: ClientMessage) -> None:
        self._require_room()
        registered = self._registered[context_id]
        speech = replace(self._options.speech, voice=next(iter(registered.voices)))
        self._contexts[context_id] = DialogueContext(
            self.socket,
            self._options._replace(speech=speech),
            registered,
            DialogueRenderer(
                context_id if self._has_contexts else None,
                has_alignment=self._options.sync_alignment,
                follows=self._is_pipecat,
            ),
            partial(self._on_closed, context_id),
            ends_unflushed=not self._is_pipecat,
        )

    def _close_one(self, context_id: str) -> None:
        if self._registered.pop(context_id, None) is not None:
            self.socket.send(self._final(context_id))
        elif (context := self._contexts.get(context_id)) is not None:
            self._close_context(context)
        else:
            self.socket.drop_audio(context_id)

    def _close_all(self) -> None:
        if not self._contexts:
            for context_id in self._registered or ([] if self._has_contexts else [_ONLY]):
                self.socket.send(self._final(context_id))
        self._registered.clear()
        self._close_socket()

    def _on_closed(self, context_id: str) -> None:
        context = self._contexts[context_id]
        super()._on_closed(context_id)
        if not self._has_contexts:
            failure = context.failure
            self.socket.finish(
                CloseCode.NORMAL_CLOSURE if failure is None else TABLE.close_code(failure)
            )

    def on_tick(self, now: float) -> None:
        """Also forget contexts without text."""
        for context_id, registered in list(self._registered.items()):
            if now - registered.heard_at > self._options.inactivity_s:
                self._close_one(context_id)
        super().on_tick(now)

    def render_error(self, error: TalkwireError, context_id: str | None = None) -> str:
        """Return an error message, about the socket if ``context_id`` is None."""
        self._count(error)
        return dialogue_error(error, context_id)

    def _final(self, context_id: str) -> str:
        told = {"is_final": True} | ({"context_id": context_id} if self._has_contexts else {})
        return json.dumps(told)
