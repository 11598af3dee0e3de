"""Received data is parsed in slices, client by client, and reading is paused meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from service.transport import intake
from service.transport.intake import SLICE_BYTES, Intake, ParseTurns


class Transport:
    """A transport that is read or not."""

    is_read = True
    is_aborted = False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture(autouse=True)
def _one_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_TURN_S", 0.0)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def take_in(
    shared: ParseTurns, transport: Transport, parse: Callable[[bytes], None], client: str = ""
) -> Intake:
    end: Any = transport
    return Intake(shared, end, parse, client)


async def test_clients_take_turns_and_then_their_connections() -> None:
    """A client with many connections delays another one by a slice."""
    shared, parsed = ParseTurns(), list[str]()

    def note(name: str, data: bytes) -> None:
        parsed.append(name)

    many = [take_in(shared, Transport(), partial(note, f"many {n}"), "many") for n in range(3)]
    one = take_in(shared, Transport(), partial(note, "one"), "one")
    for each in many:
        each.put(bytes(2 * SLICE_BYTES))
    one.put(b"a little")
    await turns(20)
    assert parsed == ["many 0", "one", "many 1", "many 2", "many 0", "many 1", "many 2"]


async def test_turn_of_loop_holds_one_slice_without_time_for_more() -> None:
    shared, parsed = ParseTurns(), list[int]()
    for client in "abc":
        take_in(shared, Transport(), lambda data: parsed.append(len(data)), client).put(
            bytes(SLICE_BYTES + 1)
        )
    for count in range(1, 7):
        await turns(1)
        assert len(parsed) == count
    assert sorted(parsed) == [1, 1, 1, *[SLICE_BYTES] * 3]


async def test_little_data_is_parsed_at_once_unless_turn_is_over() -> None:
    shared, parsed = ParseTurns(), list[bytes]()
    first, second = (take_in(shared, Transport(), parsed.append, name) for name in "ab")
    first.put(b"first")
    second.put(b"second")
    assert parsed == [b"first"]
    await turns(1)
    assert parsed == [b"first", b"second"]


async def test_connection_is_not_read_while_data_are_unparsed() -> None:
    transport, parsed = Transport(), list[bytes]()
    paced = take_in(ParseTurns(), transport, parsed.append)
    paced.put(bytes(2 * SLICE_BYTES))
    for _ in range(2):
        assert not transport.is_read
        transport.is_read = True  # as uvicorn does after the body of a refused request
        paced.put(b"more")
    await turns(4)
    assert (sum(map(len, parsed)), transport.is_read) == (2 * SLICE_BYTES + 8, True)


async def test_few_connections_are_read_again_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reading costs before the intake, as with TLS, is bounded too."""
    monkeypatch.setattr(intake, "_TURN_S", 60.0)
    shared, ends = ParseTurns(), [Transport() for _ in range(10)]
    for end in ends:
        take_in(shared, end, lambda _: None).put(bytes(SLICE_BYTES + 1))
    for count in (4, 8, 10):
        await turns(1)
        assert sum(end.is_read for end in ends) == count


async def test_connections_with_little_data_are_read_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, ends = ParseTurns(), [Transport() for _ in range(10)]
    for end in ends:
        take_in(shared, end, lambda _: None).put(b"a little")
    assert sum(end.is_read for end in ends) == 1
    monkeypatch.setattr(intake, "_TURN_S", 60.0)
    await turns(2)
    assert all(end.is_read for end in ends)


async def test_held_data_waits_and_order_is_kept() -> None:
    transport, parsed = Transport(), list[bytes]()
    paced = take_in(ParseTurns(), transport, parsed.append)
    paced.pause_reading()
    paced.put(b"a")
    await turns(3)
    assert (parsed, transport.is_read) == ([], False)
    paced.put(b"b")
    paced.resume_reading()
    await turns(3)
    assert (b"".join(parsed), transport.is_read) == (b"ab", True)


async def test_discarded_data_is_read_and_dropped() -> None:
    transport, parsed = Transport(), list[bytes]()
    paced = take_in(ParseTurns(), transport, parsed.append)
    paced.put(bytes(10 * SLICE_BYTES))
    paced.discard()
    for size in (1, 10 * SLICE_BYTES):
        paced.put(bytes(size))
        await turns(3)
    assert (parsed, transport.is_read) == ([], True)


async def test_parser_that_raises_ends_only_its_connection() -> None:
    shared, broken, parsed = ParseTurns(), Transport(), list[bytes]()

    def fail(data: bytes) -> None:
        raise ZeroDivisionError

    take_in(shared, broken, fail).put(bytes(2 * SLICE_BYTES))
    take_in(shared, Transport(), parsed.append).put(bytes(2 * SLICE_BYTES))
    await turns(10)
    assert broken.is_aborted
    assert len(parsed) == 2
