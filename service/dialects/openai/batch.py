"""``POST /v1/audio/speech/batch``: several texts in one request, in vLLM-Omni's format.

The response is one JSON object, written while the texts are spoken. A few contexts of the batch run
at a time, each with a slot of its own. The first slot is taken before the response begins, so that
a full server refuses the whole batch; the others are waited for. Results are sent in the order of
the items, so those that finish earlier wait in memory, bounded by the batch's text.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from fastapi import Response
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from service.admission import Lease
from service.audio.containers import tell_length
from service.audio.formats import MEDIA_TYPES
from service.auth.caller import current_caller
from service.contexts.options import SpeechPlan, require_model
from service.contexts.speech_context import Audio
from service.dialects.openai.captions import captioned
from service.dialects.openai.errors import TABLE, error_body
from service.dialects.openai.request import (
    FORMATS,
    NAME,
    FinishReason,
    Name,
    SpeechBody,
    TextFields,
    finish_reason,
    heard_frame_s,
    ignored_fields,
    prepare_reference,
    response_format,
    speech_options,
    token_usage,
    warning_header,
)
from service.runtime import Runtime
from service.transport.http_response import (
    ResponseBody,
    Spoken,
    open_response,
    plan_response,
    speak_whole,
    until_gone,
)
from service.transport.http_routes import ignored_header
from service.voices.cloning import Prepare
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.ports import Reference
from streaming.protocol.field_errors import invalid_parameter, unknown_field

_DEFAULT_FORMAT = "wav"
#: Fields of the speaker. An item that sets one of them takes none from its batch.
_SPEAKER = frozenset(
    ("voice", "ref_audio", "ref_text", "references", "task_type", "x_vector_only_mode")
)


class BatchItem(TextFields):
    """One text. Its fields override those of the batch. An item with a voice or a clip takes
    neither from the batch.
    """

    input: str = Field(description="The text to speak.")


class BatchBody(TextFields):
    """The body of `POST /v1/audio/speech/batch`. Unknown fields have no effect, and are named in
    the response's header `x-talkwire-ignored`. A server may refuse them instead.
    """

    items: list[BatchItem] = Field(min_length=1, description="The texts; 32 at most by default.")
    model: Name | None = Field(None, description="As in `POST /v1/audio/speech`.")


class BatchUsage(BaseModel):
    """Characters of the text and frames of the codec, instead of tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class BatchResult(BaseModel):
    """The result of one item."""

    index: int
    status: Literal["success", "error"]
    audio_data: str | None = Field(None, description="Base64, of a success.")
    media_type: str | None = Field(None, description="Of a success.")
    usage: BatchUsage | None = Field(None, description="Of a success.")
    captions: str | list[dict[str, Any]] | None = Field(
        None, description="Of a success, if they were asked for."
    )
    finish_reason: FinishReason | None = Field(
        None, description="Of a success; `length` if an utterance was cut at a maximum length."
    )
    warnings: list[str] | None = Field(
        None, description="For people: what of the text has no effect, of a success."
    )
    error: str | None = Field(None, description="For people, of an error.")
    code: str | None = Field(None, description="A code of docs/reference/protocol.md.")
    param: str | None = Field(None, description="The field at fault, where one is.")


class BatchAnswer(BaseModel):
    """The results in the order of the items."""

    id: str
    results: list[BatchResult]
    total: int
    succeeded: int
    failed: int


