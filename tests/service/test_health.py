from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from codec.fake import FakeCodecEngine
from service.app import create_app
from service.auth.keys import Scope, issue
from service.metrics import Metrics
from service.runtime import Phase, Runtime
from service.settings import Settings
from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import RowGenerator, SpeechRequest
from talker.fake import FakeTalker
from tests.service.live import SPEC, client, gateway


async def test_service_reports_ready_and_exports_metrics() -> None:
    async with (
        gateway() as server,
        client(server.url) as talk,
        httpx.AsyncClient(timeout=60) as http,
    ):
        await talk.say("One sentence.")
        for name in ("live", "ready", "startup"):
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
    runtime = Runtime(Settings(), StuckTalker(), codec, Metrics("test", "fake"))
    with TestClient(create_app(runtime), base_url="http://127.0.0.1") as http:
        assert http.get("/health/live").status_code == 200
        assert http.get("/health/ready").status_code == 503
        assert http.get("/health/startup").status_code == 503
        assert http.get("/metrics").status_code == 200
        assert http.portal is not None
        http.portal.call(runtime.begin_drain)
        assert http.get("/health/startup").status_code == 503


async def test_health_answers_head_with_status_and_without_key(tmp_path: Path) -> None:
    issue(keys := tmp_path / "keys.json", "tenant", [Scope.SPEAK])
    async with (
        gateway(api_keys_file=keys) as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):
        for name in ("live", "ready", "startup"):
            response = await http.head(f"/health/{name}")
            assert (response.status_code, response.content) == (200, b"")
        server.codec.is_ready = False
        assert (await http.head("/health/ready")).status_code == 503
        assert (await http.head("/metrics")).status_code == 401


async def test_readiness_follows_codec_engine() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        server.codec.is_ready = False
        assert (await http.get(f"{server.http}/health/ready")).status_code == 503
        assert (await http.get(f"{server.http}/health/live")).status_code == 200
        server.codec.is_ready = True
        assert (await http.get(f"{server.http}/health/ready")).status_code == 200


class BoundedTalker(FakeTalker):
    """Refuses utterances beyond two, like the real talker with ``talker_max_outstanding``."""

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        if self.outstanding >= 2:
            raise CapacityError(ErrorCode.OVERLOADED, "full", retry_after_ms=1)
        async with aclosing(super().generate(request)) as batches:
            async for batch in batches:
                yield batch


async def test_warm_up_keeps_to_talker_max_outstanding() -> None:
    settings = Settings(talker_max_outstanding=2, admission="measured")
    talker, codec = BoundedTalker(row_s=0.0001), FakeCodecEngine(SPEC)
    runtime = Runtime(settings, talker, codec, Metrics("test", "fake"))
    await runtime.start()
    assert runtime.is_ready
    assert runtime.admission.ceiling == 2
    await runtime.stop()


class BrokenTalker(FakeTalker):
    async def start(self) -> None:
        raise RuntimeError("no such model")


async def test_engine_start_failure_is_reported_once() -> None:
    codec = FakeCodecEngine(SPEC)
    runtime = Runtime(Settings(), BrokenTalker(), codec, Metrics("test", "fake"))
    failures: list[BaseException] = []
    failed = asyncio.Event()

    def on_fatal(error: Exception) -> None:
        failures.append(error)
        failed.set()

    app = create_app(runtime, on_fatal)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(60):
            await failed.wait()
        assert runtime.phase is Phase.STARTING
    assert len(failures) == 1
    with pytest.raises(RuntimeError, match="not started"):
        _ = runtime.engine_pace.estimator


class UnexpectedTalker(FakeTalker):
    async def start(self) -> None:
        pytest.fail("an engine was started")


async def test_unusable_voices_dir_is_refused_before_engines_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(voices_dir=tmp_path / "file")
    codec = FakeCodecEngine(SPEC)
    runtime = Runtime(settings, UnexpectedTalker(), codec, Metrics("test", "fake"))
    with pytest.raises(BackendError, match="voices_dir"):
        await runtime.start()
    await runtime.stop()
