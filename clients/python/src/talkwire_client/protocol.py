"""The native protocol, ``talkwire.tts.v1``, for clients: JSON and binary messages.

The client sends ``ClientMessage`` and receives ``ServerMessage``; audio arrives as binary messages
with a header of 12 bytes. Talkwire's docs/reference/protocol.md describes each field.

This definition is independent of the server's code. Fields at their default are not sent; unknown
types and fields are ignored on receipt.
"""

from __future__ import annotations

import struct
from enum import IntFlag, StrEnum
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

SUBPROTOCOL = "talkwire.tts.v1"
PATH = "/v1/tts/stream"

T = TypeVar("T")


class Encoding(StrEnum):
    """Audio encodings."""

    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"
    PCM_MULAW = "pcm_mulaw"
    PCM_ALAW = "pcm_alaw"
    OPUS = "opus"


class ErrorCode(StrEnum):
    """Codes of ``error`` messages in this version of the protocol; later servers may add some."""

    INVALID_JSON = "invalid_json"
    INVALID_MESSAGE = "invalid_message"
    UNKNOWN_MESSAGE = "unknown_message"
    INVALID_TEXT = "invalid_text"
    INVALID_PARAMETER = "invalid_parameter"
    UNSUPPORTED = "unsupported"
    TEXT_TOO_LONG = "text_too_long"
    UNKNOWN_CONTEXT = "unknown_context"
    CONTEXT_EXISTS = "context_exists"
    CONTEXT_CLOSED = "context_closed"
    TOO_MANY_CONTEXTS = "too_many_contexts"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_VOICE = "unknown_voice"
    INVALID_AUDIO = "invalid_audio"
    CONSENT_REQUIRED = "consent_required"
    VOICE_EXISTS = "voice_exists"
    TOO_MANY_VOICES = "too_many_voices"
    UNKNOWN_PRONUNCIATIONS = "unknown_pronunciations"
    TOO_MANY_PRONUNCIATIONS = "too_many_pronunciations"
    STORAGE_FAILED = "storage_failed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    NOT_READY = "not_ready"
    DRAINING = "draining"
    IDLE_TIMEOUT = "idle_timeout"
    SLOW_CONSUMER = "slow_consumer"
    ENGINE_FAILED = "engine_failed"
    ENGINE_RESTARTING = "engine_restarting"
    CODEC_FAILED = "codec_failed"
    INTERNAL = "internal"


# -- options of context.create


class AudioOptions(Struct, frozen=True, omit_defaults=True):
    """The format of the audio; None: the server's own rate (8000 Hz for mu-law and A-law)."""

    encoding: Encoding = Encoding.PCM_S16LE
    sample_rate: int | None = None
    frame_ms: int = 0
    bitrate: int | None = None
    speed: float = 1.0
    fade_in_ms: int = 0


