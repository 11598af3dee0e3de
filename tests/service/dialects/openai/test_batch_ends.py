"""Several texts in one request: no free slot, shutdown, an unread response."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from loadtest.fakes.talker import FakeTalker
from service.dialects.openai import batch
from tests.service.dialects.openai.talk import BATCH_PATH, BATCH_TEXTS, batch_items, post_batch
from tests.service.live import client, gateway
from tests.waiting import until


async def test_batch_item_without_slot_fails_after_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "_SLOT_TIMEOUT_S", 0.3)
    talker = FakeTalker(frames_per_character=10)
    limits: dict[str, Any] = {"max_contexts": 2, "max_batch_contexts": 2}
    async with gateway(talker, **limits) as server, client(server.url) as talk:
        talker.row_s = 0.02
        await talk.create()
        await talk.send("text.append", context_id="c", text="Speaking on and on and on. ")
        await talk.until("audio.started")
        body = (
            await post_batch(server, {"items": batch_items(BATCH_TEXTS[2], BATCH_TEXTS[1])})
        ).json()
        assert [result.get("code") for result in body["results"]] == [None, "overloaded"]


async def test_log_has_dialect_of_refused_item(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway() as server:
        with caplog.at_level("INFO", logger="service.errors"):
            await post_batch(server, {"items": batch_items(BATCH_TEXTS[0]), "voice": "nobody"})
    (record,) = [one for one in caplog.records if one.getMessage() == "client error"]
    assert (vars(record)["code"], vars(record)["dialect"]) == ("unknown_voice", "openai")


async def test_drain_timeout_ends_items_being_spoken() -> None:
    talker = FakeTalker(frames_per_character=50)
    async with gateway(talker, max_batch_contexts=3, drain_s=0.3) as server:
        talker.row_s = 0.02
        answering = asyncio.create_task(post_batch(server, {"items": batch_items(*BATCH_TEXTS)}))
        await until(lambda: server.talker.outstanding >= 3)
        draining = asyncio.create_task(server.runtime.lifecycle.drain())
        body = (await answering).json()
        await draining
        assert [result.get("code") for result in body["results"]] == ["draining"] * 3


async def test_unread_batch_response_is_aborted() -> None:
    async with gateway(slow_consumer_s=0.5, max_batch_contexts=4) as server:
        body = json.dumps(
            {"items": batch_items(*["One two three four five six. " * 150] * 4)}
        ).encode()
        url = httpx.URL(server.http)
        head = (
            f"POST {BATCH_PATH} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.socket() as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(wire, (url.host, url.port))
            await loop.sock_sendall(wire, head.encode() + body)
            async with asyncio.timeout(60):
                while not server.runtime.lifecycle.connections:
                    await asyncio.sleep(0.02)
                while server.runtime.lifecycle.connections:
                    await asyncio.sleep(0.02)
