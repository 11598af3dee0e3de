"""What has come for a context and was not read yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Unread(Generic[T]):
    """A queue with one reader and an end. It holds ``most`` items, if whoever fills it waits for
    room; nothing here waits to be put in, so an end is known at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[T] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()  # for the reader
        self._taken = asyncio.Event()  # for who fills it
        self.is_awaited = False  #: the reader has nothing to read

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """There is no room for another item."""
        return len(self._items) >= self._most

    async def until_room(self) -> None:
        """Wait for the reader."""
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    def put(self, item: T) -> None:
        """One more."""
        self._items.append(item)
        self._changed.set()

    def end(self, error: BaseException | None = None) -> None:
        """No more: the reader gets what is there, and then ``error``. The first end counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.set()

    def clear(self) -> None:
        """Drop what waits; how it ended is left for the reader."""
        self._items.clear()
        self._taken.set()

    async def get(self) -> T | None:
        """The next item; None at the end. Raises what it was ended with."""
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
            raise self._error
        return None
