"""The talker requests of one context."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from contextlib import aclosing

from service.runtime import Runtime
from service.timers import align_deadline
from service.voices.cloning import Prepare
from streaming import events
from streaming.errors import BackendError, ErrorCode, RequestError, TalkwireError, internal_error
from streaming.ports import Arrival, ArrivingText, Reference, RowDemand, SpeechRequest

log = logging.getLogger(__name__)


class TalkerRequests:
    """The talker requests of one context: ``template`` with the text of each utterance.

    Their results are posted to ``post``; errors are raised. They wait for ``prepare``'s references.
    """

    def __init__(
        self,
        runtime: Runtime,
        template: SpeechRequest,
        post: Callable[[events.Event], None],
        prepare: Prepare | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._runtime = runtime
        self._template = template
        self._post = post
        #: Makes the context's references, if it has any.
        self._preparing = None if prepare is None else tasks.create_task(self._prepare(prepare))
        #: Demand for the next rows; None for the first ones.
        self._demand: RowDemand | None = None
        #: The text of the utterance begun last, if it is spoken while it arrives.
        self._arriving: ArrivingText | None = None
        #: Set while rows are taken.
        self._is_wanted = asyncio.Event()
        #: The conversations that the talker may know: one for each voice.
        self._conversations: set[str] = set()
        #: Whether the context is over.
        self._is_stopped = False
        #: Recent seconds per row; 0 while unknown.
        self._row_s = 0.0
        #: Whether the context has had any rows.
        self._has_rows = False

    def take(self, demand: RowDemand) -> None:
        """Take the next rows with ``demand``."""
        delay_s = demand.delay_s and align_deadline(demand.delay_s, time.monotonic())
        self._demand = RowDemand(delay_s, demand.at_once)

    def pause(self) -> None:
        """Take no more rows. The talker pauses, and its engine continues with other requests."""
        self._is_wanted.clear()

    def resume(self) -> None:
        """Take rows again, as they come."""
        self._demand = None
        self._is_wanted.set()

    def stop(self) -> None:
        """Release the context's references and conversations at its end."""
        self._is_stopped = True
        for conversation in self._conversations:
            self._runtime.engines.talker.forget(conversation)
        if self._preparing is not None:
            self._preparing.cancel()

    def begin(self, text: str, *, is_open: bool | None) -> ArrivingText | None:
        """Return the text of the next utterance if it is spoken while it arrives: with ``append``
        as long as it ``is_open``. Return None if it is a whole text.
        """
        self._arriving = None if is_open is None else ArrivingText(text, is_complete=not is_open)
        return self._arriving

    def append(self, text: str, *, is_last: bool) -> None:
        """Add text to that of the utterance begun last."""
        if self._arriving is not None:
            self._arriving.append(text, is_last=is_last)

    async def speak(
        self,
        utterance: int,
        text: str,
        delivery: str = "",
        voice: str | None = None,
        arriving: ArrivingText | None = None,
    ) -> None:
        """Request one utterance, in the template's voice if ``voice`` is None, and post its rows.
        ``arriving``: see ``begin``. Raises TalkwireError.
        """
        request = dataclasses.replace(
            self._template,
            request_id=f"{self._template.request_id}-{utterance}",
            text=text,
            delivery=delivery,
            arriving=arriving,
        )
        if voice is not None:
            request = dataclasses.replace(request, voice=voice)
        if request.conversation is not None:
            if voice is not None:  # what another voice said is not continued
                request = dataclasses.replace(
                    request, conversation=f"{request.conversation}-{voice}"
                )
            self._conversations.add(str(request.conversation))
        if self._preparing is not None:
            prepared = await asyncio.shield(self._preparing)  # later utterances may need it
            if isinstance(prepared, TalkwireError):
                raise prepared
            first, *others = prepared
            request = dataclasses.replace(request, reference=first, other_references=tuple(others))
            self._post(events.TalkerRequested(utterance))
        try:
            try:
                await self._take_rows(utterance, request)
            except BackendError as error:
                # retried only before the context's first rows, so that no speech breaks off
                if error.code is not ErrorCode.ENGINE_RESTARTING or self._has_rows:
                    raise
                if not await self._runtime.lifecycle.wait_for_restart():
                    raise
                await self._take_rows(utterance, request)
        except RequestError as error:
            if error.code is not ErrorCode.INVALID_TEXT:
                raise
            self._post(events.NothingToSay(utterance))

    async def _take_rows(self, utterance: int, request: SpeechRequest) -> None:
        """Post the rows of a request. Raises TalkwireError."""
        pace = self._runtime.pace.estimator.open()
        rows = 0
        self.resume()
        try:
            async with aclosing(self._runtime.engines.talker.generate(request)) as batches:
                while True:
                    demand, self._demand = self._demand, None
                    try:
                        batch = await batches.asend(demand)
                    except StopAsyncIteration:
                        message = "The talker stopped too soon."
                        raise BackendError(ErrorCode.ENGINE_FAILED, message) from None
                    self._has_rows = True
                    rows += len(batch.rows)
                    pace.observe_all(batch.came or (Arrival(len(batch.rows), time.monotonic()),))
                    self._row_s = pace.row_s or self._row_s
                    row_s = self._row_s if batch.came else 0.0
                    self._post(events.RowsReceived(utterance, batch, row_s))
                    if batch.finish == "length":
                        cause = self._cut_cause(request, rows)
                        self._runtime.metrics.cut_utterances.labels(cause).inc()
                    if batch.finish is not None or self._is_stopped:
                        break
                    if not self._is_wanted.is_set():
                        pace.pause()
                        await self._is_wanted.wait()
        finally:
            pace.close()

    def _cut_cause(self, request: SpeechRequest, rows: int) -> str:
        """Return whose limit an utterance reached, which was cut off after ``rows`` rows."""
        if rows == request.max_frames:
            return "client"
        return "model" if rows >= self._runtime.engines.talker.spec.max_frames else "text"

    async def _prepare(self, prepare: Prepare) -> tuple[Reference, ...] | TalkwireError:
        """Return the references of ``prepare``, or its error."""
        try:
            return await prepare()
        except TalkwireError as error:
            return error
        except Exception:
            log.exception("cloning broke", extra={"request_id": self._template.request_id})
            return internal_error()
