"""Drain of the real service: SIGTERM while speech is being sent."""

from __future__ import annotations

import signal
from typing import Any

from talkwire_client import ChunkingOptions, Client
from tests.e2e.live import service
from tests.waiting import until

TEXT = "This sentence is being spoken. And this one is finished as well, whatever happens."
OPTIONS: dict[str, Any] = {
    "temperature": 0.0,
    "chunking": ChunkingOptions(lookahead_frames=10),
}


async def test_sigterm_completes_utterance_and_exits_with_zero() -> None:
    with service() as own:
        async with Client(own.url) as client:
            async with client.speak(TEXT, **OPTIONS) as speech:
                want = await speech.read()
            async with client.speak(TEXT, **OPTIONS) as speech:
                chunks = aiter(speech)
                pcm = (await anext(chunks)).data
                own.process.send_signal(signal.SIGTERM)
                await until(lambda: client.going_away is not None)
                pcm += b"".join([chunk.data async for chunk in chunks])
        assert pcm == want
        assert own.process.wait(30) == 0
