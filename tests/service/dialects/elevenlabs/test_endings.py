"""ElevenLabs' multi-context socket: ending, interrupting, keeping alive."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from loadtest.fakes.talker import FakeTalker
from service.contexts.driver import ContextDriver
from service.dialects.elevenlabs import streams
from tests.service.dialects.elevenlabs.talk import (
    EXACT,
    ONE,
    SLOW,
    TWO,
    finish,
    is_final,
    multi,
    open_context,
    whole,
)
from tests.service.dialects.vendor_talk import VendorTalk, s16
from tests.service.live import Gateway, gateway, most_rows
from tests.service.memory import served
from tests.waiting import until


async def until_heard(talk: VendorTalk, context: str) -> None:
    await talk.until(lambda message: message.get("audio") and message["contextId"] == context)


async def opened(server: Gateway) -> list[ContextDriver]:
    """Wait for a context, and return all."""
    await until(lambda: bool(server.runtime.lifecycle.open_contexts))
    return server.contexts()


async def test_close_context_after_flush_speaks_to_end() -> None:
    talker = FakeTalker(row_s=0.001)
    async with gateway(talker, **EXACT) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, TWO)
        await finish(talk, "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(whole(server, ONE, TWO))


async def test_close_context_after_flush_and_whitespace_speaks_to_end() -> None:
    async with gateway(FakeTalker(**SLOW), **EXACT) as server, multi(server) as talk:
        await talk.send(text=ONE, context_id="a", flush=True)
        await talk.send(text="\n", context_id="a")
        await talk.send(close_context=True, context_id="a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_second_close_context_interrupts() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, TWO)
        await finish(talk, "a")
        await until_heard(talk, "a")
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        await server.until_free()
        heard = talk.sounds["a"]
        await open_context(talk, "b", "Yes.")
        await finish(talk, "b")
        await talk.until(is_final("b"))
        assert talk.sounds["a"] == heard
        assert len(heard) < len(s16(whole(server, ONE, TWO))) / 2
        await talk.send(context_id="a", close_context=True)  # again, after the context has ended
        await talk.send(context_id="a", flush=True)
        await open_context(talk, "c", "Yes.")
        await finish(talk, "c")
        await talk.until(is_final("c"))


async def test_second_close_context_revokes_unsent_audio_of_ended_context() -> None:
    """All is spoken, but the client is slow to read."""
    address = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000"
    async with served() as service, service.socket(address) as socket:
        socket.reading.clear()
        made = service.talker.rows_made
        socket.send({"text": TWO, "context_id": "a", "flush": True})
        socket.send({"context_id": "a", "close_context": True})
        await service.until_rows(made)
        await service.until_free()
        socket.send({"context_id": "a", "close_context": True})
        socket.reading.set()
        heard, message = b"", await socket.next()
        while isinstance(message, dict) and not message.get("isFinal"):
            heard += base64.b64decode(message["audio"])
            message = await socket.next()
        assert message == {"isFinal": True, "contextId": "a"}
        assert len(heard) < len(s16(service.whole(TWO))) / 2  # what was being sent


async def test_close_context_without_flush_interrupts() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, multi(server, auto_mode="true") as talk:
        await open_context(talk, "a", ONE, TWO)
        await until_heard(talk, "a")
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        await server.until_free()
        assert len(talk.sounds["a"]) < len(s16(whole(server, ONE, TWO))) / 2


async def test_close_context_with_unflushed_text_interrupts() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, multi(server) as talk:
        await talk.send(text=ONE, context_id="a", flush=True)
        await talk.send(text=TWO, context_id="a")
        await talk.send(context_id="a", close_context=True)
        await talk.until(is_final("a"))
        await server.until_free()
        assert len(talk.sounds.get("a", b"")) < len(s16(server.whole(ONE)))


async def test_late_close_context_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bolna flushes each sentence, and closes the context once to interrupt it."""
    monkeypatch.setattr(streams, "_END_OF_TURN_S", 0.0)  # so much time passes
    async with gateway(FakeTalker(**SLOW)) as server, multi(server) as talk:
        await talk.send(text=ONE, context_id="a", flush=True)
        await talk.send(text=TWO, context_id="a", flush=True)
        await until_heard(talk, "a")
        await talk.send(close_context=True, context_id="a")
        await talk.until(is_final("a"))
        await server.until_free()
        assert len(talk.sounds["a"]) < len(s16(whole(server, ONE, TWO))) / 2