class SamplingOptions(Struct, frozen=True, omit_defaults=True):
    """Sampling parameters; None: the model's default. ``ras_win_len`` and ``ras_max_repeat`` are
    for models with repetition-aware sampling.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_frames: int | None = None
    ras_win_len: int | None = None
    ras_max_repeat: int | None = None


class ChunkingOptions(Struct, frozen=True, omit_defaults=True):
    """The division of the stream into chunks, in codec frames or milliseconds; None: the server's
    choice.
    """

    first_chunk_frames: int | None = None
    max_chunk_frames: int | None = None
    left_context_frames: int | None = None
    first_lookahead_frames: int | None = None
    lookahead_frames: int | None = None
    chunk_ms: int | None = None


class ReferenceOptions(Struct, frozen=True, omit_defaults=True):
    """A clip to imitate: the bytes of an audio file of 1 to 30 s, and its transcript."""

    audio: bytes
    text: str | None = None


class PronunciationRule(Struct, frozen=True):
    """How a word or phrase is spoken: by another text, or by phonemes."""

    #: The word or phrase.
    written: str
    #: The text to speak instead.
    alias: str | None = None
    #: Or its phonemes.
    phonemes: str | None = None
    #: Of the phonemes.
    alphabet: Literal["ipa", "cmu-arpabet"] = "ipa"
    #: Whether capitals count.
    case_sensitive: bool = True
    #: Whether it is matched as whole words only.
    word_boundaries: bool = True


# -- client messages


class ClientMessage(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """A message of the client."""


class SessionConfigure(ClientMessage, frozen=True, tag="session.configure"):
    """The framing of audio: with a header, raw, or as JSON."""

    framing: Literal["header", "raw", "json"] = "header"


class ContextCreate(ClientMessage, frozen=True, tag="context.create"):
    """Open a context: one stream of text in, one stream of audio out."""

    #: The id of the context in all later messages.
    context_id: str
    #: A name of the greeting's ``voices``.
    voice: str | None = None
    #: A name of a model that the server serves.
    model: str | None = None
    #: A language code, for models that take one.
    language: str | None = None
    #: Format of the audio.
    audio: AudioOptions = AudioOptions()
    sampling: SamplingOptions = SamplingOptions()
    #: ``chunked`` streams; ``whole`` decodes an utterance at once.
    mode: Literal["chunked", "whole"] = "chunked"
    chunking: ChunkingOptions = ChunkingOptions()
    #: How far audio may run ahead of playback.
    max_lead_ms: int | None = None
    #: Whether to send the times of words.
    timestamps: bool = False
    #: Whether utterances continue those before them.
    continuity: Literal["context", "none"] | None = None
    #: ``words``: speak text word by word while it arrives, not sentence by sentence.
    text_mode: Literal["sentences", "words"] = "sentences"
    #: A clip to imitate, instead of a voice.
    reference: ReferenceOptions | None = None
    #: A clip for each speaker of the text.
    references: list[ReferenceOptions] | None = None
    #: Where and how the text is spoken.
    scene: str | None = None
    #: How to speak, or the voice to speak with, in words.
    instructions: str | None = None
    #: Names of the server's dictionaries of pronunciations.
    pronunciations: list[str] | None = None
    #: Rules of pronunciation that come before these.
    pronunciation_rules: list[PronunciationRule] | None = None


class TextAppend(ClientMessage, frozen=True, tag="text.append"):
    """Add text to a context."""

    context_id: str
    text: str


class ContextFlush(ClientMessage, frozen=True, tag="context.flush"):
    """Speak the text so far, even half a sentence."""

    context_id: str
    flush_id: str


class ContextEnd(ClientMessage, frozen=True, tag="context.end"):
    """End a context's text."""

    context_id: str


class ContextCancel(ClientMessage, frozen=True, tag="context.cancel"):
    """Stop a context; ``played_ms`` is the audio that the listener has heard of it."""

    context_id: str
    played_ms: float | None = None


class Playback(ClientMessage, frozen=True, tag="playback"):
    """The total number of samples of a context that the listener has heard."""

    context_id: str
    played_samples: int


class Ping(ClientMessage, frozen=True, tag="ping"):
    """Ask for a ``pong``."""

    id: str | None = None


class SessionClose(ClientMessage, frozen=True, tag="session.close"):
    """Cancel every context and close the connection."""


CLIENT_MESSAGES: tuple[type[ClientMessage], ...] = (
    SessionConfigure,
    ContextCreate,
    TextAppend,
    ContextFlush,
    ContextEnd,
    ContextCancel,
    Playback,
    Ping,
    SessionClose,
)


# -- server messages


class ServerMessage(Struct, frozen=True, tag_field="type"):
    """A message of the server."""


class Limits(Struct, frozen=True):
    """The server's limits. None: there is no such limit."""

    #: Open contexts of a connection.
    max_contexts: int
    #: Characters of a context.
    max_text_chars: int
    #: Size of a message.
    max_message_bytes: int
    #: Largest ``max_lead_ms`` of a context.
    max_lead_ms: int
    #: Time without a message after which a context with nothing to speak ends.
    context_idle_s: float
    #: Time without messages after which a connection without contexts is closed.
    session_idle_s: float
    #: Duration of a connection.
    max_session_s: float | None = None
    #: Open contexts of the API key and its tenant.
    key_contexts: int | None = None
    #: Open connections of the API key and its tenant.
    key_connections: int | None = None
    #: Characters a minute of the API key and its tenant.
    characters_per_minute: int | None = None


