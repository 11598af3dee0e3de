from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from talkwire_client import client, protocol
from talkwire_client.client import Client
from talkwire_client.errors import (
    ClientError,
    ConnectionLostError,
    NoServerError,
    ProtocolError,
    RefusedError,
    ServerError,
)
from talkwire_client.protocol import ErrorCode
from tests.clients.fake_server import Peer, fake_server


async def _connect(url: str, timeout_s: float = 10, **options: Any) -> None:
    async with Client(url, open_timeout_s=timeout_s, **options):
        pass


def _unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def test_connect_without_server_raises_no_server_error() -> None:
    url = f"ws://127.0.0.1:{_unused_port()}/"
    with pytest.raises(NoServerError, match=url):
        await _connect(url)


@pytest.mark.parametrize(
    "url", ["ftp://x/", "ws://x:99999/", "ws://[::1/x", "ws://ü..x/", "ws://x..y/", ""]
)
async def test_connect_refuses_invalid_url(url: str) -> None:
    with pytest.raises(NoServerError, match=re.escape(f"not a WebSocket address: {url}")):
        await _connect(url)


@pytest.mark.parametrize(
    "form", ["http://{}", "http://{}/", "{}", "ws://{}", "http://{}" + protocol.PATH]
)
async def test_connect_takes_any_address_of_a_server(form: str) -> None:
    async def script(peer: Peer) -> None:
        assert peer.socket.request is not None
        asked.append(peer.socket.request.path)
        await peer.socket.wait_closed()

    asked = list[str]()
    async with (
        fake_server(script) as url,
        Client(form.format(url.removeprefix("ws://").removesuffix(protocol.PATH))) as client,
    ):
        await client.ping()
    assert asked == [protocol.PATH]


@pytest.mark.parametrize("key", ["talkwire_1\n", "talkwire_€"])
async def test_connect_refuses_key_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(ClientError) as refused:
        await Client(f"ws://127.0.0.1:{_unused_port()}/", api_key=key).connect()
    assert not isinstance(refused.value, NoServerError)
    assert key.strip() not in str(refused.value)


async def test_connect_times_out_on_silent_server() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(NoServerError) as caught:
            await _connect(f"ws://127.0.0.1:{listener.getsockname()[1]}/", 0.2)
    assert isinstance(caught.value.__cause__, TimeoutError)


@pytest.fixture
def self_signed(tmp_path: Path) -> ssl.SSLContext:
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def test_connect_names_reason_why_tls_failed(self_signed: ssl.SSLContext) -> None:
    async def never(connection: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, ssl=self_signed) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(NoServerError, match="self-signed certificate"):
            await _connect(f"wss://127.0.0.1:{port}/")


async def test_connect_refused_by_http_status_has_retry_after() -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(503, "draining\n")
        response.headers["Retry-After"] = "7"
        return response

    async def never(connection: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=refuse) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(RefusedError, match=r"HTTP 503\): draining") as caught:
            await _connect(f"ws://127.0.0.1:{port}/")
    assert (caught.value.status, caught.value.retry_after_s) == (503, 7.0)


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("text/html", "<html>\r\n<h1>502 Bad Gateway</h1>\r\n</html>", "Bad Gateway"),
        ("Text/HTML; charset=utf-8", "<!doctype html><title>Sign in</title>", "Bad Gateway"),
        ("text/plain", "no\n upstream", "no upstream"),
        (
            "application/json",
            '{"error":{"code":"forbidden","message":"It is closed.","retryable":false}}',
            "forbidden: It is closed.",
        ),
        ("application/json", '{"error":"closed"}', '{"error":"closed"}'),
        ("application/json", '{"error":{"code":', '{"error":{"code":'),
    ],
)
async def test_connect_tells_refusal_as_one_line_without_markup(
    kind: str, body: str, told: str
) -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(502, body)
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = kind
        return response

    async def never(connection: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=refuse) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(RefusedError) as caught:
            await _connect(f"ws://127.0.0.1:{port}/")
    assert str(caught.value) == f"the server refused the connection (HTTP 502): {told}"


