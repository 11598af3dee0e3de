"""The native protocol on one socket: many contexts, JSON for control, binary for audio."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TypeVar

from msgspec import UNSET, UnsetType

from service.audio.factory import SAMPLE_RATES
from service.auth.caller import current_caller
from service.context_settings import continuity
from service.outbox import Item, Outbox
from service.protocols.native_context import Framing
from service.protocols.native_contexts import NativeContexts
from service.runtime import Runtime
from service.socket import GOING_AWAY, NORMAL, SocketClosing
from streaming import wire
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import (
    Broke,
    CancelAsked,
    EndAsked,
    FlushAsked,
    PlaybackReported,
    TextAppended,
)
from streaming.spec import Encoding
from streaming.wire_format import encode_message, parse_client_message

log = logging.getLogger(__name__)

T = TypeVar("T")


def _or_unset(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


class NativeDialect:
    """See service.socket.Dialect. One error of one context never closes the socket."""

    def __init__(self, runtime: Runtime, outbox: Outbox, tasks: asyncio.TaskGroup) -> None:
        self._runtime, self._outbox = runtime, outbox
        self._session_id = uuid.uuid4().hex
        self._contexts = NativeContexts(runtime, outbox, tasks, self._session_id, self._tell)
        self._heard_at = time.monotonic()

    # -- the socket

    def open(self) -> None:
        """Say what this server is and allows."""
        runtime, settings = self._runtime, self._runtime.settings
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
                self._session_id,
                wire.SUBPROTOCOL,
                model=settings.model_name,
                voices=list(runtime.voices),
                sample_rate=runtime.codec.spec.sample_rate,
                encodings=[encoding.value for encoding in Encoding],
                limits=limits,
                sample_rates=sorted({*SAMPLE_RATES, runtime.codec.spec.sample_rate}),
                word_timings=runtime.talker.has_word_timings,
                continuity=continuity(runtime),
            )
        )

    def on_text(self, text: str) -> None:
        """Carry out one message; what is wrong with it is told, never fatal."""
        self._heard_at = time.monotonic()
        context_id: str | None = None
        try:
            message = parse_client_message(text)
            context_id = getattr(message, "context_id", None)
            self._dispatch(message)
        except TalkwireError as error:
            self._tell(error, context_id)

    def on_bytes(self, data: bytes) -> None:
        """Clients send no binary messages."""
        self._heard_at = time.monotonic()
        self._tell(
            RequestError(ErrorCode.INVALID_MESSAGE, "Clients send JSON text, not binary messages.")
        )

    def on_tick(self, now: float) -> None:
        """Close what has been idle for too long."""
        settings = self._runtime.settings
        for driver, _ in self._contexts:
            if driver.idle_s(now) > settings.context_idle_s:
                idle = CapacityError(ErrorCode.IDLE_TIMEOUT, "The context was idle for too long.")
                driver.post(Broke(idle))
        if not self._contexts and now - self._heard_at > settings.session_idle_s:
            self._tell(CapacityError(ErrorCode.IDLE_TIMEOUT, "The socket was idle for too long."))
            raise SocketClosing(GOING_AWAY)

    def on_drain(self, deadline_ms: int) -> None:
        """Tell the client to go elsewhere with its next context."""
        self._say(wire.GoingAway(deadline_ms))

    def is_settled(self, now: float) -> bool:
        """See Dialect."""
        return all(
            driver.is_settled(now) and context.is_settled for driver, context in self._contexts
        )

    def word(self, error: TalkwireError, context_id: str | None = None) -> str:
        """An ``error`` message; its request id finds it in the logs."""
        self._runtime.on_error(error.code)
        ids = {"request_id": uuid.uuid4().hex, "session_id": self._session_id}
        log.info("client error", extra={"code": error.code.value, **ids})
        return encode_message(
            wire.Error(
                error.code,
                error.message,
                ids["request_id"],
                retryable=error.retryable,
                param=_or_unset(error.param),
                context_id=_or_unset(context_id),
                retry_after_ms=_or_unset(error.retry_after_ms),
            )
        )

    def _tell(self, error: TalkwireError, context_id: str | None = None) -> None:
        self._outbox.put(Item(self.word(error, context_id)))

    def close(self) -> None:
        """Cancel every context without a word: nobody listens any more."""
        for driver, context in self._contexts:
            driver.post(CancelAsked(unsent_samples=context.revoke()))
            context.abandon()

    def _say(self, message: wire.ServerMessage) -> None:
        self._outbox.put(Item(encode_message(message)))

    # -- messages

    def _dispatch(self, message: wire.ClientMessage) -> None:
        match message:
            case wire.ContextCreate():
                handle = self._contexts.open(message)
                self._say(wire.ContextCreated(message.context_id, handle))
            case wire.TextAppend(context_id, text):
                self._contexts.find(context_id)[0].post(TextAppended(text))
            case wire.ContextFlush(context_id, flush_id):
                self._contexts.find(context_id)[0].post(FlushAsked(flush_id))
            case wire.ContextEnd(context_id):
                self._contexts.find(context_id)[0].post(EndAsked())
            case wire.ContextCancel(context_id, played_ms):
                self._cancel(context_id, played_ms)
            case wire.Playback(context_id, played_samples):
                driver, context = self._contexts.find(context_id)
                driver.post(PlaybackReported(context.codec_samples(played_samples)))
            case wire.SessionConfigure(framing):
                self._configure(framing)
            case wire.Ping(id):
                self._say(wire.Pong(id))
            case wire.SessionClose():
                raise SocketClosing(NORMAL)

    def _configure(self, framing: Framing) -> None:
        if self._contexts:
            raise RequestError(
                ErrorCode.INVALID_MESSAGE, "Configure the session before its first context."
            )
        self._contexts.framing = framing

    def _cancel(self, context_id: str, played_ms: float | None) -> None:
        driver, context = self._contexts.find(context_id)
        context.cancel_asked_at = time.monotonic()
        unsent = context.revoke()
        played = None if played_ms is None else context.codec_samples_of_ms(played_ms)
        driver.post(CancelAsked(played, unsent))
