from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.app import create_app
from service.auth.keys import Scope, issue
from service.build import assemble
from service.engines.contracts import Engines
from service.lifecycle import Phase
from service.settings import Settings
from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import RowGenerator, SpeechRequest
from tests.service.live import SPEC, client, gateway
from tests.waiting import until


async def test_service_reports_ready_and_exports_metrics() -> None:
    async with (
        gateway() as server,
        client(server.url) as talk,
        httpx.AsyncClient(timeout=60) as http,
    ):
        await talk.say("One sentence.")
        for name in ("live", "ready", "free", "startup"):
            response = await http.get(f"{server.http}/health/{name}")
            assert (response.status_code, response.json()["phase"]) == (200, "ready")
        text = (await http.get(f"{server.http}/metrics")).text
        for line in (
            'tts_contexts_total{outcome="complete",protocol="native"} 1.0',
            'tts_time_to_first_audio_seconds_count{protocol="native"} 1.0',
            "tts_connections_active 1.0",
            "tts_contexts_active 0.0",
            "tts_capacity_contexts 16.0",
            'tts_worker_restarts_total{worker="codec"} 0.0',
        ):
            assert line in text
        schema = (await http.get(f"{server.http}/openapi.json")).json()
        assert "/health/ready" in schema["paths"]


class StuckTalker(FakeTalker):
    async def start(self) -> None:
        await asyncio.Event().wait()


def test_loading_service_is_live_but_not_ready() -> None:
    codec = FakeCodecEngine(SPEC)
    runtime = assemble(Settings(), Engines(StuckTalker(), codec))
    with TestClient(create_app(runtime), base_url="http://127.0.0.1") as http:
        assert http.get("/health/live").status_code == 200
        assert http.get("/health/ready").status_code == 503
        assert http.get("/health/startup").status_code == 503
        assert http.get("/metrics").status_code == 200
        assert http.portal is not None
        http.portal.call(runtime.lifecycle.begin_drain)
        assert http.get("/health/startup").status_code == 503


async def test_health_answers_head_with_status_and_without_key(tmp_path: Path) -> None:
    issue(keys := tmp_path / "keys.json", "tenant", [Scope.SPEAK])
    async with (
        gateway(api_keys_file=keys) as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):
        for name in ("live", "ready", "free", "startup"):
            response = await http.head(f"/health/{name}")
            assert (response.status_code, response.content) == (200, b"")
        server.codec.is_ready = False
        assert (await http.head("/health/ready")).status_code == 503
        assert (await http.head("/health")).status_code == 503
        assert (await http.head("/metrics")).status_code == 401


async def test_readiness_follows_codec_engine() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        server.codec.is_ready = False
        assert (await http.get(f"{server.http}/health/ready")).status_code == 503
        assert (await http.get(f"{server.http}/health/live")).status_code == 200
        server.codec.is_ready = True
        assert (await http.get(f"{server.http}/health/ready")).status_code == 200


async def test_free_follows_slots_connections_and_readiness() -> None:
    async with (
        gateway(max_contexts=2, max_connections=3, slot_rest_s=3600) as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):

        async def statuses() -> tuple[int, int]:
            free, ready = [await http.get(f"/health/{name}") for name in ("free", "ready")]
            return free.status_code, ready.status_code

        async with client(server.url) as talk:
            for context_id in ("one", "two"):
                assert await statuses() == (200, 200)
                await talk.create(context_id)
            assert await statuses() == (503, 200)
            await talk.send("context.cancel", context_id="one")
            await talk.until("context.cancelled")
            await until(lambda: server.runtime.admission.active == 1)
            assert await statuses() == (200, 200)
            async with client(server.url), client(server.url):
                assert await statuses() == (503, 200)
            await until(lambda: server.runtime.lifecycle.connections == 1)
            assert await statuses() == (200, 200)
            server.codec.is_ready = False
            assert await statuses() == (503, 503)
            server.codec.is_ready = True
            server.runtime.lifecycle.begin_drain()
            assert await statuses() == (503, 503)


class BoundedTalker(FakeTalker):
    """Refuses utterances beyond two, like the real talker with ``talker_max_outstanding``."""

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        if self.outstanding >= 2:
            raise CapacityError(ErrorCode.OVERLOADED, "full", retry_after_ms=1)
        async with aclosing(super().generate(request)) as batches:
            async for batch in batches:
                yield batch


@pytest.mark.parametrize(
    ("chosen", "contexts", "connections"),
    [
        ({}, 300, 600),
        ({"max_contexts": 100}, 100, 256),
        ({"max_contexts": 700}, 600, 1200),
        ({"talker_max_outstanding": 200}, 200, 400),
        ({"max_connections": 40}, 300, 40),
    ],
)
async def test_contexts_and_sockets_follow_the_talkers_capacity(
    chosen: dict[str, Any], contexts: int, connections: int
) -> None:
    settings = Settings(admission="fixed", **chosen)
    talker = FakeTalker(row_s=0.0001, capacity=300)
    runtime = assemble(settings, Engines(talker, FakeCodecEngine(SPEC)))
    assert runtime.lifecycle.max_connections == min(256, connections), "while they load"
    await runtime.start()
    assert runtime.admission.ceiling == contexts
    assert runtime.lifecycle.max_connections == connections
    await runtime.stop()


async def test_warm_up_keeps_to_talker_max_outstanding() -> None:
    settings = Settings(talker_max_outstanding=2, admission="measured")
    talker, codec = BoundedTalker(row_s=0.0001), FakeCodecEngine(SPEC)
    runtime = assemble(settings, Engines(talker, codec))
    await runtime.start()
    assert runtime.lifecycle.is_ready
    assert runtime.admission.ceiling == 2
    await runtime.stop()


class BrokenTalker(FakeTalker):
    async def start(self) -> None:
        raise RuntimeError("no such model")


async def test_engine_start_failure_is_reported_once() -> None:
    codec = FakeCodecEngine(SPEC)
    runtime = assemble(Settings(), Engines(BrokenTalker(), codec))
    failures: list[BaseException] = []
    failed = asyncio.Event()

    def on_fatal(error: Exception) -> None:
        failures.append(error)
        failed.set()

    app = create_app(runtime, on_fatal)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(60):
            await failed.wait()
        assert runtime.lifecycle.phase is Phase.STARTING
    assert len(failures) == 1
    with pytest.raises(RuntimeError, match="not started"):
        _ = runtime.pace.estimator


class UnexpectedTalker(FakeTalker):
    async def start(self) -> None:
        pytest.fail("an engine was started")


async def test_unusable_voices_dir_is_refused_before_engines_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(voices_dir=tmp_path / "file")
    codec = FakeCodecEngine(SPEC)
    runtime = assemble(settings, Engines(UnexpectedTalker(), codec))
    with pytest.raises(BackendError, match="voices_dir"):
        await runtime.start()
    await runtime.stop()
