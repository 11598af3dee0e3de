"""ElevenLabs' speech API (docs/dialects.md): the same sessions in other words."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

from fastapi import APIRouter, FastAPI, Query, Request, Response, WebSocket
from pydantic import BaseModel

from service.context_settings import session_settings, speech_request
from service.handshake import serve_socket
from service.http_speech import HttpContext, HttpSpeech
from service.http_wording import PlainWording
from service.protocols.elevenlabs_alignment import Aligner
from service.protocols.elevenlabs_errors import ERRORS, ElevenLabsRoute, refusal
from service.protocols.elevenlabs_multi import MultiStreamDialect
from service.protocols.elevenlabs_request import (
    DEFAULT_FORMAT,
    NAME,
    OutputFormat,
    SpeechBody,
    parse_format,
    speech_create,
    stream_options,
)
from service.protocols.elevenlabs_single import SingleStreamDialect
from service.protocols.elevenlabs_wording import TimedLines, TimedWhole
from service.runtime import Runtime
from service.socket import Dialect, Socket
from service.voices_map import ListedVoice, find_voice, list_voices
from streaming.session import Session

_SPEECH = "/v1/text-to-speech/{voice_id}"


class Voice(BaseModel):
    """A voice, in ElevenLabs' shape."""

    voice_id: str
    name: str
    category: Literal["premade", "cloned"]
    description: str | None
    labels: dict[str, str]


class VoiceList(BaseModel):
    """All voices; the first is the default."""

    voices: list[Voice]


def add_elevenlabs(app: FastAPI, runtime: Runtime) -> None:
    """Add all routes of this dialect."""
    _add_sockets(app, runtime)
    router = APIRouter(route_class=ElevenLabsRoute, responses=ERRORS, tags=[NAME])
    _add_speech(router, runtime)
    _add_voices(router, runtime)
    app.include_router(router)


def _add_sockets(app: FastAPI, runtime: Runtime) -> None:
    def multi(websocket: WebSocket, socket: Socket, tasks: asyncio.TaskGroup) -> Dialect:
        options = stream_options(_voice(websocket), websocket.query_params, runtime)
        return MultiStreamDialect(runtime, socket.outbox, tasks, options, socket.finish)

    def single(websocket: WebSocket, socket: Socket, tasks: asyncio.TaskGroup) -> Dialect:
        options = stream_options(_voice(websocket), websocket.query_params, runtime)
        return SingleStreamDialect(runtime, socket.outbox, tasks, options, socket.finish)

    @app.websocket(_SPEECH + "/multi-stream-input")
    async def multi_stream_input(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, partial(multi, websocket), refusal)

    @app.websocket(_SPEECH + "/stream-input")
    async def stream_input(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, partial(single, websocket), refusal)


def _voice(websocket: WebSocket) -> str:
    return str(websocket.path_params["voice_id"])


def _add_speech(router: APIRouter, runtime: Runtime) -> None:
    format_query = Query(DEFAULT_FORMAT, description="`codec_rate_bitrate`.")

    @router.post(_SPEECH, response_class=Response)
    @router.post(_SPEECH + "/stream", response_class=Response)
    async def speech(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """Speak a text. The audio is sent while it is made."""
        format_ = parse_format(output_format)
        context = _context(body, voice_id, format_, runtime, request, timestamps=False)
        refuse = partial(refusal, request_id=request.state.request_id)
        return HttpSpeech(runtime, context, PlainWording(format_.media_type, refuse))

    @router.post(_SPEECH + "/stream/with-timestamps", response_class=Response)
    async def timed_stream(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """The same in lines of JSON, with the times of characters where the model has them."""
        return _timed(voice_id, body, request, output_format, is_whole=False)

    @router.post(_SPEECH + "/with-timestamps", response_class=Response)
    async def timed(
        voice_id: str, body: SpeechBody, request: Request, output_format: str = format_query
    ) -> Response:
        """The same in one piece of JSON."""
        return _timed(voice_id, body, request, output_format, is_whole=True)

    def _timed(
        voice_id: str, body: SpeechBody, request: Request, name: str, *, is_whole: bool
    ) -> Response:
        format_ = parse_format(name)
        context = _context(
            body, voice_id, format_, runtime, request, timestamps=True, is_kept=is_whole
        )
        aligner = Aligner()
        aligner.append(body.text)
        refuse = partial(refusal, request_id=request.state.request_id)
        late_ms = 1000 * context.encoder.delay_samples / context.encoder.sample_rate
        wording = (
            TimedWhole(aligner, refuse, late_ms, is_wav=format_.encoding == "wav")
            if is_whole
            else TimedLines(aligner, refuse, late_ms)
        )
        return HttpSpeech(runtime, context, wording, wording.words)


def _context(
    body: SpeechBody,
    voice_id: str,
    format_: OutputFormat,
    runtime: Runtime,
    request: Request,
    *,
    timestamps: bool,
    is_kept: bool = False,
) -> HttpContext:
    """Raises RequestError, CapacityError."""
    runtime.require_ready()
    request_id = request.state.request_id
    create = speech_create(body, voice_id, runtime, request_id, timestamps=timestamps)
    asked = speech_request(runtime, create, request_id)
    runtime.talker.check_options(asked)
    encoder = format_.make_encoder(runtime.codec.spec.sample_rate, create.audio.speed)
    session = Session(session_settings(runtime, create, is_kept=is_kept))
    return HttpContext(NAME, body.text, session, asked, encoder)


def _add_voices(router: APIRouter, runtime: Runtime) -> None:
    @router.get("/v1/voices")
    async def voices() -> VoiceList:
        """The voices that can be asked for."""
        return VoiceList(voices=[_shaped(voice) for voice in list_voices(runtime)])

    @router.get("/v1/voices/{voice_id}")
    async def voice(voice_id: str) -> Voice:
        """One of them."""
        return _shaped(find_voice(voice_id, runtime))


def _shaped(voice: ListedVoice) -> Voice:
    return Voice(
        voice_id=voice.id,
        name=voice.name,
        category="premade" if voice.created_at is None else "cloned",
        description=voice.description,
        labels={"language": voice.language} if voice.language else {},
    )
