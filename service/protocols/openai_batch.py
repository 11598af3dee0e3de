"""``POST /v1/audio/speech/batch``: several texts in one request, in the shape of vLLM-Omni."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from service.audio.factory import MEDIA_TYPES
from service.audio.whole import tell_length
from service.http_batch import HttpBatch, Result
from service.http_speech import HttpContext
from service.protocols.openai_errors import error_body, error_response
from service.protocols.openai_request import (
    FORMATS,
    SpeechBody,
    VoiceId,
    http_context,
    require_model,
)
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError, TalkwireError

_Int = Annotated[int, Field(strict=True)]
_Float = Annotated[float, Field(strict=True)]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_DEFAULT_FORMAT = "wav"
#: Audio that is put into base64 at once, in whole groups of it.
_PIECE_BYTES = 48 * 1024


class BatchOptions(BaseModel):
    """What both a batch and each of its items may say; the item's word counts."""

    model_config = ConfigDict(extra="forbid")

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
    instructions: str | None = Field(None, description="Only an empty text is served.")
    language: _Name | None = Field(None, description="The text's language, as a hint.")
    seed: _Int | None = Field(None, ge=0, lt=2**53, description="The same seed, the same audio.")
    temperature: _Float | None = Field(None, ge=0, le=2, description="0 is greedy.")
    top_p: _Float | None = Field(None, gt=0, le=1, description="Without it, the model's own.")
    top_k: _Int | None = Field(None, ge=1, le=1024, description="Without it, the model's own.")
    max_frames: _Int | None = Field(
        None, ge=1, le=8192, description="The most codec frames that one sentence may have."
    )


class BatchItem(BatchOptions):
    """One text."""

    input: str = Field(description="The text to speak.")


class BatchBody(BatchOptions):
    """The body of `POST /v1/audio/speech/batch`. Fields that are not listed are refused."""

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
    code: str | None = Field(None, description="For programs: a code of docs/protocol.md.")
    param: str | None = Field(None, description="The field at fault, where one is.")


class BatchAnswer(BaseModel):
    """The results in the order of the items."""

    id: str
    results: list[BatchResult]
    total: int
    succeeded: int
    failed: int


class JsonWording:
    """See service.http_batch.BatchWording: one JSON object, written bit by bit."""

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
        name = FORMATS[body.response_format]
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
        """See BatchWording."""
        return error_response(error, self._request_id)


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
    require_model(runtime, body.model)
    runtime.require_ready()
    bodies = [_speech_body(body, item) for item in body.items]
    contexts = [_context(one, runtime, f"{request_id}-{index}") for index, one in enumerate(bodies)]
    wording = JsonWording(bodies, runtime.codec.spec.frame_s, request_id)
    return HttpBatch(runtime, contexts, wording, request_id, settings.max_batch_contexts)


def _speech_body(body: BatchBody, item: BatchItem) -> SpeechBody:
    shared = body.model_dump(exclude_none=True, exclude={"items"})
    asked = {"response_format": _DEFAULT_FORMAT, **shared, **item.model_dump(exclude_none=True)}
    return SpeechBody(**asked, mode="whole")


def _context(body: SpeechBody, runtime: Runtime, request_id: str) -> HttpContext | TalkwireError:
    """An item ready to be spoken: all at once, since nobody listens to it while it is made."""
    try:
        return http_context(body, runtime, request_id, is_kept=True)
    except TalkwireError as error:
        return error
