"""Keys in the first message of a socket, as Bolna and web pages send them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fastapi import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from service.dialects.elevenlabs.late_key import LateKeys
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.live import Gateway, gateway

SOCKETS = ("stream-input", "multi-stream-input")
DIALOGUES = tuple(f"text-to-dialogue/{kind}" for kind in SOCKETS)
KINDS = SOCKETS + DIALOGUES
#: Messages that all of them understand, each in its own way.
FIRST: dict[str, Any] = {"context_id": "a", "voices": ["default"], "text": " "}
LINES = [{"text": "Hello there. ", "voice_id": "default"}]
SECOND = {"context_id": "a", "inputs": LINES, "text": "Hello there. ", "flush": True}


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Gateway]:
    keys = write_keys(
        tmp_path / "keys.json",
        entry("right", "acme", limits={"max_connections": 1}),
        entry("scopeless", "acme", "admin"),
    )
    async with gateway(api_keys_file=keys) as server:
        yield server


def address(server: Gateway, kind: str, voice: str = "default") -> str:
    base = server.http.replace("http", "ws", 1)
    path = kind if kind in DIALOGUES else f"text-to-speech/{voice}/{kind}"
    return f"{base}/v1/{path}?output_format=pcm_24000"


async def ending(socket: ClientConnection) -> tuple[dict[str, Any], int | None]:
    """Return the last message, and the close code."""
    last: dict[str, Any] = {}
    try:
        while True:
            last = json.loads(await socket.recv())
    except ConnectionClosed as closed:
        return last, closed.rcvd.code if closed.rcvd else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "key", [{"xi_api_key": "right"}, {"authorization": "Bearer right"}], ids=["bare", "bearer"]
)
async def test_key_in_first_message_admits(
    guarded: Gateway, kind: str, key: dict[str, str]
) -> None:
    async with connect(address(guarded, kind)) as socket:
        await socket.send(json.dumps(FIRST | key))
        await socket.send(json.dumps(SECOND))
        assert json.loads(await socket.recv())["audio"]
        # the caller is the key's, which may have one connection
        async with connect(address(guarded, kind)) as second:
            await second.send(json.dumps(FIRST | key))
            last, code = await ending(second)
            assert (last["error"], code) == ("rate_limited", 1008)
    await guarded.until_free()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "code"),
    [
        ('{"text": " "}', "unauthorized"),
        ('{"text": "Hello there. ", "xi_api_key": "wrong", "flush": true}', "unauthorized"),
        ('{"text": " ", "xi_api_key": ""}', "unauthorized"),
        ('{"text": " ", "xi_api_key": ["right"]}', "unauthorized"),
        ('{"text": " ", "authorization": "right"}', "unauthorized"),
        ('{"text": " ", "xi_api_key": "scopeless"}', "forbidden"),
        ("[]", "unauthorized"),
        ("no JSON", "unauthorized"),
        (b"right", "unauthorized"),
    ],
)
async def test_first_message_without_right_key_closes_socket(
    guarded: Gateway, kind: str, first: str | bytes, code: str
) -> None:
    async with connect(address(guarded, kind)) as socket:
        await socket.send(first)
        await socket.send('{"text": "Hello there. ", "flush": true, "xi_api_key": "right"}')
        last, close_code = await ending(socket)
    assert (last["error"], close_code) == (code, 1008)
    assert guarded.runtime.lifecycle.connections == 0
    assert guarded.runtime.admission.active == 0


async def test_socket_whose_key_nobody_asks_for_is_refused(
    guarded: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unchecked(_: LateKeys, websocket: WebSocket) -> WebSocket:
        return websocket

    monkeypatch.setattr(LateKeys, "admit", unchecked)
    with pytest.raises(InvalidStatus) as refused:
        async with connect(address(guarded, KINDS[0])):
            pass
    assert refused.value.response.status_code == 401


async def test_refused_options_close_socket_after_key(guarded: Gateway) -> None:
    async with connect(address(guarded, KINDS[0], "voice_0123456789abcdef")) as socket:
        await socket.send('{"text": " ", "xi_api_key": "right"}')
        last, code = await ending(socket)
    assert (last["error"], code) == ("unknown_voice", 1008)


async def test_wrong_key_in_handshake_is_still_refused(guarded: Gateway) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(address(guarded, KINDS[0]), additional_headers=bearer("wrong")):
            pass
    assert refused.value.response.status_code == 401


async def test_sockets_that_wait_for_keys_are_few(guarded: Gateway) -> None:
    url = address(guarded, KINDS[0])
    async with AsyncExitStack() as sockets:
        for _ in range(64):
            await sockets.enter_async_context(connect(url))
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url):
                pass
        assert refused.value.response.status_code == 429
        assert json.loads(refused.value.response.body or b"")["detail"]["code"] == "overloaded"
    async with connect(url) as socket:  # their places are free again
        await socket.send('{"text": "Hello there. ", "flush": true, "xi_api_key": "right"}')
        assert json.loads(await socket.recv())["audio"]


async def test_socket_that_sends_no_key_is_closed(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("right", "acme"))
    async with (
        gateway(api_keys_file=keys, handshake_s=0.3) as server,
        connect(address(server, KINDS[0])) as socket,
    ):
        last, code = await ending(socket)
    assert (last["error"], code) == ("idle_timeout", 1008)
