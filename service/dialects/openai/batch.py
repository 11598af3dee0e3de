"""``POST /v1/audio/speech/batch``: several texts in one request, in the shape of vLLM-Omni."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from service.audio.containers import tell_length
from service.audio.factory import MEDIA_TYPES
from service.contexts.options import Prepare, SpeechPlan, require_model
from service.dialects.openai.errors import error_body, refusal
from service.dialects.openai.references import ReferenceClip, TaskType, warning_header
from service.dialects.openai.request import (
    FORMATS,
    SpeechBody,
    VoiceId,
    ignored_fields,
    prepare_reference,
    speech_plan,
)
from service.runtime import Runtime
from service.transport.http_batch import HttpBatch, Result
from service.transport.http_routes import ignored_header
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.ports import MAX_REFERENCES, Reference
from streaming.protocol.field_errors import unknown_field
from streaming.protocol.messages import MAX_RAS, MAX_SCENE_CHARS

_Int = Annotated[int, Field(strict=True)]
_Float = Annotated[float, Field(strict=True)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_DEFAULT_FORMAT = "wav"
#: Audio that is put into base64 at once, in whole groups of it.
_PIECE_BYTES = 48 * 1024


#: Who speaks: an item that says any of it takes nothing of it from its batch.
_SPEAKER = frozenset(("voice", "ref_audio", "ref_text", "references", "task_type"))


class BatchOptions(BaseModel):
    """What both a batch and each of its items may say; the item's word counts. An item with a
    voice or a clip takes neither from its batch.
    """

    model_config = ConfigDict(extra="allow")

    voice: _Name | VoiceId | None = Field(None, description="As in `POST /v1/audio/speech`.")
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = Field(
        None, description="Without it, `wav`."
    )
    speed: _Float | None = Field(None, ge=0.25, le=4.0, description="Without it, 1.0.")
    bitrate: _Int | None = Field(
        None,
        ge=1,
        description="Bits per second of mp3, opus and aac. Without it, the format's own.",
    )
    instructions: str | None = Field(None, description="Without effect, and named as ignored.")
    language: _Name | None = Field(None, description="Without effect, and named as ignored.")
    seed: _Int | None = Field(None, ge=0, lt=2**53, description="The same seed, the same audio.")
    temperature: _Float | None = Field(None, ge=0, le=2, description="0 is greedy.")
    top_p: _Float | None = Field(None, gt=0, le=1, description="Without it, the model's own.")
    top_k: _Int | None = Field(None, ge=1, le=1024, description="Without it, the model's own.")
    ras_win_len: _Int | None = Field(
        None, ge=0, le=MAX_RAS, description="As in `POST /v1/audio/speech`."
    )
    ras_max_repeat: _Int | None = Field(
        None, ge=1, le=MAX_RAS, description="As in `POST /v1/audio/speech`."
    )
    max_frames: _Int | None = Field(
        None, ge=1, le=8192, description="The most codec frames that one sentence may have."
    )
    ref_audio: str | None = Field(
        None, description="A clip to speak like, as in `POST /v1/audio/speech`."
    )
    ref_text: Annotated[str, Field(max_length=4000)] | None = Field(
        None, description="What is said in `ref_audio`, word for word."
    )
    references: Annotated[list[ReferenceClip], Field(max_length=MAX_REFERENCES)] | None = Field(
        None,
        description="SGLang-Omni's name for `ref_audio` and `ref_text`: a list of one clip, and of "
        "one for each speaker of the text where the model knows several.",
    )
    task_type: TaskType | None = Field(None, description="As in `POST /v1/audio/speech`.")
    scene: Annotated[str, Field(min_length=1, max_length=MAX_SCENE_CHARS)] | None = Field(
        None, description="As in `POST /v1/audio/speech`."
    )


class BatchItem(BatchOptions):
    """One text."""

    input: str = Field(description="The text to speak.")


class BatchBody(BatchOptions):
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


class JsonRenderer:
    """See service.transport.http_batch.BatchRenderer: one JSON object, written bit by bit."""

    def __init__(self, bodies: list[SpeechBody], frame_s: float, request_id: str) -> None:
        self._bodies, self._frame_s, self._request_id = bodies, frame_s, request_id
        self._succeeded = self._failed = 0

    def opening(self) -> bytes:
        """Up to the first result."""
        return f'{{"id":"speech-batch-{self._request_id}","results":['.encode()

    def result(self, index: int, result: Result) -> Iterator[bytes]:
        """A ``BatchResult``, after a comma if need be."""
        if index:
            yield b","
        if isinstance(result, TalkwireError):
            self._failed += 1
            yield _json({"index": index, **_fault(result)})
            return
        self._succeeded += 1
        body, report = self._bodies[index], result.done.report
        name = FORMATS[body.response_format or _DEFAULT_FORMAT]
        tell_length(name, result.data, result.samples)
        came = report.characters
        made = round(report.audio_s * body.speed / self._frame_s)
        usage = {"input_tokens": came, "output_tokens": made, "total_tokens": came + made}
        yield _json({"index": index, "status": "success"})[:-1] + b',"audio_data":"'
        for at in range(0, len(result.data), _PIECE_BYTES):
            yield base64.b64encode(result.data[at : at + _PIECE_BYTES])
        yield b'",' + _json({"media_type": MEDIA_TYPES[name], "usage": usage})[1:]

    def closing(self) -> bytes:
        """The counts."""
        good, bad = self._succeeded, self._failed
        return f'],"total":{good + bad},"succeeded":{good},"failed":{bad}}}'.encode()

    def refusal(self, error: TalkwireError) -> Response:
        """See BatchRenderer."""
        return refusal(error, self._request_id)


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _fault(error: TalkwireError) -> dict[str, Any]:
    detail = error_body(error)["error"]
    fields = {"status": "error", "error": detail["message"], "code": detail["code"]}
    return fields if detail["param"] is None else {**fields, "param": detail["param"]}


def batch_response(body: BatchBody, runtime: Runtime, request_id: str) -> HttpBatch:
    """The answer to a batch. Raises RequestError, CapacityError for what concerns all of it."""
    settings = runtime.settings
    if len(body.items) > settings.max_batch_items:
        raise RequestError(
            ErrorCode.INVALID_PARAMETER,
            f"A batch takes {settings.max_batch_items} items at most.",
            param="items",
        )
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
    renderer = JsonRenderer(bodies, runtime.codec.spec.frame_s, request_id)
    answer = HttpBatch(runtime, items, renderer, request_id, settings.max_batch_contexts)
    ignored = [name for one in bodies for name in ignored_fields(one, runtime)]
    for one in bodies:
        answer.headers.update(warning_header(one.ref_audio, one.ref_text, one.references, runtime))
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
) -> tuple[SpeechPlan, str] | TalkwireError:
    """An item ready to be spoken: all at once, since nobody listens to it while it is made."""
    try:
        plan = speech_plan(body, runtime, request_id, buffered=True, prepare=clips.prepare)
        return plan, body.input
    except TalkwireError as error:
        return error
