"""The native protocol, ``talkwire.tts.v1``: its JSON messages.

A client speaks with the messages of ``CLIENT_MESSAGES``, the server answers with those of
``SERVER_MESSAGES``; audio travels as binary frames (binary.py reads and writes both).
Every field's meaning stands in docs/reference/protocol.md. Unknown fields are refused, so that a
misspelt option is never silently without effect.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from streaming.ports import MAX_REFERENCES
from streaming.spec import Encoding

SUBPROTOCOL = "talkwire.tts.v1"
#: Longest description of a scene, in characters.
MAX_SCENE_CHARS = 2000
#: Longest window of repetition-aware sampling; a model may have a shorter one.
MAX_RAS = 64
#: Longest fade and longest chunk that a client may ask for by time.
MAX_FADE_MS, MAX_CHUNK_MS = 1000, 4000

Id = Annotated[str, Meta(min_length=1, max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
FadeMs = Annotated[int, Meta(ge=0, le=MAX_FADE_MS)]
ChunkMs = Annotated[int, Meta(ge=1, le=MAX_CHUNK_MS)]
Scene = Annotated[str, Meta(min_length=1, max_length=MAX_SCENE_CHARS)]
Frames = Annotated[int, Meta(ge=0, le=4096)]
PositiveFrames = Annotated[int, Meta(ge=1, le=4096)]
Count = Annotated[int, Meta(ge=0, le=2**53)]


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """A nested object of a message."""


class AudioOptions(Options, frozen=True):
    """What audio the client wants. ``sample_rate`` None: the encoding's own, which is 8000 for
    mu-law and A-law and the codec's for the others. ``frame_ms`` 0: a binary frame per chunk,
    however long, and 20 ms for Opus. ``bitrate``: bits per second, for Opus alone. ``speed``:
    how many times as fast as the voice's own, at the same pitch. ``fade_in_ms``: over how much of
    the context's first audio its loudness rises from nothing.
    """

    encoding: Encoding = Encoding.PCM_S16LE
    sample_rate: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    frame_ms: Annotated[int, Meta(ge=0, le=1000)] = 0
    bitrate: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    fade_in_ms: FadeMs = 0


class SamplingOptions(Options, frozen=True):
    """How codes are drawn; what is left out is the model's default. ``ras_win_len`` and
    ``ras_max_repeat``: repetition-aware sampling, for models that have it.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=1, le=1024)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    max_frames: Annotated[int, Meta(ge=1, le=8192)] | None = None
    ras_win_len: Annotated[int, Meta(ge=0, le=MAX_RAS)] | None = None
    ras_max_repeat: Annotated[int, Meta(ge=1, le=MAX_RAS)] | None = None


class ChunkingOptions(Options, frozen=True):
    """How the stream is cut; what is left out is the server's choice. ``chunk_ms``: the
    first chunk and the largest, in milliseconds as they are heard.
    """

    first_chunk_frames: PositiveFrames | None = None
    max_chunk_frames: PositiveFrames | None = None
    left_context_frames: Frames | None = None
    first_lookahead_frames: Frames | None = None
    lookahead_frames: Frames | None = None
    chunk_ms: ChunkMs | None = None


class ReferenceOptions(Options, frozen=True):
    """A clip to speak like, as a file in base64, and what is said in it."""

    audio: Annotated[str, Meta(min_length=1)]
    text: Annotated[str, Meta(max_length=4000)] | None = None


References = Annotated[list[ReferenceOptions], Meta(min_length=1, max_length=MAX_REFERENCES)]


class ClientMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """Something a client says."""


class SessionConfigure(ClientMessage, frozen=True, tag="session.configure"):
    """While no context is open: how audio travels. ``raw`` allows one context at a time;
    ``json`` sends ``audio`` messages instead of binary frames.
    """

    framing: Literal["header", "raw", "json"] = "header"


class ContextCreate(ClientMessage, frozen=True, tag="context.create"):
    """Open a context: one stream of text in, one stream of audio out."""

    context_id: Id
    voice: Name | None = None
    model: Name | None = None
    language: Name | None = None
    audio: AudioOptions = AudioOptions()
    sampling: SamplingOptions = SamplingOptions()
    mode: Literal["chunked", "whole"] = "chunked"
    chunking: ChunkingOptions = ChunkingOptions()
    max_lead_ms: Annotated[int, Meta(ge=1)] | None = None
    timestamps: bool = False
    continuity: Literal["context", "none"] | None = None
    reference: ReferenceOptions | None = None
    references: References | None = None
    scene: Scene | None = None


class TextAppend(ClientMessage, frozen=True, tag="text.append"):
    """More text, as it comes; nothing need be whole."""

    context_id: Id
    text: str


class ContextFlush(ClientMessage, frozen=True, tag="context.flush"):
    """Speak what is there, sentence or not; ``flush.done`` follows its last sample."""

    context_id: Id
    flush_id: Id


