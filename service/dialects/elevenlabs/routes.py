"""ElevenLabs' HTTP API (docs/reference/dialects.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace

from fastapi import APIRouter, Query, Request, Response, WebSocket

from service.access.rules import GuardedRouter, Rule
from service.audio.pcm import tell_wav_length
from service.audio.timeline import later
from service.auth.keys import Scope
from service.contexts.options import SpeechPlan, plan_speech
from service.dialects.elevenlabs.account import add_account
from service.dialects.elevenlabs.messages import ERRORS, TABLE, Aligner, CharTimes
from service.dialects.elevenlabs.request import (
    DEFAULT_FORMAT,
    NAME,
    OutputFormat,
    SpeechBody,
    parse_format,
    speech_create,
    stream_options,
)
from service.dialects.elevenlabs.sockets import (
    MultiStreamDialect,
    SingleStreamDialect,
    StreamDialect,
)
from service.runtime import Runtime
from service.transport.http_response import BodyRenderer, HttpSpeech
from service.transport.http_routes import SpeechRoute, speaks
from service.transport.websocket import Dialect, Socket, serve_socket
from streaming.events import Done
from streaming.word_timing import WordTiming

_JSON = "application/json"
_OPENING = b'{"audio_base64": "'
#: What base64 makes four characters of.
_GROUP_BYTES = 3
#: Whole groups that hold a WAV file's header, which can be told the length only at the end.
_HEAD_BYTES = 48


class TimedLines(BodyRenderer):
    """One JSON object per line: audio and the characters that end in it. Times are from the
    beginning, of what a decoder makes of the audio: ``late_ms`` after the words' own.
    """

    def __init__(self, aligner: Aligner, late_ms: float) -> None:
        super().__init__(_JSON)
        self._aligner, self._late_ms = aligner, late_ms
        self._words: list[WordTiming] = []

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Words of the audio that comes next."""
        self._words += later(timings, self._late_ms)

    def audio(self, data: bytes) -> bytes:
        """A line."""
        return b"".join((_OPENING, base64.b64encode(data), _closing(self._times()), b"\n"))

    def done(self, done: Done) -> bytes:
        """Words whose audio the encoder gave before, and the text behind the last of them."""
        times = self._times(is_last=True)
        return b"" if times is None else b"".join((_OPENING, _closing(times), b"\n"))

    def _times(self, *, is_last: bool = False) -> CharTimes | None:
        """The characters of the words so far."""
        times, self._words = self._aligner.take(self._words), []
        if is_last and (tail := self._aligner.finish()) is not None:
            times = tail if times is None else times + tail
        return times


def _closing(times: CharTimes | None) -> bytes:
    """The characters that follow the audio, under both names."""
    alignment = json.dumps(None if times is None else times.in_seconds())
    return f'", "alignment": {alignment}, "normalized_alignment": {alignment}}}'.encode()


class TimedWhole(TimedLines):
    """One JSON object for everything, when everything is there. The audio is put into base64 as
    it comes: all of it at once would keep the event loop from others. With ``is_wav`` its header
    is told the length.
    """

    def __init__(self, aligner: Aligner, late_ms: float, *, is_wav: bool) -> None:
        super().__init__(aligner, late_ms)
        self._is_wav, self._size = is_wav, 0
        self._head, self._rest = bytearray(), bytearray()
        self._encoded: list[bytes] = []

    def audio(self, data: bytes) -> bytes:
        """Nothing yet."""
        self._size += len(data)
        missing = _HEAD_BYTES - len(self._head)
        self._head += data[:missing]
        self._rest += data[missing:]
        groups = len(self._rest) - len(self._rest) % _GROUP_BYTES
        self._encoded.append(base64.b64encode(self._rest[:groups]))
        del self._rest[:groups]
        return b""

    def done(self, done: Done) -> bytes:
        """All of it."""
        if self._is_wav:
            tell_wav_length(self._head, self._size)
        head, rest = map(base64.b64encode, (self._head, self._rest))
        return b"".join((_OPENING, head, *self._encoded, rest, _closing(self._times(is_last=True))))


