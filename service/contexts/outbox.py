"""The outbox of one socket: bounded, ordered, and revocable for a cancel."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple


class Item(NamedTuple):
    """One WebSocket message. Audio, and what goes with it, has its context's handle."""

    data: str | bytes
    handle: int | None = None
    samples: int = 0


class Outbox:
    """A queue with a bound in bytes; writers put without waiting, one reader takes."""

    def __init__(self, max_bytes: int) -> None:
        self._items: deque[Item] = deque()
        #: Bytes that wait.
        self.queued_bytes = 0
        self._max_bytes = max_bytes
        self._changed = asyncio.Event()
        self._closed = False
        self.overflowed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._items

    def put(self, item: Item) -> None:
        """Add one message. Over the bound everything is dropped, and ``overflowed`` is set:
        a stream with a hole is worth nothing. After ``close`` nothing is taken.
        """
        if self._closed or self.overflowed.is_set():
            return
        if self.queued_bytes + len(item.data) > self._max_bytes:
            self._items.clear()
            self.queued_bytes = 0
            self.overflowed.set()
            return
        self._items.append(item)
        self.queued_bytes += len(item.data)
        self._changed.set()

    def drop_audio(self, handle: int) -> int:
        """Take back a context's unwritten audio and what goes with it; return its samples."""
        dropped = sum(item.samples for item in self._items if item.handle == handle)
        self._items = deque(item for item in self._items if item.handle != handle)
        self.queued_bytes = sum(len(item.data) for item in self._items)
        return dropped

    def close(self, last_words: Item | None = None) -> None:
        """Let the reader have what is there, ``last_words``, and then the end."""
        if last_words is not None:
            self._items.append(last_words)
            self.queued_bytes += len(last_words.data)
        self._closed = True
        self._changed.set()

    async def get(self) -> Item | None:
        """The next message; None after the last one."""
        while not self._items:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        self.queued_bytes -= len(item.data)
        return item
