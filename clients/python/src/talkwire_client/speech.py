"""A speech: one context of the native protocol, with text going in and audio coming out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypedDict

import msgspec

from talkwire_client import protocol as wire
from talkwire_client.audio import AudioChunk, Recording, count_samples
from talkwire_client.bounded_queue import BoundedQueue
from talkwire_client.errors import ClientError, ProtocolError, ServerError

#: Chunks queued for a slow reader. When the queue is full the connection is not read, so that a
#: slow reader slows the server down instead of filling memory. Pings are not answered then, so
#: there is room for the lead too if its chunks are short (``max_queued_chunks``): a reader that
#: reads as fast as it plays never fills the queue.
MAX_QUEUED_CHUNKS = 256
#: How long leaving a speech waits for the server to confirm its cancellation.
CANCEL_TIMEOUT_S = 5.0
#: The same if an exception leaves it, such as a caller's timeout, which then takes little longer.
FAILED_TIMEOUT_S = 1.0
_MAX_ID_CHARS = 128
_WRAP = 1 << 32
#: The longest form of a character in JSON (``\u0000``).
_CHAR_BYTES = 6
#: Room for the rest of a message.
_ENVELOPE_BYTES = 1024
_TELEPHONE_RATE = 8000
_OPUS_PACKET_MS = 20

OnWords = Callable[[Sequence[wire.Word]], None]


class SpeechOptions(TypedDict, total=False):
    """Options of a speech; the server chooses those left out.

    Attributes:
        voice: A name of ``client.server.voices``.
        model: A name of a model that the server serves.
        language: A language code, for models that take one; others refuse it.
        encoding: ``pcm_s16le`` (the default), ``pcm_f32le``, ``pcm_mulaw``, ``pcm_alaw``, ``opus``.
        sample_rate: In Hz; the server's own if left out, 8000 for mu-law and A-law.
        frame_ms: Milliseconds of audio in a chunk; 0: as it is made.
        bitrate: Bits per second, for Opus.
        speed: 0.25 to 4, at the same pitch.
        fade_in_ms: Duration of the fade-in at the start of the audio.
        temperature: 0 is greedy.
        top_p: Nucleus sampling.
        top_k: Sampling from the most likely codes.
        seed: The same seed and text give the same audio.
        max_frames: The longest utterance in codec frames.
        ras_win_len: Number of last codes in which a repeated code is drawn again, for models with
            repetition-aware sampling; 0: never.
        ras_max_repeat: How often a code must be among them to be drawn again.
        mode: ``chunked`` streams; ``whole`` decodes an utterance at once.
        chunking: The division of the stream into chunks.
        max_lead_ms: How far audio may run ahead of playback.
        timestamps: Whether to send the times of words.
        continuity: ``context`` or ``none``: whether utterances continue those before them.
        text_mode: ``words`` speaks text word by word while it arrives, with models that can.
        reference: A clip to imitate, instead of a voice.
        references: A clip for each speaker of the text, for models that support several.
        scene: Where and how the text is spoken, for models that take a scene.
        instructions: How to speak, or the voice to speak with, in words, for models that take them.
        pronunciations: Names of the server's dictionaries of pronunciations.
        pronunciation_rules: Rules of pronunciation that come before these.
        context_id: The context's name on the wire; generated if left out.
    """

    voice: str | None
    model: str | None
    language: str | None
    encoding: wire.Encoding | str
    sample_rate: int | None
    frame_ms: int
    bitrate: int | None
    speed: float
    fade_in_ms: int
    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    max_frames: int | None
    ras_win_len: int | None
    ras_max_repeat: int | None
    mode: Literal["chunked", "whole"]
    chunking: wire.ChunkingOptions
    max_lead_ms: int | None
    timestamps: bool
    continuity: Literal["context", "none"] | None
    text_mode: Literal["sentences", "words"]
    reference: wire.ReferenceOptions | None
    references: list[wire.ReferenceOptions]
    scene: str | None
    instructions: str | None
    pronunciations: list[str] | None
    pronunciation_rules: list[wire.PronunciationRule] | None
    context_id: str


def context_create(context_id: str, options: SpeechOptions) -> wire.ContextCreate:
    """Make the message that opens a speech.

    Args:
        context_id: The id to use if ``options`` has none.
        options: The caller's options.

    Returns:
        The message.

    Raises:
        TypeError: There is no option of that name, or JSON has no such value.
        ValueError: There is no such encoding, a text is not Unicode, or the id is not one.
    """
    given: dict[str, Any] = {"context_id": context_id, **options}
    _check_id(given["context_id"], "context")
    if "encoding" in given:
        given["encoding"] = wire.Encoding(given["encoding"])
    audio = {n: given.pop(n) for n in wire.AudioOptions.__struct_fields__ if n in given}
    sampling = {n: given.pop(n) for n in wire.SamplingOptions.__struct_fields__ if n in given}
    for name, value in (audio | sampling).items():
        if isinstance(value, float) and not math.isfinite(value):  # would be sent as null
            raise TypeError(f"{name} is {value}, which JSON cannot hold")
    if unknown := given.keys() - set(wire.ContextCreate.__struct_fields__):
        raise TypeError(f"no such option of a speech: {', '.join(sorted(unknown))}")
    create = wire.ContextCreate(
        **given, audio=wire.AudioOptions(**audio), sampling=wire.SamplingOptions(**sampling)
    )
    wire.encode_message(create)  # raises here, before the server is to answer it
    return create


def _check_id(name: object, of: str) -> None:
    """Raise ValueError for an id that no answer of the server could name."""
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_ID_CHARS:
        raise ValueError(f"a {of} id is a string of 1 to {_MAX_ID_CHARS} characters")


def split_text(text: str, limits: wire.Limits) -> list[str]:
    """Split a text into parts that each fit into a message.

    Raises:
        ClientError: It needs several parts and is longer than a context allows. The server would
            speak the first of them.
        TypeError: It is not a str. JSON would take bytes too, as base64.
        ValueError: It is not Unicode: it has half a surrogate pair, as Python makes of bytes that
            are not UTF-8.
    """
    if not isinstance(text, str):
        raise TypeError(f"a text is a str, and not {type(text).__name__}")
    max_bytes = limits.max_message_bytes - _ENVELOPE_BYTES
    max_chars = max(1, max_bytes // _CHAR_BYTES)
    try:
        if len(text) <= 1 or len(msgspec.json.encode(text)) <= max_bytes:
            return [text]
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half a surrogate pair: it was not UTF-8") from error
    if len(text) > limits.max_text_chars:
        raise ClientError(
            f"a context takes {limits.max_text_chars} characters at most, and not {len(text)}"
        )
    return [text[at : at + max_chars] for at in range(0, len(text), max_chars)]


def max_queued_chunks(create: wire.ContextCreate, limits: wire.Limits) -> int:
    """Compute how many chunks of a context may be queued before its connection is not read."""
    chunk_ms = create.audio.frame_ms
    if not chunk_ms and create.audio.encoding == wire.Encoding.OPUS:
        chunk_ms = _OPUS_PACKET_MS
    lead_ms = create.max_lead_ms or limits.max_lead_ms  # the server does not tell its default
    return MAX_QUEUED_CHUNKS + (lead_ms // chunk_ms if chunk_ms else 0)


class Connection(Protocol):
    """The connection to which a speech's context belongs."""

    @property
    def server(self) -> wire.SessionCreated:
        """The server's capabilities: voices, sample rates, limits."""

    async def send(self, message: wire.ClientMessage) -> None:
        """Send a message. Raises ClientError if the connection is gone."""

    async def register(self, speech: Speech) -> None:
        """Pass on later messages about this context. Raises ValueError if the id is in use."""


