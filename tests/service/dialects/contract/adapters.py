"""Adapters that give every protocol the same operations: speak a text, hear it, cancel, leave.

All audio is s16le at 24 kHz, so that it can be compared with the fakes' audio of a whole text.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from streaming.errors import ErrorCode
from tests.service.dialects.wyoming.talk import WyomingTalk, talking
from tests.service.memory import Exchange, MemorySocket, Refused, Served

#: Codes of errors; other codes of warnings are kinds of markup.
_ERRORS = frozenset(ErrorCode)
_RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
_EL = "/v1/text-to-speech/default"


@dataclass(frozen=True)
class End:
    """The end of a turn. ``code`` is its error's, if there was one."""

    code: str | None = None


#: The meaning of a message: audio, the turn's end, or nothing.
Heard = bytes | End | None


@dataclass(frozen=True)
class SocketProtocol:
    """A protocol on a WebSocket.

    Attributes:
        name: The label in metrics.
        address: The path and query.
        turn: Makes the messages to speak a text to its end.
        read: Interprets a server's message.
        cancel: Messages that stop a turn; empty if only closing the socket does.
        nonsense: Invalid messages.
        survives: Whether the socket stays open after an invalid message.
        opening: Messages before the first turn.
        has_halves: Whether a text can hold half of a surrogate pair, which JSON escapes.
    """

    name: str
    address: str
    turn: Callable[[str], list[Any]]
    read: Callable[[Any], Heard]
    cancel: tuple[Any, ...]
    nonsense: tuple[Any, ...]
    survives: bool
    opening: tuple[Any, ...] = ()
    has_halves: bool = True


@dataclass(frozen=True)
class HttpProtocol:
    """A protocol with one POST per text. ``read`` returns the audio in a piece of the body."""

    name: str
    address: str
    body: Callable[[str], dict[str, Any]]
    read: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True)
class TcpProtocol:
    """A protocol on a TCP connection of its own, Wyoming."""

    name: str
    address: str


def _native(message: Any) -> Heard:
    if isinstance(message, bytes):
        return message[12:]
    if message["type"] == "error":
        return End(message["code"])
    return End() if message["type"] in ("context.done", "context.cancelled") else None


def _elevenlabs(message: Any) -> Heard:
    if "audio" in message:
        return base64.b64decode(message["audio"])
    if "error" in message:
        return End(message["error"])
    return End() if message.get("isFinal") else None


def _dialogue(message: Any) -> Heard:
    if "audio" in message:
        return base64.b64decode(message["audio"])
    if "error" in message:
        return End(message["error"])
    return End() if message.get("is_final") else None


def _dialogue_turn(text: str, **context: str) -> list[Any]:
    return [
        {**context, "voices": ["default"]},
        {**context, "inputs": [{"text": text, "voice_id": "default"}]},
        {**context, "flush": True},
    ]


def _cartesia(message: Any) -> Heard:
    if message["type"] == "chunk":
        return base64.b64decode(message["data"])
    if message["type"] == "error":
        return End(message["error_code"])
    return End() if message["type"] == "done" else None


def _deepgram(message: Any) -> Heard:
    if isinstance(message, bytes):
        return message
    code = message.get("code", "").lower()
    if message["type"] == "Warning" and (code == "draining" or code not in _ERRORS):
        return None  # of the server, or of markup: the turn goes on
    if message["type"] in ("Error", "Warning"):
        return End(code)
    return End() if message["type"] in ("Flushed", "Cleared") else None


def _flux(message: Any) -> Heard:
    if isinstance(message, bytes) or message["type"] in ("Warning", "Error"):
        return _deepgram(message)
    return End() if message["type"] in ("SpeechMetadata", "SpeechInterrupted") else None


def _vllm_omni(message: Any) -> Heard:
    if isinstance(message, bytes):
        return message
    if message["type"] == "error":
        return End(message["code"])
    return End() if message["type"] == "session.done" else None


