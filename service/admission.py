"""Who may speak now: as many contexts as the machine was measured to carry, under a ceiling."""

from __future__ import annotations

import time

from streaming.capacity import Capacity
from streaming.departures import Departures
from streaming.errors import CapacityError, ErrorCode

_LEAST_HINT_MS = 50


class Admission:
    """Refuses at once what is beyond the capacity; nothing is ever queued.

    ``ceiling`` is the most that is ever admitted. With ``measured`` a context is admitted only
    if it and all that are open are expected to get their audio faster than it is heard. The
    retry hint says when a place is likely to come free (streaming.departures).
    """

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.measured: Capacity | None = None
        #: When each place was taken, and how many times as fast its audio is heard.
        self._open: list[tuple[float, float]] = []
        self._departures = Departures()

    @property
    def active(self) -> int:
        """Places that are taken."""
        return len(self._open)

    @property
    def capacity(self) -> int:
        """How many contexts may be open just now, with those that are."""
        return self._places([speed for _, speed in self._open] or [1.0], time.monotonic())

    def enter(self, speed: float = 1.0) -> None:
        """Take a place for audio heard ``speed`` times as fast. Raises CapacityError."""
        now = time.monotonic()
        places = self._places([speed, *(other for _, other in self._open)], now)
        if self._open and self.active >= places:
            ages_s = [now - began for began, _ in self._open]
            hint_s = self._departures.wait_s(ages_s, self.active + 1 - places, now)
            raise CapacityError(
                ErrorCode.OVERLOADED,
                "The server is at its capacity.",
                retry_after_ms=max(_LEAST_HINT_MS, round(1000 * hint_s)),
            )
        self._open.append((now, speed))

    def leave(self, lasted_s: float, speed: float = 1.0) -> None:
        """Give a place back after ``lasted_s`` seconds. Places have no names: the one that was
        taken nearest to then, at that speed, is the one.
        """
        if not self._open:
            raise RuntimeError("more contexts left than entered")
        began = time.monotonic() - lasted_s
        left = min(self._open, key=lambda place: (place[1] != speed, abs(place[0] - began)))
        self._open.remove(left)
        self._departures.on_left(lasted_s)

    def _places(self, speeds: list[float], now: float) -> int:
        if self.measured is None:
            return self.ceiling
        # Slow speech is made no slower: the talker gives every stream the same.
        fastest, mean = max(1.0, *speeds), max(1.0, sum(speeds) / len(speeds))
        return min(self.ceiling, self.measured.places(now, fastest, mean))