async def test_late_close_context_after_speech_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_END_OF_TURN_S", 0.0)
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await talk.send(text=ONE, context_id="a", flush=True)
        (context,) = await opened(server)
        await until(lambda: context.is_idle)
        await talk.send(close_context=True, context_id="a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def end_as_livekit(talk: VendorTalk, context: str) -> None:
    await talk.send(text="", context_id=context, flush=True)
    await talk.send(context_id=context, close_context=True)


async def test_next_context_of_livekit_takes_slot_of_passed_turn() -> None:
    """Each of the turns needs the server's only slot."""
    talker = FakeTalker(**SLOW)
    only_one: dict[str, Any] = {"admission": "fixed", "max_contexts": 1, **EXACT}
    async with gateway(talker, **only_one) as server, multi(server, auto_mode="true") as talk:
        for number in range(12):
            await open_context(talk, f"c{number}", ONE, TWO)
            await until_heard(talk, f"c{number}")
            await end_as_livekit(talk, f"c{number}")
        await open_context(talk, "last", "Yes.")
        await end_as_livekit(talk, "last")
        await talk.until(is_final("last"))
        await server.until_free()
        finals = [message["contextId"] for message in talk.messages if message.get("isFinal")]
        assert finals == [*(f"c{number}" for number in range(12)), "last"]
        assert not any("error" in message for message in talk.messages)
        assert talk.sounds["last"] == s16(server.whole("Yes."))
        assert all(
            len(talk.sounds[f"c{number}"]) < len(s16(whole(server, ONE, TWO))) / 2
            for number in range(12)
        )


async def test_passed_turns_of_livekit_make_room_on_their_socket() -> None:
    """A socket has ten contexts at most."""
    talker = FakeTalker(**SLOW)
    async with gateway(talker, admission="fixed", max_contexts=50) as server, multi(server) as talk:
        for number in range(25):
            await open_context(talk, f"c{number}", ONE)
            await end_as_livekit(talk, f"c{number}")
        await until_heard(talk, "c24")
        assert not any("error" in message for message in talk.messages)
        assert server.runtime.admission.active <= streams.MAX_ALL


async def test_queued_speech_of_livekit_is_heard_to_its_end() -> None:
    """LiveKit requests a queued speech while an earlier one is heard, like one after a barge-in."""
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        for context, text in (("a", TWO), ("b", ONE), ("c", TWO)):
            await open_context(talk, context, text)
            await end_as_livekit(talk, context)
        for context, text in (("a", TWO), ("b", ONE), ("c", TWO)):
            if not any(is_final(context)(message) for message in talk.messages):
                await talk.until(is_final(context))
            assert talk.sounds[context] == s16(server.whole(text))


async def test_passed_turn_of_livekit_does_not_speak_on_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "_PASSED_S", 0.0)
    async with gateway(FakeTalker(**SLOW)) as server, multi(server) as talk:
        await open_context(talk, "a", ONE, TWO)
        await end_as_livekit(talk, "a")
        await until_heard(talk, "a")
        await open_context(talk, "b", "Half a")
        await talk.until(is_final("a"))
        assert len(talk.sounds["a"]) < len(s16(whole(server, ONE, TWO))) / 2


async def test_next_context_does_not_interrupt_turn_that_pipecat_ended() -> None:
    """Pipecat opens the context of the next speech while one is heard."""
    talker = FakeTalker(row_s=0.001)
    async with gateway(talker, **EXACT) as server, multi(server, auto_mode="true") as talk:
        for context in ("a", "b", "c"):
            await open_context(talk, context, TWO)
            await finish(talk, context)
        for context in ("a", "b", "c"):
            if not any(is_final(context)(message) for message in talk.messages):
                await talk.until(is_final(context))
            assert talk.sounds[context] == s16(server.whole(TWO))


