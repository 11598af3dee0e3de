"""The processor cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores, at least 1: those of the process's affinity, at most as many as
    the quota of its control group is worth, rounded down. ``cgroup``: where control groups are
    mounted. Inside a container this is the container's own.
    """
    cores = len(os.sched_getaffinity(0))
    if (quota := _quota(cgroup)) is not None:
        cores = min(cores, int(quota))
    return max(1, cores)


def _quota(cgroup: Path) -> float | None:
    """Return the quota in cores, of version 2 (cpu.max) or 1 (cpu.cfs_*); None without one."""
    try:
        if (file := cgroup / "cpu.max").is_file():
            quota, period = file.read_text().split()
        else:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        found = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
    return found if found > 0 else None