@pytest.mark.parametrize(
    "location", ["https://127.0.0.1/login", "ws://x:99999/", "ws://x:port/", "ws://[::1/"]
)
async def test_connect_redirected_to_no_websocket_is_refused(location: str) -> None:
    def redirect(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(302, "")
        response.headers["Location"] = location
        return response

    async def never(connection: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=redirect) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(RefusedError, match=re.escape(f"redirects to {location}")) as caught:
            await _connect(f"ws://127.0.0.1:{port}/")
    assert caught.value.status == 302


@pytest.mark.parametrize(
    ("url", "asked", "told"),
    [
        ("wss://speech.invalid", [b"CONNECT speech.invalid:443 HTTP/1.1"], "HTTP 407"),
        ("wss://127.0.0.1:{free}", [], "no server answers at"),
        ("wss://localhost:{free}", [], "no server answers at"),
        ("ws://127.0.0.1:{free}", [], "no server answers at"),
    ],
)
async def test_proxy_of_environment_is_used_for_tls_to_other_machines(
    url: str, asked: list[bytes], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, address)
        with pytest.raises(NoServerError, match=told):
            await _connect(url.format(free=_unused_port()))
    assert lines == asked


@pytest.mark.parametrize("proxy", ["socks5h://127.0.0.1:1", "ftp://name:secret@127.0.0.1"])
async def test_unusable_proxy_is_told_without_its_password(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    with pytest.raises(NoServerError, match="proxy") as caught:
        await _connect("wss://speech.invalid")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "given", [{"api_key": "tk_secret"}, {"headers": {"X-API-Key": "tk_secret"}}]
)
async def test_connect_passes_no_key_to_other_origin_and_tells_so(given: dict[str, Any]) -> None:
    asked = []

    def redirect(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(301, "")
        response.headers["Location"] = there
        return response

    def refuse(connection: ServerConnection, request: Request) -> Response:
        asked.append({key: request.headers.get(key) for key in ("Authorization", "X-API-Key")})
        return connection.respond(401, "a key, please")

    async def never(connection: ServerConnection) -> None:
        raise AssertionError

    async with (
        serve(never, "127.0.0.1", 0, process_request=refuse) as other,
        serve(never, "127.0.0.1", 0, process_request=redirect) as server,
    ):
        there = f"ws://127.0.0.1:{next(iter(other.sockets)).getsockname()[1]}/v1/tts/stream"
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(RefusedError) as caught:
            await _connect(f"ws://127.0.0.1:{port}/", **given)
    assert asked == [{"Authorization": None, "X-API-Key": None}]
    assert caught.value.status == 401
    assert f"the key is not passed on by a redirect to {there}" in str(caught.value)


async def test_connect_offers_subprotocol_and_sends_headers() -> None:
    seen = []

    async def script(peer: Peer) -> None:
        assert peer.socket.request is not None
        seen.append((peer.socket.subprotocol, peer.socket.request.headers["Authorization"]))

    async with (
        fake_server(script) as url,
        Client(url, headers={"Authorization": "Bearer k"}),
    ):
        pass
    assert seen == [(protocol.SUBPROTOCOL, "Bearer k")]


async def test_error_instead_of_greeting_raises_server_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(protocol.Error(ErrorCode.OVERLOADED, "Full.", "r", retryable=True))

    async with fake_server(script, greet=False) as url:
        with pytest.raises(ServerError, match="overloaded: Full"):
            await _connect(url)


async def test_close_instead_of_greeting_raises_connection_lost() -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.close(1013, "later")

    async with fake_server(script, greet=False) as url:
        with pytest.raises(ConnectionLostError, match="1013"):
            await _connect(url)


@pytest.mark.parametrize("first", ["{}", '{"type":"pong"}', '{"type":"x"}', b"\x11"])
async def test_wrong_greeting_is_protocol_error(first: str | bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.send(first)

    async with fake_server(script, greet=False) as url:
        with pytest.raises(ProtocolError):
            await _connect(url)


async def test_missing_greeting_is_protocol_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: Peer) -> None:
        pass

    receive = client._receive_greeting
    # the time is over once the socket is open, however long that took
    monkeypatch.setattr(client, "_receive_greeting", lambda socket, _: receive(socket, 0.0))
    async with fake_server(script, greet=False) as url:
        with pytest.raises(ProtocolError, match="did not say"):
            await _connect(url)


async def test_ssl_context_for_address_without_tls_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="ssl_context is for wss:// only"):
        await _connect("ws://127.0.0.1:9", ssl_context=ssl.create_default_context())
