"""The native protocol, ``talkwire.tts.v1`` (docs/reference/protocol.md).

One socket carries many contexts: JSON messages for control, binary messages for audio.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from fastapi import WebSocket
from msgspec import UNSET
from msgspec.structs import asdict
from websockets.frames import CloseCode

from service.access.rules import GuardedRouter, Rule
from service.audio.formats import SAMPLE_RATES, AudioFormat
from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.contexts.options import SpeechOptions, continuity, text_modes
from service.contexts.socket_output import Message, Renderer, Revocable
from service.contexts.speech_context import Audio, Output, SpeechContext, Started, Words
from service.errors import (
    NATIVE_TABLE,
    too_many_contexts,
)
from service.runtime import Runtime
from service.transport.websocket import (
    Dialect,
    Idle,
    Socket,
    SocketClosing,
    serve_socket,
)
from service.voices.cloning import Prepare
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import Cancelled, Done, Flushed, Warned
from streaming.lru_cache import LruCache
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


#: Most names of voices in ``session.created``.
_LISTED_VOICES = 100
#: The framing of audio; see wire.SessionConfigure.
Framing = Literal["header", "raw", "json"]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def _clips(create: ContextCreate) -> list[wire.ReferenceOptions]:
    """Return all reference clips of a context."""
    return [*filter(None, [create.reference]), *(create.references or ())]


def audio_format(audio: wire.AudioOptions, codec_rate: int) -> AudioFormat:
    """Return the format of ``audio``. Raises RequestError (``unsupported``)."""
    format_ = AudioFormat(
        audio.encoding,
        audio.sample_rate,
        audio.frame_ms,
        audio.bitrate,
        audio.speed,
        audio.fade_in_ms,
    )
    try:
        format_.output_rate(codec_rate)
    except RequestError as error:
        raise RequestError(error.code, error.message, param=f"audio.{error.param}") from error
    return format_


#: The ends of words are rounded to 0.1 ms, and the audio of each utterance to whole samples.
_ROUNDING_MS = 0.3


class NativeRenderer(Renderer):
    """See Renderer. ``render_error`` makes the message for an error of the context, from the error,
    the context's id, and its id in the logs.
    """

    def __init__(
        self,
        create: ContextCreate,
        framing: Framing,
        render_error: Callable[[TalkwireError, str, str], str],
    ) -> None:
        self._id, self._encoding = create.context_id, create.audio.encoding
        self._framing, self._render_error = framing, render_error
        #: Identifies the context in binary headers.
        self.handle = 0
        self._request_id = ""
        self._sequence = self._offset = 0
        #: Whether the next message follows an underrun. The encoder may hold its audio back.
        self._is_late = False
        self._rate = 1
        #: Words that have not been told, each with its end in milliseconds of decoded audio.
        self._untold: deque[tuple[WordTiming, float]] = deque()

    def opened(self, handle: int, request_id: str) -> None:
        """See Renderer."""
        self.handle, self._request_id = handle, request_id

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
            case Warned(kind, message):
                return [encode_message(wire.ContextWarning(self._id, kind, message))]
            case Cancelled(generated_s, sent_s, played_s, spoken, remaining, report):
                made, sent, played = (round(1000 * s, 1) for s in (generated_s, sent_s, played_s))
                last = wire.ContextCancelled(self._id, made, sent, played, spoken, remaining)
                return [encode_message(last), self._metrics(report)]
            case Done(reason, report, error):
                first: list[Message] = (
                    self._rest()
                    if error is None
                    else [self._render_error(error, self._id, self._request_id)]
                )
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
            header = AudioHeader(self.handle, self._sequence, self._offset, flags)
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

    idle = Idle("fail")

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        #: By id, contexts that are open or have more to send.
        self._contexts: dict[str, SpeechContext] = {}
        self._closed: LruCache[str, None] = LruCache(_REMEMBERED_CLOSED)
        #: The framing of new contexts.
        self._framing: Framing = "header"

    def open(self) -> None:
        """Send the server's features and limits."""
        runtime, settings = self.runtime, self.runtime.settings
        rate, voices = runtime.engines.codec.spec.sample_rate, runtime.voices.names
        caller_limits = runtime.accounts.limits(current_caller())
        limits = wire.Limits(
            max_contexts=settings.max_contexts_per_session,
            max_text_chars=settings.max_text_chars,
            max_message_bytes=settings.max_message_bytes,
            max_lead_ms=settings.max_lead_ms,
            context_idle_s=settings.context_idle_s,
            session_idle_s=settings.session_idle_s,
            max_session_s=settings.max_session_s,
            key_contexts=caller_limits.contexts(runtime.admission.capacity),
            key_connections=caller_limits.max_connections,
            characters_per_minute=caller_limits.characters_per_minute,
        )
        self._say(
            wire.SessionCreated(
                self.socket.session_id,
                wire.SUBPROTOCOL,
                model=settings.model_name,
                voices=list(voices[:_LISTED_VOICES]),
                sample_rate=rate,
                encodings=[encoding.value for encoding in Encoding],
                limits=limits,
                sample_rates=sorted({*SAMPLE_RATES, rate}),
                word_timings=runtime.engines.talker.spec.has_word_timings,
                continuity=continuity(runtime.engines.talker),
                text_modes=list(text_modes(runtime.engines.talker.spec)),
                more_voices=max(0, len(voices) - _LISTED_VOICES),
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
        self.runtime.errors.count(error, request_id, NAME)
        param, retry_ms = error.param, error.retry_after_ms
        return encode_message(
            wire.Error(
                error.code,
                NATIVE_TABLE.message(error),
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
                warnings = (
                    self.runtime.voices.replacement_warning(message.voice),
                    self.runtime.voices.cloner.text_warning(texts),
                )
                warning = " ".join(filter(None, warnings)) or None
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
        if context is not None and (or_encoding or not context.driver.is_closed):
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
        if create.timestamps and not runtime.engines.talker.spec.has_word_timings:
            raise unsupported("timestamps", "This model has no word timings.")
        runtime.require_slot()  # before clips are decoded
        context_id = create.context_id
        options = SpeechOptions(
            format=audio_format(create.audio, runtime.engines.codec.spec.sample_rate),
            voice=create.voice,
            model=create.model,
            language=create.language,
            prepare=self._clone(create),
            sampling=create.sampling,
            max_frames=create.sampling.max_frames,
            mode=create.mode,
            chunking=create.chunking,
            max_lead_ms=create.max_lead_ms,
            continuity=create.continuity,
            text_mode=create.text_mode,
            scene=create.scene,
            instructions=create.instructions,
            pronunciations=runtime.pronunciations.resolve(
                create.pronunciations or (),
                current_caller().tenant,
                [asdict(rule) for rule in create.pronunciation_rules or ()],
            ),
            timestamps=create.timestamps,
            is_lenient=False,
            may_be_silent=True,
            only_symbols_silent=True,
        )
        renderer = NativeRenderer(create, self._framing, self.render_error)
        closed = partial(self._on_closed, context_id)
        self._contexts[context_id] = self.socket.speak(options, renderer, closed)
        self._closed.pop(context_id, None)
        return renderer.handle

    def _clone(self, create: ContextCreate) -> Prepare | None:
        """Return a function that makes the context's references, if any."""
        clips, cloner = _clips(create), self.runtime.voices.cloner
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


def native_router(runtime: Runtime) -> GuardedRouter:
    """Create the route ``WS /v1/tts/stream``."""
    router = GuardedRouter(Rule(Scope.SPEAK, NATIVE_TABLE))

    @router.websocket("/v1/tts/stream")
    async def stream(websocket: WebSocket) -> None:
        """The native protocol (docs/reference/protocol.md)."""
        offered = websocket.scope.get("subprotocols", [])
        if offered and wire.SUBPROTOCOL not in offered:
            message = f"Offer the subprotocol {wire.SUBPROTOCOL}."
            error = RequestError(ErrorCode.UNSUPPORTED, message)
            await websocket.send_denial_response(runtime.errors.refusal(error, NATIVE_TABLE))
            return
        subprotocol = wire.SUBPROTOCOL if offered else None
        await serve_socket(websocket, runtime, NativeDialect, NATIVE_TABLE, subprotocol)

    return router
