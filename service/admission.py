"""Who may speak now: a count of contexts against what the machine can carry."""

from __future__ import annotations

from streaming.errors import CapacityError, ErrorCode

_SMOOTHING = 0.2


class Admission:
    """Refuses at once what is beyond ``capacity``; nothing is ever queued.

    The retry hint is the mean time until one of the contexts that run now will have ended,
    from the measured length of recent ones.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.active = 0
        self._mean_s = 4.0

    def enter(self) -> None:
        """Take a place. Raises CapacityError."""
        if self.active >= self.capacity:
            hint_s = self._mean_s / self.capacity
            raise CapacityError(
                ErrorCode.OVERLOADED,
                "The server is at its capacity.",
                retry_after_ms=max(50, round(1000 * hint_s)),
            )
        self.active += 1

    def leave(self, lasted_s: float) -> None:
        """Give a place back after ``lasted_s`` seconds."""
        if self.active <= 0:
            raise RuntimeError("more contexts left than entered")
        self.active -= 1
        self._mean_s += _SMOOTHING * (lasted_s - self._mean_s)
