"""The native protocol, ``talkwire.tts.v1`` (docs/reference/protocol.md).

One socket carries many contexts: JSON messages for control, binary messages for audio.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from fastapi import WebSocket
from msgspec import UNSET
from websockets.frames import CloseCode

from service.access.rules import GuardedRouter, Rule
from service.audio.encoder import AudioEncoder
from service.audio.factory import SAMPLE_RATES, make_stream_encoder
from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.contexts.options import continuity, plan_speech
from service.contexts.speech_context import (
    Audio,
    Message,
    Output,
    Revocable,
    SpeechContext,
    Started,
    Words,
)
from service.dialects.errors import (
    UNAVAILABLE,
    ErrorTable,
    count_error,
    idle_timeout,
    refusal,
    too_many_contexts,
)
from service.runtime import Runtime
from service.transport.websocket import Dialect, Socket, SocketClosing, serve_socket
from service.voices.cloning import Prepare
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import Cancelled, Done, Flushed
from streaming.protocol import messages as wire
from streaming.protocol.binary import (
    AudioFlags,
    AudioHeader,
    encode_message,
    parse_client_message,
    parse_context_id,
)
from streaming.protocol.field_errors import invalid_parameter, unsupported
from streaming.protocol.messages import ContextCreate
from streaming.report import ContextReport
from streaming.spec import Encoding
from streaming.word_timing import WordTiming

NAME = "native"


def _body(error: TalkwireError, _: str) -> dict[str, Any]:
    body = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    return {"error": body}


#: For handshakes, and for the service's own HTTP routes.
TABLE = ErrorTable(NAME, _body, statuses={ErrorCode.OVERLOADED: UNAVAILABLE})
#: The framing of audio; see wire.SessionConfigure.
Framing = Literal["header", "raw", "json"]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def _clips(create: ContextCreate) -> list[wire.ReferenceOptions]:
    """Return all reference clips of a context."""
    return [*filter(None, [create.reference]), *(create.references or ())]


def make_context_encoder(audio: wire.AudioOptions, codec_rate: int) -> AudioEncoder:
    """Create the encoder for ``audio``. Raises RequestError (``unsupported``)."""
    try:
        return make_stream_encoder(
            audio.encoding,
            codec_rate,
            audio.sample_rate,
            audio.frame_ms,
            bit_rate=audio.bitrate,
            speed=audio.speed,
            fade_in_ms=audio.fade_in_ms,
        )
    except RequestError as error:
        raise RequestError(error.code, error.message, param=f"audio.{error.param}") from error


#: The ends of words are rounded to 0.1 ms, and the audio of each utterance to whole samples.
_ROUNDING_MS = 0.3


class NativeRenderer:
    """See Renderer. ``render_error`` makes the message for an error of the context."""

    def __init__(
        self,
        create: ContextCreate,
        handle: int,
        framing: Framing,
        render_error: Callable[[TalkwireError, str], str],
    ) -> None:
        self._id, self._encoding = create.context_id, create.audio.encoding
        self._handle, self._framing, self._render_error = handle, framing, render_error
        self._sequence = self._offset = 0
        #: Whether the next message follows an underrun. The encoder may hold its audio back.
        self._is_late = False
        self._rate = 1
        #: Words that have not been told, each with its end in milliseconds of decoded audio.
        self._untold: deque[tuple[WordTiming, float]] = deque()

    def render(self, output: Output) -> Sequence[Message]:
        """See Renderer."""
        match output:
            case Started(sample_rate, delay_samples):
                self._rate = sample_rate
                started = wire.AudioStarted(self._id, self._encoding, sample_rate, delay_samples)
                return [encode_message(started)]
            case Audio():
                return [*self._audio(output), *self._words(output.words)]
            case Words():
                return self._words(output)
            case Flushed(flush_id):
                # a cancel that revokes the audio before a flush revokes its report too
                told = Revocable(encode_message(wire.FlushDone(self._id, flush_id)))
                return [*self._rest(), told]
            case Cancelled(generated_s, sent_s, played_s, spoken, remaining, report):
                made, sent, played = (round(1000 * s, 1) for s in (generated_s, sent_s, played_s))
                last = wire.ContextCancelled(self._id, made, sent, played, spoken, remaining)
                return [encode_message(last), self._metrics(report)]
            case Done(reason, report, error):
                first = self._rest() if error is None else [self._render_error(error, self._id)]
                done = encode_message(wire.ContextDone(self._id, reason))
                return [*first, self._metrics(report), done]

    def _audio(self, audio: Audio) -> Iterator[Revocable]:
        self._is_late |= audio.late
        for number, packet in enumerate(audio.packets):
            flags = AudioFlags.DISCONTINUITY if self._is_late else AudioFlags.NONE
            self._is_late = False
            if audio.is_last and number == len(audio.packets) - 1:
                flags |= AudioFlags.LAST
            if not self._sequence:
                flags |= AudioFlags.FIRST
            header = AudioHeader(self._handle, self._sequence, self._offset, flags)
            yield Revocable(self._framed(header, packet.data), packet.samples)
            self._sequence += 1
            self._offset += packet.samples

    def _framed(self, header: AudioHeader, data: bytes) -> str | bytes:
        match self._framing:
            case "header":
                return header.pack() + data
            case "raw":
                return data
            case "json":
                wrapped = AudioHeader.unpack(header.pack())  # counters wrap as in the header
                return encode_message(wire.Audio(self._id, *wrapped, audio=data))

    def _words(self, words: Words) -> list[Message]:
        """Tell the words that end in the audio so far. The encoder may hold others' audio back."""
        self._untold += [(word, word.end_ms + words.delay_ms) for word in words.timings]
        sent_ms = 1000 * self._offset / self._rate + _ROUNDING_MS
        ready: list[WordTiming] = []
        while self._untold and self._untold[0][1] <= sent_ms:
            ready.append(self._untold.popleft()[0])
        return self._timestamps(ready)

    def _rest(self) -> list[Message]:
        """Tell all remaining words, since their audio was sent."""
        words = [word for word, _ in self._untold]
        self._untold.clear()
        return self._timestamps(words)

    def _timestamps(self, words: list[WordTiming]) -> list[Message]:
        if not words:
            return []
        told = [wire.Word(w.text, w.start, w.end, w.start_ms, w.end_ms) for w in words]
        return [Revocable(encode_message(wire.Timestamps(self._id, told)))]

    def _metrics(self, report: ContextReport) -> str:
        return encode_message(
            wire.Metrics(
                self._id,
                queue_ms=_milliseconds(report.queue_s),
                ttfa_ms=_milliseconds(report.ttfa_s),
                leading_silence_ms=_milliseconds(report.leading_silence_s),
                audio_ms=round(1000 * report.audio_s, 1),
                rtf=None if report.rtf is None else round(report.rtf, 4),
                underrun_ms=round(1000 * report.underrun_s, 1),
            )
        )


