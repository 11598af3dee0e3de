"""The outbox of one socket: a bounded queue from which a cancel can revoke audio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from streaming.errors import CapacityError, ErrorCode, RequestError


class Item(NamedTuple):
    """One WebSocket message. Audio and messages about it have the handle of their context and, if
    their client may refer to it after its end, its id.
    """

    data: str | bytes
    handle: int | None = None
    samples: int = 0
    #: Called when the message has been written.
    on_written: Callable[[], None] | None = None
    #: How long the samples are played.
    audio_s: float = 0.0
    context_id: str | None = None


#: Room that the audio of a whole utterance leaves for messages before it, and for the end of its
#: context after it.
_SPARE_BYTES = 2048


class Outbox:
    """A queue bounded in bytes, with writers that never wait and one reader."""

    def __init__(self, max_bytes: int) -> None:
        self._items: deque[Item] = deque()
        #: Bytes in the queue.
        self.queued_bytes = 0
        self._max_bytes = max_bytes
        self._changed, self._shrunk = asyncio.Event(), asyncio.Event()
        self._closed = False
        self.overflowed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return not self._items

    def require_fit(self, size: int) -> None:
        """Raise CapacityError (``overloaded``) for audio that has no room now, or RequestError
        (``text_too_long``) if it would have none even in an empty queue, so that its client is not
        closed as slow.
        """
        most = self._max_bytes - _SPARE_BYTES
        if size > most - _SPARE_BYTES:
            message = "The audio of this text is too long for one piece: split it, or use chunks."
            raise RequestError(ErrorCode.TEXT_TOO_LONG, message, param="text")
        if self.queued_bytes + size > most:
            message = "Too much other audio is waiting to be sent on this socket."
            raise CapacityError(ErrorCode.OVERLOADED, message)

    def put(self, item: Item) -> None:
        """Add one message. Beyond the bound all messages are dropped, since a stream with a hole is
        useless, and ``overflowed`` is set. After ``close`` messages are ignored.
        """
        if self._closed or self.overflowed.is_set():
            return
        if self.queued_bytes + len(item.data) > self._max_bytes:
            self._items.clear()
            self.queued_bytes = 0
            self._shrunk.set()
            self.overflowed.set()
            return
        self._items.append(item)
        self.queued_bytes += len(item.data)
        self._changed.set()

    def drop_audio(self, handle: int | None = None, context_id: str | None = None) -> int:
        """Remove unwritten audio and messages about it, and return its samples: of one context, of
        all with the same ``context_id``, or of all contexts.
        """

        def is_dropped(item: Item) -> bool:
            is_audio, is_same = item.handle is not None, context_id in (None, item.context_id)
            return is_audio and is_same and handle in (None, item.handle)

        dropped = sum(item.samples for item in self._items if is_dropped(item))
        self._items = deque(item for item in self._items if not is_dropped(item))
        self.queued_bytes = sum(len(item.data) for item in self._items)
        self._shrunk.set()
        return dropped

    async def room(self) -> None:
        """Wait until at most a quarter of the bound is queued."""
        while self.queued_bytes > self._max_bytes // 4:
            self._shrunk.clear()
            await self._shrunk.wait()

    def close(self, last_words: Item | None = None) -> None:
        """Let the reader take the queued messages, ``last_words``, and then None."""
        if last_words is not None:
            self._items.append(last_words)
            self.queued_bytes += len(last_words.data)
        self._closed = True
        self._changed.set()

    async def get(self) -> Item | None:
        """Wait for the next message; None after the last one."""
        while not self._items:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        self.queued_bytes -= len(item.data)
        self._shrunk.set()
        return item
