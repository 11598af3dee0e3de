"""A TCP proxy that injects faults, separately for each direction, at a given byte.

A fault happens once per connection and direction, when ``at`` bytes have passed::

    delay       each later piece is delayed by ``seconds``; the order is kept
    stall       nothing is read or forwarded until ``resume`` is called
    trickle     later bytes pass in small pieces, at ``rate`` bytes per second
    reset       both ends get a RST; bytes in flight may be lost
    half_close  this direction ends (FIN); the other one stays open
    drop        both ends are closed as by a peer that leaves (FIN)
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["delay", "stall", "trickle", "reset", "half_close", "drop"]
_READ_BYTES, _TRICKLE_BYTES = 1 << 14, 64


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """A fault of one direction; the module's docstring lists the kinds."""

    kind: FaultKind
    at: int = 0
    seconds: float = 0.0
    rate: float = 1e4


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults of one connection: ``up`` from the client to the server, ``down`` back."""

    up: NetworkFault | None = None
    down: NetworkFault | None = None


#: Makes the plan of the n-th connection, from 0.
MakePlan = Callable[[int], Plan]


def random_plan(seed: int, kinds: tuple[FaultKind, ...], most_bytes: int) -> MakePlan:
    """One random fault of these kinds per connection, in either direction, at any byte."""

    def plan(number: int) -> Plan:
        chance = random.Random(f"{seed}-{number}")
        fault = NetworkFault(
            chance.choice(kinds),
            at=chance.randrange(most_bytes),
            seconds=chance.uniform(0.001, 0.05),
            rate=chance.uniform(1e5, 1e6),
        )
        return Plan(up=fault) if chance.random() < 0.5 else Plan(down=fault)

    return plan


class Proxy:
    """Forwards connections to ``target_port`` on localhost. See ``proxy``."""

    def __init__(self, target_port: int, plan: MakePlan) -> None:
        self.target_port, self._plan = target_port, plan
        self.port = 0
        self.connections = 0
        #: Bytes forwarded over all connections.
        self.passed = {"up": 0, "down": 0}
        #: Faults injected so far.
        self.happened: list[FaultKind] = []
        self._resumed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """Resume stalled connections; later ones do not stall."""
        self._resumed.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new client."""
        task = asyncio.create_task(self._serve(reader, writer, self._plan(self.connections)))
        self.connections += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Abort the open connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, plan: Plan
    ) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target_port, limit=_READ_BYTES)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, there[1])
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(
                    self._pump("up", reader, there[1], plan.up, ends),
                    self._pump("down", there[0], writer, plan.down, ends),
                )
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(
        self,
        way: Literal["up", "down"],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fault: NetworkFault | None,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        passed, is_due = 0, False
        while True:
            if fault is not None and not is_due and passed >= fault.at:
                is_due = True
                self.happened.append(fault.kind)
                if not await self._begin(fault, writer, ends):
                    return
            most = _READ_BYTES
            if fault is not None:
                most = min(most, fault.at - passed) if not is_due else _piece(fault)
            if not (data := await reader.read(most)):
                break
            if fault is not None and is_due:
                await asyncio.sleep(_pause(fault, len(data)))
            writer.write(data)
            await writer.drain()
            passed += len(data)
            self.passed[way] += len(data)
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _begin(
        self,
        fault: NetworkFault,
        writer: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> bool:
        """Inject the fault; return whether this direction continues."""
        match fault.kind:
            case "stall":
                await self._resumed.wait()
            case "reset":
                for end in ends:
                    _reset(end)
                return False
            case "half_close":
                writer.write_eof()
                return False
            case "drop":
                for end in ends:
                    end.close()
                return False
        return True


def _piece(fault: NetworkFault) -> int:
    return _TRICKLE_BYTES if fault.kind == "trickle" else _READ_BYTES


def _pause(fault: NetworkFault, size: int) -> float:
    if fault.kind == "trickle":
        return size / fault.rate
    return fault.seconds if fault.kind == "delay" else 0.0


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST, by a linger time of zero."""
    wire: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(target_port: int, plan: MakePlan) -> AsyncIterator[Proxy]:
    """Run a proxy on a free port until the block ends."""
    made = Proxy(target_port, plan)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0, limit=_READ_BYTES)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.stop()