async def test_end_of_livekits_turn_passes_earlier_one_that_was_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LiveKit closes an interrupted turn of incomplete text like one that is complete."""
    monkeypatch.setattr(streams, "_PASSED_S", 0.0)
    async with gateway(FakeTalker(**SLOW), **EXACT) as server, multi(server) as talk:
        await talk.send(text=TWO, context_id="a", flush=True)
        await until_heard(talk, "a")
        await talk.send(context_id="a", close_context=True)
        await open_context(talk, "b", "Yes.")
        await end_as_livekit(talk, "b")
        await talk.until(is_final("a"))
        if not any(is_final("b")(message) for message in talk.messages):
            await talk.until(is_final("b"))
        assert len(talk.sounds["a"]) < len(s16(server.whole(TWO))) / 2
        assert talk.sounds["b"] == s16(server.whole("Yes."))


async def test_next_context_does_not_interrupt_open_context_of_livekit() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await end_as_livekit(talk, "a")
        await talk.until(is_final("a"))
        await open_context(talk, "b", ONE)
        await open_context(talk, "c", TWO)
        await end_as_livekit(talk, "c")
        await talk.until(is_final("c"))
        await end_as_livekit(talk, "b")
        await talk.until(is_final("b"))
        assert talk.sounds["b"] == s16(server.whole(ONE))


async def test_closed_context_refuses_text_and_continues() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        await talk.send(text=TWO, context_id="a")
        error = await talk.until(lambda message: message.get("error"))
        assert (error["error"], error["contextId"]) == ("context_closed", "a")
        await talk.until(is_final("a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_closed_context_accepts_keep_alives() -> None:
    """Pipecat sends them every ten seconds while a context is heard, also after its end."""
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await finish(talk, "a")
        for kept in ({"text": ""}, {"text": " "}, {"flush": True}):
            await talk.send(context_id="a", **kept)
        await talk.until(is_final("a"))
        assert not any("error" in message for message in talk.messages)
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_generation_is_limited_by_lead() -> None:
    """Between an interruption and its next turn, LiveKit's plugin sends nothing."""
    talker = FakeTalker(row_s=0.0005, frames_per_character=25)
    async with gateway(talker, default_lead_ms=500) as server, multi(server) as talk:
        made, begun_at = server.talker.rows_made, time.monotonic()
        await open_context(talk, "a", "Twenty characters.. ")
        await finish(talk, "a")
        await until_heard(talk, "a")
        await asyncio.sleep(0.5)
        assert server.talker.rows_made - made < most_rows(0.5, begun_at)  # the text has 475 rows
        assert server.talker.outstanding == 1


async def test_close_socket_speaks_flushed_text_and_closes() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, multi(server) as talk:
        await open_context(talk, "a", ONE)
        await talk.send(context_id="a", flush=True)
        await open_context(talk, "b", TWO)
        await talk.send(close_socket=True)
        await talk.send(text="Too late.", context_id="c")
        rest = await talk.rest()
        finals = [message["contextId"] for message in rest if message.get("isFinal")]
        assert finals == ["b", "a"]
        assert talk.sounds["a"] == s16(server.whole(ONE))
        assert not talk.sounds.get("b")
        assert talk.socket.close_code == 1000


async def test_close_socket_without_contexts_closes_at_once() -> None:
    async with gateway() as server, multi(server) as talk:
        await talk.send(close_socket=True)
        assert await talk.rest() == []
        assert talk.socket.close_code == 1000


async def test_empty_text_opens_no_context() -> None:
    async with gateway() as server, multi(server) as talk:
        await talk.send(text="")
        await talk.send(text="", context_id="a")
        await talk.send(context_id="a", flush=True)
        await talk.send(context_id="a", close_context=True)
        await open_context(talk, "b", ONE)
        await finish(talk, "b")
        await talk.until(is_final("b"))
        assert {message["contextId"] for message in talk.messages} == {"b"}


async def test_inactive_context_is_spoken_and_then_socket_closes() -> None:
    async with gateway(**EXACT) as server, multi(server, inactivity_timeout=1) as talk:
        await open_context(talk, "a", "Half a sentence")
        await open_context(talk, "b")
        *_, last = rest = await talk.rest()
        assert {m["contextId"] for m in rest if m.get("isFinal")} == {"a", "b"}
        assert talk.sounds["a"] == s16(server.whole("Half a sentence"))
        assert (last["error"], last["code"]) == ("idle_timeout", 1008)
        assert talk.socket.close_code == 1008