class SessionCreated(ServerMessage, frozen=True, tag="session.created"):
    """The first message on a connection, with the server's capabilities."""

    #: The connection's id.
    session_id: str
    #: The subprotocol with its version.
    protocol: str
    model: str
    #: Names of voices; the first is the default.
    voices: list[str]
    #: The codec's own sample rate, in Hz.
    sample_rate: int
    #: Encodings of audio that the server supports.
    encodings: list[str]
    limits: Limits
    #: Sample rates that the server supports, in Hz.
    sample_rates: list[int] = []
    #: Whether the server can send the times of words.
    word_timings: bool = False
    #: Supported values of ``continuity``.
    continuity: list[str] = []
    #: Number of further voices, which ``GET /v1/audio/voices`` lists.
    more_voices: int = 0
    #: Supported values of ``text_mode``.
    text_modes: list[str] = []


class ContextCreated(ServerMessage, frozen=True, tag="context.created"):
    """The context is open; ``handle`` identifies it in binary headers. ``warning`` tells a person
    what will be worse than it could be.
    """

    context_id: str
    handle: int
    warning: str | None = None


class ContextWarning(ServerMessage, frozen=True, tag="warning"):
    """Markup in the text has no effect. ``kind`` is a short name of the reason, such as
    ``emotion``, and ``message`` a text for people. Each kind is reported once in a context.
    """

    context_id: str
    kind: str
    message: str


class AudioStarted(ServerMessage, frozen=True, tag="audio.started"):
    """The audio's format, before its first message.

    ``delay_samples``: samples that an Opus decoder returns before the first sample of speech.
    """

    context_id: str
    encoding: str
    sample_rate: int
    delay_samples: int = 0


class Audio(ServerMessage, frozen=True, tag="audio"):
    """Audio as JSON, only with ``json`` framing: the header's fields and the audio's bytes."""

    context_id: str
    handle: int
    sequence: int
    sample_offset: int
    flags: int
    audio: bytes


class Word(Struct, frozen=True):
    """A spoken word: characters ``[start, end)`` of the context's text, and its time.

    ``start_ms`` and ``end_ms`` are milliseconds of speech from the context's first sample.
    """

    text: str
    start: int
    end: int
    start_ms: float
    end_ms: float


class Timestamps(ServerMessage, frozen=True, tag="timestamps"):
    """Words of audio that was sent, in order, each once."""

    context_id: str
    words: list[Word]


class FlushDone(ServerMessage, frozen=True, tag="flush.done"):
    """All audio of the text before a flush was sent."""

    context_id: str
    flush_id: str


class ContextCancelled(ServerMessage, frozen=True, tag="context.cancelled"):
    """The answer to a cancel: the audio generated, sent and played, in milliseconds and as text."""

    context_id: str
    generated_ms: float
    sent_ms: float
    played_ms: float
    text_spoken: str
    text_remaining: str


class ContextDone(ServerMessage, frozen=True, tag="context.done"):
    """The end of a context: ``complete``, ``length`` (cut off at the maximum) or ``error``."""

    context_id: str
    reason: str


class Metrics(ServerMessage, frozen=True, tag="metrics"):
    """The server's measurements of a context; None where nothing was measured."""

    context_id: str
    queue_ms: float | None
    ttfa_ms: float | None
    leading_silence_ms: float | None
    audio_ms: float
    rtf: float | None
    underrun_ms: float


class GoingAway(ServerMessage, frozen=True, tag="going_away"):
    """The server will close the connection once its contexts are done, or in ``deadline_ms``."""

    deadline_ms: int


