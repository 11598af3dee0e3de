"""R5: when the talker dies or hangs, clients get a retry hint and the service recovers."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from talkwire_client import Client, ServerError
from tests.e2e.live import Service, service

#: Fixed admission, so that a busy machine does not refuse the three clients.
FIXED: dict[str, Any] = {"TALKWIRE_ADMISSION": "fixed"}
TEXT = "This is a long text, so that there is time for something to happen. " * 6


def readiness(own: Service) -> int:
    try:
        url = f"http://127.0.0.1:{own.port}/health/ready"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return int(refused.code)


async def is_told(client: Client, begun: asyncio.Event) -> ServerError:
    """Speak until the error; return it."""
    async with client.speak(TEXT, max_lead_ms=2_000) as speech:
        chunks = aiter(speech)
        await anext(chunks)
        begun.set()
        with pytest.raises(ServerError) as caught:
            [chunk async for chunk in chunks]
    return caught.value


async def die(own: Service, victim: psutil.Process, number: signal.Signals) -> None:
    """Kill or stop ``victim``: clients get a retryable error; readiness is lost and recovers."""
    async with (
        Client(own.url) as one,
        Client(own.url) as two,
        Client(own.url) as three,
    ):
        begun = [asyncio.Event() for _ in range(3)]
        speaking = [
            asyncio.create_task(is_told(client, event))
            for client, event in zip((one, two, three), begun, strict=True)
        ]
        for event in begun:
            await event.wait()
        victim.send_signal(number)
        errors = await asyncio.gather(*speaking)
        status = await asyncio.to_thread(readiness, own)
    assert [error.code for error in errors] == ["engine_restarting"] * 3
    assert all(error.retryable and error.retry_after_ms for error in errors)
    assert status == 503
    await asyncio.to_thread(own.until_ready)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_talker_death_or_hang_gives_retryable_error_and_recovers(tmp_path: Path) -> None:
    with service(**FIXED) as own:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            await die(own, own.worker("talker.process"), number)
        said = await asyncio.to_thread(own.say, "It is back.", tmp_path / "back.wav")
        assert said["audio_s"] > 0.3


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_engine_core_death_or_hang_gives_retryable_error_and_recovers(tmp_path: Path) -> None:
    """With ``async`` the engine core is a child process of the talker."""
    with service(TALKWIRE_TALKER_ENGINE="async", **FIXED) as own:
        for number in (signal.SIGKILL, signal.SIGSTOP):
            talker = own.worker("talker.process")
            core = max(talker.children(), key=lambda child: child.memory_info().rss)
            await die(own, core, number)
        said = await asyncio.to_thread(own.say, "It is back.", tmp_path / "back.wav")
        assert said["audio_s"] > 0.3