#: Where browsers put what a handshake cannot carry in a header.
_TOKEN_QUERY = ("single_use_token", "authorization", "xi_api_key")
_SPEECH = "/v1/text-to-speech/{voice_id}"


def elevenlabs_router(runtime: Runtime) -> GuardedRouter:
    """All routes of this dialect."""
    rule = Rule(Scope.SPEAK, TABLE, scheme="xi_api_key")
    router = GuardedRouter(rule, route_class=SpeechRoute, responses=ERRORS, tags=[NAME])
    sockets = GuardedRouter(replace(rule, query=_TOKEN_QUERY))
    _add_sockets(sockets, runtime)
    router.take_routes(sockets)
    _add_speech(router, runtime)
    add_account(router, runtime)
    return router


def _add_sockets(router: APIRouter, runtime: Runtime) -> None:
    async def serve(websocket: WebSocket, kind: type[StreamDialect]) -> None:
        query = websocket.query_params

        def dialect(socket: Socket) -> Dialect:
            voice = str(websocket.path_params["voice_id"])
            return kind(socket, stream_options(voice, query, runtime))

        ignored = ignored_fields(query.get("language_code"))
        await serve_socket(websocket, runtime, dialect, TABLE, ignored=ignored)

    @router.websocket(_SPEECH + "/multi-stream-input")
    async def multi_stream_input(websocket: WebSocket) -> None:
        await serve(websocket, MultiStreamDialect)

    @router.websocket(_SPEECH + "/stream-input")
    async def stream_input(websocket: WebSocket) -> None:
        await serve(websocket, SingleStreamDialect)


def ignored_fields(language_code: str | None) -> list[str]:
    """The fields of a request without effect."""
    return ["language_code"] if language_code else []


def _add_speech(router: APIRouter, runtime: Runtime) -> None:
    format_query = Query(DEFAULT_FORMAT, description="`codec_rate_bitrate`.")

    @router.post(_SPEECH, response_class=Response)
    @router.post(_SPEECH + "/stream", response_class=Response)
    @speaks
    async def speech(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a text. The audio is sent while it is made."""
        format_ = parse_format(output_format)
        plan = planned(voice_id, body, request, format_, timestamps=False)
        return spoken(plan, body, BodyRenderer(format_.media_type))

    @router.post(_SPEECH + "/stream/with-timestamps", response_class=Response)
    @speaks
    async def timed_stream(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """The same in lines of JSON, with the times of characters where the model has them."""
        plan = planned(voice_id, body, request, parse_format(output_format), timestamps=True)
        return spoken(plan, body, TimedLines(*_alignment(plan, body)))

    @router.post(_SPEECH + "/with-timestamps", response_class=Response)
    @speaks
    async def timed(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """The same in one piece of JSON."""
        format_ = parse_format(output_format)
        plan = planned(voice_id, body, request, format_, timestamps=True, buffered=True)
        is_wav = format_.encoding == "wav"
        return spoken(plan, body, TimedWhole(*_alignment(plan, body), is_wav=is_wav))

    def planned(
        voice_id: str,
        body: SpeechBody,
        request: Request,
        format_: OutputFormat,
        *,
        timestamps: bool,
        buffered: bool = False,
    ) -> SpeechPlan:
        """Raises RequestError, CapacityError."""
        runtime.require_ready()
        request_id = request.state.request_id
        create = speech_create(body, voice_id, runtime, request_id, timestamps=timestamps)
        encoder = format_.make_encoder(runtime.codec.spec.sample_rate, create.audio.speed)
        return plan_speech(runtime, NAME, request_id, create, encoder, buffered=buffered)

    def spoken(plan: SpeechPlan, body: SpeechBody, renderer: BodyRenderer) -> Response:
        ignored = ignored_fields(body.language_code)
        return HttpSpeech(runtime, plan, body.text, TABLE, renderer, ignored)


def _alignment(plan: SpeechPlan, body: SpeechBody) -> tuple[Aligner, float]:
    """The aligner of a whole text, and by how many milliseconds its audio is late."""
    aligner = Aligner(lends=False)
    aligner.append(body.text)
    return aligner, 1000 * plan.encoder.delay_samples / plan.encoder.sample_rate
