"""Floods of the smallest chunks, frames and messages. The work in a turn of the event loop, and
what a neighbour waits for, are bounded, counted in frames and events of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import h11
import pytest
from websockets.frames import Frame
from websockets.protocol import Protocol

from benchmarks.transport_attacks import ATTACKS, UPGRADE, Attack
from service.transport import intake
from service.transport.intake import SLICE_BYTES
from tests.service.live import Gateway, client, gateway, write
from tests.service.transport.raw_connection import raw

#: Frames and chunks of the smallest size in a slice.
_SLICE = SLICE_BYTES // 6 + 1
_PATIENCE_S = 60.0


class Work:
    """Frames and events of HTTP that are parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        #: The most in a turn of the event loop.
        self.most = 0
        receive, next_event = Protocol.recv_frame, h11.Connection.next_event

        def recv_frame(protocol: Protocol, frame: Frame) -> None:
            self.count += 1
            receive(protocol, frame)

        def count_event(connection: h11.Connection) -> Any:
            self.count += 1
            return next_event(connection)

        monkeypatch.setattr(Protocol, "recv_frame", recv_frame)
        monkeypatch.setattr(h11.Connection, "next_event", count_event)

    async def watch(self) -> None:
        """Note the work of each turn."""
        while True:
            before = self.count
            await asyncio.sleep(0)
            self.most = max(self.most, self.count - before)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setattr(intake, "_TURN_S", 0.0)  # one slice in a turn
    return Work(monkeypatch)


async def _attack(server: Gateway, attack: Attack, begun: asyncio.Event) -> bytes:
    """Flood until the server ends the connection; return the last bytes that it sent."""
    async with raw(server) as (reader, writer):
        if attack.first.startswith(UPGRADE):
            writer.write(UPGRADE)
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(attack.first.removeprefix(UPGRADE))
        tail = b""

        async def read() -> None:
            nonlocal tail
            while data := await reader.read(1 << 16):
                tail = (tail + data)[-64:]

        reading = asyncio.create_task(read()) if attack.reads else None
        try:
            while True:
                writer.write(attack.flood)
                begun.set()
                await writer.drain()
        except ConnectionError:
            if reading is not None:
                with contextlib.suppress(ConnectionError):
                    await reading
            return tail
        finally:
            if reading is not None:
                reading.cancel()
            writer.transport.abort()


@contextlib.asynccontextmanager
async def _under(server: Gateway, attack: Attack) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    async with asyncio.timeout(_PATIENCE_S):
        events = [asyncio.Event() for _ in range(attack.connections)]
        attacking = [asyncio.create_task(_attack(server, attack, begun)) for begun in events]
        try:
            for begun in events:
                await begun.wait()
            yield attacking
        finally:
            for each in attacking:
                each.cancel()
            await asyncio.gather(*attacking, return_exceptions=True)


@pytest.mark.parametrize(
    "name", [name for name, one in ATTACKS.items() if one.connections <= 20 and not one.tls]
)
async def test_flood_delays_loop_and_neighbour_by_a_few_slices(name: str, work: Work) -> None:
    attack = ATTACKS[name]
    async with gateway() as server, client(server.url, local_addr=("127.0.0.2", 0)) as neighbour:
        watching = asyncio.create_task(work.watch())
        async with _under(server, attack) as attacking:
            waited = []
            for number in range(10):
                before = work.count
                await neighbour.send("ping", id=str(number))
                assert await neighbour.next() == {"type": "pong", "id": str(number)}
                waited.append(work.count - before)
            if attack.close_code is not None:
                tails = await asyncio.gather(*attacking)
                assert all(attack.close_code.to_bytes(2, "big") in tail for tail in tails)
        watching.cancel()
    assert work.most <= 2 * _SLICE
    assert max(waited) <= 20 * _SLICE


async def test_flood_of_contexts_that_are_cancelled_leaves_no_set_ups() -> None:
    """Each takes a turn of the loop, so a neighbour's would come last."""
    count = 300
    pairs = [
        {"type": f"context.{what}", "context_id": f"c{number}"}
        for number in range(count)
        for what in ("create", "cancel")
    ]
    async with gateway() as server, client(server.url) as c:
        waiting = server.runtime.setup_turns._waiting
        most = cancelled = 0
        write(c, pairs)
        while cancelled < count:
            message = await c.next()
            assert isinstance(message, dict)
            cancelled += message["type"] == "context.cancelled"
            most = max(most, len(waiting))
    assert most <= 2
