"""Spans of times: what a context's trace is written with. Times are monotonic until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streaming.window import DecodeWindow

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, str | int | float | bool]


class CodecTimes(NamedTuple):
    """A window's answer came at ``at``; the other times are the worker's own."""

    at: float
    queue_s: float
    decode_s: float
    batch: int


@dataclass(slots=True)
class WindowTimes:
    """A window that the codec was asked for, and its answer."""

    window: DecodeWindow
    asked_at: float
    codec: CodecTimes | None = None


@dataclass(slots=True)
class UtteranceTimes:
    """What is known of an utterance that the talker was asked for. ``text_at``: its first text
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
    window, codec = asked.window, asked.codec
    if codec is None:
        write.span("tts.codec.queue", asked.asked_at, end, parent=parent, cut=cut)
        return
    begun = max(asked.asked_at, codec.at - codec.decode_s)
    queued = max(asked.asked_at, begun - codec.queue_s)
    write.span("tts.codec.queue", queued, begun, parent=parent)
    figures = {
        "tts.frames": window.codes.shape[1],
        "tts.new_frames": window.new_frames,
        "tts.batch": codec.batch,
    }
    write.span("tts.codec.decode", begun, codec.at, figures, parent=parent)
