"""The native protocol: waiting and speaking without client messages is not idle."""

from __future__ import annotations

import time
from typing import Any

import pytest

from loadtest.fakes.talker import FakeTalker
from service.timers import Look
from service.transport import websocket as socket
from tests.service.housekeeping import take_over_housekeeping
from tests.service.live import SPEC, client, gateway
from tests.service.memory import MemorySocket, served


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle timeouts are checked often."""
    monkeypatch.setattr(socket, "_HOUSEKEEPING_S", 0.05)


async def test_context_waiting_for_playback_is_not_idle() -> None:
    limits: dict[str, Any] = {"context_idle_s": 1.0, "default_lead_ms": 500}
    async with gateway(FakeTalker(frames_per_character=4), **limits) as server:
        async with client(server.url) as talk:
            said = await talk.say("Twenty-two characters.")
        assert len(said) > 3 * SPEC.sample_rate


async def test_speaking_socket_is_not_idle() -> None:
    talker = FakeTalker(frames_per_character=5)
    async with gateway(talker, session_idle_s=1.0) as server, client(server.url) as talk:
        talker.row_s = 0.02  # two seconds of work
        assert len(await talk.say("Twenty-two characters.")) > 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    return take_over_housekeeping(monkeypatch)


async def answer(talk: MemorySocket) -> str:
    """Return the type of the first message up to the answer to a ping."""
    talk.send({"type": "ping"})
    message = await talk.next()
    assert isinstance(message, dict)
    return str(message["type"])


@pytest.mark.parametrize("has_context", [False, True])
async def test_pause_of_server_is_no_idle_time(has_context: bool, looks: list[Look]) -> None:
    limits: dict[str, Any] = {"context_idle_s": 2.0, "session_idle_s": 2.0}
    async with served(**limits) as server, server.socket("/v1/tts/stream") as talk:
        await talk.next()  # session.created
        if has_context:
            talk.send({"type": "context.create", "context_id": "c"})
            await talk.next()
        (look,), began = looks, time.monotonic()
        look(began + 100.0)
        assert await answer(talk) == "pong"
        if not has_context:
            for step in range(5):
                look(began + 100.0 + step)
            assert await answer(talk) == "error"
