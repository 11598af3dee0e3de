"""The Python client of Talkwire, a streaming text-to-speech server.

``Client`` is for asyncio, ``SyncClient`` for programs without an event loop. Both speak the native
protocol: text goes in as it is written, audio comes out as it is made.
"""

from talkwire_client.audio import AudioChunk, Recording, WavWriter
from talkwire_client.client import DEFAULT_URL, Client
from talkwire_client.errors import (
    ClientError,
    ConnectionLostError,
    NoServerError,
    ProtocolError,
    RefusedError,
    ServerError,
    SlowReaderError,
)
from talkwire_client.playback import PlaybackClock
from talkwire_client.player import PlayerError, open_player, play
from talkwire_client.protocol import (
    ChunkingOptions,
    ContextCancelled,
    Encoding,
    ErrorCode,
    Metrics,
    PronunciationRule,
    ReferenceOptions,
    SessionCreated,
    Word,
)
from talkwire_client.speech import Speech, SpeechOptions
from talkwire_client.sync_client import SyncClient, SyncSpeech

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_URL",
    "AudioChunk",
    "ChunkingOptions",
    "Client",
    "ClientError",
    "ConnectionLostError",
    "ContextCancelled",
    "Encoding",
    "ErrorCode",
    "Metrics",
    "NoServerError",
    "PlaybackClock",
    "PlayerError",
    "PronunciationRule",
    "ProtocolError",
    "Recording",
    "ReferenceOptions",
    "RefusedError",
    "ServerError",
    "SessionCreated",
    "SlowReaderError",
    "Speech",
    "SpeechOptions",
    "SyncClient",
    "SyncSpeech",
    "WavWriter",
    "Word",
    "open_player",
    "play",
]
