"""Isolation from neighbours: a busy process on the machine, and clients that hold resources."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import httpx
import pytest
from fastapi import WebSocket

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.transport import http_routes, intake
from streaming.ports import DecodeStats, SpeechRequest
from streaming.spec import Samples
from streaming.window import DecodeWindow
from tests.faults.history import SPEC
from tests.faults.rig import PATIENCE_S, gateway
from tests.service.live import Client, client
from tests.service.voices import clips
from tests.service.voices.voice_server import VOICE


class BesideABusyProcess(FakeCodecEngine):
    """Decodes windows one after another, ``frame_s`` per frame, but reports no decoding time.

    This is the effect of a busy process that delays the gateway rather than the codec.
    """

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.frame_s = 0.0
        self._turn = asyncio.Lock()

    async def decode(
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ) -> tuple[Samples, DecodeStats]:
        async with self._turn:
            await asyncio.sleep(self.frame_s * window.new_frames)
        return await super().decode(window, deadline_s, request_id)


async def test_admission_lowers_capacity_beside_busy_process() -> None:
    codec = BesideABusyProcess()
    talker = FakeTalker(row_s=0.0001, frames_per_character=4, capacity=16)
    async with gateway(talker, codec, admission="measured") as served:
        admission = served.runtime.admission
        url = f"ws://127.0.0.1:{served.port}/v1/tts/stream"
        async with client(url) as talk, asyncio.timeout(PATIENCE_S):
            assert admission.capacity == 16
            codec.frame_s = SPEC.frame_s / 4  # enough for four contexts
            for number in range(8):
                await talk.create(f"c{number}", max_lead_ms=2000)
                await talk.send("text.append", context_id=f"c{number}", text=80 * "long " + ". ")
            while admission.capacity > 6:
                await talk.next()
            async with client(url) as other:
                await other.send("context.create", context_id="more")
                refused = await other.error()
            assert refused["code"] == "overloaded"
            assert refused["retry_after_ms"] >= 50


async def test_silent_contexts_give_resting_slots_to_other_clients() -> None:
    talker = FakeTalker(capacity=16)
    async with gateway(talker, slot_rest_s=0.1, context_idle_s=600) as served:
        admission, url = served.runtime.admission, f"ws://127.0.0.1:{served.port}/v1/tts/stream"
        async with client(url) as one, client(url) as two, asyncio.timeout(PATIENCE_S):
            for number in range(8):
                await one.create(f"c{number}")
                await two.create(f"c{number}")
            assert admission.active == admission.capacity == 16
            await asyncio.sleep(0.1)  # slot_rest_s: all slots are resting now
            async with client(url, local_addr=("127.0.0.2", 0)) as other:
                assert len(await other.say("Spoken for all that."))
            # silent contexts can still speak while slots are free
            for number in range(8):
                await one.send("text.append", context_id=f"c{number}", text="Here I am again.")
                await one.send("context.end", context_id=f"c{number}")
            for _ in range(8):
                assert (await one.until("context.done"))["reason"] == "complete"
        await served.until_free()


async def test_context_that_lost_its_slot_is_refused_then_speaks_later() -> None:
    talker = FakeTalker(capacity=1)
    async with gateway(talker, slot_rest_s=0.1) as served, asyncio.timeout(PATIENCE_S):
        url = f"ws://127.0.0.1:{served.port}/v1/tts/stream"
        async with client(url) as silent, client(url) as other:
            await silent.create("c")
            await asyncio.sleep(0.1)
            await other.create("d", max_lead_ms=1000)
            await other.send("text.append", context_id="d", text=80 * "long " + ". ")
            await other.until("audio.started")
            await silent.send("text.append", context_id="c", text="And now? ")
            refused = await silent.error()
            assert (refused["code"], refused["context_id"]) == ("overloaded", "c")
            assert refused["retry_after_ms"]
            await silent.send("text.append", context_id="c", text="")  # needs no slot
            await silent.send("ping")
            assert (await silent.next()) == {"type": "pong", "id": None}
            await other.send("context.cancel", context_id="d")
            await other.until("context.cancelled")
            await silent.send("text.append", context_id="c", text="And now? ")
            await silent.send("context.end", context_id="c")
            assert (await silent.until("context.done"))["reason"] == "complete"


async def test_empty_or_unfinished_text_does_not_hold_slot() -> None:
    async with gateway(FakeTalker(capacity=1), slot_rest_s=0.1) as served:
        url = f"ws://127.0.0.1:{served.port}/v1/tts/stream"
        async with client(url) as greedy, client(url) as other, asyncio.timeout(PATIENCE_S):
            await greedy.create("c")
            for word in itertools.cycle(("", "and ")):
                await greedy.send("text.append", context_id="c", text=word)
                await other.send("context.create", context_id="d")
                news = await other.next()
                assert isinstance(news, dict)
                if news["type"] == "context.created":
                    break
                assert news["code"] == "overloaded"
                await asyncio.sleep(0.02)
            await other.send("text.append", context_id="d", text="My turn at last.")
            await other.send("context.end", context_id="d")
            assert (await other.until("context.done"))["reason"] == "complete"


@pytest.mark.parametrize(
    ("kind", "more"), [("context.flush", {"flush_id": "f"}), ("context.end", {})]
)
async def test_unfinished_text_of_context_without_slot_is_not_spoken(
    kind: str, more: dict[str, str]
) -> None:
    async with gateway(FakeTalker(capacity=1), slot_rest_s=0.001) as served:
        url = f"ws://127.0.0.1:{served.port}/v1/tts/stream"
        async with client(url) as silent, client(url) as other, asyncio.timeout(PATIENCE_S):
            await silent.create("c")
            await silent.send("text.append", context_id="c", text="and")
            news: Any = {}
            while news.get("type") != "context.created":
                await other.send("context.create", context_id="d", max_lead_ms=1000)
                news = await other.next()
            await other.send("text.append", context_id="d", text=80 * "long " + ". ")
            await other.until("audio.started")
            await silent.send(kind, context_id="c", **more)
            refused = await silent.error()
            assert (refused["code"], refused["context_id"]) == ("overloaded", "c")
            assert refused["retry_after_ms"]
            assert (await silent.until("context.done"))["reason"] == "error"
            assert served.runtime.admission.active == 1


async def test_freed_slot_goes_to_refused_client() -> None:
    talker = FakeTalker(capacity=8)
    async with gateway(talker) as served, asyncio.timeout(PATIENCE_S):
        url = f"ws://127.0.0.1:{served.port}/v1/tts/stream"
        async with (
            client(url, close_timeout=0.1) as greedy,  # it reads too little for a closing handshake
            client(url, local_addr=("127.0.0.2", 0)) as other,
        ):
            for number in range(8):
                await greedy.create(f"c{number}", max_lead_ms=1000)
                text = 80 * "long " + ". "
                await greedy.send("text.append", context_id=f"c{number}", text=text)
            await other.send("context.create", context_id="d")
            assert (await other.error())["code"] == "overloaded"
            await greedy.send("context.cancel", context_id="c0")
            await greedy.until("context.cancelled", "c0")
            await greedy.send("context.create", context_id="c0")
            assert (await greedy.error())["code"] == "overloaded"
            assert len(await other.say("Now it is my turn."))


async def trickle(port: int, sent: asyncio.Event) -> bytes:
    """Send an upload that starts fast and then continues byte by byte; return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read(65536))
    try:
        head = f"POST /v1/audio/voices HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 900000\r\n\r\n"
        writer.write(head.encode() + b'{"audio_sample":"' + bytes(400_000))
        await writer.drain()
        sent.set()
        while not answer.done():
            writer.write(b"A")
            await asyncio.wait([answer], timeout=0.05)
        return answer.result()
    finally:
        answer.cancel()
        writer.close()