class ContextEnd(ClientMessage, frozen=True, tag="context.end"):
    """No more text will come; ``context.done`` follows the last sample."""

    context_id: Id


class ContextCancel(ClientMessage, frozen=True, tag="context.cancel"):
    """Stop now. ``played_ms`` tells how much the listener has heard."""

    context_id: Id
    played_ms: Annotated[float, Meta(ge=0)] | None = None


class Playback(ClientMessage, frozen=True, tag="playback"):
    """How far the listener has got in this context's audio: samples as decoded, at its rate."""

    context_id: Id
    played_samples: Count


class Ping(ClientMessage, frozen=True, tag="ping"):
    """Answered by ``pong`` with the same ``id``."""

    id: Annotated[str, Meta(max_length=128)] | None = None


class SessionClose(ClientMessage, frozen=True, tag="session.close"):
    """Cancel everything and close the socket."""


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


class ServerMessage(Struct, frozen=True, tag_field="type"):
    """Something the server says. Clients ignore types and fields that they do not know."""


class Limits(Struct, frozen=True):
    """What this server allows; announced, so that no client need find out by failing. What is
    null has no limit beside the server's capacity; the fields from ``key_contexts`` on are of the
    API key and its tenant, all their sockets together.
    """

    max_contexts: int
    max_text_chars: int
    max_message_bytes: int
    max_lead_ms: int
    context_idle_s: float
    session_idle_s: float
    max_session_s: float | None = None
    key_contexts: int | None = None
    key_connections: int | None = None
    characters_per_minute: int | None = None


class SessionCreated(ServerMessage, frozen=True, tag="session.created"):
    """The first message on every socket."""

    session_id: str
    protocol: str
    model: str
    voices: list[str]
    sample_rate: int
    encodings: list[str]
    limits: Limits
    sample_rates: list[int] = []
    word_timings: bool = False
    continuity: list[str] = []


class ContextCreated(ServerMessage, frozen=True, omit_defaults=True, tag="context.created"):
    """The context is open; ``handle`` stands for it in binary headers. ``warning``: what will be
    worse than it could be, for people.
    """

    context_id: str
    handle: int
    warning: str | None = None


class AudioStarted(ServerMessage, frozen=True, tag="audio.started"):
    """The next binary frame of this context is its first. ``delay_samples``: what an Opus
    decoder gives before the first sample of audio (its pre-skip, at ``sample_rate``).
    """

    context_id: str
    encoding: Encoding
    sample_rate: int
    delay_samples: int = 0


class Audio(ServerMessage, frozen=True, tag="audio"):
    """A binary frame as JSON, if ``json`` framing was asked for: the header's fields and, as
    base64, what would follow it. ``flags`` has the header's bits.
    """

    context_id: str
    handle: int
    sequence: int
    sample_offset: int
    flags: int
    audio: bytes


class Word(Struct, frozen=True):
    """A word: ``text`` is ``[start, end)`` of the text appended to the context; the times are
    of speech, from the context's first sample.
    """

    text: str
    start: int
    end: int
    start_ms: float
    end_ms: float


class Timestamps(ServerMessage, frozen=True, tag="timestamps"):
    """When words were spoken whose audio has been sent; in order, each once."""

    context_id: str
    words: list[Word]


class FlushDone(ServerMessage, frozen=True, tag="flush.done"):
    """Everything before that flush has been sent."""

    context_id: str
    flush_id: str


class ContextCancelled(ServerMessage, frozen=True, tag="context.cancelled"):
    """Not one frame of this context follows. The two texts join up to what was appended."""

    context_id: str
    generated_ms: float
    sent_ms: float
    played_ms: float
    text_spoken: str
    text_remaining: str


class ContextDone(ServerMessage, frozen=True, tag="context.done"):
    """The context is closed. ``length``: an utterance was cut at its longest."""

    context_id: str
    reason: Literal["complete", "length", "error"]


class Metrics(ServerMessage, frozen=True, tag="metrics"):
    """What the context measured, just before ``context.done`` or after ``context.cancelled``.

    ``queue_ms``: from the first complete utterance until the talker was asked for it.
    """

    context_id: str
    queue_ms: float | None
    ttfa_ms: float | None
    leading_silence_ms: float | None
    audio_ms: float
    rtf: float | None
    underrun_ms: float


class GoingAway(ServerMessage, frozen=True, tag="going_away"):
    """The server will close this socket when its contexts are done, or in ``deadline_ms``."""

    deadline_ms: int


class Error(ServerMessage, frozen=True, tag="error"):
    """Something did not work. Without ``context_id`` it is about the socket.

    ``code`` is one of ErrorCode's in this version; a client must bear others.
    """

    code: str
    message: str
    request_id: str
    retryable: bool = False
    param: str | UnsetType = UNSET
    context_id: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET


class Pong(ServerMessage, frozen=True, tag="pong"):
    """The answer to ``ping``."""

    id: str | None = None


SERVER_MESSAGES: tuple[type[ServerMessage], ...] = (
    SessionCreated,
    ContextCreated,
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
