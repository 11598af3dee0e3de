"""The answer to a batch: one JSON object, written while its texts are spoken.

A few contexts of the batch run at a time, each with a slot of its own among all that the
server admits. The first slot is taken before anything is answered, so that a full server
refuses the whole batch; later ones are waited for. Results are told in the order of the items,
so those that are done sooner wait in memory: the batch's text bounds them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from service.admission import Lease
from service.audio.containers import tell_length
from service.audio.factory import MEDIA_TYPES
from service.auth.caller import current_caller
from service.contexts.options import SpeechPlan
from service.contexts.speech_context import Audio, SpeechContext
from service.dialects.errors import count_error
from service.dialects.openai.errors import error_body, refusal
from service.dialects.openai.request import FORMATS, SpeechBody, response_format
from service.runtime import Runtime
from service.transport.http_response import (
    ResponseBody,
    end_when_drained,
    open_response,
    speak_whole,
    until_gone,
)
from streaming.errors import CapacityError, TalkwireError
from streaming.events import Done

#: How long an item waits for a slot while others are busy.
_SLOT_TIMEOUT_S = 30.0
_LEAST_WAIT_S = 0.05
#: Nor longer than this: a hint is about the usual slot, and one may be free before.
_MOST_WAIT_S = 1.0
#: Audio that is put into base64 at once, in whole groups of it.
_PIECE_BYTES = 48 * 1024


@dataclass(frozen=True, slots=True)
class Spoken:
    """An item's audio, encoded, how many samples that is, and how its context ended."""

    data: bytearray
    samples: int
    done: Done


#: A text ready to be spoken, and what was asked for.
Item = tuple[SpeechPlan, SpeechBody]
Result = Spoken | TalkwireError


class HttpBatch(Response):
    """Speaks ``items``, each a plan and what was asked for; one that cannot be served is its error.

    At most ``max_batch_contexts`` of them run at a time. A client that leaves, or takes nothing for
    ``slow_consumer_s``, ends all of them.
    """

    def __init__(
        self, runtime: Runtime, items: Sequence[Item | TalkwireError], request_id: str
    ) -> None:
        self.status_code, self.media_type, self.background = 200, "application/json", None
        self.init_headers({"cache-control": "no-store"})
        self._runtime, self._request_id, self._items = runtime, request_id, items
        self._todo = deque(
            (index, item) for index, item in enumerate(items) if not isinstance(item, TalkwireError)
        )
        self._results: dict[int, Result] = {
            index: item for index, item in enumerate(items) if isinstance(item, TalkwireError)
        }
        self._came = asyncio.Event()
        self._caller = current_caller()
        #: The first item's, taken before anything is answered.
        self._first: Lease | None = None
        self._speaking: set[SpeechContext] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak them all, or until the client leaves."""
        if self._todo:
            _, (plan, _) = self._todo[0]
            try:
                self._first = self._runtime.admission.acquire(self._caller, plan.session.speed)
            except CapacityError as full:
                count_error(self._runtime, full, self._request_id)
                await refusal(full, self._request_id)(scope, receive, send)
                return
        with self._runtime.connection():
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._speak_all(tasks, receive, send)
            finally:
                if self._first is not None:  # no item has used it
                    self._first.release()

    async def _speak_all(self, tasks: asyncio.TaskGroup, receive: Receive, send: Send) -> None:
        body = ResponseBody(self, send, self._runtime)
        writer = tasks.create_task(self._write(body))
        gone = tasks.create_task(until_gone(receive))
        others = [tasks.create_task(end_when_drained(self._runtime, lambda: list(self._speaking)))]
        at_once = min(self._runtime.settings.max_batch_contexts, len(self._todo))
        others += [tasks.create_task(self._work(tasks)) for _ in range(at_once)]
        try:
            await asyncio.wait([writer, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._todo.clear()
            for task in (writer, gone, *others):
                task.cancel()

    # -- speaking

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while self._todo:
            index, (plan, asked) = self._todo.popleft()
            try:
                self._runtime.require_text(asked.input)
                lease = await self._acquire(plan.session.speed)
                self._results[index] = await self._speak(plan, asked.input, lease, tasks)
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

    async def _write(self, body: ResponseBody) -> None:
        """One JSON object, bit by bit: a ``BatchAnswer`` of batch.py."""
        failed = 0
        try:
            await body.put(f'{{"id":"speech-batch-{self._request_id}","results":['.encode())
            for index in range(len(self._items)):
                while index not in self._results:
                    self._came.clear()
                    await self._came.wait()
                result = self._results.pop(index)
                if isinstance(result, TalkwireError):
                    count_error(self._runtime, result, self._request_id)
                    failed += 1
                for piece in self._told(index, result):
                    await body.put(piece)
                    await asyncio.sleep(0)  # a client that reads fast lets us wait for nothing
            total = len(self._items)
            counts = {"total": total, "succeeded": total - failed, "failed": failed}
            await body.put(b"]," + _json(counts)[1:], last=True)
        except CapacityError as slow:
            count_error(self._runtime, slow, self._request_id)

    def _told(self, index: int, result: Result) -> Iterator[bytes]:
        """A ``BatchResult``, after a comma if need be; in pieces, each of which is made quickly,
        since the event loop waits for it.
        """
        if index:
            yield b","
        item = self._items[index]
        if isinstance(result, TalkwireError) or isinstance(item, TalkwireError):
            assert isinstance(result, TalkwireError)
            yield _json({"index": index, **_fault(result)})
            return
        _, asked = item
        name = FORMATS[response_format(asked, self._runtime)]
        tell_length(name, result.data, result.samples)
        report = result.done.report
        came = report.characters
        made = round(report.audio_s * asked.pace / self._runtime.codec.spec.frame_s)
        usage = {"input_tokens": came, "output_tokens": made, "total_tokens": came + made}
        yield _json({"index": index, "status": "success"})[:-1] + b',"audio_data":"'
        for at in range(0, len(result.data), _PIECE_BYTES):
            yield base64.b64encode(result.data[at : at + _PIECE_BYTES])
        yield b'",' + _json({"media_type": MEDIA_TYPES[name], "usage": usage})[1:]


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _fault(error: TalkwireError) -> dict[str, Any]:
    detail = error_body(error)["error"]
    fields = {"status": "error", "error": detail["message"], "code": detail["code"]}
    return fields if detail["param"] is None else {**fields, "param": detail["param"]}
