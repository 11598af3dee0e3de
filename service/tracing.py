"""OpenTelemetry traces of contexts, utterance by utterance.

:class:`ContextTrace` records the times of a context's events in its driver. The spans are written
when an utterance is over, so that nothing waits for tracing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from streaming import events
from streaming.ports import Arrival, DecodeStats
from streaming.report import ContextReport
from streaming.window import DecodeWindow

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, Tracer


log = logging.getLogger(__name__)
Attributes = Mapping[str, str | int | float | bool]


class Stage(NamedTuple):
    """A span that is over. ``cut``: the reason if it ended early."""

    name: str
    start: float
    end: float
    attributes: Attributes | None = None
    cut: str | None = None


#: Maximum number of an utterance's windows with spans; the last window always has one.
MAX_WINDOWS = 32
#: Maximum number of texts whose times are kept while earlier utterances are spoken.
_MAX_TEXTS = 1024
_FIRST_ROW = "tts.talker.first_row"


class UtteranceTrace:
    """The stages of an utterance that the talker was asked for at ``now``. Its text began to
    arrive at ``text_at`` and was complete at ``queued_at``.
    """

    def __init__(self, index: int, text: str, text_at: float, queued_at: float, now: float) -> None:
        self._index, self._characters = index, len(text)
        self._text_at = text_at
        self._stages = [
            Stage("tts.segment", text_at, queued_at),
            Stage("tts.talker.wait", queued_at, now),
        ]
        #: The talker's current stage and its start.
        self._talking: tuple[str, float] | None = (_FIRST_ROW, now)
        self._rows, self._last_row_at = 0, now
        #: The window in the codec and the time of its request.
        self._decoding: tuple[DecodeWindow, float] | None = None
        self._windows: list[list[Stage]] = []
        self._window_count = 0
        self._sent_from: float | None = None
        self._sent_to = 0.0
        self._samples = 0

    def on_rows(self, came: Sequence[Arrival], finish: str | None) -> None:
        """Record rows of the talker."""
        if self._talking is None:
            return
        name, since = self._talking
        if name == _FIRST_ROW:
            first_at = max(came[0].at, since)
            self._stages.append(Stage(name, since, first_at))
            self._talking = name, since = "tts.talker.rows", first_at
        self._last_row_at = max(came[-1].at, since)
        self._rows += sum(arrival.rows for arrival in came)
        if finish is not None:
            self._end_talking(self._last_row_at, None)

    def on_nothing(self) -> None:
        """Record that the text had nothing that can be spoken."""
        self._talking = None

    def on_decode(self, window: DecodeWindow, now: float) -> None:
        """Record the request for a window."""
        self._decoding = window, now

    def end_window(self, stats: DecodeStats | None, now: float, cut: str | None = None) -> None:
        """Record the end of the window in the codec. Its stages are computed back from its result;
        without one, ``stats`` is None.
        """
        if self._decoding is None:
            return
        (window, asked_at), self._decoding = self._decoding, None
        if stats is None:
            stages = [Stage("tts.codec.queue", asked_at, now, cut=cut)]
        else:
            begun = max(asked_at, now - stats.decode_s)
            figures = {
                "tts.frames": window.codes.shape[1],
                "tts.new_frames": window.new_frames,
                "tts.batch": stats.batch,
            }
            stages = [
                Stage("tts.codec.queue", max(asked_at, begun - stats.queue_s), begun),
                Stage("tts.codec.decode", begun, now, figures),
            ]
        del self._windows[MAX_WINDOWS - 1 :]
        self._windows.append(stages)
        self._window_count += 1

    def on_sent(self, samples: int, now: float, done_at: float) -> None:
        """Record that ``samples`` of the window that came at ``now`` were sent by ``done_at``."""
        self._sent_from = now if self._sent_from is None else self._sent_from
        self._sent_to = done_at
        self._samples += samples

    def finish(self, end: float, cut: str | None) -> list[Stage]:
        """Return the utterance's stage and its parts. It ended at ``end``, early if ``cut``."""
        self._end_talking(self._last_row_at if cut is None and self._rows else end, cut)
        self.end_window(None, end, cut)
        if self._sent_from is not None:
            sent = {"tts.samples": self._samples}
            self._stages.append(Stage("tts.send", self._sent_from, self._sent_to, sent))
        figures = {
            "tts.utterance": self._index,
            "tts.characters": self._characters,
            "tts.rows": self._rows,
            "tts.windows": self._window_count,
            "tts.samples": self._samples,
        }
        whole = Stage("tts.utterance", self._text_at, end, figures, cut)
        return [whole, *chain(self._stages, *self._windows)]

    def _end_talking(self, end: float, cut: str | None) -> None:
        if self._talking is not None:
            name, since = self._talking
            rows = {"tts.rows": self._rows} if self._rows else None
            self._stages.append(Stage(name, since, end, rows, cut))
            self._talking = None