async def test_trickled_uploads_leave_upload_slots_to_other_clients() -> None:
    async with gateway() as served, asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        sent = [asyncio.Event() for _ in range(8)]
        trickling = [tasks.create_task(trickle(served.port, one)) for one in sent]
        for one in sent:
            await one.wait()
        uploads = served.runtime.uploads
        while uploads.active < 4:
            await asyncio.sleep(0.01)
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE_S) as other:
            body = VOICE | {"audio_sample": clips.as_base64(clips.wav(clips.tone(10.0)))}
            url = f"http://127.0.0.1:{served.port}/v1/audio/voices"
            answer = await other.post(url, json=body)
        assert answer.status_code == 201, answer.text
        assert uploads.active == 4
        for task in trickling:
            task.cancel()


async def test_slow_upload_is_refused_and_frees_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_routes, "_UPLOAD_GRACE_S", -12.0)  # 400 KB are allowed 12.2 s
    async with gateway() as served, asyncio.timeout(PATIENCE_S):
        answer = await trickle(served.port, asyncio.Event())
        assert b" 408 " in answer.split(b"\r\n", 1)[0]
        assert b"idle_timeout" in answer
        await served.until_free()
        assert served.runtime.uploads.active == 0


class NotesSetUps(FakeTalker):
    """Notes at the start of each utterance how many refusals have been written."""

    def __init__(self, written: list[str]) -> None:
        super().__init__(capacity=4)
        self._written = written
        self.set_ups: list[int] = []

    def check(self, request: SpeechRequest) -> None:
        self.set_ups.append(sum('"overloaded"' in message for message in self._written))
        super().check(request)


async def test_refusals_are_sent_before_admitted_contexts_are_set_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    send_text = WebSocket.send_text

    async def noted(socket: WebSocket, data: str) -> None:
        written.append(data)
        await send_text(socket, data)

    monkeypatch.setattr(WebSocket, "send_text", noted)
    # A slow machine would otherwise parse the last requests after the first contexts' set-ups.
    monkeypatch.setattr(intake, "_TURN_S", 60.0)
    talker = NotesSetUps(written)
    async with gateway(talker) as served, contextlib.AsyncExitStack() as stack:
        url = f"ws://127.0.0.1:{served.port}/v1/tts/stream"
        clients = [await stack.enter_async_context(client(url)) for _ in range(12)]
        talker.set_ups.clear()

        async def ask(one: Client) -> None:
            await one.send("context.create", context_id="c")
            await one.send("text.append", context_id="c", text=80 * "long " + ". ")

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*map(ask, clients))
            while len(talker.set_ups) < 4:
                await asyncio.sleep(0.01)
        assert set(talker.set_ups) == {8}
