"""Keys in the first message of ElevenLabs' sockets, for clients that cannot set headers.

The handshake has to be accepted before the key is known. Until then the socket serves nothing.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress

from fastapi import WebSocket, WebSocketDisconnect
from starlette.types import Message
from websockets.frames import CloseCode

from service.access.gate import client_address
from service.auth.authenticator import presented_key
from service.auth.caller import serve_caller
from service.auth.keys import Scope
from service.dialects.elevenlabs.messages import TABLE, error_message
from service.dialects.elevenlabs.request import NAME
from service.errors import idle_timeout, peek
from service.runtime import Runtime
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError

#: Sockets that may wait for a key at the same time.
_MOST_WAITING = 64


class LateKeys:
    """Sockets whose key is still to come: at most 64, each for ``handshake_s``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting = 0

    async def admit(self, websocket: WebSocket) -> WebSocket | None:
        """Accept a socket, and set the caller of its first message's key.

        Returns:
            The socket as if its handshake and first message were still to come. None if it was
            refused or has ended.
        """
        if self._waiting >= _MOST_WAITING:
            message = "Too many sockets wait for their keys; send the key in the handshake."
            full = CapacityError(ErrorCode.OVERLOADED, message)
            await websocket.send_denial_response(self._runtime.errors.refusal(full, TABLE))
            return None
        self._waiting += 1
        try:
            await websocket.accept()
            async with asyncio.timeout(self._runtime.settings.handshake_s):
                first = await websocket.receive()
            if first["type"] == "websocket.disconnect":
                return None
            address = client_address(websocket.scope)
            serve_caller(self._runtime.authority.admit(_key(first), Scope.SPEAK, address))
            return _begun(websocket, first)
        except TimeoutError:
            await self._refuse(websocket, idle_timeout("socket without a key"))
        except TalkwireError as error:
            await self._refuse(websocket, error)
        finally:
            self._waiting -= 1
        return None

    async def _refuse(self, websocket: WebSocket, error: TalkwireError) -> None:
        self._runtime.errors.count(error, uuid.uuid4().hex, NAME)
        await _end(websocket, error)


def _key(first: Message) -> str | None:
    """Return the key in a first message, if it has one."""
    text = first.get("text") or ""
    if key := peek(text, "xi_api_key"):
        return presented_key([(b"xi-api-key", key.encode("latin-1", "replace"))])
    if bearer := peek(text, "authorization"):
        return presented_key([(b"authorization", bearer.encode("latin-1", "replace"))])
    return None


async def _end(websocket: WebSocket, error: TalkwireError) -> None:
    """Close an accepted socket with an error."""
    with suppress(WebSocketDisconnect):
        await websocket.send_text(error_message(error))
        await websocket.close(CloseCode.POLICY_VIOLATION)


def _begun(websocket: WebSocket, first: Message) -> WebSocket:
    """Return a socket that begins with its handshake and first message once more. What would refuse
    the handshake closes it with an error.
    """
    again: list[Message] = [first, {"type": "websocket.connect"}]

    async def receive() -> Message:
        return again.pop() if again else await websocket.receive()

    async def send(message: Message) -> None:
        match message["type"]:
            case "websocket.accept" | "websocket.http.response.start":
                pass
            case "websocket.http.response.body":
                told = json.loads(message["body"])["detail"]
                refused = RequestError(ErrorCode(told["code"]), told["message"])
                await _end(websocket, refused)
            case _:
                await websocket.send(message)

    return WebSocket(websocket.scope, receive, send)
