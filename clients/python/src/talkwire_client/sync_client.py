"""The client for programs without an event loop.

::

    with SyncClient("ws://127.0.0.1:8000") as client:
        with client.speak("Hello there.") as speech:
            for chunk in speech:
                play(chunk.data)

It runs ``talkwire_client.client`` on an event loop in a thread of its own, with the same errors and
the same bounded queue. Every method may be called from any thread but that one, so one thread can
write a speech's text while another reads its audio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from talkwire_client import protocol as wire
from talkwire_client.audio import AudioChunk, Recording
from talkwire_client.client import DEFAULT_URL, Client
from talkwire_client.errors import ConnectionLostError, ServerError
from talkwire_client.speech import OnWords, Speech, SpeechOptions

T = TypeVar("T")


class SyncClient:
    """A connection to a Talkwire server, for programs without an event loop.

    Arguments, attributes and errors are those of ``Client``; enter it (``with``) to connect.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        open_timeout_s: float = 10.0,
        framing: Literal["header", "json"] = "header",
    ) -> None:
        self._client = Client(
            url,
            api_key=api_key,
            headers=headers,
            ssl_context=ssl_context,
            open_timeout_s=open_timeout_s,
            framing=framing,
        )
        self._loop = _LoopThread()
        self._closing = threading.RLock()

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<Sync", 1)

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect. Entering the client does the same. Raises the same as ``Client.connect``."""
        if self._loop.is_running:
            raise RuntimeError("a client connects once; make another one")
        self._loop.start()
        try:
            self._loop.run(self._client.connect())
        except BaseException:
            self._loop.stop()
            raise

    def close(self) -> None:
        """Close the connection. Leaving the client does the same. Closing twice does nothing."""
        with self._closing:
            if self._loop.is_running:
                try:
                    self._loop.run(self._client.close())
                finally:
                    self._loop.stop()

    @property
    def server(self) -> wire.SessionCreated:
        """The server's capabilities: voices, sample rates, limits."""
        return self._client.server

    @property
    def going_away(self) -> wire.GoingAway | None:
        """The server's notice that it will close, or None. Open no more speeches after it."""
        return self._client.going_away

    def speak(
        self,
        text: str | Iterable[str] | None = None,
        *,
        on_words: OnWords | None = None,
        **options: Unpack[SpeechOptions],
    ) -> SyncSpeech:
        """Speak a text.

        Args:
            text: A whole text, or an iterable of its parts. It may block, since it is iterated over
                in another thread. None: call ``append`` and ``end`` yourself.
            on_words: Called with words and their times, on the client's own thread, from which no
                method that waits may be called; asks for timestamps.
            **options: See SpeechOptions.

        Returns:
            The speech; enter it to begin.

        Raises:
            TypeError: There is no option of that name, or JSON has no such value.
            ValueError: There is no such encoding, a text is not Unicode, or the id is not one.
        """
        parts = text if isinstance(text, str | None) else _iterate_in_thread(text)
        callback = None if on_words is None else _raising_errors_only(on_words)
        return SyncSpeech(self._loop, self._client.speak(parts, on_words=callback, **options))

    def ping(self) -> float:
        """Measure the round trip of a WebSocket ping, in seconds."""
        return self._loop.run(self._client.ping())


