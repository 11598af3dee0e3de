"""A gateway that was paused itself does not consider its workers hung."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from codec.engine import WATCH
from ipc import child_process
from ipc.watchdog import Vitals, read_vitals
from service.transport import websocket
from service.transport.websocket_protocol import WebSocketProtocol
from tests.faults.fake_service import free_port, instance
from tests.faults.history import Script
from tests.faults.rig import Listener, assert_right, gateway, native
from tests.ipc.nest import QUICK, Nest
from tests.waiting import until


async def test_supervisor_paused_with_its_child_does_not_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both stop, as on a suspended machine; the supervisor runs first afterwards."""
    watch, looks = replace(QUICK, hang_timeout_s=5.0), 0

    def pause(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * watch.hang_timeout_s)
        os.kill(pid, signal.SIGCONT)

    def look(pid: int) -> Vitals | None:
        nonlocal looks
        looks += nest.supervisor.is_up
        if looks == 6:
            asyncio.get_running_loop().call_soon(pause, pid)
        return read_vitals(pid)

    monkeypatch.setattr(child_process, "read_vitals", look)
    nest = Nest(watch=watch)
    await nest.supervisor.start()
    await until(lambda: looks >= 12, timeout_s=120)
    assert nest.supervisor.restarts == 0
    nest.supervisor.send(nest.say("here"))
    await nest.until(lambda: nest.said == ["here"])
    await nest.supervisor.stop()


async def test_gateway_that_was_paused_does_not_close_clients_as_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is paused for longer than a client may leave a ping unanswered, right after a ping."""
    slow_s, pauses = 1.1 * websocket._PAUSE_S, list[float]()
    ping = WebSocketProtocol.ping

    def pause(protocol: WebSocketProtocol, payload: bytes) -> None:
        ping(protocol, payload)
        if not pauses:
            pauses.append(2 * slow_s)
            time.sleep(pauses[0])  # the fault itself; then housekeeping is due before the pong

    monkeypatch.setattr(WebSocketProtocol, "ping", pause)
    listener = Listener(Script(1, (400, 400)))
    async with gateway(slow_consumer_s=slow_s) as server:
        await native(server.port, [listener])
    assert pauses
    assert_right([listener], "complete")


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        ("GET /health/live HTTP/1.1\nHost: localhost", b"200"),
        (
            "GET /v1/tts/stream HTTP/1.1\nHost: localhost\nUpgrade: websocket\n"
            "Connection: Upgrade\nSec-WebSocket-Version: 13\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            b"101",
        ),
    ],
    ids=["request", "handshake"],
)
async def test_head_that_arrives_during_a_pause_is_answered(head: str, answer: bytes) -> None:
    handshake_s = 6.0
    async with instance(free_port(), TALKWIRE_HANDSHAKE_S=str(handshake_s)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await server.is_ready()  # the earlier connection has been accepted too
        server.process.send_signal(signal.SIGSTOP)
        while psutil.Process(server.process.pid).status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        await asyncio.sleep(1.5 * handshake_s)  # the fault itself
        server.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            assert answer in await reader.readline()
        writer.close()


@pytest.mark.long
@pytest.mark.parametrize("who", ["gateway", "everything"])
async def test_paused_service_restarts_no_worker(who: str, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.touch()
    async with instance(free_port(), FAULTS=str(faults)) as server:
        await server.speak(1)
        tree = [psutil.Process(server.process.pid)]
        if who == "everything":
            tree += tree[0].children(recursive=True)
        for _ in range(3):
            for process in tree:
                process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(4 * WATCH.still_timeout_s)  # the fault itself
            # children first: a gateway that sees them stopped replaces them
            for process in reversed(tree):
                process.send_signal(signal.SIGCONT)
            await server.speak(2)
        assert not await server.metric('tts_worker_restarts_total{worker="codec"}')
        assert await server.terminate() == 0
