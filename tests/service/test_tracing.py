"""The traces of contexts: their tree, their times, whose they are, and what is not in them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from service.build import build_runtime
from service.context_trace import MAX_WINDOWS
from service.settings import Settings
from service.tracing import Tracing, TracingError
from streaming.wire_format import AudioHeader
from talker.fake import FakeTalker
from tests.service.live import SPEC, Gateway, client, gateway

FIRST, SECOND = "Zanzibar is far away.", " Quagga herds graze there, they say."
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
UNSAMPLED = PARENT[:-1] + "0"
#: The documented attributes; docs/operations.md has the same list.
ATTRIBUTES = {
    "tts.context": {
        *("tts.protocol", "tts.request_id", "tts.model", "tts.outcome", "tts.characters"),
        *("tts.utterances", "tts.audio_s", "tts.generated_s", "tts.ttfa_s", "tts.underruns"),
        *("tts.underrun_s", "error.type"),
    },
    "tts.utterance": {
        *("tts.utterance", "tts.characters", "tts.rows", "tts.windows", "tts.samples"),
    },
    "tts.segment": set(),
    "tts.talker.wait": set(),
    "tts.talker.first_row": set(),
    "tts.talker.rows": {"tts.rows"},
    "tts.codec.queue": set(),
    "tts.codec.decode": {"tts.frames", "tts.new_frames", "tts.batch"},
    "tts.send": {"tts.samples"},
}


class Kept:
    """Tracing whose spans stay in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing("test", "fake", SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start_time or 0)

    @property
    def root(self) -> ReadableSpan:
        (root,) = self.named("tts.context")
        return root

    def under(self, parent: ReadableSpan) -> dict[str, list[ReadableSpan]]:
        """Its children by name, in order."""
        found: dict[str, list[ReadableSpan]] = {}
        for span in sorted(self.spans, key=lambda span: span.start_time or 0):
            if span.parent is not None and span.parent.span_id == parent.context.span_id:
                found.setdefault(span.name, []).append(span)
        return found