def batch_response(body: BatchBody, runtime: Runtime, request_id: str) -> HttpBatch:
    """Return the response to a batch. Raises RequestError, CapacityError for the whole batch."""
    settings = runtime.settings
    if len(body.items) > settings.max_batch_items:
        raise invalid_parameter("items", f"A batch takes {settings.max_batch_items} items at most.")
    if sum(len(item.input) for item in body.items) > settings.max_text_chars:
        message = f"A batch takes {settings.max_text_chars} characters at most, all items together."
        raise RequestError(ErrorCode.TEXT_TOO_LONG, message, param="items")
    extra = [(name, name) for name in body.model_extra or ()] + [
        (name, f"items.{index}.{name}")
        for index, item in enumerate(body.items)
        for name in item.model_extra or ()
    ]
    if extra and settings.unknown_fields == "refuse":
        raise unknown_field(extra[0][1], sorted((*BatchBody.model_fields, "input")))
    require_model(runtime.settings, body.model)
    runtime.lifecycle.require_ready()
    bodies = [_speech_body(body, item) for item in body.items]
    known: dict[object, Prepare] = {}

    def prepare(one: SpeechBody, runtime: Runtime) -> Prepare | None:
        """Share one reference between items with the same clip, so it is encoded once."""
        if (reference := prepare_reference(one, runtime)) is None:
            return None
        clips = tuple((clip.audio, clip.audio_path, clip.text) for clip in one.references or ())
        key = clips or ((one.ref_audio, None, one.ref_text),)
        return known.setdefault(key, _one_by_one(reference))

    items: list[Item | TalkwireError] = []
    ignored, warnings = list[str](), dict[str, str]()
    for index, one in enumerate(bodies):
        try:  # buffered: it is not played while it is made
            options = replace(speech_options(one, runtime, prepare), buffered=True)
            plan = plan_response(runtime, NAME, f"{request_id}-{index}", options)
            items.append((plan, one))
            ignored += ignored_fields(one, runtime)
            warnings |= warning_header(one, runtime)
        except TalkwireError as error:
            items.append(error)
    answer = HttpBatch(runtime, items, request_id)
    answer.headers.update(warnings)
    answer.headers.update(ignored_header([*ignored, *(name for name, _ in extra)]))
    return answer


def _speech_body(body: BatchBody, item: BatchItem) -> SpeechBody:
    known = set(BatchItem.model_fields)
    shared = body.model_dump(exclude_none=True, include=known | {"model"})
    own = item.model_dump(exclude_none=True, include=known)
    if not _SPEAKER.isdisjoint(own):
        shared = {name: value for name, value in shared.items() if name not in _SPEAKER}
    return SpeechBody(**{"response_format": _DEFAULT_FORMAT, **shared, **own}, mode="whole")


def _one_by_one(prepare: Prepare) -> Prepare:
    """Serialize calls of ``prepare``, so that later ones find the clip encoded."""
    turn = asyncio.Lock()

    async def in_turn() -> tuple[Reference, ...]:
        async with turn:
            return await prepare()

    return in_turn


#: Seconds that an item waits for a slot.
_SLOT_TIMEOUT_S = 30.0
_LEAST_WAIT_S = 0.05
#: Maximum wait between tries, since a slot may become free before the hint.
_MOST_WAIT_S = 1.0
#: Audio bytes that are encoded as base64 at a time, a multiple of its groups.
_PIECE_BYTES = 48 * 1024


class _Spoken(NamedTuple):
    """A request's encoded audio, its number of samples, and what it was."""

    asked: SpeechBody
    data: bytearray
    samples: int
    whole: Spoken


#: The plan of a text, and its request.
Item = tuple[SpeechPlan, SpeechBody]
Result = _Spoken | TalkwireError


