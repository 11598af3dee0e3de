"""A bare WebSocket server that replays a gateway's audio at the same times.

It reads a raw file (``--raw``). Each context gets the same number of bytes as the recorded context
of that id, in the same messages and at the same offsets from ``context.create``. Its cost is the
minimum: sockets, frames, the event loop.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import zlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from loadtest.process_stats import allow_open_files
from loadtest.records import TurnRecord, read_records
from talkwire_client import protocol

_RATE = 24_000
_LIMITS = protocol.Limits(8, 20_000, 65_536, 120_000, 60.0, 300.0)
_CREATED = protocol.SessionCreated(
    "bare", protocol.SUBPROTOCOL, "bare", ["default"], _RATE, ["pcm_s16le"], _LIMITS
)
_NOISE = random.Random(0).randbytes(_RATE * 2 * 60)

#: (seconds from context.create, samples) of each chunk.
Chunks = Sequence[tuple[float, int]]


def chooser(records: Sequence[TurnRecord]) -> Callable[[str], Chunks]:
    """Return a function that chooses the audio of a context: its own recording, else one picked by
    its id.
    """
    spoken = {
        record.context_id: [(at - record.opened_s, n) for at, n in record.arrivals]
        for record in records
        if record.outcome == "complete" and record.opened_s is not None and record.arrivals
    }
    if not spoken:
        raise SystemExit("the recording holds no complete turn")
    names = sorted(spoken)

    def choose(context_id: str) -> Chunks:
        other = names[zlib.crc32(context_id.encode()) % len(names)]
        return spoken.get(context_id) or spoken[other]

    return choose


class ReplaySession:
    """Replays to one socket."""

    def __init__(self, socket: ServerConnection, choose: Callable[[str], Chunks]) -> None:
        self._socket = socket
        self._choose = choose
        self._speaking: dict[str, asyncio.Task[None]] = {}
        self._handles = 0

    async def run(self) -> None:
        """Serve the socket until it closes."""
        await self._say(_CREATED)
        try:
            async for data in self._socket:
                await self._on(protocol.decode_client_message(data))
        except ConnectionClosed:
            pass
        finally:
            for task in self._speaking.values():
                task.cancel()

    async def _say(self, message: protocol.ServerMessage) -> None:
        await self._socket.send(protocol.encode_message(message))

    async def _on(self, message: protocol.ClientMessage | None) -> None:
        match message:
            case protocol.ContextCreate(context_id=context_id):
                handle, self._handles = self._handles, (self._handles + 1) % 65_536
                await self._say(protocol.ContextCreated(context_id, handle))
                self._speaking[context_id] = asyncio.create_task(self._speak(context_id, handle))
            case protocol.ContextCancel(context_id=context_id):
                if (task := self._speaking.pop(context_id, None)) is not None:
                    task.cancel()
                    await self._say(protocol.ContextCancelled(context_id, 0, 0, 0, "", ""))
                    await self._say(_metrics(context_id))

    async def _speak(self, context_id: str, handle: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        offset = 0
        try:
            for number, (at, samples) in enumerate(self._choose(context_id)):
                await asyncio.sleep(began + at - loop.time())
                if not number:
                    await self._say(
                        protocol.AudioStarted(context_id, protocol.Encoding.PCM_S16LE, _RATE)
                    )
                pcm = _NOISE[: 2 * samples]
                await self._socket.send(protocol.AudioHeader(handle, number, offset).pack() + pcm)
                offset += samples
            del self._speaking[context_id]
            await self._say(_metrics(context_id))
            await self._say(protocol.ContextDone(context_id, "complete"))
        except ConnectionClosed:
            return


def _metrics(context_id: str) -> protocol.Metrics:
    return protocol.Metrics(context_id, None, None, None, 0.0, None, 0.0)


def _health(connection: ServerConnection, request: Request) -> Response | None:
    if request.path == "/health/ready":
        return connection.respond(HTTPStatus.OK, "ok\n")
    return None


async def run(recording: Path) -> None:
    """Serve until a signal."""
    choose = chooser(read_records(recording))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(
        lambda socket: ReplaySession(socket, choose).run(),
        "127.0.0.1",
        0,
        subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
        compression=None,
        process_request=_health,
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        print(f"http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        await stop.wait()


def main(argv: Sequence[str]) -> None:
    """Run the process."""
    import uvloop

    allow_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(Path(argv[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
