"""From a WebSocket's handshake to its dialect: who may come in, and how the others are told.

Agents' clients decide by the status of a refused handshake whether to try again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import Response, WebSocket

from service.auth.caller import current_caller
from service.http_speech import count_error
from service.runtime import Runtime
from service.socket import Dialect, Socket
from streaming.errors import CapacityError, ErrorCode, TalkwireError

#: The dialect of an accepted socket, whose contexts' tasks belong into the group. What it raises
#: (TalkwireError) refuses the handshake.
MakeDialect = Callable[[Socket, asyncio.TaskGroup], Dialect]
#: The answer to a refused handshake, and the id that finds it in the logs.
Refusal = Callable[[TalkwireError, str], Response]


async def serve_socket(
    websocket: WebSocket,
    runtime: Runtime,
    make: MakeDialect,
    refusal: Refusal,
    subprotocol: str | None = None,
) -> None:
    """Serve one WebSocket until it closes, or refuse its handshake."""
    try:
        _require_room(runtime)
    except TalkwireError as error:
        await refuse(websocket, runtime, error, refusal)
        return
    with runtime.connection(), _counted(runtime):
        async with asyncio.TaskGroup() as tasks:
            socket = Socket(websocket, runtime)
            try:
                dialect = make(socket, tasks)
            except TalkwireError as error:
                await refuse(websocket, runtime, error, refusal)
                return
            await websocket.accept(subprotocol)
            runtime.metrics.opened.inc()
            await socket.run(dialect, tasks)


def _require_room(runtime: Runtime) -> None:
    if runtime.connections >= runtime.settings.max_connections:
        raise CapacityError(ErrorCode.OVERLOADED, "The server has no connection to spare.")
    runtime.require_ready()
    runtime.accounts.require_connection(current_caller())


@contextmanager
def _counted(runtime: Runtime) -> Iterator[None]:
    """The caller has one connection more while the block runs."""
    caller = current_caller()
    runtime.accounts.enter_connection(caller)
    try:
        yield
    finally:
        runtime.accounts.leave_connection(caller)


async def refuse(
    websocket: WebSocket, runtime: Runtime, error: TalkwireError, refusal: Refusal
) -> None:
    """Refuse the handshake with a real status."""
    request_id = uuid.uuid4().hex
    count_error(runtime, error, request_id)
    await websocket.send_denial_response(refusal(error, request_id))
