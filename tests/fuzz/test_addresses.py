"""Addresses sent by clients: none is connected to and no file is opened."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fuzz.speaking import CONSENT
from tests.service.live import Gateway, client, gateway

PLACES = (
    "http://127.0.0.1:{port}/a.wav", "https://127.0.0.1:{port}/a.wav", "HTTP://127.0.0.1:{port}/",
    " http://127.0.0.1:{port}/a.wav", "ftp://127.0.0.1:{port}/a.wav", "//127.0.0.1:{port}/a.wav",
    "http://[::ffff:127.0.0.1]:{port}/", "http://2130706433:{port}/", "http://0x7f.1:{port}/",
    "gopher://127.0.0.1:{port}/_", "s3://bucket/a.wav", "hf://models/a.wav", "jar:http://x!/a",
    "file:///etc/hostname", "FILE:///etc/hostname", "file:/etc/hostname", "/etc/hostname",
    "../../../../etc/hostname", "\\\\127.0.0.1\\share\\a.wav", "data:,http://127.0.0.1:{port}/",
    "concat:/etc/hostname", "subfile:,,start,0,end,0,,:/etc/hostname", "pipe:0",
    "https://example.org/a.wav?" + "x" * 2000,
)  # fmt: skip
#: Fields for a reference clip, including those of other servers.
FIELDS = ("ref_audio", "reference_audio", "audio_url", "url", "voice_url", "speaker_audio")


@pytest.fixture
def seen() -> Iterator[list[str]]:
    """Files opened and addresses connected to or looked up by this process."""
    noted: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "socket.connect", "socket.getaddrinfo", "urllib.Request"):
            noted.append(f"{event} {arguments!r}")

    sys.addaudithook(hook)
    yield noted
    watching = False


async def refusals(server: Gateway, http: httpx.AsyncClient, place: str) -> list[str]:
    """Send the address to all endpoints; return the error codes of those that do not ignore it."""
    said: list[str] = []
    for field in FIELDS:
        answer = await http.post("/v1/audio/speech", json={"input": "Hello.", field: place})
        if answer.status_code == 200:  # an unknown field, which is reported as ignored
            assert field in answer.headers["x-talkwire-ignored"]
            continue
        said.append(answer.json()["error"]["code"])
    voice = {"name": "anna", "audio_sample": place, "consent": CONSENT}
    said.append((await http.post("/v1/audio/voices", json=voice)).json()["error"]["code"])
    async with client(server.url) as talk:
        await talk.send("context.create", context_id="c", reference={"audio": place})
        said.append((await talk.error())["code"])
    return said


@pytest.mark.parametrize("place", PLACES)
async def test_client_address_is_neither_connected_nor_opened(place: str, seen: list[str]) -> None:
    dialled = asyncio.Event()
    trap = await asyncio.start_server(lambda *_: dialled.set(), "127.0.0.1", 0)
    port = trap.sockets[0].getsockname()[1]
    async with (
        trap,
        gateway() as server,
        httpx.AsyncClient(base_url=server.http, timeout=60) as http,
    ):
        said = await refusals(server, http, place.format(port=port))
    assert len(said) >= 3  # OpenAI's API, the voices, the native protocol
    assert set(said) <= {"unsupported", "invalid_message", "invalid_audio"}
    assert not dialled.is_set()
    own = server.http.rpartition(":")[2]
    foreign = [
        event for event in seen
        if not event.startswith("open") and own not in event and "AF_UNIX" not in event
    ]  # fmt: skip
    assert foreign == []
    assert not [event for event in seen if "/etc/hostname" in event or "a.wav" in event]
    assert any(own in event for event in seen), "the hook listens"