class ContextTrace:
    """One context's trace under the span ``root``. Only current utterances are kept in memory.
    ``skew_ns``: wall clock minus monotonic clock.
    """

    def __init__(self, tracer: Tracer, root: Span, skew_ns: int, now: float) -> None:
        self._tracer, self._root, self._skew_ns = tracer, root, skew_ns
        self._utterances: dict[int, UtteranceTrace] = {}
        self._texts: deque[float] = deque(maxlen=_MAX_TEXTS)
        self._complete_at = now  # the previous utterance's text
        self._count = 0
        self._is_over = False

    def note(
        self, event: events.Event, commands: Sequence[events.Command], now: float, done_at: float
    ) -> None:
        """Record an event at ``now``, whose commands had been executed at ``done_at``."""
        if self._is_over:
            return
        known = self._utterances.get(getattr(event, "utterance", -1))
        match event:
            case events.TextAppended():
                self._texts.append(now)
            case events.RowsReceived(batch=batch) if known is not None:
                known.on_rows(batch.came or (Arrival(len(batch.rows), now),), batch.finish)
            case events.NothingToSay(index) if known is not None:
                known.on_nothing()
                self._finish(index, now)
            case events.AudioDecoded(stats=stats) if known is not None:
                known.end_window(stats, now)  # also if all of it is silence, which is not sent
        for command in commands:
            match command:
                case events.StartTalker(index, text, queued_at=queued_at):
                    self._start(index, text, min(queued_at, now), now)
                case events.StopTalker(index):  # it starts again with more text
                    del self._utterances[index]
                    self._count -= 1
                case events.Decode(index, window) if index in self._utterances:
                    self._utterances[index].on_decode(window, now)
                case events.SendAudio() if known and isinstance(event, events.AudioDecoded):
                    known.on_sent(len(command.samples), now, done_at)
                    if command.ends_utterance:
                        self._finish(event.utterance, done_at)
                case events.UtteranceEnded(index) if index in self._utterances:
                    self._finish(index, now)
                case events.Cancelled(report=report):
                    self._end("cancelled", report, None, done_at)
                case events.Done(reason, report, error):
                    self._end(reason, report, None if error is None else error.code.value, done_at)

    def _start(self, index: int, text: str, queued_at: float, now: float) -> None:
        """Start an utterance, whose text began with the first one that came after the previous
        utterance's was complete, or is the rest of that text.
        """
        while self._texts and self._texts[0] <= self._complete_at:
            self._texts.popleft()
        text_at = min(self._texts[0] if self._texts else self._complete_at, queued_at)
        self._complete_at = queued_at
        self._utterances[index] = UtteranceTrace(index, text, text_at, queued_at, now)
        self._count += 1

    def _finish(self, index: int, end: float, cut: str | None = None) -> None:
        whole, *parts = self._utterances.pop(index).finish(end, cut)
        span = self._write(whole, self._root)
        for part in parts:
            self._write(part, span)

    def _write(self, stage: Stage, parent: Span) -> Span:
        from opentelemetry.trace import set_span_in_context

        context, began = set_span_in_context(parent), self._ns(stage.start)
        span = self._tracer.start_span(
            stage.name, context, attributes=stage.attributes, start_time=began
        )
        self._close(span, max(stage.start, stage.end), stage.cut)
        return span

    def _close(self, span: Span, end: float, fault: str | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if fault is not None:
            span.set_status(Status(StatusCode.ERROR, fault))
        span.end(self._ns(end))

    def _ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._skew_ns

    def _end(self, outcome: str, report: ContextReport, fault: str | None, now: float) -> None:
        """End all spans; ``fault`` is an error's code."""
        self._is_over = True
        for index in list(self._utterances):
            self._finish(index, now, "cancelled" if outcome == "cancelled" else fault)
        figures: dict[str, str | int | float | None] = {
            "tts.outcome": outcome,
            "tts.characters": report.characters,
            "tts.utterances": self._count,
            "tts.audio_s": report.audio_s,
            "tts.generated_s": report.generated_s,
            "tts.ttfa_s": report.ttfa_s,
            "tts.underruns": report.underruns,
            "tts.underrun_s": report.underrun_s,
            "error.type": fault,
        }
        known = {name: value for name, value in figures.items() if value is not None}
        self._root.set_attributes(known)
        self._close(self._root, now, fault)


_STOP_S = 5.0
#: Maximum length of a header; the standard requires no less (W3C Trace Context, 3.3.1.5).
_STATE_BYTES = 512

#: The W3C headers of this task's request or handshake.
_headers: ContextVar[Mapping[str, str] | None] = ContextVar("trace headers", default=None)


class TracingError(Exception):
    """Tracing is enabled but not possible; the text has the reason."""


class Tracing:
    """Creates the traces of one gateway for a span processor.

    By default they are exported over OTLP/HTTP as OpenTelemetry's own environment variables say,
    in batches and from a thread. Raises TracingError.
    """

    def __init__(self, version: str, model: str, processor: SpanProcessor | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            message = "OpenTelemetry is not installed (requirements/otel.txt, or the extra otel)"
            raise TracingError(message) from error
        environ = os.environ
        named = "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        named = named or "OTEL_SERVICE_NAME" in environ
        about = {"service.version": version} | ({} if named else {"service.name": "talkwire"})
        try:
            self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
            self._provider.add_span_processor(processor or _otlp())
        except ValueError as error:  # of its environment variables, such as OTEL_BSP_*
            raise TracingError(f"OpenTelemetry cannot use its variables: {error}") from error
        self._tracer = self._provider.get_tracer("talkwire", version)
        self._propagator = TraceContextTextMapPropagator()
        self._model = model

    def open(self, protocol: str, request_id: str, now: float) -> ContextTrace | None:
        """Open a context's trace, under the client's span if any; None if it is not sampled."""
        from opentelemetry.trace import SpanKind

        skew_ns = time.time_ns() - int(now * 1e9)
        span = self._tracer.start_span(
            "tts.context",
            self._propagator.extract(_headers.get() or {}),
            SpanKind.SERVER,
            {"tts.protocol": protocol, "tts.request_id": request_id, "tts.model": self._model},
            start_time=int(now * 1e9) + skew_ns,
        )
        if not span.is_recording():
            return None
        return ContextTrace(self._tracer, span, skew_ns, now)

    async def stop(self) -> None:
        """Export the remaining spans and stop, within a few seconds."""
        # A daemon thread, since the receiver may not answer.
        stopping = threading.Thread(target=self._provider.shutdown, daemon=True)
        stopping.start()
        await asyncio.to_thread(stopping.join, _STOP_S)
        if stopping.is_alive():
            log.warning("the last traces were not taken in time")


def _otlp() -> SpanProcessor:
    """Create the OTLP span processor. Raises TracingError for an unsupported protocol."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    asked = next(filter(None, map(os.environ.get, names)), None)
    if asked not in (None, "http/protobuf"):
        raise TracingError("traces are sent as http/protobuf; OTEL_EXPORTER_OTLP_PROTOCOL differs")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingError("OpenTelemetry's OTLP exporter is not installed") from error
    logging.getLogger("opentelemetry.util.re").addFilter(_hide_header)
    return BatchSpanProcessor(OTLPSpanExporter())


def _hide_header(record: logging.LogRecord) -> bool:
    """Remove the header from OpenTelemetry's warning about its form, since it may be a secret."""
    record.args = ("(not shown)",)
    return True


class TraceHeaders:
    """ASGI middleware: keep the client's trace headers for the tasks of a request or socket."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] in ("http", "websocket"):
            told = {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in (b"traceparent", b"tracestate") and len(value) <= _STATE_BYTES
            }
            _headers.set(told)
        await self._app(scope, receive, send)
