"""The configuration of nginx in docs/guides/operations.md, run in front of a service."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.deploy.addresses import noted_addresses
from tests.deploy.container import ROOT
from tests.service.live import Gateway, client, gateway

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx (requirements/system.sh)")
HOST = "speech.example.org"
TEXT = "Zanzibar is far away. Quagga herds graze there, they say."


def documented(port: int, upstream: int) -> str:
    """The page's configuration, on a free port without TLS, in front of ``upstream``."""
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    (site,) = re.findall(r"^```nginx\n(.*?)^```", page, re.M | re.S)
    assert f"server_name {HOST};" in site
    site = re.sub(r"^ *ssl_\w+ .*\n", "", site, flags=re.M)
    for old, new in [
        ("listen 443 ssl;", f"listen 127.0.0.1:{port};"),
        ("http://127.0.0.1:8000;", f"http://127.0.0.1:{upstream};"),
    ]:
        assert old in site
        site = site.replace(old, new)
    return site


@contextlib.asynccontextmanager
async def proxy(server: Gateway, folder: Path) -> AsyncIterator[str]:
    """Run nginx in front of the service; yield its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    site = documented(port, httpx.URL(server.http).port or 0)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    assert NGINX is not None
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", folder, "-e", folder / "error.log", "-c", config
    )
    try:
        async with asyncio.timeout(60):
            while True:
                assert process.returncode is None, (folder / "error.log").read_text()
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.01)
        yield f"127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def test_documented_nginx_passes_websockets_and_their_host(tmp_path: Path) -> None:
    async with gateway(allowed_hosts=[HOST]) as server, proxy(server, tmp_path) as address:
        there = {"host": "127.0.0.1", "port": int(address.rpartition(":")[2])}
        url = f"ws://{HOST}/v1/tts/stream"
        async with client(url, origin=f"http://{HOST}", **there) as talk:
            samples = await talk.say(TEXT, voice="default", mode="whole", continuity="none")
        assert len(samples) > 0
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            allowed = await http.get("/v1/models", headers={"Host": HOST})
            foreign = await http.get("/v1/models", headers={"Host": "evil.example.org"})
        assert (allowed.status_code, foreign.status_code) == (200, 403)


async def test_documented_nginx_passes_audio_as_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway() as server, proxy(server, tmp_path) as address:
        decode, is_heard, calls = server.codec.decode, asyncio.Event(), 0

        async def decode_later(*window: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                await is_heard.wait()
            return await decode(*window)

        monkeypatch.setattr(server.codec, "decode", decode_later)
        body = {"input": TEXT, "voice": "default", "response_format": "pcm"}
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http,
            http.stream("POST", "/v1/audio/speech", json=body) as answer,
        ):
            assert answer.status_code == 200
            heard = b""
            async for data in answer.aiter_raw():
                heard += data
                is_heard.set()
        assert calls > 1
        assert np.frombuffer(heard, np.int16).size > 0


async def test_documented_nginx_leaves_large_bodies_to_the_service(tmp_path: Path) -> None:
    body = {"input": TEXT, "voice": "default", "ref_audio": "A" * 13_000_000}
    async with (
        gateway() as server,
        proxy(server, tmp_path) as address,
        httpx.AsyncClient(timeout=60) as http,
    ):
        direct = await http.post(f"{server.http}/v1/audio/speech", json=body)
        through = await http.post(f"http://{address}/v1/audio/speech", json=body)
    assert direct.status_code == through.status_code == 400
    assert through.json()["error"]["code"] == direct.json()["error"]["code"]


async def test_documented_nginx_tells_clients_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is told the address that connected to nginx, and none that a client claims."""
    addresses = noted_addresses(monkeypatch)
    async with gateway() as server, proxy(server, tmp_path) as address:
        for own in ("127.0.0.2", "127.0.0.3"):
            transport = httpx.AsyncHTTPTransport(local_address=own)
            async with httpx.AsyncClient(transport=transport, timeout=60) as http:
                claim = {"X-Forwarded-For": "192.0.2.7"}
                answer = await http.get(f"http://{address}/v1/models", headers=claim)
            assert answer.status_code == 200
    assert addresses == ["127.0.0.2", "127.0.0.3"]
