"""Opening a socket of the native protocol, and translating what may go wrong with it."""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from clients.errors import (
    ConnectionLostError,
    NoServerError,
    ProtocolError,
    RefusedError,
    ServerError,
)
from streaming import wire
from streaming.wire_format import parse_server_message

#: A second of float32 audio at 48 kHz is 192 kB; a chunk is a few seconds at most.
_MAX_MESSAGE_BYTES = 16 << 20


def lost(error: ConnectionClosed) -> ConnectionLostError:
    """websockets' words for a closed socket in ours."""
    close = error.rcvd
    return ConnectionLostError(close.code if close else None, close.reason if close else "")


def parse(data: str) -> wire.ServerMessage | None:
    """One server message; None for a type from the future. Raises ProtocolError."""
    try:
        return parse_server_message(data)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that an API key goes into."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


async def open_socket(url: str, headers: dict[str, str], timeout_s: float) -> ClientConnection:
    """Connect. Raises NoServerError, RefusedError or ProtocolError."""
    try:
        parse_uri(url)
    except (InvalidURI, ValueError) as error:  # a port or host that cannot be one
        raise NoServerError(f"not a WebSocket address: {url}") from error
    try:
        return await connect(
            url,
            subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
            additional_headers=headers,
            open_timeout=timeout_s,
            max_size=_MAX_MESSAGE_BYTES,
            compression=None,
            proxy=None,
        )
    except InvalidStatus as error:
        body = (error.response.body or b"")[:500].decode(errors="replace").strip()
        message = body or error.response.reason_phrase
        raise RefusedError(error.response.status_code, message) from error
    except InvalidHandshake as error:
        raise ProtocolError(f"no WebSocket at {url}: {error}") from error
    except (OSError, TimeoutError) as error:
        raise NoServerError(f"no server answers at {url}") from error


async def greeting(socket: ClientConnection, timeout_s: float) -> wire.SessionCreated:
    """The server's first message.

    Raises ServerError if it is an error instead, ConnectionLostError or ProtocolError.
    """
    try:
        async with asyncio.timeout(timeout_s):
            data = await socket.recv()
    except TimeoutError as error:
        raise ProtocolError("the server did not say session.created") from error
    except ConnectionClosed as error:
        raise lost(error) from error
    message = parse(data) if isinstance(data, str) else None
    if isinstance(message, wire.Error):
        raise ServerError(message)
    if not isinstance(message, wire.SessionCreated):
        raise ProtocolError("the server did not begin with session.created")
    return message
