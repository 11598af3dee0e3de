"""The Prometheus metrics. Labels come from closed lists only, never from what a client sends."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)

from streaming.errors import ErrorCode
from streaming.report import ContextReport

_TTFA = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_RTF = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 2, 5)
_BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class Metrics:
    """One gateway's metrics in a registry of their own (vLLM keeps its own apart)."""

    def __init__(self, version: str, model: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        info = Info("tts_build", "What is running.", registry=registry)
        info.info({"version": version, "model": model})

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["protocol"], buckets=buckets, registry=registry)

        self.ttfa = histogram(
            "tts_time_to_first_audio_seconds",
            "From complete text to the first audible sample sent.",
            _TTFA,
        )
        self.queue = histogram(
            "tts_queue_seconds", "From complete text to the talker's start.", _SHORT
        )
        self.gap = histogram(
            "tts_inter_chunk_gap_seconds", "Between two chunks of one context.", _TTFA
        )
        self.underrun = histogram(
            "tts_underrun_seconds", "Per context: how long its listener was without audio.", _SHORT
        )
        self.rtf = histogram(
            "tts_real_time_factor", "Talker seconds per second of audio, per context.", _RTF
        )
        self.cancel = histogram(
            "tts_cancel_ack_seconds", "From a cancel's arrival to its answer's writing.", _SHORT
        )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.audio = counter("tts_audio_seconds_total", "Audio sent.", "protocol")
        self.characters = counter("tts_characters_total", "Text taken.", "protocol")
        self.wasted = counter(
            "tts_wasted_audio_seconds_total", "Audio generated and never sent.", "protocol"
        )
        self.contexts = counter("tts_contexts_total", "Contexts closed.", "protocol", "outcome")
        self.errors = counter("tts_errors_total", "Errors told to clients.", "code")
        self.closes = counter("tts_ws_close_total", "WebSockets closed by the server.", "code")
        self.restarts = Gauge(
            "tts_worker_restarts", "Restarts since the start.", ["worker"], registry=registry
        )
        self.connections = Gauge("tts_connections_active", "Open WebSockets.", registry=registry)
        self.active = Gauge("tts_contexts_active", "Open contexts.", registry=registry)
        self.capacity = Gauge(
            "tts_capacity_contexts", "Contexts this server admits.", registry=registry
        )
        self.codec_batch = Histogram(
            "tts_codec_batch_size", "Windows decoded together.", buckets=_BATCH, registry=registry
        )
        self.codec_decode = Histogram(
            "tts_codec_decode_seconds", "One batch's decoding.", buckets=_SHORT, registry=registry
        )
        self.codec_queue = Histogram(
            "tts_codec_queue_seconds", "A window's wait.", buckets=_SHORT, registry=registry
        )
        for code in ErrorCode:
            self.errors.labels(code.value)

    def watch(self, active: Callable[[], float], capacity: Callable[[], float]) -> None:
        """Read the two gauges of admission when they are asked for."""
        self.active.set_function(active)
        self.capacity.set_function(capacity)

    def on_error(self, code: ErrorCode) -> None:
        """A client was told of an error."""
        self.errors.labels(code.value).inc()

    def on_context_closed(self, protocol: str, outcome: str, report: ContextReport) -> None:
        """A context has ended; ``outcome`` is complete, length, cancelled or error."""
        self.contexts.labels(protocol, outcome).inc()
        self.audio.labels(protocol).inc(report.audio_s)
        self.characters.labels(protocol).inc(report.characters)
        self.wasted.labels(protocol).inc(max(0.0, report.generated_s - report.audio_s))
        if report.ttfa_s is not None:
            self.ttfa.labels(protocol).observe(report.ttfa_s)
            self.underrun.labels(protocol).observe(report.underrun_s)
        if report.queue_s is not None:
            self.queue.labels(protocol).observe(report.queue_s)
        if report.rtf is not None:
            self.rtf.labels(protocol).observe(report.rtf)

    def render(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
