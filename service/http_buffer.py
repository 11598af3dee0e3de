"""What waits between a context and the writer of its HTTP response: bounded by the reader."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from service.runtime import Runtime
from streaming.events import Cancelled, Done, Flushed, SendAudio
from streaming.report import ContextReport
from streaming.words import WordTiming

#: Audio that may wait for the writer before the codec is held back.
_BUFFER_S = 2.0

#: Samples, words that the samples after them speak, or how the context ended.
BufferItem = SendAudio | tuple[WordTiming, ...] | Done


class SpeechBuffer:
    """A ContextSink that is read from: samples, and at last how the context ended.

    ``protocol`` is the metrics' label. The context has been admitted, to be heard ``speed`` times
    as fast; its end gives the place back. At most one window more than the limit waits, since
    none is decoded without room.
    """

    def __init__(self, runtime: Runtime, protocol: str, speed: float = 1.0) -> None:
        self._runtime, self._protocol, self._speed = runtime, protocol, speed
        self._limit = int(_BUFFER_S * runtime.codec.spec.sample_rate)
        self._items: deque[BufferItem] = deque()
        self.waiting_samples = self._taken_samples = 0
        self._came, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._opened_at = time.monotonic()
        self._gaps = runtime.metrics.gaps(protocol)

    async def get(self) -> BufferItem:
        """The next audio, words or the end."""
        while not self._items:
            self._came.clear()
            await self._came.wait()
        item = self._items.popleft()
        if isinstance(item, SendAudio):
            self.waiting_samples -= len(item.samples)
            self._taken_samples += len(item.samples)
            if self.waiting_samples < self._limit:
                self._room.set()
        return item

    async def room(self) -> int | None:
        """See service.context.Room."""
        if self._room.is_set():
            return None
        await self._room.wait()
        return self._taken_samples

    def _put(self, item: BufferItem) -> None:
        self._items.append(item)
        self._came.set()

    def on_audio(self, audio: SendAudio) -> None:
        """See ContextSink."""
        self._gaps.note(time.monotonic())
        self.waiting_samples += len(audio.samples)
        if self.waiting_samples >= self._limit:
            self._room.clear()
        self._put(audio)

    def words(self, timings: Sequence[WordTiming]) -> None:
        """See ContextSink. They come in the same breath as their audio, which the reader cannot
        have taken yet, and go before it.
        """
        audio = self._items.pop() if self._items else None
        self._put(tuple(timings))
        if audio is not None:
            self._put(audio)

    def on_flushed(self, flushed: Flushed) -> None:
        """Nobody asks for a flush here."""

    def on_cancelled(self, cancelled: Cancelled) -> None:
        """See ContextSink; the client has left."""
        self._end("cancelled", cancelled.report, cancelled)

    def on_done(self, done: Done) -> None:
        """See ContextSink."""
        self._end(done.reason, done.report)
        self._put(done)

    def _end(self, outcome: str, report: ContextReport, cancelled: Cancelled | None = None) -> None:
        metrics = self._runtime.metrics
        metrics.on_context_closed(self._protocol, outcome, report, cancelled)
        self._runtime.admission.leave(time.monotonic() - self._opened_at, self._speed)