def _livekit(message: Any) -> Heard:
    if message["type"] == "output_audio":
        return base64.b64decode(message["audio"])
    if message["type"] == "error":
        return End(message["code"])
    return End() if message["type"] == "done" else None


def _fish(message: bytes) -> Heard:
    said = msgspec.msgpack.decode(message)
    if said["event"] == "audio":
        return bytes(said["audio"])
    return End(said.get("code"))


def _fish_event(event: Any, **fields: Any) -> bytes:
    if isinstance(text := fields.get("text"), str):  # as encoders of UTF-8 do
        fields["text"] = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return msgspec.msgpack.encode({"event": event, **fields})


def _cartesia_turn(text: str) -> list[Any]:
    fields = {"context_id": "c", "voice": "default", "output_format": _RAW}
    return [{**fields, "transcript": text, "continue": False}]


SOCKETS = (
    SocketProtocol(
        "native",
        "/v1/tts/stream",
        lambda text: [
            {"type": "context.create", "context_id": "c", "audio": {"encoding": "pcm_s16le"}},
            {"type": "text.append", "context_id": "c", "text": text},
            {"type": "context.end", "context_id": "c"},
        ],
        _native,
        ({"type": "context.cancel", "context_id": "c"},),
        ("{", "[]", {"type": 5}, {"type": "nothing"}, b"bytes"),
        survives=True,
    ),
    SocketProtocol(
        "elevenlabs",
        f"{_EL}/multi-stream-input?output_format=pcm_24000",
        lambda text: [
            {"text": " ", "context_id": "c"},
            {"text": text, "context_id": "c"},
            {"context_id": "c", "flush": True},
            {"context_id": "c", "close_context": True},
        ],
        _elevenlabs,
        ({"context_id": "c", "close_context": True},),
        ("{", "[]", {"text": 5}, b"bytes"),
        survives=False,
    ),
    SocketProtocol(
        "elevenlabs",
        f"{_EL}/stream-input?output_format=pcm_24000",
        lambda text: [{"text": " "}, {"text": text}, {"text": ""}],
        _elevenlabs,
        (),
        ("{", "[]", {"text": 5}, b"bytes"),
        survives=False,
    ),
    SocketProtocol(
        "elevenlabs",
        "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000",
        lambda text: [
            *_dialogue_turn(text, context_id="c"), {"context_id": "c", "close_context": True},
        ],
        _dialogue,
        ({"context_id": "c", "close_context": True},),
        ("{", "[]", {"inputs": 5}, {"context_id": "c", "voices": []}, b"bytes"),
        survives=False,
    ),
    SocketProtocol(
        "elevenlabs",
        "/v1/text-to-dialogue/stream-input?output_format=pcm_24000",
        lambda text: [*_dialogue_turn(text), {"close_socket": True}],
        _dialogue,
        (),
        ("{", "[]", {"inputs": 5}, {"voices": "default"}, b"bytes"),
        survives=False,
    ),
    SocketProtocol(
        "cartesia",
        "/tts/websocket",
        _cartesia_turn,
        _cartesia,
        ({"context_id": "c", "cancel": True},),
        ("{", "[]", {"transcript": 5}, b"bytes"),
        survives=True,
    ),
    SocketProtocol(
        "deepgram",
        "/v1/speak?encoding=linear16&sample_rate=24000",
        lambda text: [{"type": "Speak", "text": text}, {"type": "Flush"}],
        _deepgram,
        ({"type": "Clear"},),
        ("{", "[]", {"type": "nothing"}, {"type": "Speak", "text": 5}, b"bytes"),
        survives=False,
    ),
    SocketProtocol(
        "deepgram",
        "/v2/speak?encoding=linear16&sample_rate=24000",
        lambda text: [{"type": "Speak", "text": text}, {"type": "Flush"}],
        _flux,
        ({"type": "Interrupt"},),
        (
            "{",
            "[]",
            {"type": "nothing"},
            {"type": "Speak", "text": 5},
            {"type": "Interrupt", "playback_offset": 5},
        ),
        survives=False,
    ),
    SocketProtocol(
        "fish",
        "/v1/tts/live",
        lambda text: [
            _fish_event("start", request={"text": "", "format": "pcm", "sample_rate": 24000}),
            _fish_event("text", text=text),
            _fish_event("flush"),
            _fish_event("stop"),
        ],
        _fish,
        (),
        (
            "{}", b"", b"bytes", msgspec.msgpack.encode([]), _fish_event("nothing"), _fish_event(5),
            _fish_event("text", text=5),
        ),
        survives=False,
        has_halves=False,
    ),
    SocketProtocol(
        "livekit",
        "/tts",
        lambda text: [
            {"type": "input_transcript", "transcript": text}, {"type": "session.flush"},
        ],
        _livekit,
        (),
        (
            "{", "[]", {"type": "nothing"}, {"type": 5},
            {"type": "input_transcript", "transcript": 5}, b"bytes",
        ),
        survives=False,
        opening=({"type": "session.create", "sample_rate": "24000", "extra": {}},),
    ),
    SocketProtocol(
        "vllm-omni",
        "/v1/audio/speech/stream",
        lambda text: [{"type": "input.text", "text": text}, {"type": "input.done"}],
        _vllm_omni,
        (),
        ("{", "[]", {"type": "nothing"}, {"type": "input.text", "text": 5}, b"bytes"),
        survives=True,
        opening=(
            {
                "type": "session.config", "response_format": "pcm", "stream_audio": True,
                "split_granularity": "sentence",
            },
        ),
    ),
)  # fmt: skip


