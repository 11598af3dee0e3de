"""How long the talker process has been down, and what its clients are told meanwhile."""

from __future__ import annotations

import time

from streaming.errors import BackendError, ErrorCode

RETRY_AFTER_MS = 2000


class Downtime:
    """Times the process's starts, the first one included."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._start_s: float | None = None

    def begin(self) -> None:
        """The process is down, or being started for the first time."""
        self._since = time.monotonic()

    def end(self) -> None:
        """The process is up."""
        if self._since is not None:
            self._start_s = time.monotonic() - self._since
            self._since = None

    def error(self) -> BackendError:
        """The retry hint is what is left of a start as long as the last one."""
        hint = RETRY_AFTER_MS
        if self._start_s is not None and self._since is not None:
            left = self._start_s - (time.monotonic() - self._since)
            hint = max(hint // 4, int(left * 1000))
        return BackendError(
            ErrorCode.ENGINE_RESTARTING,
            "The speech engine is restarting; try again.",
            retry_after_ms=hint,
        )
