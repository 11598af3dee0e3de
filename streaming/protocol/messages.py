"""The native protocol, ``talkwire.tts.v1``: its JSON messages.

The client sends ``CLIENT_MESSAGES``, the server ``SERVER_MESSAGES``; audio is sent as binary
messages (binary.py). docs/reference/protocol.md describes every field. The server refuses unknown
fields, so that a misspelt option is not silently ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from streaming.ports import MAX_INSTRUCTIONS_CHARS, MAX_REFERENCES, Sampling
from streaming.spec import Encoding
from text.pronunciation.rules import MAX_ALIAS, MAX_PHONEMES, MAX_WRITTEN

SUBPROTOCOL = "talkwire.tts.v1"
#: Longest description of a scene, in characters.
MAX_SCENE_CHARS = 2000
#: Longest fade.
MAX_FADE_MS = 1000
#: Longest chunk that a client may request by time.
MAX_CHUNK_MS = 4000

Id = Annotated[str, Meta(min_length=1, max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
FadeMs = Annotated[int, Meta(ge=0, le=MAX_FADE_MS)]
ChunkMs = Annotated[int, Meta(ge=1, le=MAX_CHUNK_MS)]
Scene = Annotated[str, Meta(min_length=1, max_length=MAX_SCENE_CHARS)]
Instructions = Annotated[str, Meta(min_length=1, max_length=MAX_INSTRUCTIONS_CHARS)]
Frames = Annotated[int, Meta(ge=0, le=4096)]
PositiveFrames = Annotated[int, Meta(ge=1, le=4096)]
Count = Annotated[int, Meta(ge=0, le=2**53)]


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """A nested object of a message."""


class AudioOptions(Options, frozen=True):
    """The audio format of a context. ``sample_rate`` null: the encoding's default, which is 8000
    for mu-law and A-law and the codec's rate, or the encoding's next higher one, for the others.
    ``frame_ms``: milliseconds of audio in each binary message; 0: a chunk, for Opus 20 ms.
    ``bitrate``: bits per second, for Opus only. ``speed``: a factor of the voice's own speed, at
    the same pitch. ``fade_in_ms``: length of the fade-in at the beginning of the context's audio.
    """

    encoding: Encoding = Encoding.PCM_S16LE
    sample_rate: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    frame_ms: Annotated[int, Meta(ge=0, le=1000)] = 0
    bitrate: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    fade_in_ms: FadeMs = 0


class SamplingOptions(Sampling, frozen=True):
    """How codes are sampled. A field that is left out has the model's default. ``ras_win_len`` and
    ``ras_max_repeat``: repetition-aware sampling, for models that support it.
    """

    max_frames: Annotated[int, Meta(ge=1, le=8192)] | None = None


class ChunkingOptions(Options, frozen=True):
    """How the audio is divided into chunks. The server chooses each field that is left out.
    ``chunk_ms``: lengths of the first chunk and of the largest, in milliseconds of audio.
    """

    first_chunk_frames: PositiveFrames | None = None
    max_chunk_frames: PositiveFrames | None = None
    left_context_frames: Frames | None = None
    first_lookahead_frames: Frames | None = None
    lookahead_frames: Frames | None = None
    chunk_ms: ChunkMs | None = None


class ReferenceOptions(Options, frozen=True):
    """A reference clip for voice cloning: an audio file in base64, and its transcript."""

    audio: Annotated[str, Meta(min_length=1)]
    text: Annotated[str, Meta(max_length=4000)] | None = None


References = Annotated[list[ReferenceOptions], Meta(min_length=1, max_length=MAX_REFERENCES)]


class PronunciationRule(Options, frozen=True):
    """How a word or phrase is spoken: by the text ``alias``, or by ``phonemes``, a word's apart by
    spaces. ``case_sensitive``: whether capitals count. ``word_boundaries``: whether it is matched
    as whole words only.
    """

    written: Annotated[str, Meta(min_length=1, max_length=MAX_WRITTEN)]
    alias: Annotated[str, Meta(min_length=1, max_length=MAX_ALIAS)] | None = None
    phonemes: Annotated[str, Meta(min_length=1, max_length=MAX_PHONEMES)] | None = None
    alphabet: Literal["ipa", "cmu-arpabet"] = "ipa"
    case_sensitive: bool = True
    word_boundaries: bool = True


#: Dictionaries of pronunciations that a context may have, and rules of its own.
MAX_DICTIONARIES, MAX_OWN_RULES = 8, 100
Pronunciations = Annotated[list[Name], Meta(max_length=MAX_DICTIONARIES)]
PronunciationRules = Annotated[list[PronunciationRule], Meta(max_length=MAX_OWN_RULES)]


#: Whether text is spoken sentence by sentence, or word by word while it arrives.
TextMode = Literal["sentences", "words"]


class ClientMessage(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A message from the client."""


