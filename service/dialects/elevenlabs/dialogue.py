"""ElevenLabs' text-to-dialogue over HTTP: several voices take turns in one audio file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from service.access.rules import Rule, declare
from service.contexts.options import Line, ignored_languages, voice_of
from service.dialects.elevenlabs.messages import TABLE, Aligner, CharTimes
from service.dialects.elevenlabs.request import (
    DEFAULT_FORMAT,
    SpokenBody,
    VoiceSettings,
    at_speed,
    parse_format,
    speech_options,
)
from service.dialects.elevenlabs.timed_bodies import TimedLines, TimedWhole
from service.runtime import Runtime
from service.transport.http_response import speak_over_http
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import FieldError, invalid_field

#: The most voices of a dialogue, as in ElevenLabs' API.
MAX_VOICES = 10
#: The most lines of a request. Each is a generation of its own.
MAX_LINES = 500


class DialogueInput(BaseModel):
    """A line of a dialogue."""

    text: str = Field(description="What the voice says.")
    voice_id: str


class DialogueBody(SpokenBody):
    """The body of a request for a dialogue."""

    inputs: Annotated[list[DialogueInput], Field(min_length=1, max_length=MAX_LINES)] = Field(
        description=f"The lines, in order, of {MAX_VOICES} different voices at most."
    )
    settings: VoiceSettings | None = Field(None, description="Only `speed` has an effect.")


def known_voice(runtime: Runtime, field: str, name: str) -> str:
    """Return the talker's name of a voice that a field names. Raises RequestError."""
    try:
        return voice_of(runtime, name)
    except RequestError as error:
        raise FieldError(error.code, error.message, param=field) from error


def dialogue_lines(inputs: Sequence[DialogueInput], runtime: Runtime) -> list[Line]:
    """Translate the lines. Raises RequestError: too many voices or characters, an unknown voice."""
    characters, limit = sum(len(one.text) for one in inputs), runtime.settings.max_text_chars
    if characters > limit:
        allowed = f"at most {limit} characters in all"
        message = f"inputs must have {allowed}, not {characters}."
        raise FieldError(ErrorCode.TEXT_TOO_LONG, message, param="inputs")
    voices: dict[str, str] = {}
    for number, one in enumerate(inputs):
        if one.voice_id in voices:
            continue
        field = f"inputs.{number}.voice_id"
        if len(voices) == MAX_VOICES:
            allowed = f"one of the {MAX_VOICES} voices before it, the most of a dialogue"
            raise invalid_field(field, one.voice_id, allowed)
        voices[one.voice_id] = known_voice(runtime, field, one.voice_id)
    return [Line(one.text, voices[one.voice_id]) for one in inputs]


class _Segments(TimedLines):
    """Adds ``voice_segments``: which characters and which time belong to which line. They count
    the characters of their own line of the response.
    """

    def __init__(
        self, aligner: Aligner, inputs: Sequence[DialogueInput], *, is_wav: bool = False
    ) -> None:
        super().__init__(aligner, is_wav=is_wav)
        self._inputs = inputs

    def fields(self, times: CharTimes | None) -> dict[str, Any]:
        """Return the fields after the audio."""
        segments: list[dict[str, Any]] = []
        if times is not None:
            end = self._aligner.position
            begin = end - len(times.chars)
            edges = accumulate((len(one.text) for one in self._inputs), initial=0)
            for number, (start, stop) in enumerate(pairwise(edges)):
                first, last = max(start, begin) - begin, min(stop, end) - begin
                if first >= last:
                    continue
                segment = {
                    "voice_id": self._inputs[number].voice_id,
                    "start_time_seconds": times.edges_ms[first] / 1000,
                    "end_time_seconds": times.edges_ms[last] / 1000,
                    "character_start_index": first,
                    "character_end_index": last,
                    "dialogue_input_index": number,
                }
                segments.append(segment)
        return super().fields(times) | {"voice_segments": segments}


class DialogueTimedLines(_Segments):
    """See TimedLines."""


class DialogueTimedWhole(_Segments, TimedWhole):
    """See TimedWhole."""


def add_dialogue(router: APIRouter, runtime: Runtime, rule: Rule) -> None:
    """Add the routes."""
    speaking = declare(replace(rule, speaks=True))
    format_query = Query(DEFAULT_FORMAT, description="`codec_rate_bitrate`.")
    base = "/v1/text-to-dialogue"

    @router.post(base, response_class=Response)
    @router.post(base + "/stream", response_class=Response)
    @speaking
    async def dialogue(
        body: DialogueBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a dialogue as one piece of audio. It is streamed."""
        return spoken(body, request, output_format)

    @router.post(base + "/stream/with-timestamps", response_class=Response)
    @speaking
    async def timed_stream(
        body: DialogueBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a dialogue as lines of JSON, with times of characters if the model has them."""
        return spoken(body, request, output_format, DialogueTimedLines)

    @router.post(base + "/with-timestamps", response_class=Response)
    @speaking
    async def timed(
        body: DialogueBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a dialogue as one JSON object, with times of characters if the model has them."""
        return spoken(body, request, output_format, DialogueTimedWhole)

    def spoken(
        body: DialogueBody,
        request: Request,
        output_format: str,
        timed: type[_Segments] | None = None,
    ) -> Response:
        """Return the response with the speech. Raises RequestError, CapacityError."""
        lines = dialogue_lines(body.inputs, runtime)
        format_ = at_speed(parse_format(output_format), body.settings)
        timestamps = timed is not None and runtime.engines.talker.spec.has_word_timings
        first = body.inputs[0].voice_id
        options = speech_options(body, first, format_, runtime, timestamps=timestamps)
        renderer = None
        if timed is not None:
            options = replace(options, buffered=issubclass(timed, TimedWhole))
            aligner = Aligner(lends=False)
            for line in lines:
                aligner.append(line.text)
                aligner.flush()
            renderer = timed(aligner, body.inputs, is_wav=format_.name == "wav")
        ignored = ignored_languages(runtime, {"language_code": body.language_code})
        response = speak_over_http(request, options, lines, TABLE, renderer, ignored)
        response.headers["request-id"] = request.state.request_id
        return response