def times(span: ReadableSpan) -> tuple[int, int]:
    """Beginning and end, nanoseconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
    return span.start_time, span.end_time


def value(span: ReadableSpan, name: str) -> int:
    found = (span.attributes or {})[name]
    assert isinstance(found, int)
    return found


async def speak(server: Gateway, **headers: str) -> int:
    """Two sentences, the first in two pieces; how many samples came."""
    async with client(server.url, additional_headers=headers) as talk:
        handle = await talk.create()
        await talk.send("text.append", context_id="c", text=FIRST[:8])
        await asyncio.sleep(0.02)
        await talk.send("text.append", context_id="c", text=FIRST[8:])
        await talk.send("text.append", context_id="c", text=SECOND)
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        return len(talk.samples(handle))


async def test_each_utterance_has_the_documented_spans() -> None:
    kept, delay_s = Kept(), 0.004
    talker = FakeTalker(row_s=0.002, first_row_s=0.01)
    async with gateway(talker, delay_s, kept.tracing) as server:
        warmed_up = server.codec.decoded
        samples = await speak(server)
        windows = server.codec.decoded - warmed_up
        assert kept.tracing.windows_awaited == 0
    root = kept.root
    assert root.parent is None
    assert root.kind is SpanKind.SERVER
    assert root.status.status_code is StatusCode.UNSET
    assert dict(root.attributes or {}) | {"tts.request_id": 0, "tts.ttfa_s": 0} == {
        "tts.protocol": "native",
        "tts.request_id": 0,
        "tts.model": "fake",
        "tts.outcome": "complete",
        "tts.characters": len(FIRST + SECOND),
        "tts.utterances": 2,
        "tts.audio_s": samples / SPEC.sample_rate,
        "tts.generated_s": samples / SPEC.sample_rate,
        "tts.ttfa_s": 0,
        "tts.underruns": (root.attributes or {})["tts.underruns"],
        "tts.underrun_s": (root.attributes or {})["tts.underrun_s"],
    }
    assert {span.name for span in kept.spans} == ATTRIBUTES.keys()
    assert {span.context.trace_id for span in kept.spans} == {root.context.trace_id}
    assert kept.under(root).keys() == {"tts.utterance"}
    utterances = kept.under(root)["tts.utterance"]
    assert [value(span, "tts.utterance") for span in utterances] == [0, 1]
    assert sum(value(span, "tts.samples") for span in utterances) == samples
    assert sum(value(span, "tts.windows") for span in utterances) == windows
    for utterance in utterances:
        check_stages(kept, utterance, delay_s)
    begun, ended = times(root)
    assert all(begun <= times(span)[0] and times(span)[1] <= ended for span in kept.spans)
    # The second piece of the first sentence came so much later than the first.
    (first,) = kept.under(utterances[0])["tts.segment"]
    assert times(first)[1] - times(first)[0] > 10_000_000


def check_stages(kept: Kept, utterance: ReadableSpan, delay_s: float) -> None:
    stages = kept.under(utterance)
    assert stages.keys() == ATTRIBUTES.keys() - {"tts.context", "tts.utterance"}
    single = ("tts.segment", "tts.talker.wait", "tts.talker.first_row", "tts.talker.rows")
    segment, wait, first_row, rows = (times(*stages[name]) for name in single)
    assert times(utterance)[0] == segment[0]
    assert segment[1] == wait[0]
    assert wait[1] == first_row[0]
    assert first_row[1] == rows[0]
    decodes, queues = stages["tts.codec.decode"], stages["tts.codec.queue"]
    assert len(decodes) == len(queues) == value(utterance, "tts.windows")
    frames = sum(value(span, "tts.new_frames") for span in decodes)
    assert frames * SPEC.hop_length == value(utterance, "tts.samples")
    for queue, decode in zip(queues, decodes, strict=True):
        assert rows[0] <= times(queue)[0]
        assert times(queue)[1] == times(decode)[0]
        assert times(decode)[1] - times(decode)[0] == pytest.approx(delay_s * 1e9, rel=1e-3)
    (send,) = stages["tts.send"]
    assert times(decodes[0])[1] <= times(send)[0] <= times(send)[1]
    assert times(decodes[-1])[1] <= times(send)[1] == times(utterance)[1]


async def test_nothing_of_the_text_or_the_voice_is_in_a_trace() -> None:
    kept = Kept()
    async with gateway(FakeTalker(fail_after=0), traces=kept.tracing) as server:
        async with client(server.url) as talk:
            await talk.say(FIRST + SECOND, voice="default", continuity="none")
        speech = {"input": "!fail " + FIRST, "voice": "alloy"}
        async with httpx.AsyncClient(timeout=30) as http:
            refused = await http.post(f"{server.http}/v1/audio/speech", json=speech)
            assert refused.status_code == 500
    assert len(kept.named("tts.context")) == 2
    for span in kept.spans:
        assert (span.attributes or {}).keys() <= ATTRIBUTES[span.name], span.name
        assert not span.events
        assert not span.links
        written = span.to_json().casefold()
        for word in (FIRST + SECOND).casefold().split():
            assert len(word) < 4 or word.strip(".,") not in written
        for secret in ("alloy", "default", "!fail", "127.0.0.1"):
            assert secret not in written


async def test_a_cancel_ends_every_span_and_says_so() -> None:
    kept, talker = Kept(), FakeTalker(row_s=0.002, frames_per_character=20)
    async with gateway(talker, traces=kept.tracing) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text=FIRST + SECOND)
        while not isinstance(await talk.next(), AudioHeader):
            pass
        await talk.send("context.cancel", context_id="c")
        await talk.until("context.cancelled")
        await server.until_free()
        assert kept.tracing.windows_awaited == 0
    root = kept.root
    assert (root.attributes or {})["tts.outcome"] == "cancelled"
    assert root.status.status_code is StatusCode.UNSET  # a barge-in is no fault
    (utterance,) = kept.under(root)["tts.utterance"]
    (rows,) = kept.under(utterance)["tts.talker.rows"]
    for span in (utterance, rows):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "cancelled"
        assert times(span)[1] <= times(root)[1]
    assert len(kept.named("tts.talker.first_row")) == 1
    assert kept.named("tts.talker.first_row")[0].status.status_code is StatusCode.UNSET


async def test_a_fault_is_told_by_its_code_alone() -> None:
    kept = Kept()
    talker = FakeTalker(row_s=0.001)
    async with gateway(talker, traces=kept.tracing) as server, client(server.url) as talk:
        await talk.create()
        await talk.send("text.append", context_id="c", text="Zanzibar !fail.")
        await talk.send("context.end", context_id="c")
        assert (await talk.error())["code"] == "engine_failed"
        await talk.until("context.done")
    assert kept.root.status.status_code is StatusCode.ERROR
    assert kept.root.status.description == "engine_failed"
    assert (kept.root.attributes or {})["error.type"] == "engine_failed"
    assert kept.named("tts.utterance")[0].status.description == "engine_failed"


async def test_spans_of_windows_are_bounded() -> None:
    kept = Kept()
    talker = FakeTalker(row_s=0.0005, frames_per_character=3)
    served = gateway(talker, traces=kept.tracing, first_chunk_frames=1, max_chunk_frames=1)
    async with served as server, client(server.url) as talk:
        await talk.say(FIRST)
    (utterance,) = kept.named("tts.utterance")
    assert value(utterance, "tts.windows") > MAX_WINDOWS
    decodes = kept.named("tts.codec.decode")
    assert len(decodes) == MAX_WINDOWS
    assert times(decodes[-1])[1] <= times(utterance)[1]
    (send,) = kept.named("tts.send")
    assert times(decodes[0])[0] <= times(send)[0]


async def test_a_context_belongs_to_its_clients_trace() -> None:
    kept = Kept()
    async with gateway(traces=kept.tracing) as server:
        await speak(server, traceparent=PARENT)
        async with httpx.AsyncClient(timeout=30) as http:
            await http.post(
                f"{server.http}/v1/audio/speech",
                json={"input": FIRST, "response_format": "pcm"},
                headers={"traceparent": PARENT},
            )
        await speak(server)
        for unusable in ("00-zz-b7ad6b7169203331-01", "x" * 5000):
            await speak(server, traceparent=unusable)
        before = len(kept.spans)
        await speak(server, traceparent=UNSAMPLED)
        assert len(kept.spans) == before
    roots = kept.named("tts.context")
    protocols = [(root.attributes or {})["tts.protocol"] for root in roots]
    assert protocols == ["native", "openai", "native", "native", "native"]
    for root in roots[:2]:
        assert root.context.trace_id == TRACE_ID
        assert root.parent is not None
        assert root.parent.span_id == SPAN_ID
        assert root.parent.is_remote
    for root in roots[2:]:
        assert root.parent is None
        assert root.context.trace_id != TRACE_ID


class Receiver(ThreadingHTTPServer):
    """A real OTLP/HTTP receiver: keeps what it is posted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Posted)
        self.came: list[tuple[str, str | None, ExportTraceServiceRequest]] = []


