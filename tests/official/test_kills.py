"""Agents whose server, talker or codec worker is killed by SIGKILL in the middle of a turn.

The user then interrupts, and the next turn must be spoken. If a child process was killed, the
next turn follows at once, and the server restarts the child. If the server was killed, its
supervisor (systemd, Kubernetes, here the test) restarts it, and the next turn follows once it is
ready.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
from livekit.agents import tts
from livekit.plugins import cartesia, deepgram, talkwire
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat_talkwire import TalkwireTTSService

from tests.e2e.live import Service, service
from tests.official.ears import Ears
from tests.official.livekit_agent import agent, written
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import LONG, ONE

#: Starts a turn, calls the kill function in the middle of it, and returns the next turn's audio.
Turn = Callable[[Callable[[], Awaitable[None]]], Awaitable[bytes]]
#: Service and agent wait longer than by default, since a busy machine restarts a talker slowly.
PATIENCE_S = 110.0
VICTIMS = ("server", "talker.process", "codec.worker")


class Kept:
    """A server that is restarted on the same port after a kill."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._life = ExitStack()
        self._own: Service | None = None

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        program = Path(__file__).resolve().parents[2] / ".venv/bin/talkwire"
        self._own = self._life.enter_context(
            service("--port", str(self.port), program=program, TALKWIRE_HOLD_S=f"{PATIENCE_S}")
        )

    def stop(self) -> None:
        self._life.close()

    async def kill(self, victim: str) -> None:
        """Send SIGKILL to ``victim``; a killed server is restarted and ready on return."""
        assert self._own is not None
        if victim != "server":
            self._own.worker(victim).kill()
            return
        self._own.process.kill()
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(self.start)


@pytest.fixture(scope="module")
def server() -> Iterator[Kept]:
    """One server for all tests: it has recovered once the next turn is spoken."""
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
#: Also with Deepgram's version 2 (Flux), whose turns are state of the connection.
each = pytest.mark.parametrize(
    ("victim", "flux"), [*((victim, False) for victim in VICTIMS), ("server", True)]
)


def pipecat(server: Kept, flux: bool) -> TalkwireTTSService | DeepgramFluxTTSService:
    url = f"ws://127.0.0.1:{server.port}"
    if flux:
        return DeepgramFluxTTSService(
            api_key="any", url=f"{url}/v2/speak", stop_frame_timeout_s=PATIENCE_S
        )
    return TalkwireTTSService(url=f"{url}/v1/tts/stream", stop_frame_timeout_s=PATIENCE_S)


@each
@repeated
async def test_pipecat_speaks_next_turn_after_kill(
    server: Kept, ears: Ears, victim: str, flux: bool, times: int
) -> None:
    async with conversation(pipecat(server, flux)) as talk:

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


@pytest.mark.parametrize(
    ("victim", "vendor"),
    [*itertools.product(VICTIMS, ("cartesia", "talkwire")), ("server", "deepgram")],
)
@repeated
async def test_livekit_speaks_next_turn_after_kill(
    server: Kept,
    session: aiohttp.ClientSession,
    ears: Ears,
    victim: str,
    times: int,
    vendor: str,
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    plugin: tts.TTS = talkwire.TTS(url=url)
    if vendor == "cartesia":
        plugin = cartesia.TTS(api_key="any", base_url=url, http_session=session)
    elif vendor == "deepgram":
        plugin = deepgram.TTSv2(api_key="any", base_url=f"{url}/v2/speak", http_session=session)
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
