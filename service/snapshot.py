"""What is read, rather than counted, whenever the metrics are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streaming.bounds import PaceBounds


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine's child process. ``restarts`` count since the gateway's start."""

    is_up: bool
    restarts: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The service at one moment.

    ``talker_working`` utterances are in the talker's batch, ``talker_waiting`` ones are queued
    or held back; ``codec_windows`` wait for an answer. ``pace`` and ``frame_s`` are None until
    the engines have started.
    """

    ready: bool
    draining: bool
    connections: int
    contexts: int
    capacity: int
    workers: Mapping[str, Worker]
    talker_working: int
    talker_waiting: int
    codec_windows: int
    pace: PaceBounds | None
    frame_s: float | None


class SnapshotCollector(Collector):
    """Exports a Snapshot. ``read`` runs on whatever thread asks for the metrics."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Nothing is read when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        now = self._read()
        yield _gauge("tts_ready", "1 while new contexts are served.", now.ready)
        yield _gauge("tts_draining", "1 once the server is shutting down.", now.draining)
        yield _gauge(
            "tts_connections_active",
            "Open WebSockets and HTTP speech responses.",
            now.connections,
        )
        yield _gauge("tts_contexts_active", "Open contexts.", now.contexts)
        yield _gauge("tts_capacity_contexts", "Contexts that this server admits.", now.capacity)
        yield from _workers(now.workers)
        talker = GaugeMetricFamily(
            "tts_talker_requests", "Utterances that the talker has.", labels=["state"]
        )
        talker.add_metric(["working"], now.talker_working)
        talker.add_metric(["waiting"], now.talker_waiting)
        yield talker
        yield _gauge("tts_codec_windows", "Windows that the codec has.", now.codec_windows)
        yield _gauge("tts_event_loop_tasks", "Tasks of the gateway's event loop.", _tasks())
        if now.pace is not None and now.frame_s is not None:
            yield from _pace(now.pace, now.frame_s)


def _tasks() -> int:
    """Of the running loop; 0 where the reader is on another thread."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _workers(workers: Mapping[str, Worker]) -> Iterator[Metric]:
    up = GaugeMetricFamily("tts_worker_up", "1 while the worker takes work.", labels=["worker"])
    restarts = CounterMetricFamily(
        "tts_worker_restarts", "How often the worker was started again.", labels=["worker"]
    )
    for name, worker in workers.items():
        up.add_metric([name], worker.is_up)
        restarts.add_metric([name], worker.restarts)
    yield up
    yield restarts


def _pace(pace: PaceBounds, frame_s: float) -> Iterator[Metric]:
    """What the chunk schedule reckons with just now; see streaming.bounds."""
    yield _gauge("tts_frame_seconds", "Audio per frame, and so per row.", frame_s)
    yield _gauge("tts_pace_row_seconds", "Seconds per row of one stream.", pace.row_s)
    yield _gauge("tts_pace_burst_seconds", "How late its rows may be beside that.", pace.burst_s)
    yield _gauge("tts_pace_codec_queue_seconds", "A window's wait for the codec.", pace.wait_s)
    yield _gauge(
        "tts_pace_decode_fixed_seconds", "A window's decoding, however long.", pace.decode_fixed_s
    )
    yield _gauge(
        "tts_pace_decode_frame_seconds", "Its decoding per frame, beside that.", pace.decode_frame_s
    )
