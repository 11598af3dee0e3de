"""A rolling restart as a client lives through it: SIGTERM while speech is being sent."""

from __future__ import annotations

import signal

from clients.native import NativeClient
from streaming.wire import AudioOptions, ChunkingOptions, SamplingOptions
from tests.e2e.live import service

TEXT = "This sentence is being spoken. And this one is finished as well, whatever happens."
OPTIONS = {
    "audio": AudioOptions(),
    "sampling": SamplingOptions(temperature=0.0),
    "chunking": ChunkingOptions(lookahead_frames=10),
}


async def test_sigterm_cuts_no_utterance_short() -> None:
    with service() as own:
        async with NativeClient.connect(own.url) as client:
            want = b"".join([chunk.pcm async for chunk in client.speak(TEXT, **OPTIONS)])
            speech = client.speak(TEXT, **OPTIONS)
            pcm = (await anext(speech)).pcm
            own.process.send_signal(signal.SIGTERM)
            pcm += b"".join([chunk.pcm async for chunk in speech])
            assert client.going_away is not None
        assert pcm == want
        assert own.process.wait(30) == 0