class SessionConfigure(ClientMessage, frozen=True, tag="session.configure"):
    """Choose how audio is framed; allowed only while no context is open. ``raw`` allows one
    context at a time; ``json`` sends ``audio`` messages instead of binary ones.
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
    text_mode: TextMode = "sentences"
    reference: ReferenceOptions | None = None
    references: References | None = None
    scene: Scene | None = None
    instructions: Instructions | None = None
    pronunciations: Pronunciations | None = None
    pronunciation_rules: PronunciationRules | None = None


class TextAppend(ClientMessage, frozen=True, tag="text.append"):
    """Append text to a context. A piece may end anywhere, even within a word."""

    context_id: Id
    text: str


class ContextFlush(ClientMessage, frozen=True, tag="context.flush"):
    """Speak all text received so far, even if its last sentence is incomplete. ``flush.done``
    follows the last sample of it.
    """

    context_id: Id
    flush_id: Id


class ContextEnd(ClientMessage, frozen=True, tag="context.end"):
    """End the text of a context. ``context.done`` follows the last sample."""

    context_id: Id


class ContextCancel(ClientMessage, frozen=True, tag="context.cancel"):
    """Stop a context at once. ``played_ms``: how much audio the listener has heard."""

    context_id: Id
    played_ms: Annotated[float, Meta(ge=0)] | None = None


class Playback(ClientMessage, frozen=True, tag="playback"):
    """Report how many samples of a context have been played, as decoded, at its sample rate."""

    context_id: Id
    played_samples: Count


class Ping(ClientMessage, frozen=True, tag="ping"):
    """Ask for a ``pong`` with the same ``id``."""

    id: Annotated[str, Meta(max_length=128)] | None = None


class SessionClose(ClientMessage, frozen=True, tag="session.close"):
    """Cancel all contexts and close the socket."""


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
    """A message from the server. Clients ignore types and fields that they do not know."""


class Limits(Struct, frozen=True):
    """The limits that apply to this socket. A limit that is null is set by the server's capacity
    alone. The fields from ``key_contexts`` on are limits of the API key and of its tenant, for all
    their sockets together.
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
    """The first message on every socket. ``voices`` begins with the default, and has 100 names at
    most; ``GET /v1/audio/voices`` lists the other ``more_voices`` too.
    """

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
    more_voices: int = 0
    text_modes: list[str] = []


class ContextCreated(ServerMessage, frozen=True, omit_defaults=True, tag="context.created"):
    """The context is open. ``handle`` identifies it in binary headers. ``warning``: text for
    people, if an option will give poorer results than the context could have.
    """

    context_id: str
    handle: int
    warning: str | None = None


class ContextWarning(ServerMessage, frozen=True, tag="warning"):
    """Markup in the context's text has no effect. ``kind`` is a short name of the reason, such as
    ``emotion``, and ``message`` a text for people. Each kind is reported once in a context.
    """

    context_id: str
    kind: str
    message: str


class AudioStarted(ServerMessage, frozen=True, tag="audio.started"):
    """The context's first audio follows. ``delay_samples``: how many samples an Opus
    decoder produces before the first sample of audio (the pre-skip, at ``sample_rate``).
    """

    context_id: str
    encoding: Encoding
    sample_rate: int
    delay_samples: int = 0


class Audio(ServerMessage, frozen=True, tag="audio"):
    """Audio as JSON, with ``json`` framing: the fields of the binary header, and the payload as
    base64. ``flags`` has the header's bits.
    """

    context_id: str
    handle: int
    sequence: int
    sample_offset: int
    flags: int
    audio: bytes


class Word(Struct, frozen=True):
    """A word: ``text`` is the characters ``[start, end)`` of the text appended to the context.
    Times are of the speech, from the context's first sample.
    """

    text: str
    start: int
    end: int
    start_ms: float
    end_ms: float


class Timestamps(ServerMessage, frozen=True, tag="timestamps"):
    """Times of words whose audio has been sent: in order, each word once."""

    context_id: str
    words: list[Word]


class FlushDone(ServerMessage, frozen=True, tag="flush.done"):
    """All audio of the text before the flush has been sent."""

    context_id: str
    flush_id: str


class ContextCancelled(ServerMessage, frozen=True, tag="context.cancelled"):
    """The context is cancelled: no audio of it follows. ``text_spoken`` and ``text_remaining``
    together are the text that was appended.
    """

    context_id: str
    generated_ms: float
    sent_ms: float
    played_ms: float
    text_spoken: str
    text_remaining: str


class ContextDone(ServerMessage, frozen=True, tag="context.done"):
    """The context is closed. ``length``: an utterance reached its maximum length and was cut."""

    context_id: str
    reason: Literal["complete", "length", "error"]


class Metrics(ServerMessage, frozen=True, tag="metrics"):
    """Measurements of a context, sent just before ``context.done`` or after
    ``context.cancelled``.

    ``queue_ms``: from the first complete piece of text until the talker was asked for it.
    """

    context_id: str
    queue_ms: float | None
    ttfa_ms: float | None
    leading_silence_ms: float | None
    audio_ms: float
    rtf: float | None
    underrun_ms: float


class GoingAway(ServerMessage, frozen=True, tag="going_away"):
    """The server closes this socket when its contexts are done, or after ``deadline_ms``."""

    deadline_ms: int


class Error(ServerMessage, frozen=True, tag="error"):
    """An error of a context, or of the socket if there is no ``context_id``.

    ``code`` is one of ErrorCode's in this version; a client must accept others.
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
