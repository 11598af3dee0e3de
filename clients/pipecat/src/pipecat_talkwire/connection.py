"""The socket to the server: opened, kept alive, and reopened when it is lost."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any, Literal
from urllib.parse import urlsplit

from loguru import logger
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.tts_service import WebsocketTTSService
from pipecat.services.websocket_service import ReportErrorCallback
from pipecat.utils.errors import ErrorCategory
from websockets.asyncio.client import ClientConnection
from websockets.protocol import State
from websockets.typing import Subprotocol

from pipecat_talkwire import wire
from pipecat_talkwire.contexts import Contexts

_GREETING_TIMEOUT_S = 10.0
#: An utterance may come as one message.
_MAX_MESSAGE_BYTES = 16 << 20
#: Some minutes with Pipecat's pauses, since a restarting server first loads its model.
_RECONNECT_ATTEMPTS = 20


class TalkwireConnection(WebsocketTTSService):
    """The half of the service that manages the connection. It reads only the greeting.

    The other half must define ``_receive_messages``, which sets ``_reading`` to its socket.
    """

    def __init__(
        self, *, url: str, headers: dict[str, str], word_timestamps: bool | None, **kwargs: Any
    ) -> None:
        """Initialize the connection; ``setup`` opens it.

        Args:
            url: The server's address.
            headers: Headers of the handshake.
            word_timestamps: Whether to push words as they are spoken; None: if the server can.
            **kwargs: Passed to the parent service.
        """
        super().__init__(**kwargs)
        self._url = url
        self._headers = headers
        self._wants_word_timestamps = word_timestamps
        self._has_word_timestamps = False
        #: The server's greeting on this connection.
        self._server: wire.Server | None = None
        #: Set when the server is done with a context.
        self._forgotten = asyncio.Event()
        self._contexts = Contexts(self._forgotten.set)
        #: Contexts whose error was reported and may pass.
        self._excused: set[str] = set()
        #: Whether the server has announced that it goes away.
        self._leaving = False
        #: Set unless the server goes away.
        self._left = asyncio.Event()
        self._left.set()
        #: Context of a text that the server cannot take yet.
        self._waiting_context_id: str | None = None
        #: Whether the server has sent audio on this connection.
        self._has_spoken = False
        #: Held while a connection is opened.
        self._connecting = asyncio.Lock()
        self._receive_task: asyncio.Task[None] | None = None
        #: The socket that is being read.
        self._reading: ClientConnection | None = None

    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Set up the service and connect.

        Args:
            setup: The pipeline's setup for its processors.
        """
        await super().setup(setup)
        await self._connect()

    async def _connect(self) -> None:
        await super()._connect()
        await self._connect_websocket()
        # The task ends when it gives up; the socket may be opened again later.
        if self._websocket and (not self._receive_task or self._receive_task.done()):
            self._receive_task = self.create_task(self._receive_task_handler(self._report_error))
        if self._server:
            self._create_keepalive_task(self._server.session_idle_s / 3)

    async def _disconnect(self) -> None:
        await super()._disconnect()
        await self._cancel_keepalive_task()
        if self._receive_task:
            await self.cancel_task(self._receive_task)
            self._receive_task = None
        await self._disconnect_websocket()

    async def _maybe_try_reconnect(
        self,
        error_message: str,
        report_error: ReportErrorCallback,
        error: Exception | None = None,
    ) -> bool:
        # Pipecat gives up for good after three short-lived connections in a row, since the server
        # may have refused them. It did not refuse a connection on which it sent audio.
        if self._has_spoken:
            self._quick_failure_tracker.reset()
        if self._contexts and not self._disconnecting:
            await self._report_incomplete(error)
        try:
            return await super()._maybe_try_reconnect(error_message, report_error, error)
        finally:
            self._left.set()

    async def _record_context_audio_outcome(self, context_id: str, received_audio: bool) -> None:
        # Pipecat gives up for good after three silent contexts in a row, which it takes for
        # requests that the server ignores.
        is_excused = context_id in self._excused
        self._excused.discard(context_id)
        if received_audio or not is_excused:
            await super()._record_context_audio_outcome(context_id, received_audio)

    async def _report_incomplete(self, error: Exception | None) -> None:
        """Report that the lost connection had open contexts. Pipecat reports only that it cannot
        be opened again, and ends their turns like complete ones.
        """
        self._excused.update(self._contexts.ids())
        turns = "1 turn is" if len(self._contexts) == 1 else f"{len(self._contexts)} turns are"
        message = f"the connection was lost and {turns} incomplete"
        if error is not None:
            message += f": {error}"
        await self.push_error(message, exception=error, category=ErrorCategory.CONNECTIVITY)

    async def _try_reconnect(
        self,
        max_retries: int = _RECONNECT_ATTEMPTS,
        report_error: ReportErrorCallback | None = None,
    ) -> bool:
        return await super()._try_reconnect(max_retries, report_error)

    async def _reconnect_websocket(self, attempt_number: int) -> bool:
        # Between two attempts a text may have opened another socket, on which it is spoken.
        async with self._connecting:
            socket = self._websocket
            if socket and socket is not self._reading and socket.state is State.OPEN:
                waiting = self._waiting_context_id
                for context_id in self.get_audio_contexts():  # those of the lost one
                    if context_id != waiting and not self._contexts.get(context_id):
                        await self.remove_audio_context(context_id)
                return True
        return await super()._reconnect_websocket(attempt_number)

    async def _close_connection_contexts(self) -> None:
        waiting = self._waiting_context_id
        if waiting is None:
            await super()._close_connection_contexts()
            return
        for context_id in self.get_audio_contexts():
            if context_id != waiting:
                await self.remove_audio_context(context_id)

    def _on_going_away(self) -> None:
        logger.info(f"{self}: the server is going away")
        self._leaving = True
        self._left.clear()

    async def _wait_until_taken(self, context_id: str) -> None:
        """Wait while the server would refuse the context: until one of too many is done, and until
        a server that goes away has been left. Do not wait for contexts whose own text would come
        after the caller's.
        """
        if not (self._is_full or self._must_leave):
            return
        self._waiting_context_id = context_id
        try:
            while self._is_full:
                self._forgotten.clear()
                await self._forgotten.wait()
            if self._must_leave:
                await self._left.wait()
        finally:
            self._waiting_context_id = None
        if self._disconnecting:
            raise ConnectionError("the service was stopped")

    @property
    def _is_full(self) -> bool:
        return self._server is not None and self._contexts.is_full(self._server.max_contexts)

    @property
    def _must_leave(self) -> bool:
        return self._leaving and not self._contexts.wait_for_text

    async def _connect_websocket(self) -> None:
        # The receive task may be reconnecting when a text needs a connection.
        async with self._connecting:
            if not self._websocket or self._websocket.state is not State.OPEN:
                await self._open_websocket()

    async def _open_websocket(self) -> None:
        try:
            socket = await self._websocket_connect(
                self._url,
                subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
                additional_headers=self._headers,
                max_size=_MAX_MESSAGE_BYTES,
                compression=None,
                proxy=_proxy(self._url),
            )
            self._on_greeting(await _greeting(socket))
            self._websocket = socket
            await self._call_event_handler("on_connected")
        except Exception as error:
            self._websocket = None
            await self.push_error(f"cannot connect to {self._url}: {error}", exception=error)
            await self._call_event_handler("on_connection_error", str(error))

    def _on_greeting(self, server: wire.Server) -> None:
        self._server = server
        self._contexts.clear()
        self._leaving = False
        self._has_spoken = False
        self._left.set()
        wanted = self._wants_word_timestamps
        self._has_word_timestamps = server.has_word_timings and wanted is not False
        if wanted and not server.has_word_timings:
            logger.warning(f"{self}: this server has no word timings")
        # With timings words are pushed as they are spoken, otherwise each text with its audio.
        self._push_text_frames = not self._has_word_timestamps

    async def _disconnect_websocket(self) -> None:
        socket, self._websocket = self._websocket, None
        self._contexts.clear()
        self._left.set()
        if self._waiting_context_id is None:  # otherwise they are of the text that waits
            await self.stop_all_metrics()
        if socket:
            try:
                await socket.close()
            except Exception as error:
                await self.push_error(f"error on closing the connection: {error}", exception=error)
            await self._call_event_handler("on_disconnected")

    async def _send_keepalive(self) -> None:
        await self._send("ping")

    async def _send(self, kind: str, **fields: Any) -> None:
        message = wire.write(kind, **fields)
        message.encode()  # raises here; websockets would give the connection up
        await self._socket.send(message)

    @property
    def _socket(self) -> ClientConnection:
        if self._websocket is None:
            raise ConnectionError("not connected")
        socket: ClientConnection = self._websocket
        return socket


def _proxy(url: str) -> Literal[True] | None:
    """Return websockets' option to use the proxy that the environment names, if any: for TLS to
    other machines, since a proxy of a company reaches neither this machine nor its network.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost" or host.endswith(".localhost")
    return True if parts.scheme == "wss" and not is_here else None


async def _greeting(socket: ClientConnection) -> wire.Server:
    """Receive the server's first message. Closes the socket if it does not come."""
    try:
        async with asyncio.timeout(_GREETING_TIMEOUT_S):
            return wire.read_greeting(await socket.recv())
    except BaseException:
        await socket.close()
        raise
