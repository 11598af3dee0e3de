"""The cache of the states of streams, for a decoder that continues from them.

Streams take turns, so the state that was used last is the one that is needed last. While there are
more streams than places, dropping the least recently used state would drop the one that is needed
next, and every window would miss. So the most recently used one is dropped: of N + 1 streams that
take turns in N places, one in N windows misses, of another stream each time. States of streams that
have ended without notice are recognised by their age, and are dropped first.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from streaming.lru_cache import LruCache

#: A state that was not used while so many times the number of states were written is left over: its
#: stream does not take turns any more.
_ROUNDS = 2


class Sized(Protocol):
    """What can be cached."""

    @property
    def size_bytes(self) -> int:
        """Memory in use, in bytes."""


V = TypeVar("V", bound=Sized)


class StateCache(LruCache[bytes, V]):
    """States by key, at most ``max_bytes`` in all. ``hits`` and ``misses`` count calls of ``find``
    with and without a result.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, lambda state: state.size_bytes)
        self.hits = 0
        self.misses = 0
        #: Number of states written so far, and when each was used last, by that number.
        self._written = 0
        self._used_at: dict[bytes, int] = {}
        #: States that were recomputed for the batch that is decoded next, beyond ``max_bytes``.
        self._held: dict[bytes, V] = {}
        #: Whether it was decoded since.
        self._is_decoded = False

    @property
    def max_bytes(self) -> int:
        """Memory for states."""
        return self._limit

    @max_bytes.setter
    def max_bytes(self, limit: int) -> None:
        self._limit = limit

    def find(self, key: bytes) -> V | None:
        """Return a state; None if there is none."""
        state = self._held[key] if key in self._held else self.get(key)
        if key in self:
            self._used_at[key] = self._written
        self.hits += state is not None
        self.misses += state is None
        return state

    def has(self, key: bytes) -> bool:
        """Whether ``find`` would find a state, before a batch is decoded. A miss is counted."""
        if self._is_decoded:  # what is held belongs to the batch before
            self._held.clear()
            self._is_decoded = False
        found = key in self._held or key in self
        self.misses += not found
        return found

    def hold(self, key: bytes, state: V) -> None:
        """Keep a recomputed state, which ``has`` did not find, for the batch that is decoded next:
        it may not displace that of another window in the batch, nor be displaced by it.
        """
        self._held[key] = state

    def end_batch(self) -> None:
        """Note that a batch was decoded: what is held for it is dropped before the next one."""
        self._is_decoded = True

    def __setitem__(self, key: bytes, state: V) -> None:
        self._written += 1
        self.pop(key, None)
        if state.size_bytes > self._limit:
            return
        while self.total_size + state.size_bytes > self._limit:
            del self[self._least_needed()]
        super().__setitem__(key, state)
        self._used_at[key] = self._written

    def __delitem__(self, key: bytes) -> None:
        super().__delitem__(key)
        self._used_at.pop(key, None)

    def _least_needed(self) -> bytes:
        oldest = next(iter(self._entries))
        is_left_over = self._written - self._used_at[oldest] > _ROUNDS * len(self)
        return oldest if is_left_over else next(reversed(self._entries))
