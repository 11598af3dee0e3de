"""The client of the native protocol for programs without an event loop.

::

    with SyncClient.connect("ws://127.0.0.1:8000/v1/tts/stream") as client:
        for chunk in client.speak("Hello there."):
            play(chunk.pcm)

It is ``clients.native`` on an event loop in a thread of its own: the same checks, the same errors,
the same bounded queue, and contexts of one socket are to be read at the same time. Every method may
be called from any thread, so one may write a context's text while another hears its audio.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from clients.chunk import AudioChunk
from clients.context import ClientContext, OnWords
from clients.errors import ClientError, ServerError
from clients.native import NativeClient
from streaming import wire


class SyncClient:
    """One socket and its contexts. ``created`` is what the server said of itself."""

    def __init__(self, portal: BlockingPortal, client: NativeClient) -> None:
        self._portal, self._client = portal, client
        self.created = client.created

    @classmethod
    @contextlib.contextmanager
    def connect(
        cls,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        open_timeout_s: float = 10,
    ) -> Iterator[SyncClient]:
        """Connect, with ``api_key`` where the server asks for one, and close on leaving.

        Raises NoServerError, RefusedError, ServerError (the server has no room, say) or
        ProtocolError.
        """
        opened = NativeClient.connect(
            url, api_key=api_key, headers=headers, open_timeout_s=open_timeout_s
        )
        with (
            start_blocking_portal(name="talkwire-client") as portal,
            portal.wrap_async_context_manager(opened) as client,
        ):
            yield cls(portal, client)

    @contextlib.contextmanager
    def context(self, *, on_words: OnWords | None = None, **options: Any) -> Iterator[SyncContext]:
        """Open a context; leaving early cancels it. ``options`` are ContextCreate's fields.

        ``on_words`` asks for ``timestamps``; it is called on the client's own thread. Raises
        ServerError when the server refuses it, ConnectionLostError when the socket is gone, and
        ValueError when the id is in use on this socket.
        """
        opened = self._client.context(on_words=on_words, **options)
        with self._portal.wrap_async_context_manager(opened) as context:
            yield SyncContext(self._portal, context)

    def speak(self, text: str | Iterable[str], **options: Any) -> Generator[AudioChunk, None, None]:
        """Speak a text, or what an iterable yields while it yields it, in a context of its own.

        The iterable is read in another thread. Close the generator to stop early, as leaving a
        ``for`` loop does in CPython. Raises what ``context`` and a context's iteration raise, and
        what the iterable raises.
        """
        with self.context(**options) as context:
            feeding = context.feed_soon(text)
            try:
                yield from context
                if context.errors:  # refused, but not fatal: it is not what was asked for
                    raise context.errors[0]
            finally:
                _finish(feeding)

    @property
    def going_away(self) -> wire.GoingAway | None:
        """The server's word that it will close, if it came."""
        return self._client.going_away

    def ping(self) -> float:
        """Seconds that a WebSocket ping took."""
        return self._portal.call(self._client.ping)


class SyncContext:
    """Made by SyncClient.context. Iterate over it once, from one thread, to receive its audio.

    The properties are ClientContext's.
    """

    def __init__(self, portal: BlockingPortal, context: ClientContext) -> None:
        self._portal, self._context = portal, context
        self.context_id = context.context_id

    def append(self, text: str) -> None:
        """More text, as it comes."""
        self._portal.call(self._context.append, text)

    def flush(self, flush_id: str) -> None:
        """Speak what is there, sentence or not."""
        self._portal.call(self._context.flush, flush_id)

    def end(self) -> None:
        """No more text will come."""
        self._portal.call(self._context.end)

    def feed_soon(self, text: str | Iterable[str]) -> Future[None]:
        """Append a whole text, or all that an iterable yields as it yields it, and end; returns
        at once. If the iterable fails, so does the iteration over the audio.
        """
        return self._portal.start_task_soon(_feed, self._context, text)

    def report_played(self, samples: int) -> None:
        """Tell the server how many samples of this context the listener has heard in all."""
        self._portal.call(self._context.report_played, samples)

    def cancel(self, played_ms: float | None = None) -> wire.ContextCancelled | None:
        """Stop now, and drop what has not been read. None: the context was over already."""
        return self._portal.call(self._context.cancel, played_ms)

    def __iter__(self) -> Iterator[AudioChunk]:
        """The audio as it arrives, until the context is done or cancelled.

        Raises ServerError if the server ended it with one, ConnectionLostError or ProtocolError
        if the connection did not hold, SlowReaderError if it was not read while another context
        of the socket waited, and what ``on_words`` raised.
        """
        chunks = aiter(self._context)
        while (chunk := self._portal.call(anext, chunks, None)) is not None:
            yield chunk

    @property
    def is_over(self) -> bool:
        """No audio will arrive any more (some may still wait to be read)."""
        return self._context.is_over

    @property
    def started(self) -> wire.AudioStarted | None:
        """Tells the audio's rate, once the first of it came."""
        return self._context.started

    @property
    def words(self) -> list[wire.Word]:
        """Those whose times have come, in a context with ``timestamps``."""
        return list(self._context.words)

    @property
    def errors(self) -> list[ServerError]:
        """What the server refused without ending the context."""
        return list(self._context.errors)

    @property
    def metrics(self) -> wire.Metrics | None:
        """What the context measured, once it is over."""
        return self._context.metrics

    @property
    def done(self) -> wire.ContextDone | None:
        """How the context ended, unless it was cancelled."""
        return self._context.done

    @property
    def cancelled(self) -> wire.ContextCancelled | None:
        """What was heard of a cancelled context."""
        return self._context.cancelled


async def _feed(context: ClientContext, text: str | Iterable[str]) -> None:
    """Feed a context; a text that fails ends the wait for its audio."""
    try:
        await context.feed(text if isinstance(text, str) else _in_thread(text))
    except Exception as error:
        context.fail(error)
        raise


async def _in_thread(pieces: Iterable[str]) -> AsyncIterator[str]:
    """What an iterable yields; it may block. A piece that is being waited for when this is
    cancelled is lost.
    """
    iterator = iter(pieces)
    while (
        piece := await to_thread.run_sync(next, iterator, None, abandon_on_cancel=True)
    ) is not None:
        yield piece


def _finish(feeding: Future[None]) -> None:
    """Feed no further; raise what the text itself failed with."""
    if not feeding.cancel():
        error = feeding.exception()
        if error is not None and not isinstance(error, ClientError):
            raise error
