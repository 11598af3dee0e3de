"""Several texts spoken for one HTTP request; the answer is written while they are made.

A few contexts of the batch run at a time, each with a place of its own among all that the
server admits. The first place is taken before anything is answered, so that a full server
refuses the whole batch; later ones are waited for. Results are told in the order of the items,
so those that are done sooner wait in memory: what bounds it is the batch's text.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from service.context import ContextDriver
from service.http_buffer import SpeechBuffer
from service.http_speech import HttpContext, count_error
from service.runtime import Runtime
from streaming.errors import BackendError, CapacityError, ErrorCode, TalkwireError
from streaming.events import Broke, CancelAsked, Done, EndAsked, SendAudio, TextAppended

log = logging.getLogger(__name__)

#: How long an item waits for a place while others are busy.
_PATIENCE_S = 30.0
_LEAST_WAIT_S = 0.05
#: Nor longer than this: a hint is about the usual place, and one may be free before.
_MOST_WAIT_S = 1.0
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Spoken:
    """An item's audio, encoded, how many samples that is, and how its context ended."""

    data: bytearray
    samples: int
    done: Done


Result = Spoken | TalkwireError


class BatchWording(Protocol):
    """How a dialect words a batch's answer."""

    def opening(self) -> bytes:
        """What comes before the first result."""

    def result(self, index: int, result: Result) -> Iterator[bytes]:
        """One item's, in the order of the items; in pieces, each of which is made quickly, since
        the event loop waits for it.
        """

    def closing(self) -> bytes:
        """What comes after the last."""

    def refusal(self, error: TalkwireError) -> Response:
        """The whole batch is refused."""


class HttpBatch(Response):
    """Speaks ``items``, of which those that cannot be served are their errors.

    At most ``at_once`` of them run at a time. A client that leaves, or takes nothing for
    ``slow_consumer_s``, ends all of them.
    """

    media_type = "application/json"

    def __init__(
        self,
        runtime: Runtime,
        items: Sequence[HttpContext | TalkwireError],
        wording: BatchWording,
        request_id: str,
        at_once: int,
    ) -> None:
        super().__init__()
        self._runtime, self._wording, self._request_id = runtime, wording, request_id
        self._at_once = at_once
        self._todo = deque(
            (index, item) for index, item in enumerate(items) if isinstance(item, HttpContext)
        )
        self._count = len(items)
        self._results: dict[int, Result] = {
            index: item for index, item in enumerate(items) if isinstance(item, TalkwireError)
        }
        self._came = asyncio.Event()
        self._has_place = False
        self._speaking: set[ContextDriver] = set()
        self.headers["cache-control"] = "no-store"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak them all, or until the client leaves."""
        speed = self._todo[0][1].session.speed if self._todo else 1.0
        if self._todo:
            try:
                self._runtime.admission.enter(speed)
            except CapacityError as full:
                count_error(self._runtime, full, self._request_id)
                await self._wording.refusal(full)(scope, receive, send)
                return
            self._has_place = True
        with self._runtime.connection():
            self._runtime.metrics.opened.inc()
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._speak_all(tasks, receive, send)
            finally:
                if self._has_place:  # nobody has spoken in it
                    self._runtime.admission.leave(0.0, speed)

    async def _speak_all(self, tasks: asyncio.TaskGroup, receive: Receive, send: Send) -> None:
        writer = tasks.create_task(self._write(send))
        gone = tasks.create_task(_until_gone(receive))
        others = [tasks.create_task(self._until_drained())]
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
            index, context = self._todo.popleft()
            try:
                self._runtime.require_text(context.text)
                await self._take_place(context.session.speed)
                self._results[index] = await self._speak(context, tasks)
            except TalkwireError as error:
                self._results[index] = error
            self._came.set()

    async def _take_place(self, speed: float) -> None:
        """Enter, or wait until there is room. Raises CapacityError."""
        if self._has_place:
            self._has_place = False
            return
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            self._runtime.require_ready()
            try:
                self._runtime.admission.enter(speed)
                return
            except CapacityError as full:
                if time.monotonic() >= give_up_at:
                    raise
                hint_s = (full.retry_after_ms or 0) / 1000
                await asyncio.sleep(min(_MOST_WAIT_S, max(_LEAST_WAIT_S, hint_s)))

    async def _speak(self, context: HttpContext, tasks: asyncio.TaskGroup) -> Spoken:
        """Speak one; its end gives the place back. Raises TalkwireError."""
        buffer = SpeechBuffer(self._runtime, context.protocol, context.session.speed)
        driver = ContextDriver(
            self._runtime,
            context.session,
            context.request,
            buffer,
            tasks,
            buffer.room,
            protocol=context.protocol,
        )
        self._speaking.add(driver)
        try:
            driver.post(TextAppended(context.text))
            driver.post(EndAsked())
            return await self._gather(context, buffer)
        finally:
            self._speaking.discard(driver)
            driver.post(CancelAsked(unsent_samples=buffer.waiting_samples))

    async def _gather(self, context: HttpContext, buffer: SpeechBuffer) -> Spoken:
        encoder, data, samples = context.encoder, bytearray(), 0
        try:
            while True:
                item = await buffer.get()
                if isinstance(item, SendAudio):
                    packets = await asyncio.to_thread(encoder.encode, item.samples)
                elif isinstance(item, Done) and item.error is None:
                    packets = await asyncio.to_thread(encoder.flush)
                else:
                    packets = []
                data += b"".join(packet.data for packet in packets)
                samples += sum(packet.samples for packet in packets)
                if isinstance(item, Done):
                    break
        except Exception as error:
            log.exception("encoding broke", extra={"request_id": context.request.request_id})
            message = "Something went wrong in the server."
            raise BackendError(ErrorCode.INTERNAL, message) from error
        if item.error is not None:
            raise item.error
        return Spoken(data, samples, item)

    async def _until_drained(self) -> None:
        """The server is going away: what has not been spoken by its deadline never will be."""
        await self._runtime.drained()
        for driver in list(self._speaking):
            driver.post(Broke(CapacityError(ErrorCode.DRAINING, "The server is shutting down.")))

    # -- writing

    async def _write(self, send: Send) -> None:
        try:
            start: Message = {
                "type": "http.response.start",
                "status": 200,
                "headers": [pair for pair in self.raw_headers if pair[0] != b"content-length"],
            }
            await self._put(send, start)
            await self._put_body(send, self._wording.opening())
            for index in range(self._count):
                while index not in self._results:
                    self._came.clear()
                    await self._came.wait()
                result = self._results.pop(index)
                if isinstance(result, TalkwireError):
                    count_error(self._runtime, result, self._request_id)
                for piece in self._wording.result(index, result):
                    await self._put_body(send, piece)
                    await asyncio.sleep(0)  # a client that reads fast lets us wait for nothing
            await self._put_body(send, self._wording.closing())
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


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
