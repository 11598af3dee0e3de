"""The fault-injecting proxy: it forwards bytes unchanged and injects the intended faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.faults.proxy import NetworkFault, Plan, Proxy, proxy, random_plan

DATA = bytes(range(256)) * 400


class Echo:
    """Echoes data, and notes how each connection ended."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 14):
                writer.write(data)
                await writer.drain()
            self.ends.append("eof")
            writer.write(b"bye")
            await writer.drain()
        except OSError as error:
            self.ends.append(type(error).__name__)
        finally:
            self.ended.set()
            writer.close()


@contextlib.asynccontextmanager
async def echo(plan: Plan) -> AsyncIterator[tuple[Proxy, Echo]]:
    handler = Echo()
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with proxy(server.sockets[0].getsockname()[1], lambda number: plan) as between:
        async with asyncio.timeout(60):
            yield between, handler
    server.close()


async def through(between: Proxy, eof: bool = True, data: bytes = DATA) -> bytes:
    """Send data and return the echo; b"!" is appended on a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
    got = b""

    async def send() -> None:
        with contextlib.suppress(OSError):
            writer.write(data)
            await writer.drain()
            if eof:
                writer.write_eof()

    sending = asyncio.create_task(send())
    try:
        while piece := await reader.read(1 << 14):
            got += piece
    except OSError:
        got += b"!"
    await sending
    writer.close()
    return got


async def test_proxy_without_fault_forwards_all_bytes() -> None:
    async with echo(Plan()) as (between, handler):
        assert await through(between) == DATA + b"bye"
        assert between.passed == {"up": len(DATA), "down": len(DATA) + 3}
        assert (between.happened, handler.ends) == ([], ["eof"])


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize(
    "fault",
    [NetworkFault("delay", 5_000, seconds=0.001), NetworkFault("trickle", 101_000, rate=1e5)],
)
async def test_proxy_delays_without_changing_bytes(way: str, fault: NetworkFault) -> None:
    async with echo(Plan(**{way: fault})) as (between, _):
        assert await through(between) == DATA + b"bye"
        assert between.happened == [fault.kind]


@pytest.mark.parametrize("way", ["up", "down"])
async def test_proxy_stall_lasts_until_resume(way: str) -> None:
    async with echo(Plan(**{way: NetworkFault("stall", 1234)})) as (between, _):
        waiting = asyncio.create_task(through(between))
        while not between.happened:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert between.passed[way] == 1234
        assert not waiting.done()
        between.resume()
        assert await waiting == DATA + b"bye"


@pytest.mark.parametrize("way", ["up", "down"])
async def test_proxy_reset_reaches_both_ends(way: str) -> None:
    async with echo(Plan(**{way: NetworkFault("reset", 777)})) as (between, handler):
        got = await through(between, eof=False)
        assert got.endswith(b"!")
        assert DATA.startswith(got[:-1])
        await handler.ended.wait()
        assert handler.ends == ["ConnectionResetError"]
        assert between.passed[way] == 777


async def test_proxy_half_close_keeps_other_direction_open() -> None:
    async with echo(Plan(up=NetworkFault("half_close", 5000))) as (between, handler):
        assert await through(between, eof=False) == DATA[:5000] + b"bye"
        assert handler.ends == ["eof"]


async def test_proxy_drop_ends_both_connections() -> None:
    async with echo(Plan(down=NetworkFault("drop", 300))) as (between, handler):
        got = await through(between, eof=False)
        assert DATA[:300].startswith(got.removesuffix(b"!"))
        await handler.ended.wait()


async def test_proxy_drop_without_bytes_in_flight_is_fin() -> None:
    async with echo(Plan(down=NetworkFault("drop", 300))) as (between, handler):
        assert await through(between, eof=False, data=DATA[:300]) == DATA[:300]
        await handler.ended.wait()
        assert handler.ends == ["eof"]


def test_random_plan_is_reproducible_and_varied() -> None:
    make = random_plan(7, ("reset", "drop"), 1000)
    plans = [make(number) for number in range(200)]
    assert plans == [random_plan(7, ("reset", "drop"), 1000)(number) for number in range(200)]
    faults = [plan.up or plan.down for plan in plans]
    assert {fault.kind for fault in faults if fault} == {"reset", "drop"}
    assert 60 < sum(plan.up is None for plan in plans) < 140
    assert all(fault and fault.at < 1000 for fault in faults)