_REMEMBERED_CLOSED = 256


class NativeDialect(Dialect):
    """See Dialect. An error of a context never closes the socket."""

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        #: By id, contexts that are open or have more to send.
        self._contexts: dict[str, SpeechContext] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        #: The framing of new contexts.
        self._framing: Framing = "header"

    def open(self) -> None:
        """Send the server's features and limits."""
        runtime, settings = self.runtime, self.runtime.settings
        rate = runtime.codec.spec.sample_rate
        mine = runtime.accounts.limits(current_caller())
        limits = wire.Limits(
            max_contexts=settings.max_contexts_per_session,
            max_text_chars=settings.max_text_chars,
            max_message_bytes=settings.max_message_bytes,
            max_lead_ms=settings.max_lead_ms,
            context_idle_s=settings.context_idle_s,
            session_idle_s=settings.session_idle_s,
            max_session_s=settings.max_session_s,
            key_contexts=mine.contexts(runtime.admission.capacity),
            key_connections=mine.max_connections,
            characters_per_minute=mine.characters_per_minute,
        )
        self._say(
            wire.SessionCreated(
                self.socket.session_id,
                wire.SUBPROTOCOL,
                model=settings.model_name,
                voices=list(runtime.voices),
                sample_rate=rate,
                encodings=[encoding.value for encoding in Encoding],
                limits=limits,
                sample_rates=sorted({*SAMPLE_RATES, rate}),
                word_timings=runtime.talker.has_word_timings,
                continuity=continuity(runtime),
            )
        )

    def on_text(self, text: str) -> None:
        """Handle a message. Errors are sent to the client, and are never fatal."""
        context_id: str | None = None
        try:
            message = parse_client_message(text)
            context_id = getattr(message, "context_id", None)
            self._dispatch(message)
        except TalkwireError as error:
            self.socket.send(self.render_error(error, context_id or parse_context_id(text)))

    def on_tick(self, now: float) -> None:
        """Fail contexts, or close the socket, after too long an idle time."""
        settings = self.runtime.settings
        for context in self.socket.contexts:
            if context.idle_s(now) > settings.context_idle_s:
                context.fail(idle_timeout("context"))
        if self.socket.idle_s(now) > settings.session_idle_s:
            self.give_up(idle_timeout("socket"), CloseCode.GOING_AWAY)

    def on_drain(self, deadline_ms: int) -> None:
        """Announce the drain, so that the client opens its next context elsewhere."""
        self._say(wire.GoingAway(deadline_ms))

    def on_leave(self) -> None:
        """Fail the open contexts. A cancel would make clients drop audio that is not heard yet."""
        message = "The socket closes; open a context on another one for more text."
        for context in self.socket.contexts:
            context.fail(CapacityError(ErrorCode.DRAINING, message))

    def render_error(
        self, error: TalkwireError, context_id: str | None = None, request_id: str | None = None
    ) -> str:
        """Return an ``error`` message, with a request id that is also in the logs: that of the
        context if it ended by the error.
        """
        request_id = request_id or uuid.uuid4().hex
        count_error(self.runtime, error, request_id, NAME)
        param, retry_ms = error.param, error.retry_after_ms
        return encode_message(
            wire.Error(
                error.code,
                TABLE.message(error),
                request_id,
                retryable=error.retryable,
                param=UNSET if param is None else param,
                context_id=UNSET if context_id is None else context_id,
                retry_after_ms=UNSET if retry_ms is None else retry_ms,
            )
        )

    def _say(self, message: wire.ServerMessage) -> None:
        self.socket.send(encode_message(message))

    def _dispatch(self, message: wire.ClientMessage) -> None:
        match message:
            case wire.ContextCreate(context_id):
                handle = self._open(message)
                texts = (clip.text for clip in _clips(message))
                warning = self.runtime.cloner.text_warning(texts)
                self._say(wire.ContextCreated(context_id, handle, warning))
            case wire.TextAppend(context_id, text):
                self._find(context_id).append(text)
            case wire.ContextFlush(context_id, flush_id):
                self._find(context_id).flush(flush_id)
            case wire.ContextEnd(context_id):
                self._find(context_id).end()
            case wire.ContextCancel(context_id, played_ms):
                self._find(context_id, or_encoding=True).cancel(played_ms)
            case wire.Playback(context_id, played_samples):
                self._find(context_id).on_played(played_samples)
            case wire.SessionConfigure(framing):
                if self._contexts:
                    wrong = "A session is configured while no context is open."
                    raise RequestError(ErrorCode.INVALID_MESSAGE, wrong)
                self._framing = framing
            case wire.Ping(id):
                self._say(wire.Pong(id))
            case wire.SessionClose():
                raise SocketClosing(CloseCode.NORMAL_CLOSURE)

    def _find(self, context_id: str, *, or_encoding: bool = False) -> SpeechContext:
        """Return an open context; with ``or_encoding``, also one that is spoken, but whose audio is
        still in the encoder. Raises RequestError.
        """
        context = self._contexts.get(context_id)
        if context is not None and (or_encoding or not context.is_closed):
            return context
        if context is not None or context_id in self._closed:
            raise RequestError(ErrorCode.CONTEXT_CLOSED, "The context is closed.")
        message = "There is no context of this id."
        raise RequestError(ErrorCode.UNKNOWN_CONTEXT, message, param="context_id")

    def _open(self, create: ContextCreate) -> int:
        """Open a context, and return its handle for binary headers. Raises RequestError,
        CapacityError, BackendError, without changing anything.
        """
        runtime = self.runtime
        limit = 1 if self._framing == "raw" else runtime.settings.max_contexts_per_session
        if create.context_id in self._contexts:
            message = "This context is open already; it goes on undisturbed."
            raise RequestError(ErrorCode.CONTEXT_EXISTS, message, param="context_id")
        if self.socket.is_leaving:
            message = "This socket is about to close; open new contexts on another one."
            raise CapacityError(ErrorCode.DRAINING, message)
        if len(self._contexts) >= limit:
            raise too_many_contexts(limit)
        if create.timestamps and not runtime.talker.has_word_timings:
            raise unsupported("timestamps", "This model has no word timings.")
        runtime.require_slot()
        context_id, handle = create.context_id, self.socket.new_handle()
        encoder = make_context_encoder(create.audio, runtime.codec.spec.sample_rate)
        request_id, prepare = f"{self.socket.session_id}-{handle}", self._clone(create)
        plan = plan_speech(
            runtime, NAME, request_id, create, encoder, prepare=prepare, is_lenient=False
        )
        told = partial(self.render_error, request_id=request_id)
        renderer = NativeRenderer(create, handle, self._framing, told)
        closed = partial(self._on_closed, context_id)
        self._contexts[context_id] = self.socket.open_context(plan, handle, renderer, closed)
        self._closed.pop(context_id, None)
        return handle

    def _clone(self, create: ContextCreate) -> Prepare | None:
        """Return a function that makes the context's references, if any."""
        clips, cloner = _clips(create), self.runtime.cloner
        if not clips:
            return None
        field = "reference" if create.references is None else "references"
        given = (create.voice, create.reference, create.references)
        if sum(one is not None for one in given) > 1:
            raise invalid_parameter(field, "Give a voice, a reference or references, one of them.")
        if create.references is None:
            return cloner.prepare(clips[0].audio, clips[0].text, "reference.audio")
        cloner.require_count(len(clips), field)
        named = [(f"references.{at}.audio", clip) for at, clip in enumerate(clips)]
        return cloner.prepare_together([cloner.prepare(c.audio, c.text, name) for name, c in named])

    def _on_closed(self, context_id: str) -> None:
        del self._contexts[context_id]
        self._closed[context_id] = None
        while len(self._closed) > _REMEMBERED_CLOSED:
            self._closed.popitem(last=False)


def native_router(runtime: Runtime) -> GuardedRouter:
    """Create the route ``WS /v1/tts/stream``."""
    router = GuardedRouter(Rule(Scope.SPEAK, TABLE))

    @router.websocket("/v1/tts/stream")
    async def stream(websocket: WebSocket) -> None:
        """The native protocol (docs/reference/protocol.md)."""
        offered = websocket.scope.get("subprotocols", [])
        if offered and wire.SUBPROTOCOL not in offered:
            message = f"Offer the subprotocol {wire.SUBPROTOCOL}."
            error = RequestError(ErrorCode.UNSUPPORTED, message)
            await websocket.send_denial_response(refusal(runtime, error, TABLE))
            return
        subprotocol = wire.SUBPROTOCOL if offered else None
        await serve_socket(websocket, runtime, NativeDialect, TABLE, subprotocol)

    return router
