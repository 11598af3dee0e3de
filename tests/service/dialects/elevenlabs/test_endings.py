"""ElevenLabs' multi-context socket: ending, interrupting, keeping alive."""

from __future__ import annotations

import asyncio
import base64
import time

from talker.fake import FakeTalker
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
from tests.service.live import gateway, most_rows
from tests.service.memory import served


async def until_heard(talk: VendorTalk, context: str) -> None:
    await talk.until(lambda message: message.get("audio") and message["contextId"] == context)


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
    """LiveKit's plugin interrupts without a message: it only stops listening."""
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
