"""One context of a Cartesia socket: their rules about flushing, buffering and ending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.outbox import Outbox
from service.protocols.cartesia_messages import OWN_FLUSH, SocketWording, Standing, closed_error
from service.protocols.cartesia_request import NAME, ContextRequest, context_create
from service.runtime import Runtime
from service.worded_context import WordedContext, WordedPlan

_ASKED_FLUSH = "asked"
_BUFFER_DELAY_MS = 3000
#: A context is forgotten so long after its listener has heard it all.
_EXPIRES_S = 1.0


class CartesiaContext:
    """``first`` is the request that opens it; later ones are read for their text alone, since
    clients send other voices and formats with them. ``began``: see EventWording.

    Raises RequestError, CapacityError.
    """

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        first: ContextRequest,
        handle: int,
        context_id: str,
        request_id: str,
        began: Standing,
        closed: Callable[[], None],
    ) -> None:
        codec_rate = runtime.codec.spec.sample_rate
        plan = WordedPlan(
            NAME,
            handle,
            request_id,
            context_create(first, runtime, request_id),
            first.require_format("raw").make_encoder(codec_rate, first.pace),
        )
        self._wording = SocketWording(context_id, request_id, began)
        self._closed = closed
        self._began_s = began.heard_s
        self._delay_ms = _BUFFER_DELAY_MS
        self._timer: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._idle_limit_s = runtime.settings.context_idle_s
        self.speech = WordedContext(runtime, outbox, tasks, plan, self._wording, self._on_closed)

    @property
    def is_expired(self) -> bool:
        """Whether it was forgotten, not ended by its client, who may go on with it."""
        return self._wording.is_quiet

    @property
    def standing(self) -> Standing:
        """Where one of its id would go on."""
        return Standing(self._began_s + self.speech.audio_s, self._wording.flush_id)

    def take(self, request: ContextRequest) -> None:
        """Text, a flush, the end: whatever is in it. Raises RequestError."""
        if self._is_ended:
            raise closed_error()
        self.speech.touch()
        if request.transcript:
            self.speech.append(request.transcript)
        self._stop_timer()
        if request.max_buffer_delay_ms is not None:
            self._delay_ms = request.max_buffer_delay_ms
        if not request.continue_:
            self._end()
        elif request.flush or (not self._delay_ms and not _is_blank(request)):
            self.speech.flush(_ASKED_FLUSH)
        else:
            self._start_timer()

    def refuse(self, *, is_new: bool, is_last: bool) -> None:
        """Its request was not carried out: nothing is left of a new context, and after a last
        request what there is will be spoken.
        """
        if is_new:
            self.speech.cancel()
        elif is_last and not self._is_ended:
            self._stop_timer()
            self._end()

    def _end(self) -> None:
        self._is_ended = True
        self.speech.end()

    def expire(self, now: float) -> None:
        """Forget it if its listener has heard it all; end it if it waits in vain for text."""
        if self._is_ended or self._timer is not None:
            return
        if self.speech.silent_s(now) > _EXPIRES_S:
            self._wording.is_quiet = True
            self._end()
        elif self.speech.idle_s(now) > self._idle_limit_s:
            self._end()

    # -- text that waits for more

    def _start_timer(self) -> None:
        """Half a sentence is not held back for longer than its client wants."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._delay_ms / 1000, self._speak_what_waits)

    def _speak_what_waits(self) -> None:
        self._timer = None
        self.speech.flush(OWN_FLUSH)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_closed(self) -> None:
        self._stop_timer()
        self._closed()


def _is_blank(request: ContextRequest) -> bool:
    return not request.transcript.strip()
