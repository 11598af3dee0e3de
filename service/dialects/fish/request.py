"""Fish Audio's request, in JSON or MessagePack, and its translation."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from service.audio.filters import FASTEST, SLOWEST
from service.audio.formats import AudioFormat
from service.contexts.options import FlushEncoder, SpeechOptions
from service.runtime import Runtime
from service.voices.cloning import Prepare
from streaming.errors import ErrorCode, RequestError
from streaming.ports import Sampling
from streaming.protocol.field_errors import invalid_parameter, msgspec_error, unsupported

#: Our encodings by Fish Audio's names of formats.
_ENCODINGS = {"wav": "wav", "pcm": "pcm_s16le", "mp3": "mp3", "opus": "ogg_opus"}
#: Fish Audio's default rate in Hz, which clients assume for samples without a header.
_RATE = 44_100
#: From here on a bit rate of Opus is in bits per second, as LiveKit's plugin sends it, and below
#: in kbit/s, as Fish Audio's client does.
_BITS = 1000
#: A faulty request up to this size is read again to tell the value at fault.
_MOST_SHOWN_BYTES = 64 * 1024
#: A clip: bytes in MessagePack, base64 in JSON.
Clip = TypeVar("Clip", bytes, str)


class ReferenceClip(Struct, Generic[Clip]):
    """A clip to speak like, and what is said in it, word for word."""

    audio: Clip
    text: Annotated[str, Meta(max_length=4000)] | None = None


class Prosody(Struct):
    """How all of the text is spoken that does not say so itself."""

    speed: (
        Annotated[float, Meta(ge=SLOWEST, le=FASTEST, description="How many times as fast.")] | None
    ) = None
    volume: (
        Annotated[float, Meta(ge=-20, le=20, description="Decibels above the normal.")] | None
    ) = None


class TtsRequest(Struct, Generic[Clip]):
    """The body of ``POST /v1/tts``. Fish Audio's other fields are accepted, without effect."""

    text: str
    reference_id: Annotated[str, Meta(max_length=256, description="A voice.")] | None = None
    references: list[ReferenceClip[Clip]] | None = None
    format: Literal["wav", "pcm", "mp3", "opus"] | None = None
    sample_rate: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    #: In kbit/s.
    mp3_bitrate: Literal[64, 128, 192] | None = None
    opus_bitrate: Literal[-1000, 24, 32, 48, 64, 24_000, 32_000, 48_000, 64_000] | None = None
    prosody: Prosody | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    condition_on_previous_chunks: bool | None = None

    def audio_format(self) -> AudioFormat:
        """Return our format."""
        name = self.format or "mp3"
        rate, bit_rate = self.sample_rate, None
        if name == "mp3" and self.mp3_bitrate is not None:
            bit_rate = 1000 * self.mp3_bitrate
        elif name == "opus" and (chosen := self.opus_bitrate or 0) > 0:  # below 0: automatic
            bit_rate = chosen if chosen >= _BITS else 1000 * chosen
        if rate is None and name != "opus":
            rate = _RATE
        speed = 1.0 if self.prosody is None else self.prosody.speed or 1.0
        return AudioFormat(
            _ENCODINGS[name],
            rate,
            bit_rate=bit_rate,
            speed=speed,
            is_chained=name in ("mp3", "opus"),  # on a socket, a pause ends a file
        )

    def options(self, runtime: Runtime) -> SpeechOptions:
        """Translate the options. Raises RequestError."""
        format_ = self.audio_format()
        deliveries: tuple[tuple[str, str], ...] = ()
        if self.prosody is not None and self.prosody.volume:
            deliveries = (("volume", f"{self.prosody.volume:+.2f}db"),)
        return SpeechOptions(
            format=format_,
            voice=self.reference_id or None,
            prepare=self._prepare(runtime),
            sampling=Sampling(self.temperature, self.top_p),
            continuity="none" if self.condition_on_previous_chunks is False else None,
            deliveries=deliveries,
            flush_encoder=(
                FlushEncoder.EACH_PAUSE if format_.is_chained else FlushEncoder.EACH_UTTERANCE
            ),
            may_be_silent=True,
        )

    def _prepare(self, runtime: Runtime) -> Prepare | None:
        """Return a function that makes the reference of the clip, if there is one."""
        if not self.references:
            return None
        if self.reference_id:
            message = "Give a reference_id or references, not both."
            raise invalid_parameter("references", message)
        if len(self.references) > 1:  # Fish Audio's are all of one speaker
            message = f"This server takes one clip of a voice, not {len(self.references)}."
            raise unsupported("references", message)
        (clip,), param, cloner = self.references, "references.0.audio", runtime.voices.cloner
        if isinstance(clip.audio, str):
            return cloner.prepare(clip.audio, clip.text, param)
        return cloner.prepare_bytes(clip.audio, clip.text, param)


_BODY = msgspec.json.Decoder(TtsRequest[str])
_PACKED_BODY = msgspec.msgpack.Decoder(TtsRequest[bytes])


def parse_body(data: bytes, *, is_packed: bool) -> TtsRequest[bytes] | TtsRequest[str]:
    """Parse a body in JSON or, if ``is_packed``, MessagePack. Raises RequestError."""
    body: TtsRequest[bytes] | TtsRequest[str]
    if is_packed:
        body = decode(_PACKED_BODY, data, TtsRequest[bytes])
        return body
    body = decode(_BODY, data, TtsRequest[str])
    return body


def decode(
    decoder: msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any],
    data: bytes,
    kind: type[Struct],
) -> Any:
    """Decode a ``kind`` of message. Raises RequestError (``invalid_json``, ``invalid_message``),
    which names the field at fault.
    """
    is_packed = isinstance(decoder, msgspec.msgpack.Decoder)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise msgspec_error(error, _as_json(data) if is_packed else data, kind) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if is_packed:
            raise RequestError(ErrorCode.INVALID_MESSAGE, "This is not MessagePack.") from error
        raise RequestError(ErrorCode.INVALID_JSON, "The body is not valid JSON.") from error


def _as_json(data: bytes) -> bytes:
    """Return a small message as JSON, a large one as nothing, since it may have many values."""
    if len(data) > _MOST_SHOWN_BYTES:
        return b""
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError, ValueError):
        return b""


def body_schema() -> dict[str, Any]:
    """Return the body's JSON schema, without references."""
    schema = msgspec.json.schema(TtsRequest[str])
    parts: dict[str, Any] = schema["$defs"]

    def resolved(node: Any) -> Any:
        if isinstance(node, dict):
            if name := node.get("$ref"):
                return resolved(parts[name.rpartition("/")[2]])
            return {key: resolved(value) for key, value in node.items()}
        return [resolved(one) for one in node] if isinstance(node, list) else node

    body: dict[str, Any] = resolved({"$ref": schema["$ref"]})
    return body
