"""Floods of invalid messages: the socket is closed and the log stays short."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.faults.history import Script
from tests.faults.rig import FAR_AHEAD, PATIENCE_S, Listener, assert_right, gateway, native

PATHS = {"native": "/v1/tts/stream", "cartesia": "/tts/websocket"}
MOST_LINES = 30


async def until_closed(socket: ClientConnection) -> str:
    """The last message before the server closes."""
    last = ""
    with contextlib.suppress(ConnectionClosed):
        async for message in socket:
            last = str(message)
    return last


@pytest.mark.parametrize("dialect", PATHS)
async def test_flood_of_invalid_messages_closes_socket_with_few_log_lines(
    dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    neighbour = Listener(Script(1, (60, 60)))
    async with gateway(**FAR_AHEAD) as server, asyncio.timeout(PATIENCE_S):
        async with connect(f"ws://127.0.0.1:{server.port}{PATHS[dialect]}") as socket:

            async def flood() -> None:
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        for _ in range(50):
                            await socket.send("nonsense")
                        await asyncio.sleep(0)

            flooding = asyncio.create_task(flood())
            _, last = await asyncio.gather(native(server.port, [neighbour]), until_closed(socket))
            await flooding
            if socket.protocol.close_rcvd is not None:  # a reset may discard the close frame
                assert socket.close_code == 1008
                assert "were refused" in last
        assert_right([neighbour], "complete")
        await server.until_free()
        told = server.runtime.metrics.render().decode()
        assert 'tts_ws_close_total{code="1008"} 1.0' in told
        assert 'tts_errors_total{code="rate_limited"} 1.0' in told  # the last message
    lines = [record for record in caplog.records if record.name.startswith("service")]
    assert 0 < len(lines) < MOST_LINES


async def test_invalid_messages_with_pauses_keep_socket_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        gateway() as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/tts/stream") as socket,
    ):
        await socket.recv()
        for _ in range(100):
            await socket.send("{}")
            assert json.loads(await socket.recv())["type"] == "error"
        await socket.send('{"type": "ping", "id": "x"}')
        assert json.loads(await socket.recv())["type"] == "pong"
    told = [record for record in caplog.records if record.getMessage() == "client error"]
    assert 20 <= len(told) < 100
