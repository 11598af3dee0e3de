"""One context of the native protocol, as a client holds it: text in, audio chunks out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, Self

from clients import opus
from clients.errors import ClientError, ProtocolError, ServerError
from streaming import wire
from streaming.wire_format import AudioHeader

#: Chunks held for a reader that is late. When they are full the socket is read no further, so
#: that a slow reader slows the server down instead of filling memory.
MAX_QUEUED_CHUNKS = 256
_WRAP = 1 << 32

Send = Callable[[wire.ClientMessage], Awaitable[None]]
OnWords = Callable[[Sequence[wire.Word]], None]


class AudioChunk(NamedTuple):
    """One binary frame, in the encoding that was asked for (``pcm`` is its usual case).

    ``arrived_s`` is its arrival on ``time.monotonic()``'s clock; ``samples`` is what it decodes
    to, at the rate of the audio.
    """

    pcm: bytes
    header: AudioHeader
    arrived_s: float
    samples: int


class ClientContext:
    """Made by NativeClient.context. Iterate over it once, from one task, to receive its audio.

    ``errors`` holds what the server refused without ending the context (a text too long, say);
    ``started`` (which tells the audio's rate), ``metrics``, ``done`` and ``cancelled`` are the
    server's messages, once they came. ``words`` are those whose times have come, in a context
    with ``timestamps``; ``on_words`` is called with the new ones, after their audio has come.
    ``last_audio_s`` is when the last frame arrived, also of those that a cancel dropped.
    """

    def __init__(
        self, create: wire.ContextCreate, send: Send, on_words: OnWords | None = None
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
        self._chunks: asyncio.Queue[AudioChunk | ClientError | None] = asyncio.Queue(
            MAX_QUEUED_CHUNKS
        )
        self._answered = asyncio.Event()
        self._refusal: ClientError | None = None
        self._over = asyncio.Event()
        self._discarding = False
        self._sequence = self._offset = 0

    # -- what a user calls

    async def open(self) -> Self:
        """Send ``context.create`` and wait for the answer. Raises ServerError if refused."""
        await self._send(self._create)
        await self._answered.wait()
        if self._refusal is not None:
            raise self._refusal
        return self

    async def append(self, text: str) -> None:
        """More text, as it comes."""
        await self._send(wire.TextAppend(self.context_id, text))

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
            await self._send(wire.ContextCancel(self.context_id, played_ms))
            await self._over.wait()
        return self.cancelled

    @property
    def is_over(self) -> bool:
        """No audio will arrive any more (some may still wait to be read)."""
        return self._over.is_set()

    @property
    def waiting_chunks(self) -> int:
        """Chunks that have arrived and were not read yet, at most MAX_QUEUED_CHUNKS."""
        return self._chunks.qsize()

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        """The audio as it arrives, until the context is done or cancelled.

        Raises ServerError if the server ended it with one, ConnectionLostError or ProtocolError
        if the connection did not hold.
        """
        while (item := await self._chunks.get()) is not None:
            if isinstance(item, ClientError):
                raise item
            yield item

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

    async def on_audio(self, pcm: bytes, header: AudioHeader, arrived_s: float) -> None:
        """A frame without its header. Waits while the reader is late; raises ProtocolError at
        a hole.
        """
        samples, rest = self._samples(pcm)
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
            await self._chunks.put(AudioChunk(pcm, header, arrived_s, samples))
            self._discard_again()  # it may have been cancelled while there was no room

    def _samples(self, data: bytes) -> tuple[int, int]:
        """How many samples ``data`` decodes to, and how many bytes are left over."""
        if sample_bytes := self.encoding.sample_bytes:
            return divmod(len(data), sample_bytes)
        if self.started is None:
            raise ProtocolError(f"context {self.context_id}: audio before audio.started")
        try:
            return int(opus.packet_ms(data) * self.started.sample_rate / 1000), 0
        except ValueError as error:
            raise ProtocolError(f"context {self.context_id}: {error}") from error

    def on_timestamps(self, message: wire.Timestamps) -> None:
        """Words whose audio has come."""
        if not self._discarding:
            self.words += message.words
            if self._on_words is not None:
                self._on_words(message.words)

    async def on_done(self, done: wire.ContextDone) -> None:
        """The context is closed."""
        self.done = done
        self._over.set()
        failed = done.reason == "error" and self.errors
        await self._chunks.put(self.errors[-1] if failed else None)

    async def on_cancelled(self, cancelled: wire.ContextCancelled) -> None:
        """The context was cancelled: what has not been read is not to be heard."""
        self.cancelled = cancelled
        self._over.set()
        self._discard()
        await self._chunks.put(None)

    def on_lost(self, error: ClientError) -> None:
        """Nothing more will come: the opening was refused, or the connection is gone."""
        if self._over.is_set():
            return
        self._over.set()
        if not self._answered.is_set():
            self._refusal = error
            self._answered.set()
        self._tell(error)

    def fail(self, error: BaseException) -> None:
        """The text cannot go on: whoever reads is told. The server is not: cancel tells it."""
        if not self._over.is_set():
            failed = ClientError("the text could not be fed")
            self._tell(error if isinstance(error, ClientError) else failed)

    def _tell(self, error: ClientError) -> None:
        if self._chunks.full():  # an error does not wait for a reader that is late
            self._chunks.get_nowait()
        self._chunks.put_nowait(error)

    def _discard_again(self) -> None:
        if self._discarding:
            self._discard()

    def _discard(self) -> None:
        """Drop the chunks that wait; how it ended is left for the reader."""
        self._discarding = True
        waiting = [self._chunks.get_nowait() for _ in range(self._chunks.qsize())]
        for item in waiting:
            if not isinstance(item, AudioChunk):
                self._chunks.put_nowait(item)
