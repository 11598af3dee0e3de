"""Cartesia's socket: cancel, expiry, end and errors."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from loadtest.fakes.talker import FakeTalker
from tests.service.dialects.cartesia.talk import (
    EXACT,
    ONE,
    REFUSED,
    TWO,
    asking,
    cartesia,
    is_,
    say,
    whole,
    words_of,
)
from tests.service.dialects.vendor_talk import VendorTalk, s16, speaking
from tests.service.live import gateway, most_rows
from tests.service.memory import served
from tests.waiting import until

SLOW: dict[str, Any] = {"row_s": 0.002, "frames_per_character": 20}


async def until_heard(talk: VendorTalk, context: str) -> None:
    await talk.until(is_("chunk", context))


async def test_cancel_stops_audio_and_frees_slot() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, cartesia(server) as talk:
        await talk.send(**asking("a", f"{ONE} {TWO}"))
        await until_heard(talk, "a")
        await talk.send(context_id="a", cancel=True)
        await server.until_free()
        await talk.send(context_id="a", cancel=True)  # again, after the context has ended
        await talk.send(**asking("b", "Yes."))
        await talk.until(is_("done", "b"))
        said = [message["type"] for message in talk.messages if message["context_id"] == "a"]
        assert set(said) == {"chunk"}
        assert len(talk.sounds["a"]) < len(s16(whole(server, ONE, TWO))) / 2
        await talk.send(**asking("a", "Yes."))
        await talk.until(is_("done", "a"))


async def test_cancel_works_after_last_request() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, cartesia(server) as talk:
        await say(talk, "a", ONE, TWO, max_buffer_delay_ms=0)
        await until_heard(talk, "a")
        await talk.send(context_id="a", cancel=True)
        await server.until_free()
        counted = server.runtime.metrics.render().decode()
        assert 'tts_contexts_total{outcome="cancelled",protocol="cartesia"} 1.0' in counted


@pytest.mark.parametrize("more", [{}, {"continue": True, "flush": True}])
async def test_cancel_revokes_unsent_messages_of_ended_context(more: dict[str, Any]) -> None:
    """The context has ended or expired, but its client is slow to read."""
    async with served() as service, service.socket("/tts/websocket") as socket:
        socket.reading.clear()
        made = service.talker.rows_made
        socket.send(asking("a", "Yes. ", **more))
        await service.until_rows(made)
        await service.until_free()
        socket.send({"context_id": "a", "cancel": True})
        socket.send(asking("b", "No."))
        socket.reading.set()
        told: list[tuple[str, str]] = []
        while ("b", "done") not in told:
            message = await socket.next()
            assert isinstance(message, dict)
            told.append((message["context_id"], message["type"]))
        sent = [kind for context, kind in told if context == "a"]
        assert sent in ([], ["chunk"])  # what was being sent


async def test_generation_is_limited_by_lead() -> None:
    talker = FakeTalker(row_s=0.0005, frames_per_character=25)
    async with gateway(talker, default_lead_ms=500) as server, cartesia(server) as talk:
        made, begun_at = server.talker.rows_made, time.monotonic()
        await talk.send(**asking("a", "Twenty characters.."))
        await until_heard(talk, "a")
        await asyncio.sleep(0.5)
        assert server.talker.rows_made - made < most_rows(0.5, begun_at)  # the text has 475 rows
        assert server.talker.outstanding == 1


async def test_expired_context_resumes_with_continued_word_times() -> None:
    async with gateway(speaking(), **EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Yes. ", end=False, add_timestamps=True)
        await until_heard(talk, "a")
        await until(lambda: not server.runtime.admission.active)
        await say(talk, "a", "No.", add_timestamps=True)
        await talk.until(is_("done", "a"))
        assert [message["type"] for message in talk.messages].count("done") == 1
        assert talk.sounds["a"] == s16(whole(server, "Yes.", "No."))
        (_, _, yes_end), (_, no_start, _) = words_of(talk, "a")
        assert yes_end <= len(server.whole("Yes.")) / 24_000 <= no_start + 0.05


async def test_flush_of_expired_context_continues_flush_id() -> None:
    """For its client it is still the same context."""
    flush = {"flush": True, "continue": True}
    async with (
        gateway(FakeTalker(frames_per_character=1.0), **EXACT) as server,
        cartesia(server) as talk,
    ):
        await say(talk, "a", "Yes. ", end=False, **flush)
        assert (await talk.until(is_("flush_done", "a")))["flush_id"] == 1
        await server.until_free()  # it has expired
        for number, transcript in ((2, ""), (3, " ")):
            await talk.send(**asking("a", transcript, **flush))
            told = await talk.next()
            assert told == {
                "type": "flush_done",
                "done": False,
                "status_code": 206,
                "context_id": "a",
                "flush_done": True,
                "flush_id": number,
            }
        assert server.runtime.admission.active == 0
        await say(talk, "a", "No. ", end=False, **flush)
        assert (await talk.until(is_("chunk", "a")))["flush_id"] == 4
        assert (await talk.until(is_("flush_done", "a")))["flush_id"] == 4
        await server.until_free()
        await say(talk, "a")  # ends it, so that the next one is new
        assert (await talk.until(is_("done", "a")))["done"]
        await say(talk, "a", "No. ", end=False, **flush)
        assert (await talk.until(is_("flush_done", "a")))["flush_id"] == 1


async def test_end_of_unknown_context_is_answered_with_done() -> None:
    async with gateway() as server, cartesia(server) as talk:
        await say(talk, "a")
        assert await talk.next() == {
            "type": "done",
            "done": True,
            "status_code": 200,
            "context_id": "a",
        }
        assert server.runtime.admission.active == 0


@pytest.mark.parametrize("text", [" ", "\N{PARTY POPPER}", "...", ""])
async def test_turn_without_speakable_text_is_answered_with_done(text: str) -> None:
    async with gateway(unspeakable_text="error") as server, cartesia(server) as talk:
        await talk.send(**asking("a", text))
        assert (await talk.next())["type"] == "done"
        await server.until_free()


async def test_idle_socket_is_closed() -> None:
    async with gateway(session_idle_s=0.1) as server, cartesia(server) as talk:
        assert await talk.rest() == []
        assert talk.socket.close_code == 1001


@pytest.mark.parametrize(("fields", "status", "code"), REFUSED)
async def test_refused_request_error_has_context_id(
    fields: dict[str, Any], status: int, code: str
) -> None:
    async with gateway(max_text_chars=100, **EXACT) as server, cartesia(server) as talk:
        await talk.send(**{**asking("a", ONE), **fields})
        error = await talk.next()
        assert (error["type"], error["context_id"]) == ("error", "a")
        assert (error["status_code"], error["error_code"]) == (status, code)
        assert error["title"]
        assert error["message"] == error["error"]
        assert isinstance(error["done"], bool)
        assert len(error["request_id"]) == 32
        await talk.send(**asking("b", ONE))
        await talk.until(is_("done", "b"))
        assert talk.sounds["b"] == s16(server.whole(ONE))


@pytest.mark.parametrize("data", ["{", "[]", '"x"', b"{}", '{"transcript":"x","context_id":""}'])
async def test_invalid_message_error_has_no_context_id(data: str | bytes) -> None:
    async with gateway() as server, cartesia(server) as talk:
        await talk.socket.send(data)
        error = json.loads(await talk.socket.recv())
        assert error["type"] == "error"
        assert not error["context_id"]
        await talk.send(**asking("b", ONE))
        await talk.until(is_("done", "b"))


async def test_invalid_message_does_not_end_its_context() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE, **{"continue": True}))
        await talk.send(**asking("a", "", **{"continue": True, "max_buffer_delay_ms": 6000}))
        error = await talk.until(is_("error", "a"))
        assert (error["error_code"], error["done"]) == ("invalid_message", False)
        await talk.send(**asking("a", ""))
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_engine_failure_ends_only_its_context() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", "This will !fail soon."))
        await talk.send(**asking("b", ONE))
        error = await talk.until(is_("error", "a"))
        assert (error["error_code"], error["status_code"], error["done"]) == (
            "engine_failed",
            500,
            True,
        )
        await talk.until(is_("done", "b"))
        assert talk.sounds["b"] == s16(server.whole(ONE))
        assert not any(is_("done", "a")(message) for message in talk.messages)
        async with httpx.AsyncClient(timeout=60) as http:
            counted = (await http.get(server.http + "/metrics")).text
        assert 'tts_errors_total{code="engine_failed"} 1.0' in counted
        assert 'tts_contexts_total{outcome="error",protocol="cartesia"} 1.0' in counted


async def test_capacity_errors_name_their_context() -> None:
    limits: dict[str, Any] = {"max_contexts": 2, "max_contexts_per_session": 2}
    async with (
        gateway(FakeTalker(**SLOW), **limits) as server,
        cartesia(server) as talk,
        cartesia(server) as other,
    ):
        await talk.send(**asking("a", ONE))
        await talk.send(**asking("b", ONE))
        await talk.send(**asking("c", ONE))
        error = await talk.until(is_("error", "c"))
        assert (error["error_code"], error["status_code"]) == ("too_many_contexts", 429)
        await other.send(**asking("d", ONE))
        error = await other.until(is_("error", "d"))
        assert (error["error_code"], error["status_code"]) == ("overloaded", 429)


async def test_ended_context_refuses_text() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server, cartesia(server) as talk:
        await talk.send(**asking("a", ONE))
        await talk.send(**asking("a", TWO))
        error = await talk.until(is_("error", "a"))
        assert (error["error_code"], error["done"]) == ("context_closed", False)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))
