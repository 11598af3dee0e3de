"""OpenTelemetry traces of contexts, utterance by utterance.

:class:`ContextTrace` notes times as a context's events pass its driver; spans are written from
them when an utterance is over, so that nothing waits for tracing.
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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from streaming.events import (
    AudioDecoded,
    Cancelled,
    Command,
    Decode,
    Done,
    Event,
    NothingToSay,
    RowsReceived,
    SendAudio,
    StartTalker,
    StopTalker,
    TextAppended,
)
from streaming.ports import Arrival, DecodeStats
from streaming.report import ContextReport
from streaming.window import DecodeWindow

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, Tracer


log = logging.getLogger(__name__)
Attributes = Mapping[str, str | int | float | bool]


@dataclass(slots=True)
class WindowTimes:
    """A window that the codec was asked for, and its answer: the times in ``stats`` are the
    worker's own.
    """

    window: DecodeWindow
    asked_at: float
    answered_at: float = 0.0
    stats: DecodeStats | None = None


@dataclass(slots=True)
class UtteranceTimes:
    """The times of an utterance that the talker was asked for. ``text_at``: its first text
    came; ``queued_at``: its text was complete; ``started_at``: the talker was asked.
    """

    index: int
    characters: int
    text_at: float
    queued_at: float
    started_at: float
    first_row_at: float | None = None
    last_row_at: float = 0.0
    rows: int = 0
    is_generated: bool = False
    is_empty: bool = False
    decoding: WindowTimes | None = None
    windows: list[WindowTimes] = field(default_factory=list)
    window_count: int = 0
    sent_from: float | None = None
    sent_to: float = 0.0
    samples: int = 0


class Recorder:
    """Writes the spans under a context's own. ``skew_ns``: wall clock less monotonic clock."""

    def __init__(self, tracer: Tracer, root: Span, skew_ns: int) -> None:
        self._tracer, self._root, self._skew_ns = tracer, root, skew_ns

    def span(
        self,
        name: str,
        start: float,
        end: float,
        attributes: Attributes | None = None,
        *,
        parent: Span | None = None,
        cut: str | None = None,
    ) -> Span:
        """A span that is over. ``cut`` says why it did not come to its own end."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        context = set_span_in_context(parent or self._root)
        span = self._tracer.start_span(
            name, context, attributes=attributes, start_time=self._ns(start)
        )
        if cut is not None:
            span.set_status(Status(StatusCode.ERROR, cut))
        span.end(self._ns(max(start, end)))
        return span

    def finish(self, attributes: Attributes, fault: str | None, now: float) -> None:
        """End the context's own span; ``fault`` is an error's code."""
        from opentelemetry.trace import Status, StatusCode

        self._root.set_attributes(attributes)
        if fault is not None:
            self._root.set_attribute("error.type", fault)
            self._root.set_status(Status(StatusCode.ERROR, fault))
        self._root.end(self._ns(now))

    def _ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._skew_ns


def write_utterance(write: Recorder, done: UtteranceTimes, end: float, cut: str | None) -> None:
    """The spans of an utterance that was over at ``end``, or was ``cut`` off then."""
    figures = {
        "tts.utterance": done.index,
        "tts.characters": done.characters,
        "tts.rows": done.rows,
        "tts.windows": done.window_count,
        "tts.samples": done.samples,
    }
    parent = write.span("tts.utterance", done.text_at, end, figures, cut=cut)
    write.span("tts.segment", done.text_at, done.queued_at, parent=parent)
    write.span("tts.talker.wait", done.queued_at, done.started_at, parent=parent)
    if done.is_empty:
        return
    if done.first_row_at is None:
        write.span("tts.talker.first_row", done.started_at, end, parent=parent, cut=cut)
        return
    write.span("tts.talker.first_row", done.started_at, done.first_row_at, parent=parent)
    stopped = None if done.is_generated else cut
    talked = done.last_row_at if stopped is None else end
    rows = {"tts.rows": done.rows}
    write.span("tts.talker.rows", done.first_row_at, talked, rows, parent=parent, cut=stopped)
    for window in done.windows:
        _write_window(write, window, parent, end, cut)
    if done.sent_from is not None:
        sent = {"tts.samples": done.samples}
        write.span("tts.send", done.sent_from, done.sent_to, sent, parent=parent)


def _write_window(
    write: Recorder, asked: WindowTimes, parent: Span, end: float, cut: str | None
) -> None:
    """The worker says how long; when is reckoned back from its answer."""
    window, stats, answered_at = asked.window, asked.stats, asked.answered_at
    if stats is None:
        write.span("tts.codec.queue", asked.asked_at, end, parent=parent, cut=cut)
        return
    begun = max(asked.asked_at, answered_at - stats.decode_s)
    queued = max(asked.asked_at, begun - stats.queue_s)
    write.span("tts.codec.queue", queued, begun, parent=parent)
    figures = {
        "tts.frames": window.codes.shape[1],
        "tts.new_frames": window.new_frames,
        "tts.batch": stats.batch,
    }
    write.span("tts.codec.decode", begun, answered_at, figures, parent=parent)


#: Windows of an utterance that get spans of their own; the last is always among them.
MAX_WINDOWS = 32
#: Pieces of text whose times are kept while the utterances before them are being spoken.
_MAX_TEXTS = 1024


class ContextTrace:
    """One context's trace. An utterance's spans are written when it is over, so no more is kept
    than what is being spoken.
    """

    def __init__(self, recorder: Recorder, now: float) -> None:
        self._recorder = recorder
        self._utterances: dict[int, UtteranceTimes] = {}
        self._texts: deque[float] = deque(maxlen=_MAX_TEXTS)
        self._complete_at = now  # the text of the utterance before
        self._count = 0
        self._is_over = False

    def note(self, event: Event, commands: Sequence[Command], now: float, done_at: float) -> None:
        """An event came at ``now``; at ``done_at`` its commands had been carried out."""
        if self._is_over:
            return
        match event:
            case TextAppended():
                self._texts.append(now)
            case RowsReceived(index, batch):
                self._on_rows(index, batch.came or (Arrival(len(batch.rows), now),), batch.finish)
            case NothingToSay(index):
                self._on_nothing(index, now)
        for command in commands:
            match command:
                case StartTalker():
                    self._start(command, now)
                case StopTalker(index):  # it starts again with more text
                    del self._utterances[index]
                    self._count -= 1
                case Decode(index, window):
                    self._on_decode(index, window, now)
                case SendAudio() if isinstance(event, AudioDecoded):
                    self._on_audio(event, command, now, done_at)
                case Cancelled(report=report):
                    self._end("cancelled", report, None, "cancelled", done_at)
                case Done(reason, report, error):
                    code = None if error is None else error.code.value
                    self._end(reason, report, code, code, done_at)

    def _start(self, command: StartTalker, now: float) -> None:
        """Its text began with the first piece after the text before it was complete; or, if
        there is none, with what that piece left over.
        """
        queued_at = min(command.queued_at, now)
        while self._texts and self._texts[0] <= self._complete_at:
            self._texts.popleft()
        text_at = min(self._texts[0] if self._texts else self._complete_at, queued_at)
        self._complete_at = queued_at
        self._utterances[command.utterance] = UtteranceTimes(
            command.utterance, len(command.text), text_at, queued_at, now
        )
        self._count += 1

    def _on_rows(self, index: int, came: Sequence[Arrival], finish: str | None) -> None:
        utterance = self._utterances.get(index)
        if utterance is None:
            return
        if utterance.first_row_at is None:
            utterance.first_row_at = max(came[0].at, utterance.started_at)
        utterance.last_row_at = max(came[-1].at, utterance.first_row_at)
        utterance.rows += sum(arrival.rows for arrival in came)
        utterance.is_generated = utterance.is_generated or finish is not None

    def _on_nothing(self, index: int, now: float) -> None:
        utterance = self._utterances.pop(index, None)
        if utterance is not None:
            utterance.is_empty = True
            write_utterance(self._recorder, utterance, now, None)

    def _on_decode(self, index: int, window: DecodeWindow, now: float) -> None:
        utterance = self._utterances.get(index)
        if utterance is not None:
            utterance.decoding = WindowTimes(window, now)

    def _on_audio(
        self, decoded: AudioDecoded, audio: SendAudio, now: float, done_at: float
    ) -> None:
        index = decoded.utterance
        utterance = self._utterances.get(index)
        if utterance is None:
            return
        self._end_window(utterance, decoded.stats, now)
        if utterance.sent_from is None:
            utterance.sent_from = now
        utterance.sent_to = done_at
        utterance.samples += len(audio.samples)
        if audio.ends_utterance:
            del self._utterances[index]
            write_utterance(self._recorder, utterance, done_at, None)

    def _end_window(self, utterance: UtteranceTimes, stats: DecodeStats | None, now: float) -> None:
        """``stats`` is None where no answer has come."""
        decoding, utterance.decoding = utterance.decoding, None
        if decoding is None:
            return
        decoding.stats, decoding.answered_at = stats, now
        if len(utterance.windows) == MAX_WINDOWS:
            utterance.windows.pop()
        utterance.windows.append(decoding)
        utterance.window_count += 1

    def _end(
        self, outcome: str, report: ContextReport, fault: str | None, cut: str | None, now: float
    ) -> None:
        """``cut`` is what unfinished spans say of their end."""
        self._is_over = True
        for utterance in self._utterances.values():
            self._end_window(utterance, None, now)
            write_utterance(self._recorder, utterance, now, cut)
        self._utterances.clear()
        figures: dict[str, str | int | float | None] = {
            "tts.outcome": outcome,
            "tts.characters": report.characters,
            "tts.utterances": self._count,
            "tts.audio_s": report.audio_s,
            "tts.generated_s": report.generated_s,
            "tts.ttfa_s": report.ttfa_s,
            "tts.underruns": report.underruns,
            "tts.underrun_s": report.underrun_s,
        }
        known = {name: value for name, value in figures.items() if value is not None}
        self._recorder.finish(known, fault, now)


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
        return ContextTrace(Recorder(self._tracer, span, skew_ns), now)

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
