"""One context of the native protocol, as a client holds it: text in, audio chunks out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import Self

from clients.chunk import AudioChunk, count_samples
from clients.errors import ClientError, ProtocolError, ServerError
from clients.pieces import pieces
from clients.unread import Unread
from streaming import wire
from streaming.wire_format import AudioHeader

#: Chunks held for a reader that is late. When they are full the socket is read no further, so
#: that a slow reader slows the server down instead of filling memory. Other contexts of the socket
#: get nothing then either; NativeClient gives up the late one for them.
MAX_QUEUED_CHUNKS = 256
_WRAP = 1 << 32

Send = Callable[[wire.ClientMessage], Awaitable[None]]
OnWords = Callable[[Sequence[wire.Word]], None]


class ClientContext:
    """Made by NativeClient.context. Iterate over it once, from one task, to receive its audio.

    ``errors`` holds what the server refused without ending the context (a text too long, say);
    ``started`` (which tells the audio's rate), ``metrics``, ``done`` and ``cancelled`` are the
    server's messages, once they came. ``words`` are those whose times have come, in a context
    with ``timestamps``; ``on_words`` is called with the new ones, after their audio has come, and
    what it raises ends the iteration.
    ``last_audio_s`` is when the last frame arrived, also of those that a cancel dropped.
    """

    def __init__(
        self,
        create: wire.ContextCreate,
        send: Send,
        limits: wire.Limits,
        on_words: OnWords | None = None,
    ) -> None:
        self.context_id = create.context_id
        self.encoding = create.audio.encoding
        self.started: wire.AudioStarted | None = None
        self.errors: list[ServerError] = []
        self.metrics: wire.Metrics | None = None
        self.done: wire.ContextDone | None = None
        self.cancelled: wire.ContextCancelled | None = None
        self.handle: int | None = None
        self.last_audio_s: float | None = None
        self.words: list[wire.Word] = []
        self._create, self._send, self._on_words = create, send, on_words
        self._limits = limits
        self._chunks: Unread[AudioChunk] = Unread(MAX_QUEUED_CHUNKS)
        self._answered = asyncio.Event()
        self._refusal: ClientError | None = None
        self._over = asyncio.Event()
        self._gone = asyncio.Event()
        self._waits = 0
        self._discarding = self._has_cancelled = False
        self._sequence = self._offset = 0

    # -- what a user calls

    async def open(self) -> Self:
        """Send ``context.create`` and wait for the answer. Raises ServerError if refused."""
        await self._send(self._create)
        await self._until(self._answered)
        if self._refusal is not None:
            raise self._refusal
        return self

    async def append(self, text: str) -> None:
        """More text, as it comes; what one message cannot hold goes in several.

        Raises ClientError if it needs several and is more than a context takes, ValueError if it
        is not Unicode.
        """
        for piece in pieces(text, self._limits):
            await self._send(wire.TextAppend(self.context_id, piece))

    async def flush(self, flush_id: str) -> None:
        """Speak what is there, sentence or not."""
        await self._send(wire.ContextFlush(self.context_id, flush_id))

    async def end(self) -> None:
        """No more text will come."""
        await self._send(wire.ContextEnd(self.context_id))

    async def feed(self, text: str | AsyncIterable[str]) -> None:
        """Append a whole text, or all that an iterator yields as it yields it; then end."""
        if isinstance(text, str):
            await self.append(text)
        else:
            async for piece in text:
                await self.append(piece)
        await self.end()

    async def report_played(self, samples: int) -> None:
        """Tell the server how many samples of this context the listener has heard in all."""
        await self._send(wire.Playback(self.context_id, samples))

    async def cancel(self, played_ms: float | None = None) -> wire.ContextCancelled | None:
        """Stop now, and drop what has not been read. None: the context was over already."""
        self._discard()
        if not self._over.is_set():
            await self._tell_cancel(played_ms)
            await self._until(self._over)
        return self.cancelled

    async def leave(self) -> None:
        """Cancel unless it is over, and wait until its metrics are there. Who has cancelled before
        has not asked for that wait.
        """
        has_cancelled = self._has_cancelled
        await self.cancel()
        if not has_cancelled:
            await self.until_gone()

    async def until_gone(self) -> None:
        """Wait until the server has said all of this context: its id is free."""
        await self._until(self._gone)

    @property
    def is_over(self) -> bool:
        """No audio will arrive any more (some may still wait to be read)."""
        return self._over.is_set()

    @property
    def waiting_chunks(self) -> int:
        """Chunks that have arrived and were not read yet, at most MAX_QUEUED_CHUNKS."""
        return len(self._chunks)

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        """The audio as it arrives, until the context is done or cancelled.

        Raises ServerError if the server ended it with one, ConnectionLostError or ProtocolError
        if the connection did not hold, SlowReaderError if it was not read while another context
        of the socket waited, and what ``on_words`` raised.
        """
        while (chunk := await self._chunks.get()) is not None:
            yield chunk

    # -- what the client calls, on behalf of the socket

    def on_created(self, handle: int) -> None:
        """The server has opened the context."""
        self.handle = handle
        self._answered.set()

    def on_error(self, error: ServerError) -> None:
        """The server refused something of this context: its opening, or a message."""
        if self.handle is None:
            self.on_lost(error)
        else:
            self.errors.append(error)

    @property
    def is_full(self) -> bool:
        """The reader is late: nothing more should be read from the socket until there is room."""
        return self._chunks.is_full

    async def until_room(self) -> None:
        """Wait for a late reader, or for a cancel."""
        await self._chunks.until_room()

    @property
    def is_awaited(self) -> bool:
        """Somebody waits for what the server says next of this context."""
        return self._waits > 0 or self._chunks.is_awaited

    async def give_up(self, error: ClientError) -> None:
        """Drop what was not read, tell the reader why, and have the server stop."""
        self._discard()
        self._chunks.end(error)
        await self._tell_cancel(None)

    def on_audio(self, pcm: bytes, header: AudioHeader, arrived_s: float) -> None:
        """A frame without its header. Raises ProtocolError at a hole."""
        try:
            rate = self.started.sample_rate if self.started else None
            samples, rest = count_samples(pcm, self.encoding, rate)
        except ValueError as error:
            raise ProtocolError(f"context {self.context_id}: {error}") from error
        if (header.sequence, header.sample_offset) != (self._sequence, self._offset) or rest:
            raise ProtocolError(
                f"context {self.context_id}: frame {header.sequence} at sample "
                f"{header.sample_offset} came where frame {self._sequence} at sample "
                f"{self._offset} belongs"
            )
        self._sequence = (self._sequence + 1) % _WRAP
        self._offset = (self._offset + samples) % _WRAP
        self.last_audio_s = arrived_s
        if not self._discarding:
            self._chunks.put(AudioChunk(pcm, header, arrived_s, samples))

    def on_timestamps(self, message: wire.Timestamps) -> None:
        """Words whose audio has come."""
        if not self._discarding:
            self.words += message.words
            if self._on_words is not None:
                try:
                    self._on_words(message.words)
                except Exception as error:  # the user's own: the socket's other contexts go on
                    self._on_words = None
                    self._chunks.end(error)

    def on_done(self, done: wire.ContextDone) -> None:
        """The context is closed."""
        self.done = done
        self._over.set()
        failed = done.reason == "error" and self.errors
        self._chunks.end(self.errors[-1] if failed else None)

    def on_cancelled(self, cancelled: wire.ContextCancelled) -> None:
        """The context was cancelled: what has not been read is not to be heard."""
        self.cancelled = cancelled
        self._over.set()
        self._discard()
        self._chunks.end()

    def on_forgotten(self) -> None:
        """The server has said all of this context."""
        self._gone.set()

    def on_lost(self, error: ClientError) -> None:
        """Nothing more will come: the opening was refused, or the connection is gone."""
        if self._over.is_set():
            return
        self._over.set()
        if not self._answered.is_set():
            self._refusal = error
            self._answered.set()
        self._chunks.end(error)

    def fail(self, error: BaseException) -> None:
        """The text cannot go on: whoever reads is told. The server is not: cancel tells it."""
        self._chunks.end(error)

    async def _tell_cancel(self, played_ms: float | None) -> None:
        """Once: a second one would be refused."""
        if not self._has_cancelled:
            await self._send(wire.ContextCancel(self.context_id, played_ms))
            self._has_cancelled = True

    async def _until(self, event: asyncio.Event) -> None:
        self._waits += 1
        try:
            await event.wait()
        finally:
            self._waits -= 1

    def _discard(self) -> None:
        """Drop the chunks that wait; how it ended is left for the reader."""
        self._discarding = True
        self._chunks.clear()
