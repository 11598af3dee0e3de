"""Metrics: their documentation and values, and labels that no client can influence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service import metrics as names
from service.build import assemble
from service.contexts.outbox import Outbox
from service.engines.contracts import Engines
from service.metrics import Metrics
from service.protocols import PROTOCOLS
from service.runtime_metrics import RuntimeCollector
from service.settings import Settings
from streaming.errors import ErrorCode
from streaming.events import Cancelled
from streaming.ports import RowGenerator, SpeechRequest
from streaming.protocol.binary import AudioHeader
from streaming.report import ContextReport
from tests.service.auth.keyring import entry, write_keys
from tests.service.live import SPEC, client, gateway
from tests.service.scraping import scrape, value
from tests.waiting import until

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(tts_\w+)` \| (\w+) \|([^|]*)\|([^|]+)\|", re.MULTILINE)
TEXT = "A sentence to say. And a second one, which is longer than the first."


def exact(seconds: float) -> object:
    return pytest.approx(seconds, abs=1e-9)


async def test_metrics_page_lists_exactly_exported_metrics(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("k", "acme"))
    async with gateway(api_keys_file=keys) as server:
        families = {
            family.name
            + ("_info" if family.type == "info" else "")
            + ("_total" if family.type == "counter" else ""): family
            for family in server.runtime.metrics.registry.collect()
            if not family.name.startswith("process_")
        }
    written = {name: (kind, labels) for name, kind, labels, _ in ROW.findall(DOCS.read_text())}
    assert written.keys() == families.keys()
    for name, family in families.items():
        kind, labels = written[name]
        assert kind == {"info": "gauge"}.get(family.type, family.type), name
        exported = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert set(re.findall(r"`(\w+)`", labels)) == exported, name
        assert family.documentation, name


def test_metric_names_follow_prometheus_conventions() -> None:
    for name, kind, _, _ in ROW.findall(DOCS.read_text()):
        assert (kind == "counter") == name.endswith("_total"), name
        assert not re.search(r"_(ms|milliseconds|minutes)(_|$)", name), name
        if kind == "histogram":
            assert re.search(r"_(seconds|factor|size)$", name), name


def test_metrics_page_lists_every_label_value() -> None:
    page = DOCS.read_text()
    for listed in (PROTOCOLS, names.OUTCOMES, names.STAGES, names.CLOSE_CODES):
        assert all(f"`{one}`" in page for one in listed)


async def test_metrics_count_one_complete_context() -> None:
    async with gateway(max_contexts=3) as server:
        before = await scrape(server)
        async with client(server.url) as talk:
            samples = await talk.say(TEXT)
            while_open = await scrape(server)
        after = await scrape(server)
    native = {"protocol": "native"}
    seconds = len(samples) / SPEC.sample_rate
    assert value(after, "tts_audio_seconds_total", **native) == exact(seconds)
    assert value(after, "tts_characters_total", **native) == len(TEXT)
    assert value(after, "tts_contexts_total", outcome="complete", **native) == 1
    for stage in names.STAGES:
        assert value(after, "tts_wasted_audio_seconds_total", stage=stage, **native) == exact(0)
    for name in ("time_to_first_audio_seconds", "queue_seconds", "underrun_seconds"):
        assert value(after, f"tts_{name}_count", **native) == 1, name
    assert value(after, "tts_real_time_factor_count", **native) == 1
    underruns = value(after, "tts_underruns_total", **native)
    gap_free = value(after, "tts_contexts_gap_free_total", **native)
    assert (underruns == 0) == (gap_free == 1)
    assert value(after, "tts_inter_chunk_gap_seconds_count", **native) >= 1
    for name in ("batch_size", "decode_seconds", "queue_seconds"):
        count = value(after, f"tts_codec_{name}_count") - value(before, f"tts_codec_{name}_count")
        # The gaps lie between the chunks, and each chunk is a window.
        assert count == 1 + value(after, "tts_inter_chunk_gap_seconds_count", **native), name
    assert value(after, "tts_connections_total") == 1
    assert value(while_open, "tts_connections_active") == 1
    assert value(after, "tts_connections_active") == 0
    assert value(after, "tts_ws_close_total", code="1000") == 1
    assert value(after, "tts_capacity_contexts") == 3
    assert value(after, "tts_contexts_active") == 0
    assert value(after, "tts_ready") == 1
    assert value(after, "tts_draining") == 0
    assert value(after, "tts_frame_seconds") == exact(SPEC.frame_s)
    assert sum(v for (name, _), v in after.items() if name == "tts_errors_total") == 0
    assert value(after, "tts_time_to_first_audio_seconds_count", protocol="openai") == 0


async def test_cancel_counts_wasted_audio() -> None:
    talker = FakeTalker(row_s=0.002, frames_per_character=20)
    async with gateway(talker) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text=TEXT)
        while not isinstance(await talk.next(), AudioHeader):
            pass
        busy = await scrape(server)
        await talk.send("context.cancel", context_id="c", played_ms=40)
        cancelled = await talk.until("context.cancelled")
        await server.until_free()
        after = await scrape(server)
    native = {"protocol": "native"}
    assert value(busy, "tts_contexts_active") == 1
    assert value(busy, "tts_talker_requests", state="working") == 1
    assert value(busy, "tts_talker_requests", state="waiting") == 0
    assert value(after, "tts_talker_requests", state="working") == 0
    assert value(after, "tts_codec_windows") == 0
    assert value(after, "tts_contexts_total", outcome="cancelled", **native) == 1
    assert value(after, "tts_cancel_ack_seconds_count", **native) == 1
    sent_s, played_s = cancelled["sent_ms"] / 1000, cancelled["played_ms"] / 1000
    made_s = cancelled["generated_ms"] / 1000
    rounded = 2e-4  # milliseconds with one decimal on the wire
    wasted = {
        stage: value(after, "tts_wasted_audio_seconds_total", stage=stage, **native)
        for stage in names.STAGES
    }
    assert wasted["unheard"] == pytest.approx(sent_s - played_s, abs=rounded)
    assert wasted["unsent"] == pytest.approx(made_s - sent_s, abs=rounded)
    assert wasted["unheard"] > 0
    assert value(after, "tts_audio_seconds_total", **native) == pytest.approx(sent_s, abs=rounded)


async def test_unsent_audio_of_vanished_client_counts_as_wasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outboxes, begin = list[Outbox](), Outbox.__init__

    def note(outbox: Outbox, max_bytes: int) -> None:
        begin(outbox, max_bytes)
        outboxes.append(outbox)

    monkeypatch.setattr(Outbox, "__init__", note)
    talker = FakeTalker(row_s=0.0001, frames_per_character=20)
    async with gateway(talker, max_segment_chars=300) as server:
        async with connect(server.url, compression=None, max_queue=1) as socket:
            say = {"type": "context.create", "context_id": "c", "max_lead_ms": 120_000}
            await socket.send(json.dumps(say | {"audio": {"encoding": "pcm_f32le"}}))
            text = "A sentence that has no end and goes on " * 4
            say = {"type": "text.append", "context_id": "c", "text": text + "and on. "}
            await socket.send(json.dumps(say))
            socket.transport.pause_reading()
            await until(lambda: any(outbox.queued_bytes > 500_000 for outbox in outboxes))
            unsent_s = sum(outbox.queued_bytes for outbox in outboxes) / 4 / SPEC.sample_rate
            socket.transport.abort()
        await server.until_free()
        scraped = await scrape(server)
    wasted = value(scraped, "tts_wasted_audio_seconds_total", protocol="native", stage="unsent")
    assert wasted > 0.9 * unsent_s > 0


def test_audio_revoked_by_cancel_counts_as_unsent() -> None:
    metrics = Metrics("test", "fake")
    report = ContextReport(
        queue_s=0.3,
        ttfa_s=0.1,
        leading_silence_s=0.0,
        audio_s=3.0,
        generated_s=4.0,
        rtf=0.2,
        underrun_s=0.5,
        underruns=2,
        characters=7,
    )
    cancelled = Cancelled(4.0, 2.5, 1.0, "a", "b", report)
    metrics.on_context_closed("native", "cancelled", report, cancelled)
    text = metrics.render().decode()
    for line in (
        'tts_audio_seconds_total{protocol="native"} 2.5',
        'tts_wasted_audio_seconds_total{protocol="native",stage="unsent"} 1.5',
        'tts_wasted_audio_seconds_total{protocol="native",stage="unheard"} 1.5',
        'tts_underruns_total{protocol="native"} 2.0',
        'tts_contexts_gap_free_total{protocol="native"} 0.0',
        'tts_underrun_seconds_sum{protocol="native"} 0.5',
        'tts_time_to_first_audio_seconds_sum{protocol="native"} 0.1',
        'tts_queue_seconds_sum{protocol="native"} 0.3',
        'tts_real_time_factor_sum{protocol="native"} 0.2',
        'tts_characters_total{protocol="native"} 7.0',
    ):
        assert line in text, line


async def test_disconnect_counts_no_cancel_ack_time() -> None:
    talker = FakeTalker(row_s=0.002, frames_per_character=20)
    async with gateway(talker) as server:
        async with client(server.url) as talk:
            await talk.create()
            await talk.send("text.append", context_id="c", text=TEXT)
            await talk.until("audio.started")
            talk.socket.transport.abort()
        await server.until_free()
        after = await scrape(server)
    assert value(after, "tts_contexts_total", protocol="native", outcome="cancelled") == 1
    assert value(after, "tts_cancel_ack_seconds_count", protocol="native") == 0


async def test_errors_are_counted_once_by_code() -> None:
    async with gateway() as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="This will !fail soon.")
        await talk.send("context.end", context_id="c")
        assert (await talk.error())["code"] == "engine_failed"
        await talk.until("context.done")
        await talk.socket.send("{")
        assert (await talk.error())["code"] == "invalid_json"
        after = await scrape(server)
    counted = {
        dict(labels)["code"]: count
        for (name, labels), count in after.items()
        if name == "tts_errors_total"
    }
    assert counted.keys() == {code.value for code in ErrorCode}
    moved = {code: count for code, count in counted.items() if count}
    assert moved == {"engine_failed": 1, "invalid_json": 1}
    assert value(after, "tts_contexts_total", protocol="native", outcome="error") == 1


async def test_refused_handshakes_are_counted_by_error_code() -> None:
    async with gateway(max_connections=1) as server:
        async with client(server.url):
            with pytest.raises(InvalidStatus):
                await connect(server.url)
            with pytest.raises(InvalidStatus):
                await connect(server.url, subprotocols=["other"])  # type: ignore[list-item]
        with pytest.raises(InvalidStatus):
            await connect(server.url, origin="https://evil.example")  # type: ignore[arg-type]
        server.codec.is_ready = False
        with pytest.raises(InvalidStatus):
            await connect(server.url)
        after = await scrape(server)
    for code in ("overloaded", "unsupported", "forbidden_origin", "not_ready"):
        assert value(after, "tts_errors_total", code=code) == 1, code
    assert value(after, "tts_connections_total") == 1
    assert value(after, "tts_ready") == 0
    assert value(after, "tts_worker_up", worker="codec") == 0
    assert value(after, "tts_worker_up", worker="talker") == 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\xfe\x04\x01\0\0\0\0" + b"x" * 1025, "1009"),
        (b"\x81\x81\0\0\0\0\xff", "1007"),
        (b"\x83\x80\0\0\0\0", "1002"),
        (b"\x88\x82\0\0\0\0\x03\xf1", "1000"),  # the client's own close, with 1009
        (None, "1000"),
    ],
)
async def test_closed_socket_counts_with_code_of_server(sent: bytes | None, code: str) -> None:
    async with gateway(max_message_bytes=1024) as server:
        async with connect(server.url) as socket:
            if sent is None:
                socket.transport.abort()
            else:
                socket.transport.write(sent)
            await socket.wait_closed()
        await until(lambda: not server.runtime.lifecycle.connections)
        after = await scrape(server)
    closed = {
        labels: n for (name, labels), n in after.items() if name == "tts_ws_close_total" and n
    }
    assert closed == {frozenset({("code", code)}): 1}


async def test_metrics_show_worker_restarts_and_draining() -> None:
    async with gateway() as server:
        server.talker.restarts, server.codec.restarts = 2, 1
        await server.runtime.lifecycle.drain()
        after = await scrape(server)
    assert value(after, "tts_worker_restarts_total", worker="talker") == 2
    assert value(after, "tts_worker_restarts_total", worker="codec") == 1
    assert value(after, "tts_draining") == 1
    assert value(after, "tts_ready") == 0


async def test_codec_spare_has_metric_only_if_configured() -> None:
    async with gateway() as server:
        without = await scrape(server)
        server.codec.has_spare_ready, server.codec.takeovers = True, 3
        after = await scrape(server)
        server.codec.has_spare_ready = False
        assert value(await scrape(server), "tts_worker_up", worker="codec_spare") == 0
    assert "codec_spare" not in str(without)
    assert value(after, "tts_worker_up", worker="codec_spare") == 1
    assert value(without, "tts_codec_takeovers_total") == 0
    assert value(after, "tts_codec_takeovers_total") == 3


async def test_event_loop_lag_shows_blocked_loop() -> None:
    async with gateway() as server:
        await asyncio.sleep(0.3)  # the heartbeat has started
        time.sleep(0.6)  # noqa: ASYNC251  # blocks the loop on purpose
        await asyncio.sleep(0)
        after = await scrape(server)
    late = value(after, "tts_event_loop_lag_seconds_count")
    late -= value(after, "tts_event_loop_lag_seconds_bucket", le="0.25")
    assert late >= 1


HOSTILE = 'x"} 1\ntts_evil_total{a="'


async def test_hostile_client_adds_no_series() -> None:
    async with gateway() as server:
        before = await scrape(server)
        async with client(server.url) as talk:
            for field in ("model", "voice", "language", "mode", HOSTILE):
                await talk.send("context.create", **{"context_id": "c", field: HOSTILE})
                await talk.error()
            await talk.send(HOSTILE)
            await talk.error()
            audio = {"encoding": HOSTILE}
            await talk.send("context.create", context_id=HOSTILE[:20], audio=audio)
            await talk.error()
            await talk.say("One sentence.", HOSTILE[:20])
            await talk.socket.close(4321, "evil")
        async with httpx.AsyncClient(timeout=60) as http:
            body = {"model": HOSTILE, "voice": HOSTILE, "input": "A text.", "speed": 1.0}
            for change in ({}, {"model": "tts-1"}, {"response_format": HOSTILE}):
                await http.post(f"{server.http}/v1/audio/speech", json={**body, **change})
            await http.get(f"{server.http}/{quote(HOSTILE)}", headers={"user-agent": "evil"})
        with contextlib.suppress(InvalidStatus):
            await connect(f"{server.url}?protocol=evil", subprotocols=["evil"])  # type: ignore[list-item]
        await server.until_free()
        after = await scrape(server)
    assert after.keys() == before.keys()
    assert value(after, "tts_contexts_total", protocol="native", outcome="complete") == 1


def test_each_figure_of_runtime_is_exported_under_its_name() -> None:
    bounds = SimpleNamespace(row_s=1, burst_s=2, wait_s=3, decode_fixed_s=4, decode_frame_s=5)
    accounts = {
        name: SimpleNamespace(contexts=n, connections=n + 1, characters=n + 2, refusals=n + 3)
        for name, n in (("a", 20), ("b", 30))
    }
    talker = SimpleNamespace(
        live=6, outstanding=10, is_ready=True, restarts=7, failures={"logits": 18, "code": 19}
    )
    codec = SimpleNamespace(
        outstanding=8, workers=2, takeovers=9, is_ready=False, has_spare_ready=True, restarts=11,
        spec=SimpleNamespace(frame_s=0.04),
    )  # fmt: skip
    runtime = SimpleNamespace(
        authority=SimpleNamespace(key_count=12, is_current=True),
        admission=SimpleNamespace(active=13, capacity=14, limits=lambda: {"talker": 17}),
        pace=SimpleNamespace(has_begun=True, bounds=lambda: bounds),
        accounts=SimpleNamespace(tenants=lambda: accounts.items()),
        engines=SimpleNamespace(talker=talker, codec=codec),
        lifecycle=SimpleNamespace(connections=15, is_ready=False, is_draining=True),
        metrics=SimpleNamespace(certificate_expiry=lambda: 16),
    )  # fmt: skip
    collector = RuntimeCollector(runtime)  # type: ignore[arg-type]
    figures = {
        "".join([sample.name, *map(" {}".format, sample.labels.values())]): sample.value
        for family in collector.collect()
        for sample in family.samples
    }
    tenants = {
        f"tts_tenant_{name} {tenant}": first + n
        for tenant, first in (("a", 20), ("b", 30))
        for n, name in enumerate(
            ["contexts_active", "connections_active", "characters_total", "refusals_total"]
        )
    }
    assert figures == tenants | {
        "tts_ready": 0,
        "tts_draining": 1,
        "tts_connections_active": 15,
        "tts_contexts_active": 13,
        "tts_capacity_contexts": 14,
        "tts_codec_windows": 8,
        "tts_codec_workers": 2,
        "tts_event_loop_tasks": 0,
        "tts_api_keys": 12,
        "tts_api_keys_current": 1,
        "tts_tls_certificate_expiry_timestamp_seconds": 16,
        "tts_frame_seconds": 0.04,
        "tts_pace_row_seconds": 1,
        "tts_pace_burst_seconds": 2,
        "tts_pace_codec_queue_seconds": 3,
        "tts_pace_decode_fixed_seconds": 4,
        "tts_pace_decode_frame_seconds": 5,
        "tts_talker_requests working": 6,
        "tts_talker_requests waiting": 4,
        "tts_talker_failures_total logits": 18,
        "tts_talker_failures_total code": 19,
        "tts_worker_up talker": 1,
        "tts_worker_up codec": 0,
        "tts_worker_up codec_spare": 1,
        "tts_worker_restarts_total talker": 7,
        "tts_worker_restarts_total codec": 11,
        "tts_codec_takeovers_total": 9,
        "tts_capacity_limit_contexts talker": 17,
    }
    talker.live = 12  # the last step counts requests that the gateway has since ended
    requests = next(f for f in collector.collect() if f.name == "tts_talker_requests")
    assert [sample.value for sample in requests.samples] == [10, 0]


async def test_metrics_are_available_while_engines_load() -> None:
    class Loading(FakeTalker):
        async def start(self) -> None:
            await asyncio.Event().wait()

    runtime = assemble(Settings(), Engines(Loading(), FakeCodecEngine(SPEC)))
    metrics = runtime.metrics
    metrics.registry.register(RuntimeCollector(runtime))
    assert b"tts_ready 0.0" in metrics.render()
    assert b"tts_pace_row_seconds" not in metrics.render()
    starting = asyncio.create_task(runtime.start())
    await asyncio.sleep(0.01)
    assert b"tts_ready 0.0" in metrics.render()
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    await runtime.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the library reads /proc")
def test_metrics_include_process_figures() -> None:
    assert b"process_resident_memory_bytes" in Metrics("test", "fake").render()


class Bounded(FakeTalker):
    """A talker whose ceiling of rows by the text is 15 for any text."""

    def generate(self, request: SpeechRequest) -> RowGenerator:
        """See TalkerEngine."""
        limit = 15 if request.max_frames is None else min(15, request.max_frames)
        return super().generate(replace(request, max_frames=limit))


@pytest.mark.parametrize(
    ("talker", "max_frames", "cause"),
    [
        (Bounded(), None, "text"),
        (Bounded(), 200, "text"),
        (Bounded(), 3, "client"),
        (FakeTalker(), 3, "client"),
        (FakeTalker(spec=replace(FAKE_SPEC, max_frames=12)), None, "model"),
        (FakeTalker(), None, None),
    ],
)
async def test_cut_utterances_are_counted_by_limit(
    talker: FakeTalker, max_frames: int | None, cause: str | None
) -> None:
    async with gateway(talker) as server, client(server.url) as talk:
        await talk.create(sampling={} if max_frames is None else {"max_frames": max_frames})
        await talk.send("text.append", context_id="c", text="A sentence that goes on.")
        await talk.send("context.end", context_id="c")
        done = await talk.until("context.done")
        scraped = await scrape(server)
    assert done["reason"] == ("complete" if cause is None else "length")
    counted = {
        limit: value(scraped, "tts_utterances_cut_total", cause=limit) for limit in names.CUT_CAUSES
    }
    assert counted == {limit: float(limit == cause) for limit in names.CUT_CAUSES}
