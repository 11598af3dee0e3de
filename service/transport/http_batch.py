"""Several texts spoken for one HTTP request; the answer is written while they are made.

A few contexts of the batch run at a time, each with a slot of its own among all that the
server admits. The first slot is taken before anything is answered, so that a full server
refuses the whole batch; later ones are waited for. Results are told in the order of the items,
so those that are done sooner wait in memory: the batch's text bounds them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from service.admission import Lease
from service.auth.caller import current_caller
from service.contexts.options import SpeechPlan
from service.contexts.speech_context import Audio, SpeechContext
from service.dialects.errors import count_error
from service.runtime import Runtime
from service.transport.http_response import (
    end_when_drained,
    open_response,
    speak_whole,
    until_gone,
)
from streaming.errors import CapacityError, ErrorCode, TalkwireError
from streaming.events import Done

#: How long an item waits for a slot while others are busy.
_SLOT_TIMEOUT_S = 30.0
_LEAST_WAIT_S = 0.05
#: Nor longer than this: a hint is about the usual slot, and one may be free before.
_MOST_WAIT_S = 1.0
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Spoken:
    """An item's audio, encoded, how many samples that is, and how its context ended."""

    data: bytearray
    samples: int
    done: Done


Result = Spoken | TalkwireError


class BatchRenderer(Protocol):
    """How a dialect puts a batch's answer."""

    def opening(self) -> bytes:
        """The bytes before the first result."""

    def result(self, index: int, result: Result) -> Iterator[bytes]:
        """One item's, in the order of the items; in pieces, each of which is made quickly, since
        the event loop waits for it.
        """

    def closing(self) -> bytes:
        """The bytes after the last."""

    def refusal(self, error: TalkwireError) -> Response:
        """The whole batch is refused."""


class HttpBatch(Response):
    """Speaks ``items``, each a plan and its text; one that cannot be served is its error.

    At most ``at_once`` of them run at a time. A client that leaves, or takes nothing for
    ``slow_consumer_s``, ends all of them.
    """

    media_type = "application/json"

    def __init__(
        self,
        runtime: Runtime,
        items: Sequence[tuple[SpeechPlan, str] | TalkwireError],
        renderer: BatchRenderer,
        request_id: str,
        at_once: int,
    ) -> None:
        super().__init__()
        self._runtime, self._renderer, self._request_id = runtime, renderer, request_id
        self._at_once = at_once
        self._todo = deque(
            (index, *item)
            for index, item in enumerate(items)
            if not isinstance(item, TalkwireError)
        )
        self._count = len(items)
        self._results: dict[int, Result] = {
            index: item for index, item in enumerate(items) if isinstance(item, TalkwireError)
        }
        self._came = asyncio.Event()
        self._caller = current_caller()
        #: The first item's, taken before anything is answered.
        self._first: Lease | None = None
        self._speaking: set[SpeechContext] = set()
        self.headers["cache-control"] = "no-store"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak them all, or until the client leaves."""
        if self._todo:
            speed = self._todo[0][1].session.speed
            try:
                self._first = self._runtime.admission.acquire(self._caller, speed)
            except CapacityError as full:
                count_error(self._runtime, full, self._request_id)
                await self._renderer.refusal(full)(scope, receive, send)
                return
        with self._runtime.connection():
            self._runtime.metrics.opened.inc()
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._speak_all(tasks, receive, send)
            finally:
                if self._first is not None:  # no item has used it
                    self._first.release()

    async def _speak_all(self, tasks: asyncio.TaskGroup, receive: Receive, send: Send) -> None:
        writer = tasks.create_task(self._write(send))
        gone = tasks.create_task(until_gone(receive))
        others = [tasks.create_task(end_when_drained(self._runtime, lambda: list(self._speaking)))]
        others += [
            tasks.create_task(self._work(tasks)) for _ in range(min(self._at_once, len(self._todo)))
        ]
        try:
            await asyncio.wait([writer, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._todo.clear()
            for task in (writer, gone, *others):
                task.cancel()

    # -- speaking

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while self._todo:
            index, plan, text = self._todo.popleft()
            try:
                self._runtime.require_text(text)
                lease = await self._acquire(plan.session.speed)
                self._results[index] = await self._speak(plan, text, lease, tasks)
            except TalkwireError as error:
                self._results[index] = error
            self._came.set()

    async def _acquire(self, speed: float) -> Lease:
        """A slot, as soon as one is free. Raises CapacityError."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        give_up_at = time.monotonic() + _SLOT_TIMEOUT_S
        while True:
            self._runtime.require_ready()
            try:
                return self._runtime.admission.acquire(self._caller, speed)
            except CapacityError as full:
                if time.monotonic() >= give_up_at:
                    raise
                hint_s = (full.retry_after_ms or 0) / 1000
                await asyncio.sleep(min(_MOST_WAIT_S, max(_LEAST_WAIT_S, hint_s)))

    async def _speak(
        self, plan: SpeechPlan, text: str, lease: Lease, tasks: asyncio.TaskGroup
    ) -> Spoken:
        """Speak one item. Raises TalkwireError."""
        context, outputs = open_response(self._runtime, tasks, plan, lease)
        data, samples = bytearray(), 0

        def take(audio: Audio) -> None:
            nonlocal data, samples
            data += audio.data
            samples += audio.samples

        self._speaking.add(context)
        try:
            done = await speak_whole(context, outputs, text, take)
        finally:
            self._speaking.discard(context)
        return Spoken(data, samples, done)

    # -- writing

    async def _write(self, send: Send) -> None:
        try:
            start: Message = {
                "type": "http.response.start",
                "status": 200,
                "headers": [pair for pair in self.raw_headers if pair[0] != b"content-length"],
            }
            await self._put(send, start)
            await self._put_body(send, self._renderer.opening())
            for index in range(self._count):
                while index not in self._results:
                    self._came.clear()
                    await self._came.wait()
                result = self._results.pop(index)
                if isinstance(result, TalkwireError):
                    count_error(self._runtime, result, self._request_id)
                for piece in self._renderer.result(index, result):
                    await self._put_body(send, piece)
                    await asyncio.sleep(0)  # a client that reads fast lets us wait for nothing
            await self._put_body(send, self._renderer.closing())
            await self._put(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            slow = CapacityError(ErrorCode.SLOW_CONSUMER, "The client reads too slowly.")
            count_error(self._runtime, slow, self._request_id)

    async def _put_body(self, send: Send, data: bytes) -> None:
        for at in range(0, len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            await self._put(send, {"type": "http.response.body", "body": piece, "more_body": True})

    async def _put(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._runtime.settings.slow_consumer_s):
            await send(message)