class HttpBatch(Response):
    """Speaks ``items``; one that cannot be served is an error instead.

    At most ``max_batch_contexts`` of them run at a time. All are cancelled if the client
    disconnects, or reads nothing for ``slow_consumer_s``.
    """

    def __init__(
        self, runtime: Runtime, items: Sequence[Item | TalkwireError], request_id: str
    ) -> None:
        self.status_code, self.media_type, self.background = 200, "application/json", None
        self.init_headers({"cache-control": "no-store"})
        self._runtime, self._request_id = runtime, request_id
        self._todo: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        #: Results that have not been sent, in the order of the items.
        self._results: deque[asyncio.Future[Result]] = deque()
        for item in items:
            result = asyncio.get_running_loop().create_future()
            self._results.append(result)
            if isinstance(item, TalkwireError):
                result.set_result(item)
            else:
                self._todo.append((item, result))
        self._caller = current_caller()
        #: The first item's lease, taken before the response begins.
        self._first: Lease | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak all items, or until the client disconnects."""
        if self._todo:
            (plan, _), _ = self._todo[0]
            try:
                speed = plan.options.format.speed
                self._first = self._runtime.admission.acquire(self._caller, speed)
            except CapacityError as full:
                answer = self._runtime.errors.refusal(full, TABLE, self._request_id)
                await answer(scope, receive, send)
                return
        with self._runtime.lifecycle.connection():
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
        at_once = min(self._runtime.settings.max_batch_contexts, len(self._todo))
        workers = [tasks.create_task(self._work(tasks)) for _ in range(at_once)]
        try:
            await asyncio.wait([writer, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._todo.clear()
            for task in (writer, gone, *workers):
                task.cancel()
            # the group takes no more tasks once it is left, and their contexts may still start some
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while self._todo:
            (plan, asked), result = self._todo.popleft()
            try:
                self._runtime.accounts.require_text(
                    self._caller, len(asked.input), time.monotonic()
                )
                lease = await self._acquire(plan.options.format.speed)
                result.set_result(await self._speak(plan, asked, lease, tasks))
            except TalkwireError as error:
                result.set_result(error)

    async def _acquire(self, speed: float) -> Lease:
        """Wait for a slot. Raises CapacityError."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        give_up_at = time.monotonic() + _SLOT_TIMEOUT_S
        while True:
            self._runtime.lifecycle.require_ready()
            try:
                return self._runtime.admission.acquire(self._caller, speed)
            except CapacityError as full:
                if time.monotonic() >= give_up_at:
                    raise
                hint_s = (full.retry_after_ms or 0) / 1000
                await asyncio.sleep(min(_MOST_WAIT_S, max(_LEAST_WAIT_S, hint_s)))

    async def _speak(
        self, plan: SpeechPlan, asked: SpeechBody, lease: Lease, tasks: asyncio.TaskGroup
    ) -> _Spoken:
        """Speak one item. Raises TalkwireError."""
        context, outputs = open_response(self._runtime, tasks, plan, lease)
        data, samples = bytearray(), 0

        def take(audio: Audio) -> None:
            nonlocal data, samples
            data += audio.data
            samples += audio.samples

        whole = await speak_whole(context, outputs, asked.input, take)
        return _Spoken(asked, data, samples, whole)

    async def _write(self, body: ResponseBody) -> None:
        """Write a ``BatchAnswer`` as one JSON object, in parts."""
        total, failed = len(self._results), 0
        try:
            await body.put(f'{{"id":"speech-batch-{self._request_id}","results":['.encode())
            for index in range(total):
                result = await self._results.popleft()
                if isinstance(result, TalkwireError):
                    self._runtime.errors.count(result, self._request_id, NAME)
                    failed += 1
                for piece in self._told(index, result):
                    await body.put(piece)
                    await asyncio.sleep(0)  # for a fast client, ``put`` never waits
            counts = {"total": total, "succeeded": total - failed, "failed": failed}
            await body.put(b"]," + _json(counts)[1:], last=True)
        except CapacityError as slow:
            self._runtime.errors.count(slow, self._request_id, NAME)

    def _told(self, index: int, result: Result) -> Iterator[bytes]:
        """Yield a ``BatchResult``, after a comma if necessary. Making a part blocks the event loop,
        so it must be quick.
        """
        if index:
            yield b","
        if isinstance(result, TalkwireError):
            told = error_body(result)["error"]
            fields = {"status": "error", "error": told["message"], "code": told["code"]}
            param = {} if told["param"] is None else {"param": told["param"]}
            yield _json({"index": index, **fields, **param})
            return
        name = FORMATS[response_format(result.asked, self._runtime.settings)]
        tell_length(name, result.data, result.samples)
        usage = token_usage(result.whole.done.report, heard_frame_s(result.asked, self._runtime))
        yield _json({"index": index, "status": "success"})[:-1] + b',"audio_data":"'
        for at in range(0, len(result.data), _PIECE_BYTES):
            yield base64.b64encode(result.data[at : at + _PIECE_BYTES])
        done, words, warnings = result.whole
        more: dict[str, Any] = {"usage": usage, "finish_reason": finish_reason(done)}
        more |= captioned(result.asked.captions, words)
        if warnings:
            more["warnings"] = warnings
        yield b'",' + _json({"media_type": MEDIA_TYPES[name], **more})[1:]


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
