"""TLS handshakes, which end at a deadline like all that a client owes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, MutableSet
from typing import Any

from uvicorn.protocols.utils import get_remote_addr

from service.transport.connection_limits import ConnectionLimits, network_of_client, unmapped


class TlsHandshake(asyncio.Protocol):
    """A connection during its TLS handshake. Then a protocol created by ``inner`` takes over.

    ``limits`` give up one that waits too long; uvicorn calls ``shutdown`` of ``connections``.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        context: ssl.SSLContext,
        inner: Callable[[], asyncio.Protocol],
        connections: MutableSet[Any],
    ) -> None:
        self._limits, self._context, self._inner = limits, context, inner
        self._connections = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol. The socket is moved to a new transport before anything is read,
        since uvloop could pass the first bytes to this protocol before ``start_tls`` has
        installed its own.
        """
        self.network = network_of_client(unmapped(get_remote_addr(transport)))
        try:
            kept = transport.get_extra_info("socket").dup()
        finally:  # without a free file descriptor, the connection is closed
            transport.abort()
        self._connections.add(self)
        self._securing = asyncio.create_task(self._secure(kept))
        self._securing.add_done_callback(lambda done: self._forget(done, kept))
        self._limits.wait_for(self)

    def turn_away(self) -> None:
        """Stop for newer connections, or at the server's end."""
        self._securing.cancel()

    shutdown = turn_away  # uvicorn's name

    async def _secure(self, kept: socket.socket) -> None:
        # clients without TLS, or that disconnect, are ignored
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._inner,
                kept,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.head_s,
                ssl_shutdown_timeout=self._limits.head_s,
            )

    def _forget(self, done: asyncio.Task[None], kept: socket.socket) -> None:
        """Clean up after the task, which may never have begun if many connect at once."""
        self._connections.discard(self)
        self._limits.forget(self)
        if done.cancelled():
            kept.close()