class Error(ServerMessage, frozen=True, omit_defaults=True, tag="error"):
    """An error; without ``context_id`` it concerns the connection."""

    code: str
    message: str
    request_id: str
    retryable: bool = False
    param: str | None = None
    context_id: str | None = None
    retry_after_ms: int | None = None


class Pong(ServerMessage, frozen=True, tag="pong"):
    """The answer to ``ping``."""

    id: str | None = None


SERVER_MESSAGES: tuple[type[ServerMessage], ...] = (
    SessionCreated,
    ContextCreated,
    ContextWarning,
    AudioStarted,
    Audio,
    Timestamps,
    FlushDone,
    ContextCancelled,
    ContextDone,
    Metrics,
    GoingAway,
    Error,
    Pong,
)


# -- encoding and decoding


class _Tagged(Struct, frozen=True):
    type: str


def _decoders(messages: tuple[type[T], ...]) -> dict[str, msgspec.json.Decoder[T]]:
    return {_tag(message): msgspec.json.Decoder(message) for message in messages}


def _tag(message: type[Any]) -> str:
    tag = message.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


_tagged = msgspec.json.Decoder(_Tagged)
_server_decoders = _decoders(SERVER_MESSAGES)
_client_decoders = _decoders(CLIENT_MESSAGES)
_encoder = msgspec.json.Encoder()


def encode_message(message: ClientMessage | ServerMessage) -> str:
    """Encode a message as JSON text."""
    return _encoder.encode(message).decode()


def decode_server_message(text: str | bytes) -> ServerMessage | None:
    """Decode a message of the server.

    Returns:
        The message; None if this version does not know its type.

    Raises:
        ValueError: It is not a message of the protocol.
    """
    return _decode(text, _server_decoders)


def decode_client_message(text: str | bytes) -> ClientMessage | None:
    """Decode a message of a client, for test servers.

    Returns:
        The message; None if this version does not know its type.

    Raises:
        ValueError: It is not a message of the protocol.
    """
    return _decode(text, _client_decoders)


def _decode(text: str | bytes, decoders: dict[str, msgspec.json.Decoder[T]]) -> T | None:
    try:
        decoder = decoders.get(_tagged.decode(text).type)
        return decoder.decode(text) if decoder else None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError("not a message of the native protocol") from error


# -- binary messages

PROTOCOL_VERSION = 1
_AUDIO = 1
_LAYOUT = struct.Struct("<BBHII")
HEADER_BYTES = _LAYOUT.size
_KIND = PROTOCOL_VERSION << 4 | _AUDIO
_WRAP = 1 << 32


class AudioFlags(IntFlag):
    """Bits of a binary header's second byte."""

    NONE = 0
    FIRST = 1
    LAST = 2
    #: The listener had an underrun before this message.
    DISCONTINUITY = 4


class AudioHeader(NamedTuple):
    """The 12 bytes before a binary message's audio, little-endian.

    ::

        u8 version << 4 | type    u8 flags    u16 handle    u32 sequence    u32 sample offset

    ``sequence`` counts the context's messages, ``sample_offset`` the samples that they decode to;
    both begin at 0 and wrap at 2**32.
    """

    handle: int
    sequence: int
    sample_offset: int
    flags: AudioFlags = AudioFlags.NONE

    def pack(self) -> bytes:
        """Encode the header."""
        sequence, offset = self.sequence % _WRAP, self.sample_offset % _WRAP
        return _LAYOUT.pack(_KIND, self.flags, self.handle, sequence, offset)

    @classmethod
    def unpack(cls, message: bytes) -> AudioHeader:
        """Decode the header of a binary message.

        Raises:
            ValueError: The message is too short, or of another version or type.
        """
        if len(message) < HEADER_BYTES:
            raise ValueError("a binary message is shorter than its header")
        kind, flags, handle, sequence, offset = _LAYOUT.unpack_from(message)
        if kind != _KIND:
            raise ValueError("a binary message of another version or type")
        return cls(handle, sequence, offset, AudioFlags(flags))
