"""The sockets to the server, each shared by several speeches, and replaced when they are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from livekit.plugins.talkwire.log import logger

from talkwire_client import Client, ClientError

#: How long closing waits for speeches to be cancelled.
_FINISH_S = 1.0


class Lease(NamedTuple):
    """The place of one speech on a connection.

    ``acquired_s`` is how long it took to get it; ``reused``, whether the connection was open.
    """

    client: Client
    acquired_s: float
    reused: bool


class Connections:
    """Open connections. One carries all speeches, unless more are open than the server allows on
    it, or the server is about to close it: then the next speech opens another.

    Args:
        connect: Makes an unconnected client.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._make = connect
        #: Number of leases by connection.
        self._leases: dict[Client, int] = {}
        #: Held while a connection is opened, so that speeches that begin together share it.
        self._opening = asyncio.Lock()
        #: Work that no speech waits for: closing, cancelling.
        self._tasks: set[asyncio.Task[None]] = set()
        #: Opens a connection before the first speech.
        self._early: asyncio.Task[None] | None = None

    async def acquire(self, timeout_s: float) -> Lease:
        """Take a place on a connection; give it back with ``release``.

        Raises:
            TimeoutError: There was no connection in time.
            ClientError: There is no connection, as in ``Client.connect``.
        """
        began_s = time.monotonic()
        async with asyncio.timeout(timeout_s), self._opening:
            client = next(filter(self._has_room, self._leases), None)
            reused = client is not None
            if client is None:
                client = self._make()
                await client.connect()
                self._leases[client] = 0
            self._leases[client] += 1
        self._close_unused()
        return Lease(client, 0.0 if reused else time.monotonic() - began_s, reused)

    def release(self, lease: Lease) -> None:
        """Give a place back."""
        if lease.client in self._leases:
            self._leases[lease.client] -= 1
            self._close_unused()

    def open_early(self, timeout_s: float) -> None:
        """Open a connection for the first speech, unless one is open."""
        if self._early is None or self._early.done():
            self._early = asyncio.create_task(self._open_early(timeout_s))

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task that ``close`` waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all connections. Work that cancels speeches has a moment to finish."""
        if self._early is not None:
            self._early.cancel()
            await asyncio.wait([self._early])
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=_FINISH_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        clients, self._leases = list(self._leases), {}
        for client in clients:
            await client.close()

    def _has_room(self, client: Client) -> bool:
        return _is_usable(client) and self._leases[client] < client.server.limits.max_contexts

    def _close_unused(self) -> None:
        """Close connections that no speech uses, but for one that the next speech can use."""
        unused = [client for client, leases in self._leases.items() if not leases]
        has_room = any(leases and self._has_room(client) for client, leases in self._leases.items())
        for client in unused:
            if has_room or not _is_usable(client):
                del self._leases[client]
                self.in_background(client.close())
            else:
                has_room = True

    async def _open_early(self, timeout_s: float) -> None:
        try:
            self.release(await self.acquire(timeout_s))
        except (ClientError, TimeoutError) as error:
            logger.warning("could not connect early: %s", error or "timeout")


def _is_usable(client: Client) -> bool:
    return client.is_open and client.going_away is None
