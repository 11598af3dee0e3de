"""When a place is likely to come free: from how long others stayed, and how long these have."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

#: How many stays are remembered; how many promises are kept at once.
_MEMORY, _PROMISES = 64, 256
#: What is believed of a stay before one was seen, and of the shortest that is left of one.
_GUESS_S, _LEAST_S = 4.0, 0.05


class Departures:
    """What is left of a stay is the mean of what was left, at its age, of those that lasted
    longer. Of several stays the first ends sooner than any of them is expected to: their
    chances of ending add up.

    Each one who asks is told a later time than those before it whose time has not come, so that
    they do not all come at once for a single place; but nobody waits for more than one change of
    all places.
    """

    def __init__(self) -> None:
        self._stays_s: deque[float] = deque(maxlen=_MEMORY)
        self._promised: deque[float] = deque(maxlen=_PROMISES)

    def on_left(self, stayed_s: float) -> None:
        """Somebody left."""
        self._stays_s.append(stayed_s)

    def left_s(self, age_s: float) -> float:
        """What is expected to be left of a stay that has lasted for ``age_s``."""
        longer = [stay - age_s for stay in self._stays_s if stay > age_s]
        if longer:
            return max(_LEAST_S, sum(longer) / len(longer))
        if self._stays_s:  # longer than any other: as long again as it is old, is as good a guess
            return max(_LEAST_S, age_s)
        return _GUESS_S

    def wait_s(self, ages_s: Sequence[float], too_many: int, now: float) -> float:
        """When to come again, while stays of these ages last and ``too_many`` of them must end
        before there is a place.
        """
        while self._promised and self._promised[0] <= now:
            self._promised.popleft()
        chance = sum(1 / self.left_s(age) for age in ages_s) or 1 / _GUESS_S
        before = min(sum(at > now for at in self._promised), len(ages_s))
        wait_s = max(_LEAST_S, (max(1, too_many) + before) / chance)
        self._promised.append(now + wait_s)
        return wait_s
