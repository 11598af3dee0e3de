"""One connection of Wyoming: its events, and its texts, which are spoken one after another."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Coroutine
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from service.audio.formats import AudioFormat
from service.auth.caller import current_caller, serve_caller
from service.auth.keys import Scope
from service.contexts.options import SpeechOptions, chosen_language
from service.contexts.speech_context import Audio, SpeechContext
from service.dialects.voice_lists import VoiceListBody, list_voices
from service.dialects.wyoming.events import Event, EventReader, encode_event
from service.errors import (
    ErrorTable,
    Model,
    idle_timeout,
    slow_consumer,
    too_many_contexts,
    validation_error,
)
from service.runtime import Runtime
from service.transport.http_response import (
    OutputQueue,
    open_response,
    plan_response,
    send_patience_s,
)
from streaming.errors import (
    CapacityError,
    ErrorCode,
    RequestError,
    TalkwireError,
    internal_error,
)
from streaming.events import Done
from streaming.protocol.field_errors import unsupported
from text.languages import language_code

#: Audio in one event, a multiple of the sample size: half a second at 24 kHz.
_PIECE_BYTES = 24 * 1024
#: Bytes per sample.
_WIDTH = 2
#: Seconds in which a client may read an error while what it still sends is thrown away: a socket
#: that is closed with unread bytes drops those that it has not delivered.
_LINGER_S = 2.0
_LINGER_BYTES = 64 * 1024


def _body(error: TalkwireError, _: str) -> dict[str, Any]:
    return {"text": TABLE.message(error), "code": error.code.value}


TABLE = ErrorTable("wyoming", _body, fields={"voice": "voice.name", "language": "voice.language"})


class _Voice(BaseModel):
    name: str | None = None
    language: str | None = None
    speaker: str | None = None


class _Start(BaseModel):
    voice: _Voice | None = None
    text_format: Literal["text", "ssml"] | None = None


class _Text(BaseModel):
    text: str


class _Synthesize(_Start, _Text):
    pass


class _Ping(BaseModel):
    text: str | None = None


class _Utterance:
    """A text to speak, which may wait for others, and whose end may not have come."""

    def __init__(self, request: _Start, max_chars: int, *, is_streamed: bool) -> None:
        self.request, self.is_streamed = request, is_streamed
        self._max_chars = max_chars
        #: Text that came before the context.
        self._waiting: list[str] = []
        self._waiting_chars = 0
        self._has_ended = False
        self._context: SpeechContext | None = None

    def append(self, text: str) -> None:
        """Add text. Raises RequestError, CapacityError."""
        if self._context is not None:
            self._context.append(text)
            return
        self._waiting_chars += len(text)
        if self._waiting_chars > self._max_chars:
            message = f"A text may have {self._max_chars} characters at most."
            raise RequestError(ErrorCode.TEXT_TOO_LONG, message, param="text")
        if text:
            self._waiting.append(text)

    def end(self) -> None:
        """End the text. Raises RequestError."""
        self._has_ended = True
        if self._context is not None:
            self._context.end()

    def speak(self, context: SpeechContext) -> None:
        """Speak in ``context`` what has come, and what is still to come. Raises RequestError,
        CapacityError.
        """
        for text in self._waiting:
            context.append(text)
        self._waiting, self._context = [], context
        if self._has_ended:
            context.end()


class Connection:
    """Serves one client until it disconnects, or until an error, which it is told: Home Assistant
    waits for the end of speech or of the connection, and takes no notice of errors.
    """

    def __init__(
        self,
        runtime: Runtime,
        info: VoiceListBody[Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        settings = runtime.settings
        self._runtime, self._info = runtime, info
        self._reader, self._writer = reader, writer
        self._events = EventReader(reader, settings.max_message_bytes, settings.handshake_s)
        #: Of the contexts.
        self._tasks: asyncio.TaskGroup
        #: Texts to speak; at most ``max_contexts_per_session`` with the one that is spoken.
        self._utterances: asyncio.Queue[_Utterance] = asyncio.Queue()
        self._open = 0
        #: Set while there is no text to speak.
        self._idle = asyncio.Event()
        self._idle.set()
        #: Monotonic time of the last end of speech.
        self._spoke_at = time.monotonic()
        #: The text that the client is sending in pieces, if any.
        self._streamed: _Utterance | None = None
        #: Why the connection ends, unless the client has left.
        self._fault: TalkwireError | None = None
        self._is_stuck = False
        #: Identifies the last text, or the connection, in the logs.
        self._request_id = uuid.uuid4().hex

    async def serve(self) -> None:
        """Serve the client."""
        try:
            await self._guard(self._admit())
            if self._fault is not None:
                await self._close()
                return
            with self._runtime.lifecycle.connection():  # until all is delivered
                self._runtime.metrics.opened.inc()
                await self._guard(self._work())
                await self._close()
        finally:
            self._writer.transport.abort()

    async def _admit(self) -> None:
        """Raise RequestError or CapacityError unless there is room for the client."""
        runtime = self._runtime
        address = (self._writer.get_extra_info("peername") or ("unknown",))[0]
        serve_caller(runtime.authority.admit(None, Scope.SPEAK, str(address)))
        if runtime.lifecycle.connections >= runtime.lifecycle.max_connections:
            raise CapacityError(ErrorCode.OVERLOADED, "The server has no connection to spare.")
        if runtime.lifecycle.is_draining:
            runtime.lifecycle.require_ready()

    async def _work(self) -> None:
        """Read and speak until one of them ends."""
        async with asyncio.TaskGroup() as self._tasks:
            working = [
                self._tasks.create_task(self._guard(work))
                for work in (self._read(), self._speak_all(), self._leave())
            ]
            try:
                await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in working:
                    task.cancel()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of the connection, and note why it failed, if it did."""
        try:
            await work
        except TalkwireError as error:
            self._fail(error)
        except OSError:
            self._is_stuck = True  # the client has gone
        except Exception as bug:
            self._fail(internal_error(bug))

    def _fail(self, error: TalkwireError) -> None:
        if self._fault is None:
            self._fault = error
            self._runtime.errors.count(error, self._request_id, TABLE.dialect)

    # -- reading

    async def _read(self) -> None:
        settings = self._runtime.settings
        limit_s = settings.handshake_s
        while True:
            try:
                event = await self._events.read(limit_s)
            except TimeoutError:
                if self._streamed is not None:
                    raise idle_timeout("context") from None
                if self._idle.is_set() and time.monotonic() - self._spoke_at >= limit_s:
                    raise idle_timeout("connection") from None
                continue
            if event is None:
                return
            await self._handle(event)
            is_typing = self._streamed is not None
            limit_s = settings.context_idle_s if is_typing else settings.session_idle_s
            await asyncio.sleep(0)  # a flood of events is read without waiting

    async def _handle(self, event: Event) -> None:
        match event.type:
            case "describe":
                await self._runtime.lifecycle.hold_until_ready()
                self._runtime.lifecycle.require_ready(or_restarting=True)
                info = await self._info.response()
                await self._send("info", bytes(info.body))
            case "ping":
                await self._send("pong", to_json({"text": _parsed(_Ping, event).text}))
            case "synthesize" if self._streamed is None:
                request = _parsed(_Synthesize, event)
                utterance = self._add(request, is_streamed=False)
                utterance.append(request.text)
                utterance.end()
            case "synthesize":
                pass  # the text that is sent in pieces, for servers that need it whole
            case "synthesize-start":
                if self._streamed is not None:
                    message = "A text is being sent; end it with synthesize-stop."
                    raise RequestError(ErrorCode.CONTEXT_EXISTS, message)
                self._streamed = self._add(_parsed(_Start, event), is_streamed=True)
            case "synthesize-chunk":
                self._being_sent().append(_parsed(_Text, event).text)
            case "synthesize-stop":
                self._being_sent().end()
                self._streamed = None
            case _:
                pass  # servers drop events that they do not know

    def _being_sent(self) -> _Utterance:
        if self._streamed is None:
            message = "No text is being sent; begin with synthesize-start."
            raise RequestError(ErrorCode.UNKNOWN_CONTEXT, message)
        return self._streamed

    def _add(self, request: _Start, *, is_streamed: bool) -> _Utterance:
        settings = self._runtime.settings
        if self._open >= settings.max_contexts_per_session:
            raise too_many_contexts(settings.max_contexts_per_session)
        self._open += 1
        self._idle.clear()
        utterance = _Utterance(request, settings.max_text_chars, is_streamed=is_streamed)
        self._utterances.put_nowait(utterance)
        return utterance

    async def _leave(self) -> None:
        """Return in a drain, when everything is spoken."""
        await self._runtime.lifecycle.draining.wait()
        await self._idle.wait()

    # -- speaking

    async def _speak_all(self) -> None:
        while True:
            await self._speak(await self._utterances.get())
            self._open -= 1
            self._spoke_at = time.monotonic()
            if not self._open:
                self._idle.set()

    async def _speak(self, utterance: _Utterance) -> None:
        runtime = self._runtime
        self._request_id = uuid.uuid4().hex
        await runtime.lifecycle.hold_until_ready()
        options = self._options(utterance.request)
        plan = plan_response(runtime, TABLE.dialect, self._request_id, options)
        lease = runtime.admission.acquire(current_caller(), plan.options.format.speed)
        context, outputs = open_response(runtime, self._tasks, plan, lease)
        try:
            utterance.speak(context)
            await self._write(utterance, context, outputs, plan.encoder.sample_rate)
        finally:
            context.close()

    def _options(self, request: _Start) -> SpeechOptions:
        """Return what a client wants. Raises RequestError, CapacityError."""
        voice = request.voice or _Voice()
        if voice.speaker:
            raise unsupported("voice.speaker", "The voices of this server have no speakers.")
        name, language = voice.name or None, None
        if name is None:
            language = chosen_language(self._runtime, {"voice.language": voice.language})
            if voice.language and language is None:  # the model follows the text, and has speakers
                name = self._speaker_of(voice.language)
        format_ = AudioFormat("pcm_s16le")
        return SpeechOptions(format=format_, voice=name, language=language, may_be_silent=True)

    def _speaker_of(self, language: str) -> str | None:
        """Return the first voice of a language, if any."""
        code = language_code(language)
        voices = list_voices(self._runtime.voices)
        known = (voice for voice in voices if voice.language is not None)
        return next((v.name for v in known if language_code(v.language or "") == code), None)

    async def _write(
        self, utterance: _Utterance, context: SpeechContext, outputs: OutputQueue, rate: int
    ) -> None:
        """Send speech. Raises TalkwireError, also after a part of it."""
        samples = 0

        async def send(type_: str, payload: bytes = b"", *, has_format: bool = True) -> None:
            data = {"rate": rate, "width": _WIDTH, "channels": 1} if has_format else {}
            body = to_json({**data, "timestamp": 1000 * samples // rate})
            await self._send(type_, body, payload, context.unplayed_s(time.monotonic()))

        has_begun = False
        while not isinstance(output := await outputs.get(), Done):
            if not isinstance(output, Audio):
                continue
            data = output.data
            for at in range(0, len(data), _PIECE_BYTES):
                if not has_begun:
                    has_begun = True
                    await send("audio-start")
                piece = data[at : at + _PIECE_BYTES]
                await send("audio-chunk", piece)
                samples += len(piece) // _WIDTH
        if output.error is not None:
            raise output.error
        if not has_begun and not utterance.is_streamed:
            has_begun = True
            await send("audio-start")  # clients wait for the end of audio
        if has_begun:
            await send("audio-stop", has_format=False)
        if utterance.is_streamed:
            await self._send("synthesize-stopped")

    async def _send(
        self, type_: str, data: bytes = b"", payload: bytes = b"", unplayed_s: float = 0.0
    ) -> None:
        """Send an event. Raises CapacityError (``slow_consumer``) if the client reads nothing."""
        self._writer.write(encode_event(type_, data, payload))
        try:
            async with asyncio.timeout(send_patience_s(self._runtime, unplayed_s)):
                await self._writer.drain()
        except TimeoutError:
            self._is_stuck = True
            raise slow_consumer() from None

    async def _close(self) -> None:
        """Tell the client why the connection ends, if the server ends it, and close it."""
        if self._is_stuck:
            return
        with contextlib.suppress(OSError, RuntimeError):
            if (error := self._fault) is not None:
                body = to_json(TABLE.body(error, self._request_id))
                self._writer.write(encode_event("error", body))
                self._writer.write_eof()
                async with asyncio.timeout(_LINGER_S):
                    while await self._reader.read(_LINGER_BYTES):
                        pass
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()
            async with asyncio.timeout(self._runtime.settings.slow_consumer_s):
                await self._writer.wait_closed()


def _parsed(model: type[Model], event: Event) -> Model:
    """Return an event's data. Raises RequestError that names the field at fault."""
    try:
        return model.model_validate(event.data)
    except ValidationError as error:
        raise validation_error(error.errors(), rooted=False) from error
