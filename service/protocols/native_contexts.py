"""The contexts of one native socket: opened, found by their ids, and remembered when closed."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

from service.audio.pump import EncoderPump
from service.audio.timeline import Timeline
from service.context import ContextDriver
from service.context_settings import session_settings, speech_request
from service.outbox import Outbox
from service.protocols.native_context import Framing, NativeContext, make_context_encoder
from service.runtime import Runtime
from service.talker_feed import Prepare
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.events import AudioRead, Broke
from streaming.session import Session
from streaming.wire import ContextCreate

_REMEMBERED_CLOSED = 256
_HANDLES = 1 << 16


class NativeContexts:
    """``tell`` words an error for a context. ``framing`` is that of the contexts to come."""

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        session_id: str,
        tell: Callable[[TalkwireError, str], None],
    ) -> None:
        self._runtime, self._outbox, self._tasks = runtime, outbox, tasks
        self._session_id, self._tell = session_id, tell
        self._contexts: dict[str, tuple[ContextDriver, NativeContext]] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._next_handle = 0
        self.framing: Framing = "header"

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[tuple[ContextDriver, NativeContext]]:
        """Those that are open or have more to send; closing some meanwhile does no harm."""
        return iter(list(self._contexts.values()))

    def find(self, context_id: str) -> tuple[ContextDriver, NativeContext]:
        """An open context. Raises RequestError."""
        entry = self._contexts.get(context_id)
        if entry is not None and not entry[0].is_closed:
            return entry
        if entry is not None or context_id in self._closed:
            raise RequestError(ErrorCode.CONTEXT_CLOSED, "The context is closed.")
        raise RequestError(
            ErrorCode.UNKNOWN_CONTEXT, "There is no context of this id.", param="context_id"
        )

    def open(self, create: ContextCreate) -> int:
        """Open a context; returns the handle that stands for it in binary headers.

        Raises RequestError, CapacityError, BackendError: then nothing has changed.
        """
        self._check(create)
        runtime = self._runtime
        codec_rate = runtime.codec.spec.sample_rate
        encoder = make_context_encoder(create.audio, codec_rate)
        session = Session(session_settings(runtime, create))
        request = speech_request(runtime, create, f"{self._session_id}-{self._next_handle}")
        runtime.talker.check_options(request)
        prepare = self._clone(create)
        runtime.admission.enter(create.audio.speed)
        handle = self._take_handle()
        pump = EncoderPump(encoder, self._tasks, lambda error: driver.post(Broke(error)))
        context = NativeContext(
            create,
            handle,
            encoder,
            pump,
            Timeline(codec_rate * create.audio.speed, encoder.sample_rate, encoder.delay_samples),
            self._outbox,
            runtime.metrics,
            framing=self.framing,
            tell=self._tell,
            closed=self._on_closed,
        )
        driver = ContextDriver(runtime, session, request, context, self._tasks, prepare=prepare)
        self._contexts[create.context_id] = driver, context
        self._outbox.reading.follow(
            handle, lambda samples: driver.post(AudioRead(context.codec_samples(samples)))
        )
        self._closed.pop(create.context_id, None)
        return handle

    def _clone(self, create: ContextCreate) -> Prepare | None:
        """How to make the reference that the context brings, if it brings one."""
        if create.reference is None:
            return None
        if create.voice is not None:
            raise RequestError(
                ErrorCode.INVALID_PARAMETER,
                "Give a voice or a reference, not both.",
                param="reference",
            )
        reference = create.reference
        return self._runtime.cloner.prepare(reference.audio, reference.text, "reference.audio")

    def _check(self, create: ContextCreate) -> None:
        limit = 1 if self.framing == "raw" else self._runtime.settings.max_contexts_per_session
        if create.context_id in self._contexts:
            raise RequestError(
                ErrorCode.CONTEXT_EXISTS,
                "This context is open already; it goes on undisturbed.",
                param="context_id",
            )
        if len(self._contexts) >= limit:
            raise RequestError(
                ErrorCode.TOO_MANY_CONTEXTS, f"A socket may hold {limit} open contexts."
            )
        if create.timestamps and not self._runtime.talker.has_word_timings:
            raise RequestError(
                ErrorCode.UNSUPPORTED, "This model has no word timings.", param="timestamps"
            )
        self._runtime.require_ready()

    def _take_handle(self) -> int:
        used = {context.handle for _, context in self._contexts.values()}
        while self._next_handle in used:
            self._next_handle = (self._next_handle + 1) % _HANDLES
        handle, self._next_handle = self._next_handle, (self._next_handle + 1) % _HANDLES
        return handle

    def _on_closed(self, context_id: str) -> None:
        _, context = self._contexts.pop(context_id)
        self._outbox.reading.forget(context.handle)
        self._runtime.admission.leave(time.monotonic() - context.opened_at, context.speed)
        self._closed[context_id] = None
        while len(self._closed) > _REMEMBERED_CLOSED:
            self._closed.popitem(last=False)
