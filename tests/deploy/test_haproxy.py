"""The shipped configuration of HAProxy, run in front of two services with fake engines."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.deploy.addresses import noted_addresses
from tests.deploy.balancer import HAPROXY, Balancer, balancer
from tests.service.live import Gateway, client, gateway, hold_codec
from tests.waiting import until

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="no haproxy (requirements/system.sh)")
TEXT = "Zanzibar is far away. Quagga herds graze there, they say."


def port_of(server: Gateway) -> int:
    port = httpx.URL(server.http).port
    assert port is not None
    return port


@contextlib.asynccontextmanager
async def two_services(**settings: Any) -> AsyncIterator[tuple[list[Gateway], Balancer]]:
    """Two services, and a balancer that has found both ready and free."""
    async with (
        gateway(**settings) as one,
        gateway(**settings) as two,
        balancer(port_of(one), port_of(two)) as between,
    ):
        await between.until(free="gpu0 gpu1", ready="gpu0 gpu1")
        yield [one, two], between


def sockets(servers: list[Gateway]) -> list[int]:
    return [server.runtime.lifecycle.connections for server in servers]


async def test_sockets_go_to_the_service_with_the_fewest() -> None:
    async with two_services() as (servers, between), contextlib.AsyncExitStack() as stack:
        for number in range(1, 7):
            talk = await stack.enter_async_context(client(between.url))
            samples = await talk.say(TEXT, mode="whole", continuity="none")
            assert len(samples) > 0
            assert sorted(sockets(servers)) == [number // 2, (number + 1) // 2]


async def test_full_service_with_fewer_sockets_gets_no_more() -> None:
    settings = {"max_contexts": 2, "slot_rest_s": 3600}
    async with two_services(**settings) as (servers, between), contextlib.AsyncExitStack() as stack:
        busy = await stack.enter_async_context(client(between.url))
        for context_id in ("one", "two"):
            await busy.create(context_id)
        full = sockets(servers).index(1)
        other = 1 - full
        await between.until(free=f"gpu{other}", ready="gpu0 gpu1")
        for _ in range(3):
            await stack.enter_async_context(client(between.url))
        assert sockets(servers)[other] == 3
        # With both full the services themselves answer.
        last = await stack.enter_async_context(client(between.url))
        for context_id in ("one", "two"):
            await last.create(context_id)
        await between.until(free="", ready="gpu0 gpu1")
        late = await stack.enter_async_context(client(between.url))
        await late.send("context.create", context_id="three")
        error = await late.error()
        assert error["code"] == "overloaded"
        assert error["retry_after_ms"] > 0


async def test_draining_service_gets_no_sockets_even_before_a_check() -> None:
    """It refuses their handshakes with 503, and HAProxy asks the other one."""
    async with two_services() as (servers, between), contextlib.AsyncExitStack() as stack:
        await between.stop_checks()
        servers[0].runtime.lifecycle.begin_drain()
        for _ in range(4):
            talk = await stack.enter_async_context(client(between.url))
            assert len(await talk.say(TEXT)) > 0
        body = {"input": TEXT, "voice": "default", "response_format": "pcm"}
        async with httpx.AsyncClient(base_url=between.http, timeout=60) as http:
            answers = [await http.post("/v1/audio/speech", json=body) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200] * 4
            assert sockets(servers) == [0, 4]
            metrics = (await http.get(f"{servers[0].http}/metrics")).text
        (refused,) = re.findall(r'tts_errors_total\{code="draining"\} (.*)', metrics)
        assert float(refused) >= 2  # it was asked


async def test_request_goes_to_another_service_if_the_first_dies_before_it_answers() -> None:
    """A stand-in, since a gateway in this process cannot die: it takes a request and hangs up."""
    taken: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" /health/" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        else:
            taken.append(head.split()[1])
        writer.transport.abort() if taken else writer.close()

    dying = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with dying, gateway() as alive, contextlib.AsyncExitStack() as stack:
        ports = dying.sockets[0].getsockname()[1], port_of(alive)
        between = await stack.enter_async_context(balancer(*ports))
        await between.until(free="gpu0 gpu1", ready="gpu0 gpu1")
        await between.stop_checks()
        body = {"input": TEXT, "voice": "default", "response_format": "pcm"}
        for _ in range(2):
            await stack.enter_async_context(client(between.url))
            async with httpx.AsyncClient(base_url=between.http, timeout=60) as http:
                assert (await http.post("/v1/audio/speech", json=body)).status_code == 200
        assert set(taken) == {b"/v1/tts/stream", b"/v1/audio/speech"}


async def test_checks_leave_a_draining_service_its_open_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_services() as (servers, between), client(between.url) as talk:
        mine = sockets(servers).index(1)
        asked, may_answer = hold_codec(servers[mine], monkeypatch)
        saying = asyncio.create_task(talk.say(TEXT, mode="whole", continuity="none"))
        await asked.wait()
        servers[mine].runtime.lifecycle.begin_drain()
        await between.until(free=f"gpu{1 - mine}", ready=f"gpu{1 - mine}")
        may_answer.set()
        samples = await saying
        async with client(between.url) as later:
            assert len(await later.say(TEXT, mode="whole", continuity="none")) == len(samples)


async def test_audio_is_passed_on_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_services() as (servers, between):
        is_heard, calls = asyncio.Event(), Counter[int]()
        for number, server in enumerate(servers):

            async def decode_later(
                *window: Any, decode: Any = server.codec.decode, number: int = number
            ) -> Any:
                calls[number] += 1
                if calls[number] > 1:
                    await is_heard.wait()
                return await decode(*window)

            monkeypatch.setattr(server.codec, "decode", decode_later)
        body = {"input": TEXT, "voice": "default", "response_format": "pcm"}
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(base_url=between.http, timeout=60) as http,
            http.stream("POST", "/v1/audio/speech", json=body) as answer,
        ):
            assert answer.status_code == 200
            async for _ in answer.aiter_raw():
                is_heard.set()
        assert max(calls.values()) > 1


async def test_client_addresses_are_told_and_metrics_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = noted_addresses(monkeypatch)
    # the client's own loopback address is not the one that HAProxy connects from
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.77")
    async with (
        two_services() as (servers, between),
        httpx.AsyncClient(base_url=between.http, timeout=60, transport=transport) as http,
    ):
        claim = {"X-Forwarded-For": "203.0.113.9"}
        assert (await http.get("/v1/models", headers=claim)).status_code == 200
        assert addresses == ["127.0.0.77"]
        assert (await http.get("/metrics")).status_code == 404
        assert (await http.get(f"{servers[0].http}/metrics")).status_code == 200


async def test_stopped_service_is_found_and_found_again() -> None:
    async with gateway() as one, contextlib.AsyncExitStack() as stack:
        two = await stack.enter_async_context(gateway())
        async with balancer(port_of(one), port_of(two)) as between:
            await between.until(free="gpu0 gpu1", ready="gpu0 gpu1")
            two.codec.is_ready = False
            await between.until(free="gpu0", ready="gpu0")
            two.codec.is_ready = True
            await between.until(free="gpu0 gpu1", ready="gpu0 gpu1")
            await stack.aclose()
            await between.until(free="gpu0", ready="gpu0")
            async with client(between.url):
                await until(lambda: one.runtime.lifecycle.connections == 1)
