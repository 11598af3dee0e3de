"""Lifetime of contexts on Cartesia's socket: refusal, idleness, expiry, cancel."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from loadtest.fakes.talker import FakeTalker
from service.dialects.cartesia import routes as cartesia_context
from service.transport import websocket as socket
from tests.service.dialects.cartesia.talk import (
    EXACT,
    ONE,
    asking,
    cartesia,
    is_,
    say,
    whole,
    words_of,
)
from tests.service.dialects.vendor_talk import s16, speaking
from tests.service.housekeeping import take_over_housekeeping
from tests.service.live import gateway, hold_codec
from tests.waiting import until


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts are checked often, and expire soon after they have been heard."""
    monkeypatch.setattr(socket, "_HOUSEKEEPING_S", 0.05)
    monkeypatch.setattr(cartesia_context, "_EXPIRES_S", 0.1)


async def test_refused_last_request_ends_its_context() -> None:
    async with gateway(max_text_chars=60, **EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", ONE + " ", end=False)
        await talk.send(**asking("a", "x" * 61, **{"continue": False}))
        error = await talk.until(is_("error", "a"))
        assert (error["error_code"], error["done"]) == ("text_too_long", False)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(server.whole(ONE))


async def test_context_with_only_emoji_releases_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = take_over_housekeeping(monkeypatch)
    async with gateway(context_idle_s=1.0) as server, cartesia(server) as talk:
        await say(talk, "a", "\N{PARTY POPPER}", end=False, max_buffer_delay_ms=0)
        await until(lambda: server.runtime.admission.active)
        (look,), (context,) = looks, server.contexts()
        await until(lambda: context.is_idle)
        touched_at = context.touched_at
        for passed_s in (1.1, 2.4):  # the first may count as a pause of a slow machine
            look(touched_at + passed_s)
        await server.until_free()


async def test_context_with_buffered_text_does_not_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cartesia_context._CartesiaContext, "_speak_what_waits", lambda _: None)
    looks = take_over_housekeeping(monkeypatch)
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", "Yes. And a", end=False, max_buffer_delay_ms=5000)
        await talk.until(is_("chunk", "a"))
        await until(lambda: all(c.has_pending_text for c in server.contexts()))
        (look,), now = looks, time.monotonic()
        for passed_s in range(1, 5):  # by the second one the listener has heard everything
            look(now + passed_s)
        await say(talk, "a", " second one.")
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(whole(server, "Yes.", "And a second one."))


async def test_buffer_delay_may_end_while_many_flushes_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    talker = FakeTalker(first_row_s=0.5)
    async with gateway(talker, **EXACT) as server, cartesia(server) as talk:
        for text in (ONE, *[""] * 63):
            await talk.send(**asking("a", text, **{"continue": True, "flush": True}))
        await talk.send(**asking("a", "", **{"continue": True, "max_buffer_delay_ms": 1}))
        for _ in range(64):
            await talk.until(is_("flush_done", "a"))
        await talk.send(**asking("a", ""))
        await talk.until(is_("done", "a"))
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_blank_transcript_gets_no_flush_done() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        await say(talk, "a", ONE, " ", max_buffer_delay_ms=0)
        await talk.until(is_("done", "a"))
        assert [message["type"] for message in talk.messages].count("flush_done") == 1


@pytest.mark.usefixtures("hasty")
async def test_cancel_of_expired_context_restarts_word_times() -> None:
    async with gateway(speaking(), **EXACT) as server, cartesia(server) as talk:
        now = {"max_buffer_delay_ms": 0}
        await say(talk, "a", "Yes. ", end=False, add_timestamps=True, **now)
        await talk.until(is_("chunk", "a"))
        await server.until_free()  # it has expired
        await talk.send(context_id="a", cancel=True)
        await say(talk, "a", "No.", add_timestamps=True)
        await talk.until(is_("done", "a"))
        *_, (word, start_s, _) = words_of(talk, "a")
        assert (word, start_s < 0.1) == ("No.", True)


async def test_socket_idle_time_begins_at_end_of_last_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr(socket, "time", clock)
    looks = take_over_housekeeping(monkeypatch)
    async with gateway(session_idle_s=1.5) as server, cartesia(server) as talk:
        asked, may_answer = hold_codec(server, monkeypatch)
        await talk.send(**asking("a", ONE))
        await asked.wait()
        (look,) = looks
        for _ in range(3):
            passed_s += 1.0
            look(clock.monotonic())
        may_answer.set()
        await talk.until(is_("done", "a"))
        await server.until_free()
        passed_s += 1.0
        look(clock.monotonic())
        await talk.send(**asking("b", "Yes."))
        await talk.until(is_("done", "b"))


async def test_empty_contexts_hold_no_slots() -> None:
    async with gateway(**EXACT) as server, cartesia(server) as talk:
        for number in range(600):
            more = {"continue": True, "flush": number % 2 == 0}
            await talk.send(**asking(f"empty-{number}", "", **more))
        await talk.until(is_("flush_done", "empty-598"))
        assert (server.runtime.admission.active, len(server.runtime.lifecycle.open_contexts)) == (
            0,
            0,
        )
        await say(talk, "a", ONE)
        await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(whole(server, ONE))
