"""Wyoming's events as bytes, as the package ``wyoming`` 1.10 (``wyoming/event.py``) has them.

An event is a line of JSON with its type. ``data_length`` bytes of JSON may follow, whose fields
are added to those of the line's ``data``, and then ``payload_length`` bytes, such as audio.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, RootModel
from pydantic_core import to_json

from service.errors import idle_timeout, parse_message
from streaming.errors import ErrorCode, RequestError
from streaming.protocol.field_errors import invalid_field
from text.surrogates import shield_surrogates

_Length = Annotated[int, Field(strict=True, ge=0)] | None


class _Line(BaseModel):
    type: Annotated[str, Field(min_length=1)]
    data: dict[str, Any] | None = None
    data_length: _Length = None
    payload_length: _Length = None


class _Data(RootModel[dict[str, Any]]):
    pass


class Event(NamedTuple):
    """An event of a client. Payloads are left out: none of speech has any."""

    type: str
    data: dict[str, Any]


class EventReader:
    """Reads events, of which each part has at most ``max_bytes``, the limit of ``reader`` too. What
    follows an event's first byte has to come within ``rest_s`` seconds.
    """

    def __init__(self, reader: asyncio.StreamReader, max_bytes: int, rest_s: float) -> None:
        self._reader, self._max_bytes, self._rest_s = reader, max_bytes, rest_s

    async def read(self, idle_s: float) -> Event | None:
        """Return the next event; None if the client has disconnected, also within one.

        Raises TimeoutError if none begins within ``idle_s`` seconds, CapacityError
        (``idle_timeout``) if its rest takes too long, RequestError if it is invalid. What follows
        an error cannot be read.
        """
        async with asyncio.timeout(idle_s):
            first = await self._reader.read(1)
        if not first:
            return None
        try:
            async with asyncio.timeout(self._rest_s):
                return await self._rest(first)
        except TimeoutError:
            raise idle_timeout("event") from None
        except asyncio.IncompleteReadError:
            return None

    async def _rest(self, first: bytes) -> Event:
        try:
            rest = b"" if first == b"\n" else await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            message = f"The line of an event may have {self._max_bytes} bytes at most."
            raise RequestError(ErrorCode.INVALID_MESSAGE, message) from None
        line = parse_message(_Line, shield_surrogates(first + rest))
        lengths = {"data_length": line.data_length, "payload_length": line.payload_length}
        for name, length in lengths.items():
            if length is not None and length > self._max_bytes:
                raise invalid_field(name, length, f"at most {self._max_bytes}")
        data = line.data or {}
        if line.data_length:
            more = await self._reader.readexactly(line.data_length)
            data |= parse_message(_Data, shield_surrogates(more)).root
        if line.payload_length:
            await self._reader.readexactly(line.payload_length)
        return Event(line.type, data)


def encode_event(type_: str, data: bytes = b"", payload: bytes = b"") -> bytes:
    """Return the bytes of an event; ``data`` is a JSON object, or empty for none."""
    line: dict[str, Any] = {"type": type_}
    if data:
        line["data_length"] = len(data)
    if payload:
        line["payload_length"] = len(payload)
    return b"".join((to_json(line), b"\n", data, payload))
