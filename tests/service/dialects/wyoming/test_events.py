"""Wyoming's events as bytes, from clients that mean well and others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from service.dialects.wyoming.events import Event, EventReader, encode_event
from streaming.errors import CapacityError, ErrorCode, RequestError

LIMIT = 1024


def reader(data: bytes, *, is_open: bool = False, rest_s: float = 30) -> EventReader:
    stream = asyncio.StreamReader(limit=LIMIT)
    stream.feed_data(data)
    if not is_open:
        stream.feed_eof()
    return EventReader(stream, LIMIT, rest_s)


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


@pytest.mark.parametrize(
    ("data", "event"),
    [
        (line(type="describe"), Event("describe", {})),
        (line(type="a", data={"b": 1}), Event("a", {"b": 1})),
        (line(type="a", data=None, data_length=None, payload_length=0), Event("a", {})),
        (line(type="a", data_length=7) + b'{"b":1}', Event("a", {"b": 1})),
        (line(type="a", data={"b": 0, "c": 2}, data_length=7) + b'{"b":1}',
         Event("a", {"b": 1, "c": 2})),
        (line(type="a", version="9", more=[]), Event("a", {})),
        (b' {"type": "a"} \r\n', Event("a", {})),
        (line(type="a", data_length=2, payload_length=3) + b"{}\n\n\n", Event("a", {})),
        (line(type="a", data={"text": "caf\u00e9 \U0001f600"}),
         Event("a", {"text": "caf\u00e9 \U0001f600"})),
        (line(type="a", payload_length=LIMIT) + bytes(LIMIT), Event("a", {})),
    ],
)  # fmt: skip
async def test_event_is_read_and_next_one_after_it(data: bytes, event: Event) -> None:
    events = reader(data + line(type="next"))
    assert await events.read(30) == event
    assert await events.read(30) == Event("next", {})
    assert await events.read(30) is None


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"\n", "invalid_json", ""),
        (b"GET / HTTP/1.1\r\n", "invalid_json", ""),
        (b"\x16\x03\x01\x02\x00\n", "invalid_json", ""),
        (b'{"type": "\xff"}\n', "invalid_json", ""),
        (b'{"type": "a"\n', "invalid_json", ""),
        (b"[" * 900 + b"\n", "invalid_json", ""),
        (b'{"type":"a","data":' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}\n", None, ""),
        (b"[]\n", "invalid_message", "JSON object, not a list"),
        (b'"describe"\n', "invalid_message", "JSON object, not a string"),
        (line(data={}), "invalid_message", "type is missing"),
        (line(type=5), "invalid_message", "type must be a string"),
        (line(type=""), "invalid_message", "type must be at least 1 characters long"),
        (line(type="a", data=[]), "invalid_message", "data must be an object"),
        (line(type="a", data_length=-1), "invalid_message", "data_length must be at least 0"),
        (line(type="a", data_length=True), "invalid_message", "data_length must be a whole number"),
        (line(type="a", data_length="2"), "invalid_message", "data_length must be a whole number"),
        (line(type="a", data_length=1.5), "invalid_message", "data_length must be a whole number"),
        (line(type="a", data_length=LIMIT + 1), "invalid_message", "data_length must be at most"),
        (line(type="a", data_length=10**40), "invalid_message", "data_length must be"),
        (line(type="a", payload_length=LIMIT + 1), "invalid_message", "payload_length must be at"),
        (line(type="a", payload_length={}), "invalid_message", "payload_length must be a whole"),
        (line(type="a", data_length=3) + b"{}}", "invalid_json", ""),
        (line(type="a", data_length=2) + b"[]", "invalid_message", "JSON object, not a list"),
        (b"x" * (2 * LIMIT), "invalid_message", "may have 1024 bytes"),
        (b'{"type": "' + b"x" * LIMIT + b'"}\n', "invalid_message", "may have 1024 bytes"),
    ],
)
async def test_invalid_event_is_refused_with_reason(
    data: bytes, code: str | None, words: str
) -> None:
    if code is None:
        assert await reader(data).read(30) is not None
        return
    with pytest.raises(RequestError) as refused:
        await reader(data).read(30)
    assert refused.value.code == code
    assert words in refused.value.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"type": "describe"}',
        line(type="a", data_length=7) + b'{"b":',
        line(type="a", payload_length=7) + b"123456",
    ],
)
async def test_client_that_leaves_within_event_is_gone(data: bytes) -> None:
    assert await reader(data).read(30) is None


async def test_silent_client_times_out_and_trickled_event_is_told() -> None:
    with pytest.raises(TimeoutError):
        await reader(b"", is_open=True).read(0.01)
    with pytest.raises(CapacityError) as slow:
        await reader(b'{"type"', is_open=True, rest_s=0.01).read(30)
    assert slow.value.code is ErrorCode.IDLE_TIMEOUT


async def test_written_events_are_read_again() -> None:
    events = reader(encode_event("a", b'{"b":\n"c"}', b"\n\n") + encode_event("c"))
    assert await events.read(30) == Event("a", {"b": "c"})
    assert await events.read(30) == Event("c", {})
