"""What Deepgram's clients ask for in a query, checked and put into the core's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.audio.factory import make_stream_encoder
from service.audio.packet import AudioEncoder
from service.context_settings import speech_request
from service.runtime import Runtime
from service.voices_map import resolve_voice
from streaming import wire
from streaming.errors import ErrorCode, RequestError

NAME = "deepgram"
#: Accepted without effect: they are about Deepgram's own books.
_IGNORED = frozenset(("mip_opt_out", "tag"))
_KNOWN = frozenset(("model", "encoding", "container", "sample_rate", "bit_rate", "speed"))
_SLOWEST, _FASTEST = 0.25, 4.0


@dataclass(frozen=True, slots=True)
class _Choice:
    """A pair of encoding and container: our name, Deepgram's defaults, and the media type."""

    name: str
    sample_rate: int | None
    media_type: str
    bit_rate: int | None = None


_SOCKET = {
    "linear16": _Choice("pcm_s16le", 24_000, ""),
    "mulaw": _Choice("pcm_mulaw", 8_000, ""),
    "alaw": _Choice("pcm_alaw", 8_000, ""),
}
#: By encoding and container; the first container of an encoding is its default.
_HTTP = {
    ("mp3", "none"): _Choice("mp3", 22_050, "audio/mpeg", 48_000),
    ("linear16", "wav"): _Choice("wav", 24_000, "audio/wav"),
    ("linear16", "none"): _Choice("pcm_s16le", 24_000, "audio/l16;rate={rate};channels=1"),
    ("mulaw", "wav"): _Choice("wav_mulaw", 8_000, "audio/wav"),
    ("mulaw", "none"): _Choice("pcm_mulaw", 8_000, "audio/mulaw;rate={rate};channels=1"),
    ("alaw", "wav"): _Choice("wav_alaw", 8_000, "audio/wav"),
    ("alaw", "none"): _Choice("pcm_alaw", 8_000, "audio/alaw;rate={rate};channels=1"),
    ("opus", "ogg"): _Choice("ogg_opus", 48_000, "audio/ogg;codecs=opus"),
    ("flac", "none"): _Choice("flac", None, "audio/flac"),
    ("aac", "none"): _Choice("aac", 22_050, "audio/aac"),
}


@dataclass(frozen=True, slots=True)
class SpeakOptions:
    """What is to be made of each text. ``model`` is the name as the client knows it."""

    model: str
    voice: str
    speed: float
    media_type: str
    _choice: _Choice
    _sample_rate: int | None
    _bit_rate: int | None

    def encoder(self, codec_rate: int) -> AudioEncoder:
        """A new one. Raises RequestError (``unsupported``)."""
        return make_stream_encoder(
            self._choice.name,
            codec_rate,
            self._sample_rate,
            bit_rate=self._bit_rate,
            speed=self.speed,
        )

    def create(self, context_id: str, max_lead_ms: int | None = None) -> wire.ContextCreate:
        """The context in the core's words."""
        return wire.ContextCreate(
            context_id,
            voice=self.voice,
            audio=wire.AudioOptions(speed=self.speed),
            max_lead_ms=max_lead_ms,
        )


def socket_options(query: Mapping[str, str], runtime: Runtime) -> SpeakOptions:
    """What a socket's query says. Raises RequestError."""
    encoding, container = query.get("encoding", "linear16"), query.get("container", "none")
    choice = _SOCKET.get(encoding) if container == "none" else None
    if choice is None:
        raise _unsupported("encoding", "A socket has linear16, mulaw and alaw, without container.")
    return _options(query, choice, runtime)


def http_options(query: Mapping[str, str], runtime: Runtime) -> SpeakOptions:
    """What a request's query says. Raises RequestError."""
    encoding = query.get("encoding", "mp3")
    containers = [container for name, container in _HTTP if name == encoding]
    if not containers:
        names = ", ".join(dict.fromkeys(name for name, _ in _HTTP))
        raise _unsupported("encoding", f"The encodings are {names}.")
    choice = _HTTP.get((encoding, query.get("container", containers[0])))
    if choice is None:
        raise _unsupported("container", f"{encoding} comes in {' or '.join(containers)}.")
    return _options(query, choice, runtime)


def _options(query: Mapping[str, str], choice: _Choice, runtime: Runtime) -> SpeakOptions:
    for name in query:
        if name not in _KNOWN | _IGNORED:
            message = "This parameter is not known or not served."
            raise RequestError(ErrorCode.UNSUPPORTED, message, param=name[:128])
    rate = _whole(query, "sample_rate", choice.sample_rate)
    model = query.get("model", "")
    if model in ("", runtime.settings.model_name):
        voice = runtime.voices[0]
    else:
        voice = resolve_voice(model, runtime)
    options = SpeakOptions(
        model=model or voice,
        voice=voice,
        speed=_speed(query),
        media_type=choice.media_type.format(rate=rate),
        _choice=choice,
        _sample_rate=rate,
        _bit_rate=_whole(query, "bit_rate", choice.bit_rate),
    )
    # A handshake or a request is the time to refuse what cannot be served.
    options.encoder(runtime.codec.spec.sample_rate)
    runtime.talker.check_options(speech_request(runtime, options.create("probe"), "probe"))
    return options


def _speed(query: Mapping[str, str]) -> float:
    speed = _number(query, "speed", 1.0)
    if not _SLOWEST <= speed <= _FASTEST:
        raise _invalid("speed", f"The speed is from {_SLOWEST} to {_FASTEST}.")
    return speed


def _whole(query: Mapping[str, str], name: str, default: int | None) -> int | None:
    """A whole number; the official client writes 24000.0."""
    if name not in query:
        return default
    number = _number(query, name, 0.0)
    if number != int(number):
        raise _invalid(name, "A whole number is needed.")
    return int(number)


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    if name not in query:
        return default
    try:
        number = float(query[name])
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**31:
        raise _invalid(name, "A number is needed.")
    return number


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.UNSUPPORTED, message, param=param)


def _invalid(param: str, message: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_PARAMETER, message, param=param)
