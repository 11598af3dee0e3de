"""TLS before HTTP: the handshake is waited for as patiently as a request's head, and no more.

A server that asyncio itself puts behind TLS shows nobody a connection before its handshake is done:
any number could stay silent for a minute each. Here TLS begins after the connection is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, MutableSet
from typing import Any


class TlsDoor(asyncio.Protocol):
    """A connection until its handshake is done, when the protocol that ``inner`` makes has it.

    ``waits`` is called when the connection begins and ``ends`` when its handshake has ended;
    who waits too long is given up by the caller (``give_up``), or after ``handshake_s``.
    ``connections`` are those that are told to ``shutdown``, uvicorn's.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        inner: Callable[[], asyncio.Protocol],
        handshake_s: float,
        connections: MutableSet[Any],
        waits: Callable[[TlsDoor], None],
        ends: Callable[[TlsDoor], None],
    ) -> None:
        self._context, self._inner, self._handshake_s = context, inner, handshake_s
        self._connections, self._waits, self._ends = connections, waits, ends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol. Nothing has been read yet, and nothing must be here: uvloop could
        hand the first bytes to this protocol before ``start_tls`` has its own in place. So the
        socket goes over to a new transport.
        """
        kept = transport.get_extra_info("socket").dup()
        transport.abort()
        self._connections.add(self)
        self._securing = asyncio.create_task(self._secure(kept))
        self._securing.add_done_callback(lambda done: self._forget(done, kept))
        self._waits(self)

    def give_up(self) -> None:
        """Time is up, or others came after."""
        self._securing.cancel()

    def shutdown(self) -> None:
        """The server ends."""
        self.give_up()

    async def _secure(self, kept: socket.socket) -> None:
        # a client that speaks no TLS, or goes away, is its own business
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._inner,
                kept,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=self._handshake_s,
            )

    def _forget(self, done: asyncio.Task[None], kept: socket.socket) -> None:
        """The task may never have begun, where many come at once."""
        self._connections.discard(self)
        self._ends(self)
        if done.cancelled():
            kept.close()
