"""Metrics of the service's current state, read when they are scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.runtime import Runtime

#: A metric's name, text and value, if it has one.
_Gauge = tuple[str, str, float | None]
_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
#: A metric's kind, name and text, its label, and the value of each series.
_Labelled = tuple[_Family, str, str, str, Mapping[str, float]]


class RuntimeCollector(Collector):
    """Exports the current state of the service, on the thread of the scrape."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        for name, text, value in (*self._status(), *self._pace()):
            yield GaugeMetricFamily(name, text, value=value)
        for kind, name, text, label, series in (*self._workers(), *self._tenants()):
            family = kind(name, text, labels=(label,))
            for labelled, figure in series.items():
                family.add_metric([labelled], figure)
            yield family
        yield CounterMetricFamily(
            "tts_codec_takeovers",
            "How often a spare codec worker went on where one had died.",
            value=self._runtime.engines.codec.takeovers,
        )

    def _status(self) -> tuple[_Gauge, ...]:
        runtime, authority = self._runtime, self._runtime.authority
        try:
            tasks = len(asyncio.all_tasks())
        except RuntimeError:  # not on the loop's thread
            tasks = 0
        sockets = "Open WebSockets, HTTP speech responses, and voices being added."
        admitted = "Contexts that this server admits."
        current = "1 unless the file of keys could not be used when it was read last."
        expires = "When the TLS certificate that is used expires, since 1970."
        expiry = runtime.metrics.certificate_expiry()
        return (
            ("tts_ready", "1 while new contexts are served.", runtime.lifecycle.is_ready),
            ("tts_draining", "1 while draining.", runtime.lifecycle.is_draining),
            ("tts_connections_active", sockets, runtime.lifecycle.connections),
            ("tts_contexts_active", "Open contexts.", runtime.admission.active),
            ("tts_capacity_contexts", admitted, runtime.admission.capacity),
            ("tts_codec_windows", "Windows that the codec has.", runtime.engines.codec.outstanding),
            ("tts_codec_workers", "Codec workers that decode.", runtime.engines.codec.workers),
            ("tts_event_loop_tasks", "Tasks of the gateway's event loop.", tasks),
            ("tts_api_keys", "API keys that are valid now.", authority.key_count),
            ("tts_api_keys_current", current, authority.is_current),
            ("tts_tls_certificate_expiry_timestamp_seconds", expires, expiry),
        )

    def _pace(self) -> tuple[_Gauge, ...]:
        """The bounds that the chunk schedule uses; see streaming.chunk_schedule."""
        if not self._runtime.pace.has_begun:
            return ()
        pace, frame_s = self._runtime.pace.bounds(), self._runtime.engines.codec.spec.frame_s
        fixed, per_frame = (
            "A window's decoding, however long.",
            "Its decoding per frame, beside that.",
        )
        return (
            ("tts_frame_seconds", "Audio per frame, and so per row.", frame_s),
            ("tts_pace_row_seconds", "Seconds per row of one stream.", pace.row_s),
            ("tts_pace_burst_seconds", "How late its rows may be beside that.", pace.burst_s),
            ("tts_pace_codec_queue_seconds", "A window's wait for the codec.", pace.wait_s),
            ("tts_pace_decode_fixed_seconds", fixed, pace.decode_fixed_s),
            ("tts_pace_decode_frame_seconds", per_frame, pace.decode_frame_s),
        )

    def _workers(self) -> tuple[_Labelled, ...]:
        talker, codec = self._runtime.engines.talker, self._runtime.engines.codec
        working = min(talker.live, talker.outstanding)
        requests = {"working": working, "waiting": talker.outstanding - working}
        up = {"talker": talker.is_ready, "codec": codec.is_ready}
        if codec.has_spare_ready is not None:
            up["codec_spare"] = codec.has_spare_ready
        restarts = {"talker": talker.restarts, "codec": codec.restarts}
        again = "How often the worker was started again."
        could = "Contexts that could be admitted by each limit; the smallest binds."
        limits = self._runtime.admission.limits()
        has = "Utterances that the talker has."
        failed = "Utterances that the talker gave up."
        return (
            (GaugeMetricFamily, "tts_talker_requests", has, "state", requests),
            (CounterMetricFamily, "tts_talker_failures", failed, "reason", talker.failures),
            (GaugeMetricFamily, "tts_worker_up", "1 while the worker takes work.", "worker", up),
            (CounterMetricFamily, "tts_worker_restarts", again, "worker", restarts),
            (GaugeMetricFamily, "tts_capacity_limit_contexts", could, "limit", limits),
        )

    def _tenants(self) -> Iterator[_Labelled]:
        tenants = dict(self._runtime.accounts.tenants())
        for kind, name, text, figure in (
            (GaugeMetricFamily, "contexts_active", "A tenant's open contexts.", "contexts"),
            (GaugeMetricFamily, "connections_active", "A tenant's open WebSockets.", "connections"),
            (CounterMetricFamily, "characters", "A tenant's text taken.", "characters"),
            (CounterMetricFamily, "refusals", "Refusals by a tenant's limits.", "refusals"),
        ):
            series = {tenant: getattr(account, figure) for tenant, account in tenants.items()}
            yield kind, f"tts_tenant_{name}", text, "tenant", series