class SyncSpeech:
    """One stream of text in and one stream of audio out; made by ``SyncClient.speak``.

    Enter it (``with``) to open it at the server, and iterate over it once, from one thread, for
    its audio. Leaving it early cancels it. Methods, attributes and errors are those of ``Speech``.
    """

    def __init__(self, loop: _LoopThread, speech: Speech) -> None:
        self._loop = loop
        self._speech = speech
        self.context_id = speech.context_id
        self.encoding = speech.encoding

    def __repr__(self) -> str:
        return repr(self._speech).replace("<", "<Sync", 1)

    def __enter__(self) -> Self:
        self._loop.run(self._speech.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ConnectionLostError):  # the client was closed, and so the speech
            self._loop.run(self._speech.__aexit__(kind, error, trace))

    def append(self, text: str) -> None:
        """Send more text, in several messages if one cannot hold it."""
        self._loop.run(self._speech.append(text))

    def flush(self, flush_id: str | None = None) -> str:
        """Have the text so far spoken, even half a sentence. Returns the flush's id."""
        return self._loop.run(self._speech.flush(flush_id))

    def wait_flushed(self, flush_id: str) -> bool:
        """Wait until all audio of the text before a flush has arrived; False if it never will."""
        return self._loop.run(self._speech.wait_flushed(flush_id))

    def end(self) -> None:
        """End the text."""
        self._loop.run(self._speech.end())

    def report_playback(self, played_samples: int) -> None:
        """Report the total number of samples of this speech that the listener has heard."""
        self._loop.run(self._speech.report_playback(played_samples))

    def cancel(self, played_ms: float | None = None) -> wire.ContextCancelled | None:
        """Stop the speech, and drop the audio that has not been read.

        Returns:
            What was heard and what was not; None if the speech was over already.
        """
        return self._loop.run(self._speech.cancel(played_ms))

    def __iter__(self) -> Iterator[AudioChunk]:
        """Iterate over the audio as it arrives, until the speech is done or cancelled."""
        chunks = aiter(self._speech)
        while (chunk := self._loop.run(_next(chunks))) is not None:
            yield chunk

    def read(self) -> Recording:
        """Read all audio to the end; a notebook plays it."""
        return self._loop.run(self._speech.read())

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio."""
        return self._speech.sample_rate

    @property
    def is_over(self) -> bool:
        """Whether no more audio will arrive. Some may still be unread."""
        return self._speech.is_over

    @property
    def warning(self) -> str | None:
        """The server's warning: why the speech will be worse than possible."""
        return self._speech.warning

    @property
    def markup_warnings(self) -> list[wire.ContextWarning]:
        """What of the text's markup had no effect so far, and why."""
        return list(self._speech.markup_warnings)

    @property
    def started(self) -> wire.AudioStarted | None:
        """The audio's format, once audio has started to arrive."""
        return self._speech.started

    @property
    def words(self) -> list[wire.Word]:
        """Words whose times have arrived, if timestamps were requested."""
        return list(self._speech.words)

    @property
    def errors(self) -> list[ServerError]:
        """Errors of the server that did not end the speech."""
        return list(self._speech.errors)

    @property
    def metrics(self) -> wire.Metrics | None:
        """The server's measurements, once the speech is over."""
        return self._speech.metrics

    @property
    def done(self) -> wire.ContextDone | None:
        """How it ended, unless it was cancelled."""
        return self._speech.done

    @property
    def cancelled(self) -> wire.ContextCancelled | None:
        """How much of it was heard, once a cancel was answered."""
        return self._speech.cancelled


class _LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None  # None again once it is to stop
        self._submitting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process_id = os.getpid()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs. A forked process does not have it."""
        return self._thread is not None and self._process_id == os.getpid()

    def start(self) -> None:
        started = threading.Event()
        self._process_id = os.getpid()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="talkwire-client", daemon=True
        )
        self._thread.start()
        started.wait()

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = stopping = asyncio.Event()
        started.set()
        await stopping.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for it. An interrupt here cancels it there.

        Raises:
            ConnectionLostError: The client was closed, or connected before this process was forked.
            RuntimeError: It is not connected, or this thread runs the loop and cannot wait for it.
            BaseException: An exception of the coroutine.
        """
        closed = ConnectionLostError(None, "the client was closed")
        if self._thread is not None and self._process_id != os.getpid():
            work.close()
            raise ConnectionLostError(None, "the client is of the process that connected it")
        if self._loop is None:
            work.close()
            raise RuntimeError("not connected: with SyncClient(...) as client")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("on_words cannot wait for the client; call it from another thread")
        with self._submitting:
            if self._stopping is None or self._loop.is_closed():
                work.close()
                raise closed
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise closed from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop the loop, and cancel everything that still runs on it."""
        if self._loop is not None and self._stopping is not None and self._thread is not None:
            with self._submitting:  # work that came later would never run, nor be cancelled
                self._loop.call_soon_threadsafe(self._stopping.set)
                self._stopping = None
            self._thread.join()
            self._thread = None


def _raising_errors_only(on_words: OnWords) -> OnWords:
    """Wrap a callback so that SystemExit, which would end the loop's thread, is an error."""

    def on_words_or_error(words: Sequence[wire.Word]) -> None:
        try:
            on_words(words)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"on_words ended with {type(error).__name__}") from error

    return on_words_or_error


async def _next(chunks: AsyncIterator[AudioChunk]) -> AudioChunk | None:
    return await anext(chunks, None)


async def _iterate_in_thread(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over a blocking iterable in a thread, which may outlive an early end of the
    iteration.
    """
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(1)  # an item, or how it ended
    abandoned = threading.Event()

    def put(part: tuple[T] | Exception | None) -> None:
        if abandoned.is_set():
            return  # there may be no room, and there will be none
        work = parts.put(part)
        try:
            asyncio.run_coroutine_threadsafe(work, loop).result()
        except (RuntimeError, CancelledError):  # the loop has ended
            work.close()
            abandoned.set()

    def pump() -> None:
        end: Exception | None = None
        try:
            for item in items:
                if abandoned.is_set():
                    return
                put((item,))
        except Exception as error:
            end = error
        except BaseException as error:  # such as SystemExit, which would end the loop's thread
            end = RuntimeError(f"the text ended with {type(error).__name__}")
            end.__cause__ = error
        put(end)

    threading.Thread(target=pump, name="talkwire-text", daemon=True).start()
    try:
        while isinstance(part := await parts.get(), tuple):
            yield part[0]
        if part is not None:
            raise part
    finally:
        abandoned.set()
        with contextlib.suppress(asyncio.QueueEmpty):
            parts.get_nowait()
