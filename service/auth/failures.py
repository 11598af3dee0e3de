"""Who sent wrong keys lately. No I/O; ``now`` is an argument.

Keys cannot be guessed; this keeps a client that tries for ever, or a misconfigured fleet, from
filling the logs, and tells it to slow down. A right key is served all the same: where many
clients stand behind one address, one of them must not lock out the others.
"""

from __future__ import annotations

from collections import OrderedDict

_ADDRESSES = 4096
_MINUTE_S = 60.0


class Failures:
    """Counts by address, of which the last 4096 are remembered."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def add(self, address: str, now: float) -> float:
        """A wrong key came. Seconds that this address should wait; 0 while it need not."""
        spent, at = self._spent.pop(address, (0.0, now))
        spent = max(0.0, spent - max(0.0, now - at) * self._per_minute / _MINUTE_S)
        over = spent + 1 > self._per_minute
        self._spent[address] = (spent if over else spent + 1, now)
        while len(self._spent) > _ADDRESSES:
            self._spent.popitem(last=False)
        return (spent + 1 - self._per_minute) * _MINUTE_S / self._per_minute if over else 0.0
