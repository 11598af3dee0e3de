"""A client of the native protocol, for programs that feed text and take audio.

::

    async with NativeClient.connect("ws://127.0.0.1:8000/v1/tts/stream") as client:
        async for chunk in client.speak("Hello there."):
            play(chunk.pcm)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from typing import Any, Literal

from msgspec import UNSET
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from clients.chunk import AudioChunk
from clients.context import ClientContext, OnWords
from clients.errors import ClientError, ConnectionLostError, ProtocolError, ServerError
from clients.handshake import authorization, greeting, lost, open_socket, parse
from clients.late import until_room
from streaming import wire
from streaming.wire_format import HEADER_BYTES, AudioFlags, AudioHeader, encode_message

#: How long leaving a context waits for the server to confirm that it was cancelled.
_CANCEL_TIMEOUT_S = 5.0


class NativeClient:
    """One socket and its contexts. ``created`` is what the server said of itself.

    Contexts of one socket are to be read at the same time: while one is not, and has come to its
    bound, nothing is read for the others. If one of them waits, the late one is cancelled after
    some seconds, and its reader gets SlowReaderError.
    """

    def __init__(self, socket: ClientConnection, created: wire.SessionCreated) -> None:
        self.created = created
        self.going_away: wire.GoingAway | None = None
        self._socket = socket
        self._contexts: dict[str, ClientContext] = {}
        self._handles: dict[int, ClientContext] = {}
        self._ids = itertools.count(1)
        self._refusal: ServerError | None = None
        self._ended: ClientError | None = None  # what the reader has come to
        self._fault: Exception | None = None  # of this client itself

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        open_timeout_s: float = 10,
        framing: Literal["header", "json"] = "header",
    ) -> AsyncIterator[NativeClient]:
        """Connect, with ``api_key`` where the server asks for one, and close on leaving. With
        ``json`` framing the server sends no binary messages; the chunks are the same.

        Raises NoServerError, RefusedError, ServerError (the server has no room, say) or
        ProtocolError.
        """
        given = {**(headers or {}), **authorization(api_key)}
        socket = await open_socket(url, given, open_timeout_s)
        try:
            client = cls(socket, await greeting(socket, open_timeout_s))
            reader = asyncio.create_task(client._read())
            try:
                if framing != "header":
                    await client._send(wire.SessionConfigure(framing))
                yield client
            finally:
                await _stop(reader)
                if client._fault is not None:
                    raise client._fault
        finally:
            await socket.close()

    @contextlib.asynccontextmanager
    async def context(
        self, *, on_words: OnWords | None = None, **options: Any
    ) -> AsyncIterator[ClientContext]:
        """Open a context; leaving early cancels it. ``options`` are ContextCreate's fields;
        ``on_words`` asks for ``timestamps`` (see ClientContext).

        Raises ServerError when the server refuses it, ConnectionLostError when the socket is
        gone, and ValueError when the id is in use on this socket.
        """
        options.setdefault("context_id", f"c{next(self._ids)}")
        if on_words is not None:
            options.setdefault("timestamps", True)
        create = wire.ContextCreate(**options)
        before = self._contexts.get(create.context_id)
        if before is not None and before.cancelled is not None:  # only its metrics are to come
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(before.until_gone(), _CANCEL_TIMEOUT_S)
        if create.context_id in self._contexts:
            raise ValueError(f"context id in use: {create.context_id}")
        context = ClientContext(create, self._send, self.created.limits, on_words)
        self._contexts[create.context_id] = context
        try:
            await context.open()
            yield context
        finally:
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                    await context.leave()

    async def speak(
        self, text: str | AsyncIterable[str], **options: Any
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak a text, or what an iterator yields while it yields it, in a context of its own.

        ``options`` are those of ``context``. Close the generator to stop early
        (``contextlib.aclosing``). Raises what context and
        ClientContext's iteration raise, and what the text's iterator raises.
        """
        async with self.context(**options) as context:
            feeding = asyncio.create_task(context.feed(text))
            feeding.add_done_callback(lambda task: _pass_on(task, context))
            try:
                async for chunk in context:
                    yield chunk
                if context.errors:  # refused, but not fatal: it is not what was asked for
                    raise context.errors[0]
            finally:
                error = await _stop(feeding)
                if error is not None and not isinstance(error, ClientError):
                    raise error

    async def ping(self) -> float:
        """Seconds that a WebSocket ping took."""
        return await (await self._socket.ping())

    async def _send(self, message: wire.ClientMessage) -> None:
        if self._ended is not None:
            raise self._ended
        try:
            await self._socket.send(encode_message(message))
        except ConnectionClosed as error:
            raise self._lost(error) from error

    def _lost(self, error: ConnectionClosed) -> ClientError:
        return self._refusal or lost(error)

    # -- the reader

    async def _read(self) -> None:
        error: ClientError = ConnectionLostError(None, "the client was closed")
        code = 1000
        try:
            while True:
                data = await self._socket.recv()
                if isinstance(data, bytes):
                    await self._on_audio(data, time.monotonic())
                else:
                    await self._on_message(parse(data), time.monotonic())
        except ConnectionClosed as closed:
            error = self._lost(closed)
        except ProtocolError as wrong:
            error, code = wrong, 1002
        except Exception as fault:
            error, self._fault = ConnectionLostError(None, "the client failed"), fault
        finally:  # whatever it was: nobody may wait for a socket that is not read
            self._ended = error
            for context in list(self._contexts.values()):
                context.on_lost(error)
                self._forget(context)
            await self._socket.close(code)

    async def _on_audio(self, frame: bytes, arrived_s: float) -> None:
        try:
            header = AudioHeader.unpack(frame)
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        await self._on_frame(frame[HEADER_BYTES:], header, arrived_s)

    async def _on_frame(self, pcm: bytes, header: AudioHeader, arrived_s: float) -> None:
        context = self._handles.get(header.handle)
        if context is None:
            raise ProtocolError(f"audio for the unknown handle {header.handle}")
        if context.is_full:
            await until_room(context, self._contexts.values(), self._socket)
        context.on_audio(pcm, header, arrived_s)

    async def _on_message(self, message: wire.ServerMessage | None, arrived_s: float) -> None:
        if isinstance(message, wire.Audio):
            flags = AudioFlags(message.flags)
            header = AudioHeader(message.handle, message.sequence, message.sample_offset, flags)
            await self._on_frame(message.audio, header, arrived_s)
        elif isinstance(message, wire.GoingAway):
            self.going_away = message
        elif isinstance(message, wire.Error):
            self._on_error(message)
        elif (context := self._contexts.get(getattr(message, "context_id", ""))) is not None:
            self._on_context_message(context, message)

    def _on_error(self, message: wire.Error) -> None:
        error = ServerError(message)
        if message.context_id is UNSET:
            self._refusal = error  # told, should the socket close now
        elif (context := self._contexts.get(message.context_id)) is not None:
            context.on_error(error)
            if context.handle is None:
                self._forget(context)

    def _on_context_message(
        self, context: ClientContext, message: wire.ServerMessage | None
    ) -> None:
        match message:
            case wire.ContextCreated(handle=handle):
                self._handles[handle] = context
                context.on_created(handle)
            case wire.AudioStarted():
                context.started = message
            case wire.Timestamps():
                context.on_timestamps(message)
            case wire.Metrics():
                context.metrics = message
                if context.cancelled is not None:
                    self._forget(context)
            case wire.ContextDone():
                context.on_done(message)
                self._forget(context)
            case wire.ContextCancelled():  # its metrics are still to come
                context.on_cancelled(message)

    def _forget(self, context: ClientContext) -> None:
        self._contexts.pop(context.context_id, None)
        if context.handle is not None and self._handles.get(context.handle) is context:
            del self._handles[context.handle]
        context.on_forgotten()


def _pass_on(feeding: asyncio.Task[None], context: ClientContext) -> None:
    """A text that fails must end the wait for its audio."""
    if not feeding.cancelled() and (error := feeding.exception()) is not None:
        context.fail(error)


async def _stop(task: asyncio.Task[None]) -> BaseException | None:
    """Cancel a task, wait for it, and return what it died of, if not of that."""
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.exception()
