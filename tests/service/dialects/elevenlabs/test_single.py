"""ElevenLabs' `stream-input`: one context and its socket."""

from __future__ import annotations

import time
from typing import Any

import pytest

from loadtest.fakes.talker import FakeTalker
from tests.service.dialects.elevenlabs.talk import (
    EXACT,
    ONE,
    SLOW,
    TWO,
    multi,
    open_context,
    single,
    whole,
)
from tests.service.dialects.vendor_talk import s16
from tests.service.housekeeping import take_over_housekeeping
from tests.service.live import gateway
from tests.waiting import until


async def test_single_stream_ends_and_closes_after_empty_text() -> None:
    async with gateway(**EXACT) as server, single(server) as talk:
        opening = {"text": " ", "voice_settings": None, "try_trigger_generation": True}
        await talk.send(**opening, generation_config={"chunk_length_schedule": [50]})
        await talk.send(text=ONE + " ", try_trigger_generation=True)
        await talk.send(text=TWO + " ")
        await talk.send(text="")
        await talk.send(text="Too late.")
        *_, last = await talk.rest()
        assert last == {"isFinal": True}
        assert all("contextId" not in message for message in talk.messages)
        assert talk.sounds[None] == s16(whole(server, ONE, TWO))
        assert talk.socket.close_code == 1000
        await server.until_free()


async def test_single_stream_continues_after_flush() -> None:
    async with gateway(**EXACT) as server, single(server) as talk:
        await talk.send(text="Half a sen", flush=True)
        while len(talk.sounds.get(None, b"")) < len(s16(server.whole("Half a sen"))):
            await talk.next()
        await talk.send(text="tence. ")
        await talk.send(text="")
        await talk.rest()
        assert talk.sounds[None] == s16(whole(server, "Half a sen", "tence."))


@pytest.mark.parametrize("texts", [(), (" ",), ("\N{PARTY POPPER} ",)])
async def test_single_stream_without_speakable_text_ends_without_error(
    texts: tuple[str, ...],
) -> None:
    async with gateway(unspeakable_text="error") as server, single(server) as talk:
        for text in texts:
            await talk.send(text=text)
        await talk.send(text="")
        assert await talk.rest() == [{"isFinal": True}]
        assert talk.socket.close_code == 1000


async def test_single_stream_failure_is_its_last_message() -> None:
    async with gateway(FakeTalker(row_s=0.001)) as server, single(server) as talk:
        await talk.send(text="This will !fail soon. ")
        await talk.send(text="")
        *_, last = await talk.rest()
        assert (last["error"], last["code"]) == ("engine_failed", 1011)
        assert talk.socket.close_code == 1011


async def test_single_stream_closes_if_server_is_full() -> None:
    async with gateway(FakeTalker(**SLOW), max_contexts=1) as server, multi(server) as other:
        await open_context(other, "a", ONE)
        async with single(server) as talk:
            await talk.send(text=" ")
            (error,) = await talk.rest()
            assert (error["error"], error["code"]) == ("overloaded", 1008)
            assert talk.socket.close_code == 1008


async def test_inactive_single_stream_is_closed() -> None:
    async with gateway() as server, single(server, inactivity_timeout=1) as talk:
        await talk.send(text="Half a sentence")
        *_, last = await talk.rest()
        assert last["error"] == "idle_timeout"
        assert talk.socket.close_code == 1008
        await server.until_free()


async def test_ended_single_stream_may_be_read_for_longer_than_inactivity_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = take_over_housekeeping(monkeypatch)
    far_ahead: dict[str, Any] = {"default_lead_ms": 10**7, "max_lead_ms": 10**7}
    async with (
        gateway(FakeTalker(frames_per_character=20), **EXACT, **far_ahead) as server,
        single(server, inactivity_timeout=1) as talk,
    ):
        talk.socket.transport.pause_reading()
        await talk.send(text=f"{ONE} {TWO} ")
        await talk.send(text="")
        await until(lambda: server.runtime.admission.active)
        await until(lambda: not server.runtime.admission.active)  # all is in the outbox
        for later_s in range(4):
            looks[0](time.monotonic() + later_s)
        talk.socket.transport.resume_reading()
        *_, last = await talk.rest()
        assert last == {"isFinal": True}
        assert talk.socket.close_code == 1000
