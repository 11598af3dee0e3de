"""A gateway that was paused itself does not consider its workers hung."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from codec.engine import WATCH
from ipc import child_process
from ipc.watchdog import Vitals, read_vitals
from service.transport import websocket
from service.transport.uvicorn_protocols import WebSocketProtocol
from tests.faults.fake_service import free_port, instance
from tests.faults.history import Script
from tests.faults.rig import Listener, assert_right, gateway, native
from tests.ipc.nest import QUICK, Nest


async def test_supervisor_paused_with_its_child_does_not_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both stop, as on a suspended machine; the supervisor runs first afterwards."""
    looks = 0

    def pause(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * QUICK.hang_timeout_s)
        os.kill(pid, signal.SIGCONT)

    def look(pid: int) -> Vitals | None:
        nonlocal looks
        looks += 1
        if nest.supervisor.is_up and looks % 4 == 0:
            asyncio.get_running_loop().call_soon(pause, pid)
        return read_vitals(pid)

    monkeypatch.setattr(child_process, "read_vitals", look)
    nest = Nest()
    await nest.supervisor.start()
    async with asyncio.timeout(120):
        while looks < 20:
            await asyncio.sleep(0.01)
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
            for process in tree:
                process.send_signal(signal.SIGCONT)
            await server.speak(2)
        assert not await server.metric('tts_worker_restarts_total{worker="codec"}')
        assert await server.terminate() == 0
