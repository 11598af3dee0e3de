"""Cartesia's protocol on one socket: many contexts, JSON both ways."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import OrderedDict
from dataclasses import replace

from service.http_speech import count_error
from service.outbox import Item, Outbox
from service.protocols.cartesia_context import CartesiaContext
from service.protocols.cartesia_errors import error_message
from service.protocols.cartesia_messages import (
    AFRESH,
    Standing,
    context_of,
    done_message,
    flush_message,
    parse_message,
)
from service.protocols.cartesia_request import ContextRequest
from service.runtime import Runtime
from service.socket import GOING_AWAY, SocketClosing
from streaming.errors import ErrorCode, RequestError, TalkwireError

_REMEMBERED = 256


class CartesiaDialect:
    """See service.socket.Dialect. No error closes the socket, and one of a context ends that
    context alone.
    """

    def __init__(self, runtime: Runtime, outbox: Outbox, tasks: asyncio.TaskGroup) -> None:
        self._runtime, self._outbox, self._tasks = runtime, outbox, tasks
        self._session_id = uuid.uuid4().hex
        self._contexts: dict[str, CartesiaContext] = {}
        #: Of contexts that have expired: who goes on with one counts from there.
        self._expired: OrderedDict[str, Standing] = OrderedDict()
        self._handles = itertools.count()
        self._heard_at = time.monotonic()

    def open(self) -> None:
        """Nothing is said before the client does."""

    def on_text(self, text: str) -> None:
        """Carry out one message; what is wrong with it is told, never fatal."""
        self._heard_at = time.monotonic()
        try:
            request = parse_message(text)
        except RequestError as error:
            self._tell(error, context_of(text))
            return
        context_id = request.context_id or uuid.uuid4().hex
        is_new = context_id not in self._contexts
        try:
            self._carry_out(context_id, request)
        except TalkwireError as error:
            if (context := self._contexts.get(context_id)) is not None:
                context.refuse(is_new=is_new, is_last=not request.continue_)
            self._tell(error, context_id, done=context_id not in self._contexts)

    def on_bytes(self, data: bytes) -> None:
        """Clients send no binary messages."""
        self._tell(RequestError(ErrorCode.INVALID_MESSAGE, "Clients send JSON text."), None)

    def _carry_out(self, context_id: str, request: ContextRequest) -> None:
        context = self._contexts.get(context_id)
        if request.cancel:
            self._expired.pop(context_id, None)
            if context is not None:
                context.speech.cancel()
        elif context is not None:
            context.take(request)
        elif request.transcript.strip():
            self._open(context_id, request).take(request)
        elif not request.continue_:  # the end of what has expired, or never was
            self._expired.pop(context_id, None)
            self._outbox.put(Item(done_message(context_id)))
        elif request.flush:
            began = self._expired.get(context_id, AFRESH)
            self._outbox.put(Item(flush_message(context_id, began)))
            self._remember(context_id, replace(began, flush_id=began.flush_id + 1))

    def _open(self, context_id: str, request: ContextRequest) -> CartesiaContext:
        limit = self._runtime.settings.max_contexts_per_session
        if len(self._contexts) >= limit:
            raise RequestError(
                ErrorCode.TOO_MANY_CONTEXTS, f"A socket may hold {limit} open contexts."
            )
        handle = next(self._handles)
        context = CartesiaContext(
            self._runtime,
            self._outbox,
            self._tasks,
            request,
            handle,
            context_id,
            f"{self._session_id}-{handle}",
            self._expired.get(context_id, AFRESH),
            lambda: self._on_closed(context_id),
        )
        self._contexts[context_id] = context
        return context

    def _on_closed(self, context_id: str) -> None:
        context = self._contexts.pop(context_id)
        self._heard_at = time.monotonic()
        self._expired.pop(context_id, None)
        if context.is_expired:
            self._remember(context_id, context.standing)

    def _remember(self, context_id: str, standing: Standing) -> None:
        self._expired[context_id] = standing
        self._expired.move_to_end(context_id)
        while len(self._expired) > _REMEMBERED:
            self._expired.popitem(last=False)

    def on_tick(self, now: float) -> None:
        """Forget contexts that are over, and close what has been idle for too long."""
        for context in list(self._contexts.values()):
            context.expire(now)
        if not self._contexts and now - self._heard_at > self._runtime.settings.session_idle_s:
            raise SocketClosing(GOING_AWAY)

    def on_drain(self, deadline_ms: int) -> None:
        """There are no words for it; new contexts are refused."""

    def is_settled(self, now: float) -> bool:
        """See Dialect."""
        return all(context.speech.is_settled(now) for context in self._contexts.values())

    def word(
        self, error: TalkwireError, context_id: str | None = None, *, done: bool = True
    ) -> str:
        """An ``error`` message; its request id finds it in the logs."""
        request_id = uuid.uuid4().hex
        count_error(self._runtime, error, request_id)
        return error_message(error, context_id, request_id, done=done)

    def _tell(self, error: TalkwireError, context_id: str | None, *, done: bool = True) -> None:
        self._outbox.put(Item(self.word(error, context_id, done=done)))

    def close(self) -> None:
        """Cancel every context."""
        for context in list(self._contexts.values()):
            context.speech.cancel()
