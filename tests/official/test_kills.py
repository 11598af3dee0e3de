"""``kill -9`` under an agent: of the server, of its talker and of its codec worker.

Each victim dies in the middle of a turn, the user interrupts, and the next turn is spoken: at once
where a child has died, which the server starts again by itself; when the server is ready where it
was itself the victim, which its keeper (systemd, Kubernetes, this test) has started again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
from livekit.plugins import cartesia
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat_talkwire import TalkwireTTSService

from tests.e2e.live import Service, service
from tests.official.ears import Ears
from tests.official.livekit_agent import agent, written
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import LONG, ONE

#: A turn, and the victim that dies in the middle of it.
Turn = Callable[[Callable[[], Awaitable[None]]], Awaitable[bytes]]
VICTIMS = ("server", "talker.process", "codec.worker")


class Kept:
    """A server that is started again on the same port when it has died."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._life = ExitStack()
        self._own: Service | None = None

    def start(self) -> None:
        """Returns when it is ready."""
        program = Path(__file__).resolve().parents[2] / ".venv/bin/talkwire"
        self._own = self._life.enter_context(service("--port", str(self.port), program=program))

    def stop(self) -> None:
        self._life.close()

    async def kill(self, victim: str) -> None:
        """``kill -9``. A server is started again, and ready, when this returns."""
        assert self._own is not None
        if victim != "server":
            self._own.worker(victim).kill()
            return
        self._own.process.kill()
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(self.start)


@pytest.fixture(scope="module")
def server() -> Iterator[Kept]:
    """One for all: who has spoken the next turn is well again."""
    keeper = Kept()
    try:
        keeper.start()
        yield keeper
    finally:
        keeper.stop()


async def assert_the_next_turn_is_spoken(
    server: Kept, turn: Turn, ears: Ears, victim: str, times: int
) -> None:
    spoken = [ears.which(await turn(lambda: server.kill(victim))) for _ in range(times)]
    assert spoken == [ONE] * times


repeated = pytest.mark.parametrize(
    "times", [1, pytest.param(10, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]
)
each = pytest.mark.parametrize("victim", VICTIMS)


def pipecat(server: Kept) -> TalkwireTTSService:
    url = f"ws://127.0.0.1:{server.port}/v1/tts/stream"
    # A busy machine may take longer to start a talker than the service waits.
    return TalkwireTTSService(url=url, stop_frame_timeout_s=60.0)


@each
@repeated
async def test_pipecat_speaks_the_next_turn(
    server: Kept, ears: Ears, victim: str, times: int
) -> None:
    async with conversation(pipecat(server)) as talk:

        async def turn(kill: Callable[[], Awaitable[None]]) -> bytes:
            before = len(talk.of(TTSAudioRawFrame))
            interrupted = len(talk.of(InterruptionFrame))
            await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(LONG))
            await talk.until(lambda: len(talk.of(TTSAudioRawFrame)) > before, "it speaks")
            await kill()
            await talk.queue(InterruptionFrame())
            await talk.until(lambda: len(talk.of(InterruptionFrame)) > interrupted, "interrupted")
            contexts = len(talk.contexts())
            await talk.say(ONE)
            await talk.until(lambda: len(talk.contexts()) > contexts, "the next turn begins")
            mine = talk.contexts()[-1]
            await talk.until(
                lambda: mine in [frame.context_id for frame in talk.of(TTSStoppedFrame)],
                "the next turn was spoken",
            )
            return talk.pcm(mine)

        await assert_the_next_turn_is_spoken(server, turn, ears, victim, times)


@each
@repeated
async def test_livekit_speaks_the_next_turn(
    server: Kept, session: aiohttp.ClientSession, ears: Ears, victim: str, times: int
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    plugin = cartesia.TTS(api_key="any", base_url=url, http_session=session)
    async with agent(plugin) as (speaker, loudspeaker):

        async def turn(kill: Callable[[], Awaitable[None]]) -> bytes:
            loudspeaker.plays.clear()
            speech = speaker.say(written(LONG))
            await loudspeaker.plays.wait()
            await kill()
            await speaker.interrupt()
            await speech
            before = len(loudspeaker.frames)
            await speaker.say(ONE)
            return b"".join(bytes(frame.data) for frame in loudspeaker.frames[before:])

        await assert_the_next_turn_is_spoken(server, turn, ears, victim, times)