class Speech:
    """One stream of text in and one stream of audio out; made by ``Client.speak``.

    Enter it (``async with``) to open it at the server, and iterate over it once, from one task, for
    its audio. Leaving it early cancels it.

    Attributes:
        context_id: Its name on the wire.
        encoding: The encoding of its audio.
        warning: The server's warning, once the speech is open: why it will be worse than possible.
        markup_warnings: What of the text's markup had no effect so far, and why.
        started: The audio's format, once audio has started to arrive.
        words: Words whose times have arrived, if timestamps were requested.
        errors: Errors of the server that did not end the speech, such as a text that is too long.
        metrics: The server's measurements, once the speech is over.
        done: How it ended, unless it was cancelled.
        cancelled: How much of it was heard, once a cancel was answered.
        last_audio_s: When the last chunk arrived (``time.monotonic()``), including chunks that a
            cancel dropped.
    """

    def __init__(
        self,
        connection: Connection,
        create: wire.ContextCreate,
        text: str | AsyncIterable[str] | None = None,
        on_words: OnWords | None = None,
    ) -> None:
        self.context_id = create.context_id
        self.encoding = create.audio.encoding
        self.warning: str | None = None
        self.markup_warnings: list[wire.ContextWarning] = []
        self.started: wire.AudioStarted | None = None
        self.words: list[wire.Word] = []
        self.errors: list[ServerError] = []
        self.metrics: wire.Metrics | None = None
        self.done: wire.ContextDone | None = None
        self.cancelled: wire.ContextCancelled | None = None
        self.last_audio_s: float | None = None
        self._connection = connection
        #: The message that opens it.
        self._create = create
        #: The text given to ``speak``, if any.
        self._text = text
        self._on_words = on_words
        #: Audio that has arrived and was not read.
        self._chunks: BoundedQueue[AudioChunk] = BoundedQueue(MAX_QUEUED_CHUNKS)
        #: Its number in binary headers, once it is open.
        self._handle: int | None = None
        self._entered = False
        #: Sends the given text.
        self._feeding: asyncio.Task[None] | None = None
        self._flush_ids = itertools.count(1)
        #: Set once the server has answered all flushes of the id.
        self._flushes: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        #: Number of unanswered flushes by id, since several may share one.
        self._unflushed = Counter[str]()
        #: Set once the server has opened or refused it.
        self._answered = asyncio.Event()
        #: Why the server refused it.
        self._refusal: ClientError | None = None
        #: Set once no more audio will come.
        self._over = asyncio.Event()
        #: Set once the server is done with this context, so that its id is free.
        self._forgotten = asyncio.Event()
        #: Number of tasks that wait for an event of this speech.
        self._waiters = 0
        #: Whether arriving audio is dropped.
        self._discards = False
        #: Sends the cancel.
        self._cancelling: asyncio.Task[ClientError | None] | None = None
        #: Sequence number of the next chunk.
        self._sequence = 0
        #: Position of the next chunk, in samples.
        self._offset = 0

    def __repr__(self) -> str:
        """Describe how far the speech is."""
        if self.done is not None:
            state = self.done.reason
        elif self.cancelled is not None:
            state = "cancelled"
        elif self._over.is_set():
            state = "lost"
        else:
            state = "open" if self._entered else "not entered"
        audio = "no audio yet"
        if self.started is not None:
            rate = self.started.sample_rate
            audio = f"{self._offset / rate:.2f} s of {self.encoding} at {rate} Hz"
        return f"<Speech {self.context_id}: {state}, {audio}, {len(self.words)} timed words>"

    # -- public

    async def __aenter__(self) -> Self:
        """Open the speech, and begin to send its text if ``speak`` was given one.

        Raises:
            ServerError: The server refused it.
            ClientError: The connection is gone, as in ``append``.
            ValueError: The context id is in use on this connection.
            RuntimeError: It was entered before, or the client is not connected.
        """
        if self._entered:
            raise RuntimeError("a speech can be entered once; call speak again")
        await self._connection.register(self)
        self._entered = True
        self._chunks.max_items = max_queued_chunks(self._create, self._connection.server.limits)
        try:
            # In a task, since the server knows no context to cancel if this is cancelled instead.
            await self._sent(asyncio.create_task(self._send(self._create)))
            await self._wait(self._answered)
            if self._refusal is not None:
                raise self._refusal
        except BaseException:
            await self._leave(FAILED_TIMEOUT_S)
            raise
        if self._text is not None:
            self._feeding = asyncio.create_task(self._feed_given(self._text))
            self._feeding.add_done_callback(self._on_fed)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failure = None
        try:
            if self._feeding is not None:
                self._feeding.cancel()
                await asyncio.wait([self._feeding])
                failure = None if self._feeding.cancelled() else self._feeding.exception()
        finally:
            await self._leave(CANCEL_TIMEOUT_S if kind is None else FAILED_TIMEOUT_S)
        if failure is not None and kind is None and not isinstance(failure, ClientError):
            raise failure

    async def append(self, text: str) -> None:
        """Send more text, in several messages if one cannot hold it.

        Args:
            text: Any part of the whole; the server finds the sentences.

        Raises:
            ClientError: It needs several messages and is longer than a context allows. Or the
                connection is gone: the ServerError or ProtocolError that ended it, or else
                ConnectionLostError.
            TypeError: It is not a str.
            ValueError: It is not Unicode.
        """
        self._check_entered()
        for part in split_text(text, self._connection.server.limits):
            await self._connection.send(wire.TextAppend(self.context_id, part))

    async def flush(self, flush_id: str | None = None) -> str:
        """Have the text so far spoken, even half a sentence.

        Returns:
            The flush's id, for ``wait_flushed``.

        Raises:
            ClientError: The connection is gone, as in ``append``.
            ValueError: The id is not one.
        """
        self._check_entered()
        flush_id = flush_id or f"f{next(self._flush_ids)}"
        _check_id(flush_id, "flush")
        self._unflushed[flush_id] += 1
        if self._flushes[flush_id].is_set():
            self._flushes[flush_id] = asyncio.Event()
        await self._connection.send(wire.ContextFlush(self.context_id, flush_id))
        return flush_id

    async def wait_flushed(self, flush_id: str) -> bool:
        """Wait until all audio of the text before a flush has arrived. Read the audio meanwhile.

        Returns:
            False if the speech ended before.
        """
        self._check_entered()
        flushed = self._flushes[flush_id]
        waits = [asyncio.ensure_future(event.wait()) for event in (flushed, self._over)]
        self._waiters += 1
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters -= 1
            for wait in waits:
                wait.cancel()
        return flushed.is_set()

    async def end(self) -> None:
        """End the text.

        Raises:
            ClientError: The connection is gone, as in ``append``.
        """
        self._check_entered()
        await self._connection.send(wire.ContextEnd(self.context_id))

    async def feed(self, text: str | AsyncIterable[str]) -> None:
        """Send a whole text, or the parts that an iterator yields as they arrive, and end. Stop if
        the speech is over, was cancelled or takes no more text: the server refuses later text, and
        closes a connection on which it has to refuse much. A generator that is not read to its end
        is closed, and with it an LLM's stream that it reads.

        Raises:
            ClientError: As ``append``.
            Exception: An exception of the iterator.
        """
        if isinstance(text, str):
            await self.append(text)
        else:
            parts = aiter(text)
            try:
                async for part in parts:
                    if self._takes_no_text:
                        return
                    if any(error.code == wire.ErrorCode.TEXT_TOO_LONG for error in self.errors):
                        break
                    await self.append(part)
            finally:
                if isinstance(parts, AsyncGenerator):
                    await parts.aclose()
            if self._takes_no_text:
                return
        await self.end()

    async def report_playback(self, played_samples: int) -> None:
        """Report how much the listener has heard, a few times a second if playback may be late.
        Nothing is sent once the server is done with the speech, since it would be refused.

        Args:
            played_samples: Total number of samples of this speech, at the rate of its audio.

        Raises:
            ClientError: The connection is gone, as in ``append``.
        """
        self._check_entered()
        if self.done is None and self._cancelling is None:
            await self._connection.send(wire.Playback(self.context_id, played_samples))

    async def cancel(self, played_ms: float | None = None) -> wire.ContextCancelled | None:
        """Stop the speech, and drop the audio that has not been read.

        Args:
            played_ms: How much of it the listener has heard, if known; below 0, nothing.

        Returns:
            What was heard and what was not; None if the speech was over already.

        Raises:
            ClientError: The connection is gone, as in ``append``.
            TypeError: ``played_ms`` is not a number.
        """
        self._check_entered()
        self._discard()
        if not self._over.is_set():
            await self._send_cancel(played_ms)
            await self._wait(self._over)
        return self.cancelled

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        """Iterate over the audio as it arrives, until the speech is done or cancelled.

        Raises:
            ServerError: The server ended it with an error, or refused a text given to ``speak``.
            ConnectionLostError: The connection is gone.
            ProtocolError: The server sent something that is not the protocol.
            SlowReaderError: It was not read while another speech of the connection waited.
            Exception: An exception of ``on_words`` or the text's iterator.
            RuntimeError: The speech has not been entered.
        """
        self._check_entered()
        while (chunk := await self._chunks.get()) is not None:
            yield chunk
        if self._text is not None and self.errors:
            raise self.errors[0]  # not fatal, but the speech is incomplete

    async def read(self) -> Recording:
        """Read all audio to the end. Raises the same as iterating.

        Returns:
            The joined chunks: a whole recording, which a notebook plays, except for Opus, whose
            packet boundaries are lost.
        """
        data = b"".join([chunk.data async for chunk in self])
        rate = 0 if self.started is None else self.started.sample_rate
        return Recording(data, self.encoding, rate)

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio, as the server reports, or as expected before that."""
        if self.started is not None:
            return self.started.sample_rate
        if self.encoding in (wire.Encoding.PCM_MULAW, wire.Encoding.PCM_ALAW):
            return self._create.audio.sample_rate or _TELEPHONE_RATE
        return self._create.audio.sample_rate or self._connection.server.sample_rate

    @property
    def is_over(self) -> bool:
        """Whether no more audio will arrive. Some may still be unread."""
        return self._over.is_set()

    @property
    def queued_chunks(self) -> int:
        """Number of chunks that have arrived but were not read."""
        return len(self._chunks)

    # -- for the client

    @property
    def _is_full(self) -> bool:
        """Whether the connection must not be read until the reader has taken a chunk."""
        return self._chunks.is_full

    @property
    def _is_awaited(self) -> bool:
        """Whether a task waits for a message about this speech."""
        return self._waiters > 0 or self._chunks.is_awaited

    async def _give_up(self, error: ClientError) -> None:
        """Drop unread audio and cancel the speech; the reader gets ``error``."""
        self._discard()
        self._chunks.end(error)
        await self._send_cancel(None)

    def _on_created(self, handle: int, warning: str | None) -> None:
        self._handle = handle
        self.warning = warning
        self._answered.set()

    def _on_audio(self, data: bytes, header: wire.AudioHeader, arrived_s: float) -> None:
        """Handle audio. Raises ProtocolError if it does not continue the last one."""
        try:
            rate = self.started.sample_rate if self.started else None
            samples = count_samples(data, self.encoding, rate)
        except ValueError as error:
            raise ProtocolError(f"context {self.context_id}: {error}") from error
        if (header.sequence, header.sample_offset) != (self._sequence, self._offset):
            raise ProtocolError(
                f"context {self.context_id}: message {header.sequence} at sample "
                f"{header.sample_offset} came where message {self._sequence} at sample "
                f"{self._offset} belongs"
            )
        self._sequence = (self._sequence + 1) % _WRAP
        self._offset = (self._offset + samples) % _WRAP
        self.last_audio_s = arrived_s
        if not self._discards:
            self._chunks.put(AudioChunk(data, samples, header, arrived_s))

    def _on_timestamps(self, words: Sequence[wire.Word]) -> None:
        if self._discards:
            return
        self.words += words
        if self._on_words is not None:
            try:
                self._on_words(words)
            except Exception as error:  # an error in the user's callback: other speeches continue
                self._on_words = None
                self._chunks.end(error)

    def _on_flush_done(self, flush_id: str) -> None:
        self._unflushed[flush_id] -= 1
        if self._unflushed[flush_id] <= 0:
            self._flushes[flush_id].set()

    def _on_done(self, done: wire.ContextDone) -> None:
        self.done = done
        self._over.set()
        self._answered.set()  # for a server that has not said that it is open
        failed = done.reason == "error" and self.errors
        self._chunks.end(self.errors[-1] if failed else None)

    def _on_cancelled(self, cancelled: wire.ContextCancelled) -> None:
        self.cancelled = cancelled
        self._over.set()
        self._discard()
        self._chunks.end()

    def _on_lost(self, error: ClientError) -> None:
        """End the speech: its context was refused, or the connection is gone."""
        if self._over.is_set():
            return
        self._over.set()
        if not self._answered.is_set():
            self._refusal = error
            self._answered.set()
        self._chunks.end(error)

    # -- internal

    def _check_entered(self) -> None:
        """Raise RuntimeError before the context exists: the server would answer to nobody."""
        if not self._entered:
            raise RuntimeError("open the speech first: async with client.speak(...) as speech")

    @property
    def _takes_no_text(self) -> bool:
        """Whether the speech is over or was cancelled, so that later text would be refused."""
        return self._over.is_set() or self._cancelling is not None

    async def _feed_given(self, text: str | AsyncIterable[str]) -> None:
        """Feed the text given to ``speak``. A cancellation that comes from its iterator, such as
        that of an LLM's task, is an error: the reader would wait for audio of no text.
        """
        try:
            await self.feed(text)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise RuntimeError("the text ended with CancelledError") from error

    def _on_fed(self, feeding: asyncio.Task[None]) -> None:
        """End the audio with the error of a failed text. Leaving then tells the server."""
        if not feeding.cancelled() and (error := feeding.exception()) is not None:
            self._chunks.end(error)

    async def _leave(self, timeout_s: float) -> None:
        """Cancel unless it is over, and wait for the metrics for a limited time."""
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                cancelled_before = self._cancelling is not None
                await self.cancel()
                if not cancelled_before:  # a caller who cancelled did not ask for this wait
                    await self._wait(self._forgotten)

    async def _send_cancel(self, played_ms: float | None) -> None:
        """Send a cancel, but only once, since a second one would be refused."""
        if self._cancelling is None:
            # raises TypeError to the caller instead of in the task
            heard_ms = None if played_ms is None else max(float(played_ms), 0.0)
            cancel = wire.ContextCancel(self.context_id, heard_ms)
            self._cancelling = asyncio.create_task(self._send(cancel))
        await self._sent(self._cancelling)

    async def _sent(self, sending: asyncio.Task[ClientError | None]) -> None:
        """Wait for ``_send``, which goes on if this is cancelled while the connection is slow."""
        if (error := await asyncio.shield(sending)) is not None:
            raise error

    async def _send(self, message: wire.ClientMessage) -> ClientError | None:
        """Send a message; for a task of its own, in which asyncio would log an error."""
        try:
            await self._connection.send(message)
        except ClientError as error:
            return error
        return None

    async def _wait(self, event: asyncio.Event) -> None:
        self._waiters += 1
        try:
            await event.wait()
        finally:
            self._waiters -= 1

    def _discard(self) -> None:
        """Drop the waiting chunks, but keep the reader's end or error."""
        self._discards = True
        self._chunks.clear()
