"""The native protocol: waiting and speaking without client messages is not idle."""

from __future__ import annotations

import pytest

from service.transport import websocket as socket
from talker.fake import FakeTalker
from tests.service.live import SPEC, client, gateway


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle timeouts are checked often."""
    monkeypatch.setattr(socket, "_HOUSEKEEPING_S", 0.05)


async def test_context_waiting_for_playback_is_not_idle() -> None:
    limits = {"context_idle_s": 1.0, "default_lead_ms": 500}
    async with gateway(FakeTalker(frames_per_character=4), **limits) as server:
        async with client(server.url) as talk:
            said = await talk.say("Twenty-two characters.")
        assert len(said) > 3 * SPEC.sample_rate


async def test_speaking_socket_is_not_idle() -> None:
    talker = FakeTalker(frames_per_character=5)
    async with gateway(talker, session_idle_s=1.0) as server, client(server.url) as talk:
        talker.row_s = 0.02  # two seconds of work
        assert len(await talk.say("Twenty-two characters.")) > 0