def _sse(key: str) -> Callable[[bytes], bytes]:
    """Return a reader of the audio in whole events."""

    def read(piece: bytes) -> bytes:
        lines = [line[6:] for line in piece.decode().splitlines() if line.startswith("data: ")]
        return b"".join(base64.b64decode(json.loads(line).get(key, "")) for line in lines)

    return read


HTTP = (
    HttpProtocol(
        "openai", "/v1/audio/speech", lambda text: {"input": text, "response_format": "pcm"}
    ),
    HttpProtocol(
        "openai",
        "/v1/audio/speech?events",
        lambda text: {"input": text, "response_format": "pcm", "stream_format": "sse"},
        _sse("audio"),
    ),
    HttpProtocol(
        "elevenlabs", f"{_EL}/stream?output_format=pcm_24000", lambda text: {"text": text}
    ),
    HttpProtocol(
        "elevenlabs",
        "/v1/text-to-dialogue/stream?output_format=pcm_24000",
        lambda text: {"inputs": [{"text": text, "voice_id": "default"}]},
    ),
    HttpProtocol(
        "cartesia",
        "/tts/bytes",
        lambda text: {"transcript": text, "voice": "default", "output_format": _RAW},
    ),
    HttpProtocol(
        "cartesia",
        "/tts/sse",
        lambda text: {"transcript": text, "voice": "default", "output_format": _RAW},
        _sse("data"),
    ),
    HttpProtocol(
        "deepgram",
        "/v1/speak?encoding=linear16&container=none&sample_rate=24000",
        lambda text: {"text": text},
    ),
    HttpProtocol(
        "deepgram",
        "/v2/speak?encoding=linear16&container=none&sample_rate=24000",
        lambda text: {"text": text},
    ),
    HttpProtocol(
        "vapi",
        "/v1/vapi",
        lambda text: {"message": {"type": "voice-request", "text": text, "sampleRate": 24000}},
    ),
    HttpProtocol(
        "fish", "/v1/tts", lambda text: {"text": text, "format": "pcm", "sample_rate": 24000}
    ),
)
Protocol = SocketProtocol | HttpProtocol | TcpProtocol
WYOMING = TcpProtocol("wyoming", "tcp")
PROTOCOLS: dict[str, Protocol] = {
    f"{'socket' if isinstance(one, SocketProtocol) else 'http'} {one.address.partition('?')[0]}"
    + ("?events" if one.address.endswith("?events") else ""): one
    for one in (*SOCKETS, *HTTP)
} | {"wyoming": WYOMING}


