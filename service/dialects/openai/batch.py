"""``POST /v1/audio/speech/batch``: several texts in one request, in the shape of vLLM-Omni."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.contexts.options import Prepare, require_model
from service.dialects.openai.batch_response import HttpBatch, Item
from service.dialects.openai.request import (
    SpeechBody,
    TextOptions,
    ignored_fields,
    prepare_reference,
    speech_plan,
    warning_header,
)
from service.runtime import Runtime
from service.transport.http_routes import ignored_header
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.ports import Reference
from streaming.protocol.field_errors import invalid_parameter, unknown_field

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_DEFAULT_FORMAT = "wav"
#: Who speaks: an item that says any of it takes nothing of it from its batch.
_SPEAKER = frozenset(("voice", "ref_audio", "ref_text", "references", "task_type"))


class BatchItem(TextOptions):
    """One text. What it says counts, and beside it what its batch does; one with a voice or a clip
    takes neither from its batch.
    """

    input: str = Field(description="The text to speak.")


class BatchBody(TextOptions):
    """The body of `POST /v1/audio/speech/batch`. Fields that are not listed have no effect, and
    are named by the answer's header `x-talkwire-ignored`. A server may refuse them instead.
    """

    items: list[BatchItem] = Field(min_length=1, description="The texts; 32 at most by default.")
    model: _Name | None = Field(None, description="As in `POST /v1/audio/speech`.")


class BatchUsage(BaseModel):
    """For want of tokens: characters of the text and the codec's frames."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class BatchResult(BaseModel):
    """What became of one item."""

    index: int
    status: Literal["success", "error"]
    audio_data: str | None = Field(None, description="Base64, of a success.")
    media_type: str | None = Field(None, description="Of a success.")
    usage: BatchUsage | None = Field(None, description="Of a success.")
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
    """The answer to a batch. Raises RequestError, CapacityError for what concerns all of it."""
    settings = runtime.settings
    if len(body.items) > settings.max_batch_items:
        raise invalid_parameter("items", f"A batch takes {settings.max_batch_items} items at most.")
    if sum(len(item.input) for item in body.items) > settings.max_text_chars:
        raise RequestError(
            ErrorCode.TEXT_TOO_LONG,
            f"A batch takes {settings.max_text_chars} characters at most, all items together.",
            param="items",
        )
    extra = _extra_fields(body)
    if extra and settings.unknown_fields == "refuse":
        raise unknown_field(extra[0][1], sorted((*BatchBody.model_fields, "input")))
    require_model(runtime, body.model)
    runtime.require_ready()
    bodies = [_speech_body(body, item) for item in body.items]
    clips = _Clips()
    items = [
        _plan(one, runtime, f"{request_id}-{index}", clips) for index, one in enumerate(bodies)
    ]
    answer = HttpBatch(runtime, items, request_id)
    ignored = [name for one in bodies for name in ignored_fields(one, runtime)]
    for one in bodies:
        answer.headers.update(warning_header(one, runtime))
    answer.headers.update(ignored_header([*ignored, *(name for name, _ in extra)]))
    return answer


def _extra_fields(body: BatchBody) -> list[tuple[str, str]]:
    """Fields that there are not, by name and by path."""
    mine = [(name, name) for name in body.model_extra or ()]
    return mine + [
        (name, f"items.{index}.{name}")
        for index, item in enumerate(body.items)
        for name in item.model_extra or ()
    ]


def _speech_body(body: BatchBody, item: BatchItem) -> SpeechBody:
    known = set(BatchItem.model_fields) | {"model"}
    shared = body.model_dump(exclude_none=True, include=known)
    own = item.model_dump(exclude_none=True, include=known)
    if not _SPEAKER.isdisjoint(own):
        shared = {name: value for name, value in shared.items() if name not in _SPEAKER}
    return SpeechBody(**{"response_format": _DEFAULT_FORMAT, **shared, **own}, mode="whole")


class _Clips:
    """The clips of a batch: one that several items bring is held once, and encoded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str | None, str | None, str | None], ...], Prepare] = {}

    def prepare(self, body: SpeechBody, runtime: Runtime) -> Prepare | None:
        """See ``prepare_reference``."""
        prepare = prepare_reference(body, runtime)
        if prepare is None:
            return None
        clips = [(clip.audio, clip.audio_path, clip.text) for clip in body.references or ()]
        key = tuple(clips or [(body.ref_audio, None, body.ref_text)])
        return self._known.setdefault(key, _one_by_one(prepare))


def _one_by_one(prepare: Prepare) -> Prepare:
    """The same, after those who asked before, so that later ones find the clip encoded."""
    turn = asyncio.Lock()

    async def in_turn() -> tuple[Reference, ...]:
        async with turn:
            return await prepare()

    return in_turn


def _plan(
    body: SpeechBody, runtime: Runtime, request_id: str, clips: _Clips
) -> Item | TalkwireError:
    """An item ready to be spoken: all at once, since nobody listens to it while it is made."""
    try:
        plan = speech_plan(body, runtime, request_id, buffered=True, prepare=clips.prepare)
        return plan, body
    except TalkwireError as error:
        return error
