"""The service with two engine processes: same speech as with one, and recovery after a death."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psutil
import pytest

from talkwire_client import ChunkingOptions, Client, ServerError
from tests.e2e.live import Service, service

#: Starting imports torch in up to five processes, one after the other.
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1200)]
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Hello there, how are you today?",
    "This is the third of six sentences, and a longer one.",
    "A short one.",
    "Rain is falling on the old stone bridge.",
    "The train leaves in ten minutes.",
)
_RESTARTS = 'tts_worker_restarts_total{worker="talker"}'
#: Greedy and with full lookahead, so that equal codes give equal samples.
EXACT: dict[str, Any] = {
    "temperature": 0.0,
    "chunking": ChunkingOptions(lookahead_frames=10),
    "max_lead_ms": 100_000,
}


#: With LONG, over a minute of audio, paced by the playback clock: on a fast machine the first
#: stream could otherwise complete before the last one begins.
PACED: dict[str, Any] = {**EXACT, "max_lead_ms": 2_000}
LONG = " ".join(TEXTS * 5)


async def speak_all(url: str) -> list[bytes]:
    """Speak all texts at once, each in its own context."""
    async with Client(url) as client:

        async def speak(text: str) -> bytes:
            async with client.speak(text, **EXACT) as speech:
                return await speech.read()

        return await asyncio.gather(*(speak(text) for text in TEXTS))


def processes(running: Service, title: str) -> list[psutil.Process]:
    """vLLM's processes whose titles start with ``title``, sorted by title."""
    everyone = psutil.Process(running.process.pid).children(recursive=True)
    named = {(p.cmdline() or [""])[0].strip(): p for p in everyone}
    return [named[name] for name in sorted(named) if name.startswith(title)]


def busy_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


@pytest.fixture(scope="module")
def alone() -> list[bytes]:
    """The speech of a single engine, which ends before the others start, to save memory."""
    with service() as running:
        heard = asyncio.run(speak_all(running.url))
    return heard


@pytest.mark.parametrize(
    ("setting", "title"),
    [
        ("TALKWIRE_TALKER_DATA_PARALLEL_SIZE", "VLLM::EngineCore"),
        ("TALKWIRE_TALKER_TENSOR_PARALLEL_SIZE", "VLLM::Worker"),
    ],
    ids=["data", "tensor"],
)
def test_two_engine_processes_speak_as_one_and_recover_from_death(
    setting: str, title: str, alone: list[bytes]
) -> None:
    settings: dict[str, Any] = {setting: "2"}
    with service(**settings) as running:
        pair = processes(running, title)
        assert len(pair) == 2
        before = [busy_s(process) for process in pair]
        heard = asyncio.run(speak_all(running.url))
        assert [len(pcm) for pcm in heard] == [len(pcm) for pcm in alone]
        assert heard == alone
        worked = [busy_s(p) - start for p, start in zip(pair, before, strict=True)]
        assert min(worked) > 0.1, "one of the two was idle"

        restarts = running.metric(_RESTARTS)
        old = psutil.Process(running.worker("talker.process").pid)
        family = [old, *old.children(recursive=True)]
        asyncio.run(killed_while_speaking(running, pair[1]))
        running.until_ready()
        assert running.metric(_RESTARTS) == restarts + 1
        _, left = psutil.wait_procs(family, timeout=60)
        assert not left, "processes of the engine that died are still there"
        assert asyncio.run(speak_all(running.url)) == alone


async def killed_while_speaking(running: Service, victim: psutil.Process) -> None:
    """Kill ``victim`` during speech; every open context gets a retryable ``engine_restarting``."""
    async with Client(running.url) as client, contextlib.AsyncExitStack() as stack:
        speeches = [await stack.enter_async_context(client.speak(LONG, **PACED)) for _ in range(4)]
        streams = [aiter(speech) for speech in speeches]
        await asyncio.gather(*(anext(stream) for stream in streams))
        victim.kill()

        async def rest(number: int) -> str:
            with pytest.raises(ServerError) as caught:
                async for _ in streams[number]:
                    pass
            assert caught.value.retryable
            return str(caught.value.code)

        codes = await asyncio.gather(*(rest(n) for n in range(len(streams))))
    assert set(codes) == {"engine_restarting"}
