"""What waits between a context and the writer of its HTTP response: bounded by the reader."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from service.runtime import Runtime
from streaming.events import Cancelled, Done, Flushed, SendAudio
from streaming.report import ContextReport

#: Audio that may wait for the writer before the codec is held back.
_BUFFER_S = 2.0


class SpeechBuffer:
    """A ContextSink that is read from: samples, and at last how the context ended.

    ``protocol`` is the metrics' label. The context has been admitted; its end gives the place
    back. At most one window more than the limit waits, since none is decoded without room.
    """

    def __init__(self, runtime: Runtime, protocol: str) -> None:
        self._runtime, self._protocol = runtime, protocol
        self._limit = int(_BUFFER_S * runtime.codec.spec.sample_rate)
        self._items: deque[SendAudio | Done] = deque()
        self.waiting_samples = self._taken_samples = 0
        self._came, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._opened_at = time.monotonic()
        self._last_audio: float | None = None

    async def get(self) -> SendAudio | Done:
        """The next audio, or the end."""
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

    def _put(self, item: SendAudio | Done) -> None:
        self._items.append(item)
        self._came.set()

    def on_audio(self, audio: SendAudio) -> None:
        """See ContextSink."""
        now = time.monotonic()
        if self._last_audio is not None:
            self._runtime.metrics.gap.labels(self._protocol).observe(now - self._last_audio)
        self._last_audio = now
        self.waiting_samples += len(audio.samples)
        if self.waiting_samples >= self._limit:
            self._room.clear()
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
        self._runtime.admission.leave(time.monotonic() - self._opened_at)
