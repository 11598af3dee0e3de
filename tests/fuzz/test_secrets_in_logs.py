"""Canaries: client data appears in no log, metric or error, and adds no metric series.

The unknown name of a voice, model, format or message is repeated only in the error of the client
that sent it.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from loadtest.fakes.talker import TIMED_SPEC, FakeTalker
from service.logs import JsonFormatter, quieten
from tests.fuzz.speaking import everywhere, natively
from tests.service.live import Gateway, client, gateway

CANARY, NAME = "xylophone7canary", "vibraphone7canary"
KEYS = {
    "xi-api-key": CANARY, "x-api-key": CANARY, "cookie": f"session={CANARY}",
    "user-agent": CANARY, "referer": f"https://{CANARY}.example/", "x-forwarded-for": CANARY,
}  # fmt: skip


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """The output of all loggers at level DEBUG, in the service's format."""
    written, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    quieten()
    yield written
    root.removeHandler(handler)
    root.setLevel(before)


def fast() -> FakeTalker:
    return FakeTalker(frames_per_character=0.02, spec=TIMED_SPEC)


async def malformed(server: Gateway, http: httpx.AsyncClient) -> list[httpx.Response]:
    """Send the canary in malformed messages, bodies and paths; return the HTTP responses."""
    form = f'--x\r\nContent-Disposition: form-data; name="{CANARY}"\r\n\r\n{CANARY}\r\n--x--\r\n'
    async with client(server.url) as talk:
        for text in (
            f'{{"type":"{NAME}"}}',
            f'{{"{CANARY}',
            f'{{"type":"ping","id":["{CANARY}"]}}',
        ):
            await talk.socket.send(text)
            assert CANARY not in json.dumps(await talk.error())
        await talk.socket.send(CANARY.encode())
        assert CANARY not in json.dumps(await talk.error())
    answers = [
        await http.post(path, content=body, headers={"content-type": kind})
        for path in ("/v1/audio/speech", "/v1/audio/voices", "/tts/bytes", "/v1/speak")
        for body, kind in (
            (f'{{"input": "{CANARY}', "application/json"),
            (f'{{"input": ["{CANARY}"]}}', "application/json"),
            (CANARY.encode() + b"\xff", "application/json"),
            (form.replace(f'name="{CANARY}"', 'name="name"'), "multipart/form-data; boundary=x"),
            (form[:-9], "multipart/form-data; boundary=x"),
            (form, f"multipart/form-data; boundary={CANARY}"),
        )
    ]
    for path in ("/v1/audio/voices/", "/v1/models/", "/v1/text-to-speech/", "/nowhere/"):
        answers.append(await http.get(path + NAME))
        answers.append(await http.delete(path + NAME))
    for query in ("model", "encoding", "sample_rate"):
        answers.append(await http.post("/v1/speak", params={query: NAME}, json={"text": "a"}))
    return answers


async def refused_handshakes(server: Gateway) -> list[bytes]:
    """Send the canary in handshakes and first messages; return the texts of the refusals."""
    base, told = server.http.replace("http://", "ws://"), list[bytes]()
    for path in (
        f"/v1/text-to-speech/{NAME}/stream-input", f"/v1/speak?model={NAME}",
        f"/tts/websocket?api_key={CANARY}", f"/v1/tts/stream?{CANARY}={CANARY}", f"/{CANARY}",
    ):  # fmt: skip
        for options in ({}, {"origin": f"https://{CANARY}.example"}, {"subprotocols": [CANARY]}):
            try:
                async with connect(base + path, additional_headers=KEYS, **options) as socket:
                    await socket.send(CANARY)
                    async with asyncio.timeout(30):
                        await socket.recv()
            except InvalidStatus as refused:
                told.append(bytes(refused.response.body or b""))
            except ConnectionClosed as closed:
                told.append(closed.rcvd.reason.encode() if closed.rcvd else b"")
    return told


async def test_client_data_is_absent_from_logs_metrics_and_errors(logs: io.StringIO) -> None:
    async with (
        gateway(fast()) as server,
        httpx.AsyncClient(base_url=server.http, timeout=60) as http,
    ):
        answers: list[httpx.Response] = []
        for scheme in ("Bearer", "Token"):
            http.headers = {**KEYS, "authorization": f"{scheme} {CANARY}"}
            answers += await malformed(server, http)
        refusals = await refused_handshakes(server)
        answers += await everywhere(server, http, f"The {CANARY} sings. ")
        assert len(refusals) >= 10
        assert CANARY.encode() not in b"".join(refusals)
        server.codec.fail_with = RuntimeError(CANARY)  # an engine's message must not reach clients
        await natively(server, [f"The {CANARY} fails. "])
        metrics = (await http.get("/metrics")).text
        failed = [answer for answer in answers if answer.is_error]
        assert len(failed) > 40
        for answer in failed:
            assert CANARY not in answer.text, answer.request.url
            assert CANARY not in str(answer.headers)
        assert CANARY not in metrics
        assert NAME not in metrics
        assert any(NAME in answer.text for answer in failed), "who asks is told"
    lines = [
        line for line in logs.getvalue().splitlines() if json.loads(line)["logger"] != "asyncio"
    ]
    assert sum("client error" in line for line in lines) > 20, "the logs were listened to"
    told = [
        line
        for line in lines
        if (CANARY in line or NAME in line) and json.loads(line)["logger"][:5] != "httpx"
    ]
    told = [
        line for line in told if not json.loads(line)["logger"].startswith(("httpcore", "client"))
    ]
    # the one allowed line has the exception of the engine, which operators need
    assert all("exception" in json.loads(line) for line in told), told
    assert len(told) <= 1


def series(text: str) -> set[str]:
    return {line.rpartition(" ")[0] for line in text.splitlines() if line and line[0] != "#"}


async def test_metrics_get_no_new_series_from_client_names() -> None:
    """Unknown names are sent in every field that could become a metric label."""
    names = 60
    async with (
        gateway(fast()) as server,
        httpx.AsyncClient(base_url=server.http, timeout=60) as http,
    ):
        before = series((await http.get("/metrics")).text)

        async def one(n: int) -> None:
            name = f"name{n}"
            headers = {"user-agent": name, "origin": f"https://{name}.example", "x-api-key": name}
            match n % 4:
                case 0:
                    body = {"input": "a", "voice": name, "model": name, "language": name}
                    await http.post("/v1/audio/speech", json=body, headers=headers)
                case 1:
                    await http.request(f"M{n}", f"/{name}?{name}={name}", headers=headers)
                case 2:
                    await http.get(f"/v1/audio/voices/{name}", headers=headers)
                case _:
                    await http.post(
                        f"/v1/text-to-speech/{name}", json={name: name}, headers=headers
                    )

        for first in range(0, names, 20):
            await asyncio.gather(*(one(n) for n in range(first, first + 20)))
        for first in range(0, names, 50):  # a socket with more errors is closed
            async with client(server.url) as talk:
                for n in range(first, min(names, first + 50)):
                    named = {"context_id": f"c{n}", "voice": f"v{n}", "model": f"m{n}"}
                    await talk.send("context.create", **named)
                    await talk.socket.send(f'{{"type":"t{n}"}}')
                    # Unread answers would hold up the closing handshake until it is given up.
                    answers = [(await talk.error())["code"] for _ in range(2)]
                    assert answers == ["unknown_model", "unknown_message"]
        await natively(server, ["Hello. "])
        assert series((await http.get("/metrics")).text) == before
