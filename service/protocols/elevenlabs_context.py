"""One context of an ElevenLabs socket: their rules about text, flushing and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.breath import SpokenWording
from service.outbox import Outbox
from service.protocols.elevenlabs_alignment import Aligner
from service.protocols.elevenlabs_messages import ClientMessage
from service.protocols.elevenlabs_request import NAME, StreamOptions, refuse_dictionaries
from service.runtime import Runtime
from service.worded_context import WordedContext, WordedPlan
from streaming.errors import ErrorCode, RequestError

_FLUSH = "flush"

#: Makes the wording of a context from its aligner.
MakeWording = Callable[[Aligner], SpokenWording]


class StreamContext:
    """``first`` is the message that opens it. Raises RequestError, CapacityError."""

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        options: StreamOptions,
        first: ClientMessage,
        handle: int,
        request_id: str,
        wording: MakeWording,
        closed: Callable[[], None],
    ) -> None:
        refuse_dictionaries(first.pronunciation_dictionary_locators)
        settings = first.voice_settings
        speed = settings.speed if settings is not None and settings.speed else 1.0
        self._aligner = Aligner()
        plan = WordedPlan(
            NAME,
            handle,
            request_id,
            options.create(request_id, runtime, speed),
            options.format.make_encoder(runtime.codec.spec.sample_rate, speed),
            flush_always=not options.format.is_file,
        )
        self._auto_mode = options.auto_mode
        self._is_flushed = self._has_text = False
        #: No more text will come, and what has come is still being spoken.
        self.is_draining = False
        self.speech = WordedContext(runtime, outbox, tasks, plan, wording(self._aligner), closed)

    def take(self, text: str | None, *, flush: bool) -> None:
        """Text, a flush, or both. An empty text only keeps the context alive.

        Raises RequestError.
        """
        if self.is_draining:
            raise RequestError(
                ErrorCode.CONTEXT_CLOSED, "The context was closed; it takes no more text."
            )
        self.speech.touch()
        if text and (self._has_text or not text.isspace()):
            self._append(text)
        if flush:
            self.speech.flush(_FLUSH)
            self._is_flushed = True

    def _append(self, text: str) -> None:
        """In auto mode each message is a phrase, to be spoken at once: whoever sends phrases
        leaves out the space between them, and would hear two words as one.
        """
        if self._auto_mode and not text[-1].isspace():
            text += " "
        self.speech.append(text)
        self._aligner.append(text)
        self._has_text, self._is_flushed = True, False
        if self._auto_mode:
            self.speech.flush(_FLUSH)

    def close(self) -> None:
        """What was flushed is spoken to its end, unless it is closed once more; what was not is
        not wanted any more: this is how these clients interrupt.
        """
        if self._is_flushed and not self.is_draining:
            self.end()
        else:
            self.speech.cancel()

    def end(self) -> None:
        """No more text; what there is will be spoken."""
        if not self.is_draining:
            self.is_draining = True
            self.speech.end()
