"""Export of traces as OTLP over HTTP, if tracing is turned on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.build import build_runtime
from service.settings import Settings
from service.tracing import Tracing, TracingError
from tests.service.kept_spans import (
    ATTRIBUTES,
    PARENT,
    SPAN_ID,
    TRACE_ID,
    speak,
)
from tests.service.live import gateway


class Receiver(ThreadingHTTPServer):
    """An OTLP/HTTP receiver that keeps the requests."""

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
        """Log nothing."""


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


async def test_tracing_exports_spans_over_otlp(
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


async def test_tracing_tolerates_absent_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as gone:
        port = gone.server_port
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with gateway(traces=Tracing("test", "fake")) as server:
        samples, _ = await speak(server)
    assert samples > 0


async def test_tracing_setting_creates_tracing() -> None:
    assert build_runtime(Settings(), lambda worker, phase, seconds: None).tracing is None
    traced = build_runtime(Settings(tracing=True), lambda worker, phase, seconds: None)
    assert traced.tracing is not None
    await traced.tracing.stop()


def test_tracing_refuses_unsupported_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(TracingError, match="http/protobuf"):
        Tracing("test", "fake")
    with pytest.raises(TracingError, match="http/protobuf"):
        build_runtime(Settings(tracing=True), lambda worker, phase, seconds: None)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "max_queue_size"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0", "schedule_delay_millis"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "many", "OTEL_ATTRIBUTE_COUNT_LIMIT"),
    ],
)
def test_tracing_refuses_invalid_variables_of_opentelemetry(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingError, match=told):
        Tracing("test", "fake")


def test_malformed_header_of_exporter_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization: Bearer sesame")
    build_runtime(Settings(tracing=True), lambda worker, phase, seconds: None)
    assert "Header format invalid" in caplog.text
    assert "sesame" not in caplog.text


def test_opentelemetry_is_not_imported_without_tracing() -> None:
    program = (
        "import json, sys, service.server, service.gateway\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('opentelemetry')]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(run.stdout) == []
