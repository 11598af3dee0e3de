"""What the operating system allows a process."""

from __future__ import annotations

import resource


def allow_open_files() -> None:
    """As many open files as this user may have: the usual 1024 is less than a load's sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
