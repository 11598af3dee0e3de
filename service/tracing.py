"""Traces by OpenTelemetry: where a context's time went, utterance by utterance.

A context's driver tells its ``ContextTrace`` every event and what was decided of it, and this
module makes spans of their times, when an utterance is over; docs/operations.md draws the tree.
OpenTelemetry itself is imported only when traces are asked for. No span holds text, a voice, or
whose a context is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from service.context_trace import ContextTrace
from service.trace_spans import CodecTimes, Recorder
from streaming.window import DecodeWindow

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

log = logging.getLogger(__name__)
_STOP_S = 5.0
#: What is taken of ``tracestate``; the standard asks for no less (W3C Trace Context, 3.3.1.5).
_STATE_BYTES = 512

#: The W3C headers of the request or handshake that this task works for.
_headers: ContextVar[Mapping[str, str]] = ContextVar("trace headers")
_NO_HEADERS: Mapping[str, str] = {}


class TracingError(Exception):
    """Traces were asked for and cannot be made; the text says why."""


class Tracing:
    """Makes the traces of one gateway and hands them to a processor of spans.

    Without one they go to where OpenTelemetry's own environment variables say, over OTLP/HTTP,
    in batches and from a thread. Raises TracingError.
    """

    def __init__(self, version: str, model: str, processor: SpanProcessor | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.trace.propagation.tracecontext import (
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise TracingError(
                "OpenTelemetry is not installed (requirements/otel.txt, or the extra otel)"
            ) from error
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        about = {"service.version": version} | ({} if named else {"service.name": "talkwire"})
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(processor or _otlp())
        self._tracer = self._provider.get_tracer("talkwire", version)
        self._propagator = TraceContextTextMapPropagator()
        self._model = model
        #: What the codec said of the windows that traced contexts wait for, by ``id``.
        self._windows: dict[int, CodecTimes | None] = {}

    def open(self, protocol: str, request_id: str, now: float) -> ContextTrace | None:
        """The trace of a new context, under the client's span if it told of one; None if this
        one is not sampled.
        """
        from opentelemetry.trace import SpanKind

        skew_ns = time.time_ns() - int(now * 1e9)
        span = self._tracer.start_span(
            "tts.context",
            self._propagator.extract(_headers.get(_NO_HEADERS)),
            SpanKind.SERVER,
            {"tts.protocol": protocol, "tts.request_id": request_id, "tts.model": self._model},
            start_time=int(now * 1e9) + skew_ns,
        )
        if not span.is_recording():
            return None
        return ContextTrace(Recorder(self._tracer, span, skew_ns), self._windows, now)

    def on_decoded(self, window: DecodeWindow, queue_s: float, decode_s: float, batch: int) -> None:
        """The codec answered a window; others than those waited for are not remembered."""
        if id(window) in self._windows:
            self._windows[id(window)] = CodecTimes(time.monotonic(), queue_s, decode_s, batch)

    @property
    def windows_awaited(self) -> int:
        """Windows whose answer some trace waits for."""
        return len(self._windows)

    async def stop(self) -> None:
        """Send what there is, and end; not longer than a few seconds."""
        # A thread that the process' end does not wait for: the receiver may not answer.
        stopping = threading.Thread(target=self._provider.shutdown, daemon=True)
        stopping.start()
        await asyncio.to_thread(stopping.join, _STOP_S)
        if stopping.is_alive():
            log.warning("the last traces were not taken in time")


def _otlp() -> SpanProcessor:
    """Raises TracingError for a protocol that is not spoken here."""
    asked = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if asked not in (None, "", "http/protobuf"):
        raise TracingError("traces are sent as http/protobuf; OTEL_EXPORTER_OTLP_PROTOCOL differs")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingError("OpenTelemetry's OTLP exporter is not installed") from error
    return BatchSpanProcessor(OTLPSpanExporter())


class TraceHeaders:
    """ASGI middleware: from here on a request's or socket's tasks know the client's span."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] in ("http", "websocket"):
            wanted = {b"traceparent", b"tracestate"}
            _headers.set(
                {
                    name.decode("latin-1"): value.decode("latin-1")
                    for name, value in scope["headers"]
                    if name in wanted and len(value) <= _STATE_BYTES
                }
            )
        await self._app(scope, receive, send)
