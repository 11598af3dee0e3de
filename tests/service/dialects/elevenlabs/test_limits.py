"""ElevenLabs' sockets: limits of contexts and of inactivity."""

from __future__ import annotations

import pytest

from loadtest.fakes.talker import FakeTalker
from service.dialects.elevenlabs.request import stream_options
from tests.service.dialects.elevenlabs.talk import (
    EXACT,
    ONE,
    finish,
    is_final,
    multi,
    open_context,
)
from tests.service.dialects.vendor_talk import s16
from tests.service.housekeeping import take_over_housekeeping
from tests.service.live import gateway
from tests.waiting import until


async def test_contexts_being_spoken_count_towards_limit() -> None:
    talker = FakeTalker(frames_per_character=20)
    async with gateway(talker) as server, multi(server) as talk:
        talker.row_s = 0.05
        for number in range(10):  # finished one by one, since only five may accept text
            await open_context(talk, f"c{number}", ONE)
            await finish(talk, f"c{number}")
        await open_context(talk, "more", ONE)
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"]) == ("too_many_contexts", "more")
        assert "10 open contexts" in error["message"]


async def test_empty_text_keeps_context_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = take_over_housekeeping(monkeypatch)
    async with gateway(**EXACT) as server, multi(server, inactivity_timeout=2) as talk:
        await open_context(talk, "a", "Half a")
        await until(lambda: any(c.has_pending_text for c in server.contexts()))
        (context,), (look,) = server.contexts(), looks
        for _ in range(3):
            touched_at = context.touched_at = context.touched_at - 1.9  # so much time passes
            await talk.send(text="", context_id="a")
            await until(lambda: context.touched_at != touched_at)  # noqa: B023
            look(touched_at + 2.1)
        await talk.send(text=" sentence.", context_id="a")
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole("Half a sentence."))


@pytest.mark.parametrize(("asked", "s"), [({}, 20), ({"inactivity_timeout": "9999"}, 180)])
async def test_inactivity_timeout_defaults_to_20_s_and_is_capped(
    asked: dict[str, str], s: int
) -> None:
    async with gateway() as server:
        assert stream_options("default", asked, server.runtime).inactivity_s == s
