"""Clients' addresses on a listener for IPv4 and IPv6, behind proxies and without."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, WebSocket
from websockets.asyncio.client import connect

from service.settings import Settings
from service.transport.server_config import server_config
from tests.service.server import Server

app = FastAPI()


@app.get("/")
async def http_client(request: Request) -> Any:
    return request.scope["client"][0]


@app.websocket("/")
async def socket_client(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(websocket.scope["client"][0])


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6")
@pytest.mark.parametrize("trusted", [None, "127.0.0.0/8", "192.0.2.9"])
async def test_listener_for_ipv6_too_knows_ipv4_proxies(
    trusted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    claim = {"x-forwarded-for": "198.51.100.7"}
    told = "127.0.0.1" if trusted == "192.0.2.9" else claim["x-forwarded-for"]
    async with Server(server_config(app, Settings(), 1), listener) as server:
        address = f"127.0.0.1:{server.port}"
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"http://{address}")).json() == "127.0.0.1"
            assert (await http.get(f"http://{address}", headers=claim)).json() == told
        async with connect(f"ws://{address}/", additional_headers=claim) as talk:
            assert await talk.recv() == told
