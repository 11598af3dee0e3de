"""Limits of waiting flushes and text, and cleanup after refused text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from loadtest.fakes.talker import FakeTalker
from streaming.errors import internal_error
from streaming.events import Failed, TextAppended
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.dialects.cartesia.talk import asking, is_
from tests.service.dialects.elevenlabs.talk import MULTI, address
from tests.service.dialects.vendor_talk import vendor
from tests.service.dialects.vllm_omni.talk import EXACT, STREAM, Talk
from tests.service.dialects.vllm_omni.talk import speaking as vllm_omni
from tests.service.live import client, gateway

LONG = "More than this key may have spoken in a minute."
STALLED: dict[str, Any] = {"first_row_s": 1.0}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file with one key, "a", which has few characters per minute."""
    limits = {"characters_per_minute": 20}
    return write_keys(tmp_path / "keys.json", entry("a", "acme", limits=limits))


async def test_native_context_refuses_more_than_64_waiting_flushes() -> None:
    async with gateway(FakeTalker(**STALLED)) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="A sentence to wait for.")
        for number in range(65):
            await talk.send("context.flush", context_id="c", flush_id=f"f{number}")
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("overloaded", "c")
        await talk.send("text.append", context_id="c", text="Another one.")
        await talk.send("context.flush", context_id="c", flush_id="after")
        await talk.send("context.cancel", context_id="c")
        await talk.until("context.cancelled")


async def test_text_for_closed_context_is_not_counted(keys: Path) -> None:
    async with (
        gateway(api_keys_file=keys) as server,
        client(server.url, additional_headers=bearer("a")) as talk,
    ):
        await talk.create()
        (context,) = server.contexts()
        context.post(Failed(internal_error()))
        assert context.is_closed
        for _ in range(2):
            context.post(TextAppended(LONG))  # its encoder may still be working
        assert (await talk.error())["code"] == "internal"
        await talk.until("context.done")
        await talk.create("d")
        await talk.send("text.append", context_id="d", text="Some words.")
        await talk.send("context.end", context_id="d")
        await talk.until("audio.started")


async def test_vllm_omni_socket_refuses_text_beyond_queue_limit() -> None:
    talker = FakeTalker(**STALLED)
    async with gateway(talker, max_text_chars=100) as server:
        async with vllm_omni(server, **STREAM) as talk:
            for _ in range(6):
                await talk.say("a" * 100)
            codes = []
            while (message := await talk.next())["type"] == "error":
                codes.append(message["code"])
            # One text is in the context, three wait; two more and their input.done are dropped.
            assert codes == ["overloaded"] * 4
            assert message["type"] == "audio.start"
        await server.until_free()


async def test_vllm_omni_socket_holds_no_slot_after_refused_text(keys: Path) -> None:
    async with gateway(api_keys_file=keys, session_idle_s=1.2, **EXACT) as server:
        url = server.http.replace("http", "ws", 1) + "/v1/audio/speech/stream"
        async with connect(url, additional_headers=bearer("a")) as socket:
            talk = Talk(socket)
            await talk.send("session.config", **STREAM)
            await talk.say(LONG)
            await talk.sentence(0, 0, LONG)
            await talk.done(0, 1)
            await talk.say("Refused.")
            assert [(await talk.next())["type"] for _ in range(4)] == [
                "audio.start", "error", "audio.done", "session.done",
            ]  # fmt: skip
            await server.until_free()
            await talk.send("session.config", **STREAM, seed=1)  # takes effect at once
            await talk.send("input.done")
            await talk.done(2, 0)
            assert (await talk.next())["code"] == "idle_timeout"


async def test_elevenlabs_context_ends_after_refused_first_text(keys: Path) -> None:
    async with gateway(api_keys_file=keys) as server:
        headers = {"xi-api-key": "a"}
        async with vendor(address(server, MULTI), additional_headers=headers) as talk:
            await talk.send(text=LONG, context_id="a", flush=True)
            await talk.send(context_id="a", close_context=True)
            await talk.until(lambda message: message.get("isFinal"))
            await talk.send(text="Refused.", context_id="b")
            await talk.until(lambda message: message.get("error") == "rate_limited")
            last = await talk.until(lambda message: message.get("isFinal"))
            assert last["contextId"] == "b"
            async with asyncio.timeout(30):  # less than an idle context's timeout
                await server.until_free()


async def test_cartesia_context_ends_after_refused_first_text(keys: Path) -> None:
    async with gateway(api_keys_file=keys, **EXACT) as server:
        url = server.http + "/tts/websocket?cartesia_version=2025-04-16"
        options: dict[str, Any] = {
            "audio": "data",
            "context": "context_id",
            "additional_headers": bearer("a"),
        }
        async with vendor(url, **options) as talk:
            await talk.send(**asking("one", LONG))
            await talk.until(is_("done", "one"))
            for more in ({}, {"continue": True}):
                await talk.send(**asking("two", "Refused.", **more))
                error = await talk.until(is_("error", "two"))
                assert error["done"] is True
                await server.until_free()
