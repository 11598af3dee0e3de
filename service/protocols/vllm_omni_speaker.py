"""Speaks the sentences of vLLM-Omni's socket one after another, in as many contexts as it takes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from service.binary_context import BinaryContext, BinaryPlan
from service.http_speech import count_error
from service.outbox import Item, Outbox
from service.protocols.vllm_omni_config import NAME, SessionConfig
from service.protocols.vllm_omni_units import Messages, Sentence, Units
from service.runtime import Runtime
from streaming.errors import CapacityError, ErrorCode, TalkwireError

#: What may wait to be spoken: sentences and ends of flushes, and so many flushes' text.
_MAX_UNITS, _MAX_FLUSHES = 4096, 4


class Speaker:
    """See service.binary_context.BinaryWording.

    A context lives until all that there is to say has been said. It takes ``max_text_chars``, as
    a flush does; a sentence that it has no room for, and all after it, wait for the next context,
    which begins when this one has said everything. ``freed`` is called when a context is over.
    """

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        session_id: str,
        freed: Callable[[], None],
    ) -> None:
        self._runtime, self._outbox, self._tasks = runtime, outbox, tasks
        self._session_id, self._freed = session_id, freed
        self._units = Units(runtime.settings.max_outbox_bytes // 2)
        self._waiting: deque[tuple[Sentence, SessionConfig]] = deque()
        self._context: BinaryContext | None = None
        self._contexts = self._chars = 0
        self._is_full = False
        #: When the last context was over, in monotonic seconds.
        self.closed_at = time.monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether what was asked for is still being spoken."""
        return self._context is not None or bool(self._waiting)

    @property
    def has_sentence(self) -> bool:
        """Whether a sentence waits to be spoken or is being spoken."""
        return self._units.has_sentence

    def require_room(self) -> None:
        """Raises CapacityError if too much waits."""
        most = _MAX_FLUSHES * self._runtime.settings.max_text_chars
        if len(self._units) >= _MAX_UNITS or self._units.chars >= most:
            raise CapacityError(
                ErrorCode.OVERLOADED, "Too much waits to be spoken; this message was dropped."
            )

    def speak(self, sentence: Sentence, config: SessionConfig) -> None:
        """Say it after all that came before."""
        self._say(self._units.add(sentence))
        self._waiting.append((sentence, config))
        self._give()

    def end_flush(self, flush: int, sentences: int) -> None:
        """Say that a flush is over, once it is."""
        self._say(self._units.end_flush(flush, sentences))

    def close(self) -> None:
        """Nobody listens any more."""
        self._waiting.clear()
        if self._context is not None:
            self._context.cancel()

    # -- contexts

    def _give(self) -> None:
        """Hand on what waits, as far as there is room."""
        most = self._runtime.settings.max_text_chars
        while self._waiting:
            sentence, config = self._waiting[0]
            context = self._context
            if context is not None and self._chars + len(sentence.text) > most:
                if not self._is_full:
                    self._is_full = True
                    context.end()
                return
            self._waiting.popleft()
            self._hand_on(sentence, config)

    def _hand_on(self, sentence: Sentence, config: SessionConfig) -> None:
        try:
            context = self._context or self._begin(config)
            context.append(sentence.text)
        except TalkwireError as error:
            count_error(self._runtime, error, self._session_id)
            sentence.failure = error
            self._say(self._units.settled())
            if not self._units.has_sentence:  # nobody else would let go of what was begun for it
                asyncio.get_running_loop().call_soon(self._end, self._context)
            return
        self._chars += len(sentence.text)
        context.flush("sentence")

    def _begin(self, config: SessionConfig) -> BinaryContext:
        runtime, number = self._runtime, self._contexts
        request_id = f"{self._session_id}-{number}"
        plan = BinaryPlan(
            NAME,
            number,
            request_id,
            config.create(request_id, runtime),
            config.encoder(runtime.codec.spec.sample_rate),
            is_kept=not config.stream_audio,
            flush_units=True,
        )
        self._context = BinaryContext(
            runtime, self._outbox, self._tasks, plan, self, lambda: self._on_closed(number)
        )
        self._contexts, self._chars, self._is_full = number + 1, 0, False
        return self._context

    def _end(self, context: BinaryContext | None) -> None:
        """Let a context go that has said everything; the next text begins another."""
        if context is not None and context is self._context and not self._units.has_sentence:
            self._context = None
            context.end()
            self._freed()

    def _on_closed(self, number: int) -> None:
        self.closed_at = time.monotonic()
        if number == self._contexts - 1 and self._context is not None:
            self._context = None
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._give()
        self._freed()

    # -- what the context says: see BinaryWording

    def audio(self, data: bytes, samples: int) -> Messages:
        """Audio of the sentence that is being spoken."""
        return self._units.audio(data, samples)

    def flushed(self, flush_id: str) -> Messages:
        """A sentence is over; after the last one the context is."""
        messages = self._units.finish()
        if not self._units.has_sentence:
            asyncio.get_running_loop().call_soon(self._end, self._context)
        return messages

    def done(self, error: TalkwireError | None) -> Messages:
        """A failure is that of all sentences that were to be spoken."""
        if error is None:
            return []
        self._waiting.clear()
        messages: Messages = []
        while self._units.has_sentence:
            messages += self._units.fail(error)
        return messages

    def _say(self, messages: Messages) -> None:
        for message in messages:
            self._outbox.put(Item(message))
