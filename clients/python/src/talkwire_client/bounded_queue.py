"""A bounded queue with one reader, one writer and an end."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """A queue of ``max_items`` items, whose writer waits for room with ``wait_for_room``.

    ``put`` and ``end`` never wait, so the reader learns of an end at once.
    """

    def __init__(self, max_items: int) -> None:
        self.max_items = max_items
        self._items: deque[T] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None  # of the error before it is raised here
        self._changed = asyncio.Event()  # for the reader
        self._taken = asyncio.Event()  # for the writer
        self.is_awaited = False  # whether the reader waits for an item

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another item."""
        return len(self._items) >= self.max_items

    async def wait_for_room(self) -> None:
        """Wait until the reader has taken an item, or the queue was cleared."""
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    def put(self, item: T) -> None:
        """Append an item."""
        self._items.append(item)
        self._changed.set()

    def end(self, error: BaseException | None = None) -> None:
        """End the queue: the reader gets the remaining items, then ``error`` or the end.

        Only the first call counts.
        """
        if not self._ended:
            self._ended = True
            self._error = error
            self._traceback = None if error is None else error.__traceback__
            self._changed.set()

    def clear(self) -> None:
        """Drop the remaining items, but keep the end or error."""
        self._items.clear()
        self._taken.set()

    async def get(self) -> T | None:
        """Take the next item.

        Returns:
            The item; None at the end.

        Raises:
            BaseException: The error with which the queue was ended.
        """
        while not self._items and not self._ended:
            self._changed.clear()
            self.is_awaited = True
            try:
                await self._changed.wait()
            finally:
                self.is_awaited = False
        if self._items:
            self._taken.set()
            return self._items.popleft()
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        return None
