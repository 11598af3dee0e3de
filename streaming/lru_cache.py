"""A cache of a bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(MutableMapping[K, V]):
    """A mapping that drops its least recently used entries when it would exceed its limit.

    Reading or writing an entry uses it, ``in`` does not. Iteration begins with the least recently
    used entry.

    Args:
        limit: The maximum sum of the entries' sizes. A value that is larger is not kept.
        size: The size of a value; by default 1, so that ``limit`` is a number of entries.
    """

    def __init__(self, limit: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self._limit = limit
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        #: Sum of the entries' sizes.
        self.total_size = 0

    def __getitem__(self, key: K) -> V:
        value = self._entries[key]
        self._entries.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        if self._size(value) > self._limit:
            return
        self._entries[key] = value
        self.total_size += self._size(value)
        while self.total_size > self._limit:
            del self[next(iter(self._entries))]

    def __delitem__(self, key: K) -> None:
        self.total_size -= self._size(self._entries.pop(key))

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._entries))  # reading a value while iterating changes the order

    def __len__(self) -> int:
        return len(self._entries)
