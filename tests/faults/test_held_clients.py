"""Clients that connect while the engines start are held, and served once these are ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from loadtest.fakes.codec import FakeCodecEngine
from service import lifecycle
from service.build import assemble
from service.engines.contracts import Engines
from service.settings import Settings
from streaming.errors import BackendError, ErrorCode
from streaming.ports import RowGenerator, SpeechRequest
from tests.faults.history import SPEC, Script
from tests.faults.labelled_audio import LabelTalker, LiteralDecoder
from tests.faults.rig import PATIENCE_S, Listener, assert_right, native, openai
from tests.service.live import Client, client
from tests.service.server import runtime_server
from tests.waiting import until


class SlowTalker(LabelTalker):
    """Starts when ``may_start`` is set, and fails requests while ``is_down``."""

    def __init__(self) -> None:
        super().__init__(row_s=0.0004, capacity=64)
        self.may_start, self.was_asked_in_vain = asyncio.Event(), asyncio.Event()
        self.is_down = False

    @property
    def is_ready(self) -> bool:
        return not self.is_down

    async def start(self) -> None:
        await self.may_start.wait()
        await super().start()

    def generate(self, request: SpeechRequest) -> RowGenerator:
        return self._fail() if self.is_down else super().generate(request)

    async def _fail(self) -> RowGenerator:
        self.was_asked_in_vain.set()
        raise BackendError(ErrorCode.ENGINE_RESTARTING, "The engine died.", retry_after_ms=500)
        yield


class Starting:
    """A service whose talker is still starting."""

    def __init__(self, **settings: Any) -> None:
        self.talker = SlowTalker()
        codec = FakeCodecEngine(SPEC, decoder=LiteralDecoder(SPEC))
        chosen = Settings(admission="fixed", **settings)
        self.runtime = assemble(chosen, Engines(self.talker, codec))
        self.server = runtime_server(self.runtime)
        self.port = self.server.port

    def held(self, result: str) -> float:
        return self.runtime.metrics.held.labels(result)._value.get()


@asynccontextmanager
async def starting_service(**settings: Any) -> AsyncIterator[Starting]:
    """Serve, ready or not, until the block ends."""
    starting = Starting(**settings)
    async with starting.server:
        yield starting


async def test_handshakes_and_requests_are_held_until_engines_are_ready() -> None:
    async with starting_service(hold_s=3600.0) as starting:
        listeners = [Listener(Script(voice, (60,))) for voice in range(3)]
        speaking = asyncio.gather(
            native(starting.port, listeners[:1]),
            openai(starting.port, listeners[1]),
            native(starting.port, listeners[2:]),
        )
        await until(lambda: starting.runtime.lifecycle.held >= 3, timeout_s=PATIENCE_S)
        async with httpx.AsyncClient(
            timeout=60, base_url=f"http://127.0.0.1:{starting.port}"
        ) as http:
            assert (await http.get("/health/ready")).status_code == 503  # probes are not held
        starting.talker.may_start.set()
        await speaking
        assert_right(listeners, "complete")
        assert (starting.held("served"), starting.held("refused")) == (3, 0)


async def test_request_of_link_is_held_and_list_of_voices_is_not() -> None:
    async with starting_service(hold_s=3600.0) as starting:
        address = f"http://127.0.0.1:{starting.port}"
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as http:
            query = {"input": "Voice 1 part 0 frames 60.", "response_format": "pcm"}
            link = asyncio.create_task(http.get("/v1/audio/speech", params=query))
            await until(lambda: starting.runtime.lifecycle.held, timeout_s=PATIENCE_S)
            await http.get("/v1/audio/voices")
            assert starting.runtime.lifecycle.held == 1
            starting.talker.may_start.set()
            answer = await link
        assert answer.status_code == 200
        assert len(answer.content) == 60 * SPEC.hop_length * 2


async def test_held_handshake_is_refused_after_hold_s() -> None:
    async with starting_service(hold_s=0.2) as starting:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{starting.port}/v1/tts/stream")
        assert refused.value.response.status_code == 503
        assert json.loads(refused.value.response.body)["error"]["code"] == "not_ready"
        assert starting.held("refused") == 1
        starting.talker.may_start.set()


async def test_held_handshakes_are_limited_by_max_connections() -> None:
    async with starting_service(hold_s=3600.0, max_connections=1) as starting:
        first = Listener(Script(1, (60,)))
        speaking = asyncio.create_task(native(starting.port, [first]))
        async with asyncio.timeout(PATIENCE_S):
            while not starting.runtime.lifecycle.held:
                await asyncio.sleep(0.01)
            with pytest.raises(InvalidStatus):
                await connect(f"ws://127.0.0.1:{starting.port}/v1/tts/stream")
        starting.talker.may_start.set()
        await speaking
        assert_right([first], "complete")


@asynccontextmanager
async def with_talker_down(**settings: Any) -> AsyncIterator[tuple[Starting, Client]]:
    """A context with text on a socket opened before the talker died."""
    async with starting_service(**settings) as starting:
        starting.talker.may_start.set()
        async with asyncio.timeout(PATIENCE_S):
            await starting.server.until(starting.runtime.lifecycle.ready)
            async with client(f"ws://127.0.0.1:{starting.port}/v1/tts/stream") as talk:
                starting.talker.is_down = True
                await talk.send("context.create", context_id="c", audio={"encoding": "pcm_f32le"})
                await talk.send("text.append", context_id="c", text="Voice 1 part 0 frames 60.")
                await talk.send("context.end", context_id="c")
                yield starting, talk


async def test_context_on_open_socket_waits_for_talker_restart() -> None:
    async with with_talker_down() as (starting, talk):
        handle = (await talk.until("context.created"))["handle"]
        await starting.talker.was_asked_in_vain.wait()
        starting.talker.is_down = False
        done = await talk.until("context.done")
        assert done["reason"] == "complete"
        assert len(talk.samples(handle)) == 60 * SPEC.hop_length


async def test_open_context_waits_for_talker_restart_during_drain() -> None:
    async with with_talker_down() as (starting, talk):
        handle = (await talk.until("context.created"))["handle"]
        await starting.talker.was_asked_in_vain.wait()
        starting.runtime.lifecycle.begin_drain()
        await talk.until("going_away")
        starting.talker.is_down = False
        assert (await talk.until("context.done"))["reason"] == "complete"
        assert len(talk.samples(handle)) == 60 * SPEC.hop_length


async def test_context_gets_engine_restarting_if_talker_stays_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "_RESTART_S", 0.1)
    async with with_talker_down(hold_s=0.1) as (starting, talk):
        error = await talk.error()
        assert (error["code"], error["retry_after_ms"]) == ("engine_restarting", 500)
        assert starting.talker.was_asked_in_vain.is_set()
        assert (await talk.until("context.done"))["reason"] == "error"


async def test_context_without_hold_is_refused_while_talker_is_down() -> None:
    async with with_talker_down(hold_s=0.0) as (starting, talk):
        assert (await talk.error())["code"] == "not_ready"
        assert not starting.talker.was_asked_in_vain.is_set()
