"""Processes of a run: processor time and memory of the server, and our limit of open files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Sequence

import psutil
from msgspec import Struct

_EVERY_S = 0.5


class Sample(Struct, frozen=True):
    """At ``at_s`` (monotonic): processor seconds used so far, and resident bytes."""

    at_s: float
    cpu_s: float
    rss_bytes: int


class ProcessStats(Struct, frozen=True):
    """Over a window: the mean number of busy cores, and the maximum resident memory."""

    cores: float
    rss_mib: float


def listener_pid(port: int) -> int | None:
    """Return the process that listens on a local port; None if that is not visible."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr.port == port and connection.pid:
                return int(connection.pid)
    return None


class Meter:
    """Samples a process tree twice a second. ``pid`` None: it samples nothing."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._spent: dict[tuple[int, float], float] = {}  # also of ended children
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Sample until cancelled, or until the process is gone."""
        while self._pid is not None:
            try:
                self.samples.append(self.sample(self._pid))
            except psutil.Error:
                return
            await asyncio.sleep(_EVERY_S)

    def sample(self, pid: int) -> Sample:
        """Sample the tree. Raises psutil.Error if its root is gone."""
        root = psutil.Process(pid)
        rss = 0
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                with process.oneshot():
                    times = process.cpu_times()
                    rss += process.memory_info().rss
                    key = process.pid, process.create_time()
                self._spent[key] = times.user + times.system
        return Sample(time.monotonic(), sum(self._spent.values()), rss)


def usage(samples: Sequence[Sample], begin_s: float, end_s: float) -> ProcessStats | None:
    """Summarise the samples within ``[begin_s, end_s]``; None with fewer than two."""
    within = [sample for sample in samples if begin_s <= sample.at_s <= end_s]
    if len(within) < 2:
        return None
    first, last = within[0], within[-1]
    cores = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
    return ProcessStats(cores, max(sample.rss_bytes for sample in within) / 2**20)


def load_average() -> float:
    """Mean number of runnable processes over the last minute, which shows other work on the
    machine.
    """
    return os.getloadavg()[0]


def allow_open_files() -> None:
    """Raise the limit of open files to this user's maximum, since a load needs more than 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
