"""Waiting for a reader that is late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from websockets.asyncio.client import ClientConnection

from clients.context import ClientContext
from clients.errors import ClientError, SlowReaderError

#: How long a context that is not read may keep the others of its socket waiting.
PATIENCE_S = 5.0


async def until_room(
    late: ClientContext, contexts: Collection[ClientContext], socket: ClientConnection
) -> None:
    """Wait until ``late`` has room: the socket is not read meanwhile, which holds the server back.

    It is given up if one of the socket's ``contexts`` waits. A socket that is closed is to be read
    at once: what is left in it is bounded, and its end is news to all of them.
    """
    room = asyncio.ensure_future(late.until_room())
    closed = asyncio.ensure_future(socket.wait_closed())
    first = asyncio.FIRST_COMPLETED
    try:
        while not (await asyncio.wait([room, closed], timeout=PATIENCE_S, return_when=first))[0]:
            if any(context.is_awaited for context in contexts):
                why = f"context {late.context_id} was not read while another one waited"
                with contextlib.suppress(ClientError):  # that will be read too
                    await late.give_up(SlowReaderError(why))
                return
    finally:
        room.cancel()
        closed.cancel()
