"""LiveKit's two kinds of streams: a whole text, and text that is still being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from livekit.agents import APIConnectOptions, tts, utils
from livekit.plugins.talkwire.connections import Lease
from livekit.plugins.talkwire.errors import as_api_error
from livekit.plugins.talkwire.speech import OneSpeech, Voice

from talkwire_client import ClientError

_MIME_TYPE = "audio/pcm"


class ChunkedStream(tts.ChunkedStream):
    """Speaks a whole text; made by ``TTS.synthesize``."""

    def __init__(self, *, tts: Voice, input_text: str, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, input_text=input_text, conn_options=conn_options)
        self._voice = tts
        self._options = tts.options

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=self._voice.sample_rate,
            num_channels=self._voice.num_channels,
            mime_type=_MIME_TYPE,
        )
        if not self._input_text.strip():
            return
        timeout_s = self._conn_options.timeout
        lease = await _acquire(self._voice, timeout_s)
        self._acquire_time, self._connection_reused = lease.acquired_s, lease.reused
        speech = OneSpeech(self._voice, self._options, output_emitter, timeout_s)
        await speech.speak(_whole(self._input_text), lease)
        output_emitter.flush()


class SynthesizeStream(tts.SynthesizeStream):
    """Speaks text as it is pushed; made by ``TTS.stream``. The server finds the sentences.

    Closing it before its end interrupts the speech.
    """

    def __init__(self, *, tts: Voice, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, conn_options=conn_options)
        self._voice = tts
        self._options = tts.options

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=self._voice.sample_rate,
            num_channels=self._voice.num_channels,
            mime_type=_MIME_TYPE,
            stream=True,
        )
        timeout_s = self._conn_options.timeout
        while begun := await self._receive_beginning():
            lease = await _acquire(self._voice, timeout_s)
            self._acquire_time, self._connection_reused = lease.acquired_s, lease.reused
            output_emitter.start_segment(segment_id=utils.shortuuid())
            speech = OneSpeech(
                self._voice, self._options, output_emitter, timeout_s, self._mark_started
            )
            idle_s = lease.client.server.limits.context_idle_s
            await speech.speak(self._segment(begun, idle_s / 3), lease)
            output_emitter.end_segment()

    async def _receive_beginning(self) -> str:
        """Receive text until there is a character to speak. Nothing is opened before that, since
        an LLM may take its time. Returns an empty text at the end of the input.
        """
        begun = ""
        while not begun.strip():
            try:
                item = await self._input_ch.recv()
            except utils.aio.ChanClosed:
                return ""
            begun = begun + item if isinstance(item, str) else ""
        return begun

    async def _segment(self, begun: str, resting_s: float) -> AsyncIterator[str]:
        """Yield a segment's text as it is pushed, and an empty one after each rest, since the
        server gives up text that nothing is added to.
        """
        channel = self._input_ch  # which another attempt replaces
        yield begun
        while True:
            try:
                item = await asyncio.wait_for(channel.recv(), resting_s)
            except TimeoutError:
                yield ""
                continue
            except utils.aio.ChanClosed:
                return
            if not isinstance(item, str):  # the end of the segment
                return
            yield item


async def _acquire(voice: Voice, timeout_s: float) -> Lease:
    """Take a place on a connection. Raises APIError."""
    try:
        return await voice.connections.acquire(timeout_s)
    except (ClientError, TimeoutError) as error:
        raise as_api_error(error) from error


async def _whole(text: str) -> AsyncIterator[str]:
    yield text