class _Posted(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest.FromString(body)
        self.server.came.append((self.path, self.headers["x-who"], request))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield server
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


async def test_a_receiver_gets_them_over_otlp(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-who=us")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    async with gateway(traces=Tracing("1.2.3", "fake")) as server:
        await speak(server, traceparent=PARENT)
    assert {(path, who) for path, who, _ in receiver.came} == {("/v1/traces", "us")}
    resources = [each for _, _, request in receiver.came for each in request.resource_spans]
    about = {a.key: a.value.string_value for each in resources for a in each.resource.attributes}
    assert about["service.name"] == "talkwire"
    assert about["service.version"] == "1.2.3"
    assert about["deployment.environment"] == "test"
    spans = [span for each in resources for scope in each.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == ATTRIBUTES.keys()
    assert {span.trace_id for span in spans} == {TRACE_ID.to_bytes(16, "big")}
    (root,) = [span for span in spans if span.name == "tts.context"]
    assert root.parent_span_id == SPAN_ID.to_bytes(8, "big")
    utterances = {span.span_id for span in spans if span.parent_span_id == root.span_id}
    assert len(utterances) == 2
    assert {span.parent_span_id for span in spans} == {
        *utterances,
        root.span_id,
        root.parent_span_id,
    }


async def test_a_receiver_that_is_away_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as gone:
        port = gone.server_port
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with gateway(traces=Tracing("test", "fake")) as server:
        assert await speak(server) > 0


async def test_the_setting_turns_them_on() -> None:
    assert build_runtime(Settings(), lambda worker, phase, seconds: None).tracing is None
    traced = build_runtime(Settings(tracing=True), lambda worker, phase, seconds: None)
    assert traced.tracing is not None
    await traced.tracing.stop()


def test_a_protocol_that_is_not_spoken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(TracingError, match="http/protobuf"):
        Tracing("test", "fake")
    with pytest.raises(TracingError, match="http/protobuf"):
        build_runtime(Settings(tracing=True), lambda worker, phase, seconds: None)


def test_without_traces_opentelemetry_is_not_even_imported() -> None:
    program = (
        "import json, sys, service.serve\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('opentelemetry')]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(run.stdout) == []
