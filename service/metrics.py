"""Prometheus metrics.

Labels come from closed lists only, never from clients. :class:`Metrics` holds what is counted as it
happens; the collector reads the rest whenever the metrics are scraped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import prometheus_client as prometheus
from prometheus_client import Counter, Histogram

from service.protocols import PROTOCOLS
from streaming.errors import ErrorCode
from streaming.events import Cancelled
from streaming.report import ContextReport

#: Every value of ``outcome``, ``stage``, ``cause``, ``result`` and of a WebSocket's close code.
OUTCOMES = ("complete", "length", "cancelled", "error")
STAGES = ("unsent", "unheard")
CUT_CAUSES = ("text", "client", "model")
HOLD_RESULTS = ("served", "refused")
CLOSE_CODES = ("1000", "1001", "1002", "1003", "1007", "1008", "1009", "1011", "1013")

_TTFA = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_RTF = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 2, 5)
_BATCH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class Metrics:
    """One gateway's metrics, in a registry separate from vLLM's."""

    def __init__(self, version: str, model: str) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        info = prometheus.Info("tts_build", "What is running.", registry=self.registry)
        info.info({"version": version, "model": model})
        # Quality for listeners.
        self.ttfa = self._histogram(
            "tts_time_to_first_audio_seconds",
            "From complete text to the first audible sample sent.",
            _TTFA,
        )
        self.queue = self._histogram(
            "tts_queue_seconds", "From complete text to the talker's start.", _SHORT
        )
        self.gap = self._histogram(
            "tts_inter_chunk_gap_seconds", "Between two chunks of one context.", _TTFA
        )
        self.leading_silence = self._histogram(
            "tts_leading_silence_seconds",
            "Per context that spoke: silence sent before its first audible sample.",
            _SHORT,
        )
        self.underrun = self._histogram(
            "tts_underrun_seconds",
            "Per context that spoke: how long its listener was without audio.",
            _SHORT,
        )
        self.underruns = self._counter(
            "tts_underruns_total", "Times that a listener ran dry.", protocol=PROTOCOLS
        )
        self.gap_free = self._counter(
            "tts_contexts_gap_free_total",
            "Contexts that spoke without one underrun.",
            protocol=PROTOCOLS,
        )
        self.cancel = self._histogram(
            "tts_cancel_ack_seconds", "From a cancel's arrival to its answer's writing.", _SHORT
        )
        codes = tuple(code.value for code in ErrorCode)
        self.errors = self._counter("tts_errors_total", "Errors told to clients.", code=codes)
        # Work for clients.
        self.contexts = self._counter(
            "tts_contexts_total", "Contexts closed.", protocol=PROTOCOLS, outcome=OUTCOMES
        )
        self.cut_utterances = self._counter(
            "tts_utterances_cut_total",
            "Utterances cut at a maximum number of rows, by the limit that they reached.",
            cause=CUT_CAUSES,
        )
        self.ended_by_silence = self._counter(
            "tts_utterances_ended_by_silence_total",
            "Utterances ended because they stayed silent after their text.",
        )
        self.cut_by_drain = self._counter(
            "tts_contexts_cut_by_drain_total",
            "Contexts ended unfinished by the end of the server or socket.",
        )
        self.audio = self._counter("tts_audio_seconds_total", "Audio sent.", protocol=PROTOCOLS)
        self.wasted = self._counter(
            "tts_wasted_audio_seconds_total",
            "Audio generated and never sent, or sent and cancelled before it was played.",
            protocol=PROTOCOLS,
            stage=STAGES,
        )
        self.characters = self._counter("tts_characters_total", "Text taken.", protocol=PROTOCOLS)
        self.opened = self._counter(
            "tts_connections_total", "WebSockets accepted and HTTP speech responses begun."
        )
        self.held = self._counter(
            "tts_clients_held_total",
            "Handshakes and requests held back while the engines started, and what came of it.",
            result=HOLD_RESULTS,
        )
        self.closes = self._counter(
            "tts_ws_close_total", "WebSockets ended, by the server's close code.", code=CLOSE_CODES
        )
        # Talker, codec and event loop.
        self.rtf = self._histogram(
            "tts_real_time_factor", "Talker seconds per second of audio, per context.", _RTF
        )
        self.codec_batch = self._histogram(
            "tts_codec_batch_size", "Windows decoded together.", _BATCH, protocols=()
        )
        self.codec_decode = self._histogram(
            "tts_codec_decode_seconds", "One window's decoding.", _SHORT, protocols=()
        )
        self.codec_queue = self._histogram(
            "tts_codec_queue_seconds", "One window's wait for the codec.", _SHORT, protocols=()
        )
        #: Returns when the TLS certificate expires, in seconds since 1970; None without TLS.
        self.certificate_expiry: Callable[[], float | None] = lambda: None
        late = "How late the event loop rings a timer."
        self.loop_lag = self._histogram("tts_event_loop_lag_seconds", late, _SHORT, protocols=())
        self.log_lines_dropped = self._counter(
            "tts_log_lines_dropped_total", "Log lines that could not be written."
        )

    def _histogram(
        self, name: str, text: str, buckets: Sequence[float], protocols: Sequence[str] = PROTOCOLS
    ) -> Histogram:
        """Create a histogram with all its series; see ``_counter``."""
        labels = ("protocol",) if protocols else ()
        histogram = Histogram(name, text, labels, buckets=buckets, registry=self.registry)
        for protocol in protocols:
            histogram.labels(protocol)
        return histogram

    def _counter(self, name: str, text: str, **values: Sequence[str]) -> Counter:
        """Create a counter with all its series, so that the first increase of each is seen."""
        counter = Counter(name, text, tuple(values), registry=self.registry)
        for series in itertools.product(*values.values()) if values else ():
            counter.labels(*series)
        return counter

    def on_context_closed(
        self,
        protocol: str,
        outcome: str,
        report: ContextReport,
        cancelled: Cancelled | None = None,
    ) -> None:
        """Count a context that has ended. ``cancelled`` has the audio that was sent and played."""
        self.contexts.labels(protocol, outcome).inc()
        sent_s = report.audio_s
        if cancelled is not None:
            sent_s = cancelled.sent_s
            unheard_s = max(0.0, sent_s - cancelled.played_s)
            self.wasted.labels(protocol, "unheard").inc(unheard_s)
        self.audio.labels(protocol).inc(sent_s)
        self.wasted.labels(protocol, "unsent").inc(max(0.0, report.generated_s - sent_s))
        self.characters.labels(protocol).inc(report.characters)
        if report.ttfa_s is not None:
            self.ttfa.labels(protocol).observe(report.ttfa_s)
            if report.leading_silence_s is not None:
                self.leading_silence.labels(protocol).observe(report.leading_silence_s)
            self.underrun.labels(protocol).observe(report.underrun_s)
            self.underruns.labels(protocol).inc(report.underruns)
            self.gap_free.labels(protocol).inc(not report.underruns)
        if report.queue_s is not None:
            self.queue.labels(protocol).observe(report.queue_s)
        if report.rtf is not None:
            self.rtf.labels(protocol).observe(report.rtf)

    def render(self) -> bytes:
        """Return the metrics in the exposition format."""
        return prometheus.generate_latest(self.registry)
