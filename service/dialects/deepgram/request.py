"""Deepgram's queries and their translation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from service.audio.filters import FASTEST, SLOWEST
from service.audio.formats import AudioFormat
from service.contexts.options import SpeechOptions, check_options, served_languages
from service.runtime import Runtime
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import invalid_field, listed, unknown_field

#: Accepted without effect: they concern Deepgram's own accounts.
_IGNORED = ("mip_opt_out", "tag")
_KNOWN = ("model", "encoding", "container", "sample_rate", "bit_rate", "speed", *_IGNORED)
_UNSUPPORTED = ErrorCode.UNSUPPORTED
#: Deepgram's own names of voices, which end with the language: "aura-2-thalia-en".
_OWN_VOICE = re.compile(r"(?:aura|aura-2|flux)-[a-z]+-(?P<language>[a-z]{2})")


class _Choice(NamedTuple):
    """A pair of encoding and container: our name, Deepgram's defaults, and the media type."""

    name: str
    sample_rate: int | None
    media_type: str
    bit_rate: int | None = None


#: By encoding and container. Over HTTP, an encoding's first container is its default.
_CHOICES = {
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


class SpeakOptions(NamedTuple):
    """Options of each text. ``model`` is the client's name for the voice."""

    model: str
    speech: SpeechOptions
    media_type: str


def flux_query(query: Mapping[str, str]) -> Mapping[str, str]:
    """Return what version 2's query has in common with version 1's. Raises RequestError."""
    if expressivity := _whole(query, "expressivity", 0):
        allowed = "0, since the voices here have no other"
        raise invalid_field("expressivity", expressivity, allowed, _UNSUPPORTED)
    return {name: value for name, value in query.items() if name != "expressivity"}


def socket_options(query: Mapping[str, str], runtime: Runtime) -> SpeakOptions:
    """Parse a socket's query. Raises RequestError if no turn with it could be served."""
    encoding, container = query.get("encoding", "linear16"), query.get("container", "none")
    if container != "none":
        raise invalid_field("container", container, "none on a socket", _UNSUPPORTED)
    if encoding not in ("linear16", "mulaw", "alaw"):
        raise invalid_field("encoding", encoding, "linear16, mulaw or alaw", _UNSUPPORTED)
    options = _options(query, _CHOICES[encoding, "none"], runtime)
    check_options(runtime, options.speech)
    return options


def http_options(query: Mapping[str, str], runtime: Runtime) -> SpeakOptions:
    """Parse a request's query. Raises RequestError."""
    encoding = query.get("encoding", "mp3")
    containers = [container for name, container in _CHOICES if name == encoding]
    if not containers:
        names = ", ".join(dict.fromkeys(name for name, _ in _CHOICES))
        raise invalid_field("encoding", encoding, f"one of {names}", _UNSUPPORTED)
    container = query.get("container", containers[0])
    if container not in containers:
        allowed = f"{' or '.join(containers)} for {encoding}"
        raise invalid_field("container", container, allowed, _UNSUPPORTED)
    return _options(query, _CHOICES[encoding, container], runtime)


def _options(query: Mapping[str, str], choice: _Choice, runtime: Runtime) -> SpeakOptions:
    for name in query:
        if name not in _KNOWN:
            raise unknown_field(name, sorted(_KNOWN), "parameter", code=_UNSUPPORTED)
    rate, speed = _whole(query, "sample_rate", choice.sample_rate), _number(query, "speed", 1.0)
    if not SLOWEST <= speed <= FASTEST:
        raise _invalid("speed", speed, f"from {SLOWEST} to {FASTEST}")
    bit_rate = _whole(query, "bit_rate", choice.bit_rate)
    model = query.get("model", "")
    language = None
    if (own := _OWN_VOICE.fullmatch(model)) and runtime.voices.is_replaced(model):
        if languages := served_languages(runtime):
            language = own["language"]
        if languages and language not in languages:
            raise invalid_field("model", model, f"a voice of {listed(languages)}", _UNSUPPORTED)
    voice = runtime.voices.names[0] if model in ("", *runtime.settings.model_names) else model
    format_ = AudioFormat(choice.name, rate, bit_rate=bit_rate, speed=speed)
    speech = SpeechOptions(format=format_, voice=voice, language=language, may_be_silent=True)
    return SpeakOptions(model or voice, speech, choice.media_type.format(rate=rate))


def _whole(query: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Parse a whole number; the official client writes 24000.0."""
    if name not in query:
        return default
    number = _number(query, name, 0.0)
    if not number.is_integer():
        raise _invalid(name, query[name], "a whole number")
    return int(number)


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    if name not in query:
        return default
    try:
        number = float(query[name])
    except ValueError:
        number = float("nan")
    if not abs(number) < 2**31:
        raise _invalid(name, query[name], "a number")
    return number


def _invalid(name: str, value: object, allowed: str) -> RequestError:
    return invalid_field(name, value, allowed, ErrorCode.INVALID_PARAMETER)
