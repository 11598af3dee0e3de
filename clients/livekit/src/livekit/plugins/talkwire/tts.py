"""Talkwire's voice as a TTS of LiveKit Agents."""

from __future__ import annotations

import os
import ssl
import weakref
from collections.abc import Mapping
from typing import Any

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, tts
from livekit.plugins.talkwire.connections import Connections
from livekit.plugins.talkwire.options import RESERVED, checked
from livekit.plugins.talkwire.speech import Voice
from livekit.plugins.talkwire.streams import ChunkedStream, SynthesizeStream

from talkwire_client import DEFAULT_URL, Client
from talkwire_client.speech import SpeechOptions


class TTS(Voice):
    """Text-to-speech by a Talkwire server over its native protocol, ``talkwire.tts.v1``.

    All streams share a socket. Each is a Talkwire context: opened with its first text, ended with
    its last, and cancelled when the stream is closed before its end, which is how LiveKit
    interrupts. The server then stops working on it at once.

    Events (beside those of LiveKit's TTS):
        speech_cancelled: After an interruption, with the server's report (``ContextCancelled`` of
            ``talkwire_client``): ``generated_ms``, ``sent_ms``, ``played_ms``, ``text_spoken`` and
            ``text_remaining``, the last three by its model of the listener.

    Example::

        session = AgentSession(tts=talkwire.TTS(url="http://127.0.0.1:8000", voice="default"))
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        api_key: str | None = None,
        voice: str | None = None,
        sample_rate: int = 24_000,
        word_timestamps: bool = True,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        """Make the TTS. It connects with the first text, or with ``prewarm``.

        Args:
            url: Any address of the server, such as ``http://127.0.0.1:8000``; TALKWIRE_URL in the
                environment, or this machine's port 8000, if None.
            api_key: Sent as a bearer token; TALKWIRE_API_KEY in the environment if None.
            voice: The name or id of a voice; the server's default if None.
            sample_rate: Of the audio, in Hz: 8000, 16000, 22050, 24000, 32000, 44100 or 48000.
            word_timestamps: Whether to ask for the times of words, if the server has them.
            headers: Further headers of the handshake.
            ssl_context: For a certificate of your own authority.
            **options: Further options of ``talkwire_client``'s ``Client.speak``, such as ``model``,
                ``speed``, ``temperature``, ``seed``, ``max_lead_ms`` or ``pronunciations``.

        Raises:
            TypeError: There is no such option, or the plugin decides it itself.
            ValueError: A text among the options is not Unicode.
        """
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=word_timestamps),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._url = url or os.environ.get("TALKWIRE_URL") or DEFAULT_URL
        self._api_key = api_key or os.environ.get("TALKWIRE_API_KEY") or None
        self._headers = headers
        self._ssl = ssl_context
        self._wants_words = word_timestamps
        self._options = checked({"voice": voice, **options}, sample_rate)
        #: The served model, once the server has told.
        self._served = "unknown"
        self._streams = weakref.WeakSet[ChunkedStream | SynthesizeStream]()
        self._connections = Connections(self._client)

    @property
    def model(self) -> str:
        """The model's name: the one asked for, or else the served one once it is known."""
        return self._options.get("model") or self._served

    @property
    def provider(self) -> str:
        """The provider's name."""
        return "Talkwire"

    @property
    def options(self) -> SpeechOptions:
        """A copy of the options of the next stream."""
        return self._options.copy()

    @property
    def connections(self) -> Connections:
        """The sockets to the server."""
        return self._connections

    def update_options(self, **options: Any) -> None:
        """Change options of streams made from now on.

        Args:
            **options: The changes, as at construction: ``voice``, ``speed`` and so on. None
                selects the server's default.

        Raises:
            TypeError: There is no such option, or the plugin decides it itself.
            ValueError: A text among the options is not Unicode.
        """
        given = {name: value for name, value in self._options.items() if name not in RESERVED}
        self._options = checked(given | options, self._sample_rate)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> ChunkedStream:
        """Speak a whole text.

        Args:
            text: The text.
            conn_options: Timeout and number of attempts.

        Returns:
            A stream of its audio.
        """
        stream = ChunkedStream(tts=self, input_text=text, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> SynthesizeStream:
        """Speak text while it is being written.

        Args:
            conn_options: Timeout and number of attempts. A stream that has spoken is not tried
                again.

        Returns:
            A stream to push text to and to read audio from.
        """
        stream = SynthesizeStream(tts=self, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    def prewarm(self) -> None:
        """Connect now, so that the first text need not wait for it."""
        self._connections.open_early(DEFAULT_API_CONNECT_OPTIONS.timeout)

    async def aclose(self) -> None:
        """Cancel all streams, and close the sockets."""
        for stream in list(self._streams):
            await stream.aclose()
        self._streams.clear()
        await self._connections.close()

    # -- for the streams

    def on_connected(self, client: Client) -> None:
        """Take note of the server's capabilities."""
        self._served = client.server.model
        self._capabilities = tts.TTSCapabilities(
            streaming=True, aligned_transcript=self._wants_words and client.server.word_timings
        )

    def _client(self) -> Client:
        return Client(
            self._url, api_key=self._api_key, headers=self._headers, ssl_context=self._ssl
        )
