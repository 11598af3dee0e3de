"""One speech: a context of Talkwire's, whose audio and words go to LiveKit's emitter."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Literal

from livekit.agents import APIError, tts
from livekit.plugins.talkwire.connections import Connections, Lease
from livekit.plugins.talkwire.errors import as_api_error
from livekit.plugins.talkwire.log import logger
from livekit.plugins.talkwire.words import TimedText

from talkwire_client import AudioChunk, Client, ClientError, Speech, Word
from talkwire_client.speech import CANCEL_TIMEOUT_S, SpeechOptions

#: What LiveKit hears of a text without anything to hear: it takes no audio for a failure, and ends
#: an agent's session after a few of them.
_SILENCE_S = 0.2
_SAMPLE_BYTES = 2


class Voice(tts.TTS[Literal["speech_cancelled"]]):
    """A TTS, as its streams and speeches need it."""

    @property
    @abstractmethod
    def options(self) -> SpeechOptions:
        """A copy of the options of the next stream."""

    @property
    @abstractmethod
    def connections(self) -> Connections:
        """The sockets to the server."""

    @abstractmethod
    def on_connected(self, client: Client) -> None:
        """Take note of the server's capabilities."""


class OneSpeech:
    """Speaks one text.

    Args:
        voice: The TTS.
        options: Options of the speech; its audio is s16le at the TTS's rate.
        emitter: Takes audio and words; a segment of it must have been started.
        timeout_s: How long to wait for a connection, for the server's answer, and for audio once
            the text is complete and the listener has none left.
        on_sent: Called when the first text is sent.
    """

    def __init__(
        self,
        voice: Voice,
        options: SpeechOptions,
        emitter: tts.AudioEmitter,
        timeout_s: float,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self._voice = voice
        self._options = options
        self._emitter = emitter
        self._timeout_s = timeout_s
        self._on_sent = on_sent
        self._text = TimedText()
        #: Ends the wait for audio; without a deadline while text may still come.
        self._patience = asyncio.timeout(None)
        #: Whether audio is being waited for.
        self._is_waiting = False
        #: Whether all text was sent, so that audio is due.
        self._is_complete = False
        #: When the listener will have heard all audio so far, by the event loop's clock.
        self._heard_at = 0.0

    async def speak(self, text: AsyncIterable[str], lease: Lease) -> None:
        """Speak a text, and give back ``lease`` when the server is done with it. If this fails or
        is cancelled, the server stops at once, and this does not wait for its report.

        Args:
            text: The text's parts; an empty one keeps the server from giving the text up.
            lease: A place on a connection.

        Raises:
            APIError: As ``as_api_error``.
        """
        try:
            speech = await self._open(text, lease)
            is_finished = False
            try:
                async with self._patience:
                    self._is_waiting = True
                    self._wait_for_audio()  # the text may have been complete at once
                    await self._forward(speech)
                is_finished = True
            finally:
                if is_finished:
                    self._voice.connections.release(lease)
                else:
                    self._voice.connections.in_background(self._stop(speech, lease))
        except (ClientError, TimeoutError, ValueError) as error:
            raise as_api_error(error) from error

    async def _open(self, text: AsyncIterable[str], lease: Lease) -> Speech:
        """Open a speech at the server. Raises ClientError, TimeoutError or ValueError."""
        try:
            self._voice.on_connected(lease.client)
            on_words = self._on_words if self._voice.capabilities.aligned_transcript else None
            speech = lease.client.speak(self._noted(text), on_words=on_words, **self._options)
            async with asyncio.timeout(self._timeout_s):
                await speech.__aenter__()
        except BaseException:
            self._voice.connections.release(lease)
            raise
        if speech.warning is not None:
            logger.warning("%s", speech.warning)
        return speech

    async def _noted(self, text: AsyncIterable[str]) -> AsyncIterator[str]:
        """Yield the text's parts, and take note of them and of their end."""
        began = False
        async for part in text:
            self._text.add(part)
            if not began:
                began = True
                self._on_sent()
            yield part
        self._is_complete = True
        self._wait_for_audio()

    def _on_words(self, words: Sequence[Word]) -> None:
        self._emitter.push_timed_transcript(list(self._text.take(words)))

    async def _forward(self, speech: Speech) -> None:
        """Pass the speech's audio on to its end."""
        samples = 0
        try:
            async for chunk in speech:
                if chunk.data:
                    samples += chunk.samples
                    self._emitter.push(chunk.data)
                self._on_audio(chunk)
        finally:
            self._is_waiting = False
        await speech.__aexit__(None, None, None)
        for warning in speech.markup_warnings:
            logger.warning("%s", warning.message)
        if speech.done is None or speech.done.reason == "error":
            raise APIError("the server ended the speech early")
        if speech.done.reason == "length":
            logger.warning("a speech was cut off at the longest length")
        elif self._voice.capabilities.aligned_transcript:
            self._emitter.push_timed_transcript(list(self._text.take_rest()))
        if not samples:
            silence = round(_SILENCE_S * self._voice.sample_rate)
            self._emitter.push(bytes(silence * _SAMPLE_BYTES))

    def _on_audio(self, chunk: AudioChunk) -> None:
        now = asyncio.get_running_loop().time()
        duration_s = chunk.samples / self._voice.sample_rate
        self._heard_at = max(self._heard_at, now) + duration_s
        self._wait_for_audio()

    def _wait_for_audio(self) -> None:
        """Set the deadline of the next audio. The server sends none for a while if the listener
        has enough of it.
        """
        if self._is_complete and self._is_waiting:
            now = asyncio.get_running_loop().time()
            self._patience.reschedule(max(now, self._heard_at) + self._timeout_s)

    async def _stop(self, speech: Speech, lease: Lease) -> None:
        """Stop a speech at the server, and report what was heard of it."""
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                report = await speech.cancel()
                await speech.__aexit__(None, None, None)
                if report is not None:
                    self._voice.emit("speech_cancelled", report)
        except (ClientError, TimeoutError) as error:
            logger.warning("could not cancel a speech: %s", error or "timeout")
        finally:
            self._voice.connections.release(lease)