class Turn:
    """A text that is being spoken. A refused request sets ``status`` and ``headers``."""

    status: int | None = None
    headers: Mapping[str, str] = MappingProxyType({})

    async def hear(self) -> bytes | End:
        """Return the next audio, or the end."""
        raise NotImplementedError

    async def rest(self) -> tuple[bytes, End]:
        """Return all audio up to the end, and the end."""
        audio = b""
        while not isinstance(heard := await self.hear(), End):
            audio += heard
        return audio, heard

    def pause(self) -> None:
        """Stop reading."""
        raise NotImplementedError

    def resume(self) -> None:
        """Continue reading."""
        raise NotImplementedError


class SocketTurn(Turn):
    """See Turn."""

    def __init__(self, protocol: SocketProtocol, socket: MemorySocket) -> None:
        self.protocol, self.socket = protocol, socket

    def speak(self, text: str) -> None:
        for message in self.protocol.turn(text):
            self.socket.send(message)

    async def hear(self) -> bytes | End:
        while (message := await self.socket.next()) is not None:
            if (heard := self.protocol.read(message)) is not None:
                return heard
        return End(f"closed {self.socket.close_code}")

    def cancel(self) -> None:
        for message in self.protocol.cancel:
            self.socket.send(message)

    def pause(self) -> None:
        self.socket.reading.clear()

    def resume(self) -> None:
        self.socket.reading.set()


class HttpTurn(Turn):
    """See Turn. A status of 400 or more is the end."""

    def __init__(self, protocol: HttpProtocol, exchange: Exchange) -> None:
        self._protocol, self._exchange = protocol, exchange
        self._is_over = False

    async def hear(self) -> bytes | End:
        if self._is_over:
            return End()
        message = await self._exchange.hear()
        if message["type"] == "http.response.start":
            if message["status"] < 400:
                return await self.hear()
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            refusal = await self._exchange.hear()
            return End(code_of(json.loads(refusal["body"])))
        self._is_over = not message.get("more_body", False)
        return self._protocol.read(message.get("body", b""))

    def pause(self) -> None:
        self._exchange.reading.clear()

    def resume(self) -> None:
        self._exchange.reading.set()


class WyomingTurn(Turn):
    """See Turn."""

    def __init__(self, talk: WyomingTalk) -> None:
        self._talk = talk

    async def hear(self) -> bytes | End:
        while (event := await self._talk.next()) is not None:
            match event.type:
                case "audio-chunk":
                    return event.payload
                case "audio-stop":
                    return End()
                case "error":
                    return End(event.data["code"])
        return End("closed")

    def pause(self) -> None:
        self._talk.pause()

    def resume(self) -> None:
        self._talk.resume()


def code_of(body: Mapping[str, Any]) -> str:
    """Return the code of an error in any vendor's format."""
    inner = body.get("error", body.get("detail", body))
    return str(inner.get("code", inner.get("error_code", inner.get("err_code")))).lower()


@contextlib.asynccontextmanager
async def turn(served: Served, protocol: Protocol, text: str) -> AsyncIterator[Turn]:
    """Speak a text. A refused handshake is the turn's end."""
    if isinstance(protocol, TcpProtocol):
        async with talking(served.runtime) as talk:
            talk.send("synthesize", text=text)
            yield WyomingTurn(talk)
        return
    if isinstance(protocol, HttpProtocol):
        async with served.request(protocol.address, protocol.body(text)) as exchange:
            yield HttpTurn(protocol, exchange)
        return
    try:
        async with served.socket(protocol.address) as socket:
            speaking = SocketTurn(protocol, socket)
            for message in protocol.opening:
                socket.send(message)
            speaking.speak(text)
            yield speaking
    except Refused as refused:
        yield RefusedTurn(refused)


class RefusedTurn(Turn):
    """A turn whose handshake was refused."""

    def __init__(self, refused: Refused) -> None:
        self._code = code_of(refused.body)
        self.status, self.headers = refused.status, refused.headers

    async def hear(self) -> bytes | End:
        return End(self._code)
