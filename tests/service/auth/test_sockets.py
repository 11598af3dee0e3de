"""API keys over real connections: presentation, revocation, expiry, the admin listener and logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from loadtest.fakes.talker import FakeTalker
from service import reloading
from service.admin import create_admin_app
from service.auth.authenticator import Authority
from service.auth.caller import current_caller
from service.auth.keys import Scope
from service.contexts.driver import ContextDriver
from service.logs import set_up
from streaming.errors import ErrorCode, TalkwireError
from streaming.events import (
    AudioDecoded,
    AudioRead,
    Event,
    Failed,
    LeadLifted,
    RowsReceived,
    TextAppended,
)
from talkwire_client import Client, RefusedError, ServerError, SyncClient
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.housekeeping import take_over_housekeeping
from tests.service.live import Gateway, client, gateway, hold_codec
from tests.service.server import Server
from tests.waiting import until

PATIENCE_S = 30


async def status(url: str, **options: Any) -> int:
    """Return 101, or the status of the refusal."""
    try:
        async with connect(url, **options):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


async def raw(server: Gateway, head: str) -> str:
    """Send ``head`` unchanged and return the first line of the answer."""
    port = int(server.http.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        line = await reader.readline()
    writer.close()
    return line.decode().strip()


# -- presentation of keys


async def test_key_is_accepted_from_header_query_or_subprotocol(tmp_path: Path) -> None:
    async with gateway(api_keys_file=write_keys(tmp_path / "k.json", entry("k", "t"))) as server:
        ws = server.http.replace("http", "ws", 1)
        speak, native, cartesia = f"{ws}/v1/speak", server.url, f"{ws}/tts/websocket"
        ways: list[tuple[str, dict[str, Any]]] = [
            (native, {"additional_headers": bearer("k")}),
            (speak, {"additional_headers": {"Authorization": "Token k"}}),
            (cartesia, {"additional_headers": {"X-API-Key": "k"}}),
            (
                f"{ws}/v1/text-to-speech/default/stream-input",
                {"additional_headers": {"xi-api-key": "k"}},
            ),
            (f"{cartesia}?api_key=k&cartesia_version=2025-04-16", {}),
            (f"{cartesia}?access_token=k", {}),
        ]
        for url, options in ways:
            assert await status(url, **options) == 101, url
        for url in (f"{native}?api_key=k", f"{speak}?api_key=k", f"{cartesia}?key=k", cartesia):
            assert await status(url) == 401, url
        async with connect(speak, subprotocols=[Subprotocol("token"), Subprotocol("k")]) as one:
            assert one.subprotocol == "token"  # browsers require an answer
        offer = [Subprotocol("talkwire.tts.v1"), Subprotocol("talkwire.key.k")]
        async with connect(native, subprotocols=offer) as two:
            assert two.subprotocol == "talkwire.tts.v1"
        assert await status(native, subprotocols=[offer[0], Subprotocol("talkwire.key.x")]) == 401


async def test_talkwire_client_sends_api_key(tmp_path: Path) -> None:
    async with gateway(api_keys_file=write_keys(tmp_path / "k.json", entry("k", "t"))) as server:
        async with (
            Client(server.url, api_key="k") as talk,
            talk.speak("Hello there.") as speech,
        ):
            assert await speech.read()
        with pytest.raises(RefusedError) as refused:
            async with Client(server.url, api_key="x"):
                pass
        assert refused.value.status == 401

        def aside() -> bytes:
            with (
                SyncClient(server.url, api_key="k") as blocking,
                blocking.speak("Hello there.") as speech,
            ):
                return speech.read()

        assert await asyncio.to_thread(aside)


async def test_wrong_key_with_large_body_gets_401(tmp_path: Path) -> None:
    async with gateway(api_keys_file=write_keys(tmp_path / "k.json", entry("k", "t"))) as server:
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.post(
                f"{server.http}/v1/audio/voices", content=b"x" * 200_000, headers=bearer("wrong")
            )
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        head = "POST /v1/audio/voices HTTP/1.1\nHost: localhost\nAuthorization: Bearer wrong"
        assert "401" in await raw(server, head + "\nContent-Length: 200000")  # nothing of it sent


async def test_name_from_proxy_is_logged_only_in_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("a", "acme"))
    async with gateway(api_keys_file=keys) as server, httpx.AsyncClient() as http:
        headers = bearer("wrong") | {"x-forwarded-for": "x" * 12_000}
        with caplog.at_level("INFO", logger="service.auth.authenticator"):
            refused = await http.get(f"{server.http}/v1/models", headers=headers)
        assert refused.status_code == 401
        (record,) = [one for one in caplog.records if one.getMessage() == "key refused"]
        assert vars(record)["address"] == "x" * 64


async def test_wrong_keys_are_rate_limited_and_right_key_is_served(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "k.json", entry("k", "t"))
    async with gateway(api_keys_file=keys, max_failed_keys_per_minute=3) as server:
        seen = [await status(server.url, additional_headers=bearer("x")) for _ in range(5)]
        assert seen == [401, 401, 401, 429, 429]
        assert await status(server.url) == 401  # a missing key is not a wrong one
        assert await status(server.url, additional_headers=bearer("k")) == 101


def test_wrong_keys_are_counted_by_network(tmp_path: Path) -> None:
    authority = Authority(write_keys(tmp_path / "k.json", entry("k", "t")), failures_per_minute=3)

    def code(address: str) -> ErrorCode:
        with pytest.raises(TalkwireError) as refused:
            authority.admit("wrong", Scope.SPEAK, address)
        return refused.value.code

    # a client has all addresses of its /64
    codes = [code(f"2001:db8:0:1::{number}") for number in range(4)]
    assert codes == [ErrorCode.UNAUTHORIZED] * 3 + [ErrorCode.RATE_LIMITED]
    assert code("2001:db8:0:2::1") is ErrorCode.UNAUTHORIZED


# -- Host header


async def test_unknown_host_header_is_refused() -> None:
    async with gateway() as server:
        for path in ("/", "/v1/models", "/v1/audio/voices"):
            assert "403" in await raw(server, f"GET {path} HTTP/1.1\nHost: evil.example")
            assert "200" in await raw(server, f"GET {path} HTTP/1.1\nHost: localhost:8000")
        handshake = (
            "GET /v1/tts/stream HTTP/1.1\nHost: {0}\nOrigin: http://{0}\nUpgrade: websocket\n"
            "Connection: Upgrade\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: " + "A" * 22 + "=="
        )
        assert "403" in await raw(server, handshake.format("evil.example"))
        assert "101" in await raw(server, handshake.format("127.0.0.1:1"))
        # probes use the address of the pod
        assert "200" in await raw(server, "GET /health/ready HTTP/1.1\nHost: 10.1.2.3:8000")
    async with gateway(allowed_hosts="speech.example.org") as server:
        assert "200" in await raw(server, "GET / HTTP/1.1\nHost: speech.example.org")


# -- revocation and expiry


async def test_revoked_key_closes_only_its_own_sockets(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "k.json", entry("a", "t"), entry("b", "t"))
    async with (
        gateway(FakeTalker(row_s=0.05, frames_per_character=50), api_keys_file=file) as server,
        client(server.url, additional_headers=bearer("a")) as gone,
        client(server.url, additional_headers=bearer("b")) as stays,
    ):
        await gone.create()
        await gone.send("text.append", context_id="c", text="Speaking on and on. ")
        await gone.until("audio.started")
        revoked = entry("a", "t", revoked_at="2026-01-01T00:00:00+00:00")
        write_keys(file, revoked, entry("b", "t"))
        server.runtime.authority.reload_soon()
        async with asyncio.timeout(PATIENCE_S):
            assert (await gone.error())["code"] == "unauthorized"
            with pytest.raises(ConnectionClosed) as closed:
                await gone.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert await status(server.url, additional_headers=bearer("a")) == 401
        await server.until_free()
        await stays.create()


async def test_speech_of_revoked_key_fails_with_reason(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "k.json", entry("a", "t"))
    talker = FakeTalker(row_s=0.05, frames_per_character=50)
    async with (
        gateway(talker, api_keys_file=file) as server,
        Client(server.url, api_key="a") as talk,
        talk.speak("Speaking on and on. ") as speech,
    ):
        await anext(aiter(speech))
        write_keys(file, entry("a", "t", revoked_at="2026-01-01T00:00:00+00:00"))
        server.runtime.authority.reload_soon()
        with pytest.raises(ServerError, match="unauthorized"):
            async for _ in speech:
                pass
        assert speech.cancelled is None  # the client did not ask for that


async def test_expired_key_gets_unauthorized_on_open_socket(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "k.json", entry("a", "t", expires_s=3600))
    async with (
        gateway(api_keys_file=file) as server,
        client(server.url, additional_headers=bearer("a")) as talk,
    ):
        write_keys(file, entry("a", "t", expires_s=-1))
        server.runtime.authority.reload_soon()
        async with asyncio.timeout(PATIENCE_S):
            assert (await talk.error())["code"] == "unauthorized"


async def test_key_that_loses_its_scope_gets_unauthorized_on_open_socket(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "k.json", entry("a", "t"), entry("b", "t", "speak", "admin"))
    async with (
        gateway(api_keys_file=file) as server,
        client(server.url, additional_headers=bearer("a")) as talk,
        client(server.url, additional_headers=bearer("b")) as stays,
    ):
        write_keys(file, entry("a", "t", "admin"), entry("b", "t", "speak"))
        server.runtime.authority.reload_soon()
        async with asyncio.timeout(PATIENCE_S):
            assert (await talk.error())["code"] == "unauthorized"
        assert await status(server.url, additional_headers=bearer("a")) == 403
        assert len(await stays.say("Still here.")) > 0


async def test_key_file_is_reloaded_and_broken_file_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "RELOAD_S", 0.1)
    file = write_keys(tmp_path / "k.json", entry("a", "t"))
    async with gateway(api_keys_file=file) as server:
        authority = server.runtime.authority
        write_keys(file, entry("a", "t"), entry("b", "u"))  # found by polling alone
        await until(lambda: authority.key_count == 2)
        assert await status(server.url, additional_headers=bearer("b")) == 101
        file.write_text('{"keys": [{"id": "half')
        await until(lambda: not authority.is_current)
        assert "tts_api_keys_current 0.0" in server.runtime.metrics.render().decode()
        for key in ("a", "b"):
            assert await status(server.url, additional_headers=bearer(key)) == 101
        file.unlink()
        authority.reload_soon()
        await asyncio.sleep(0.1)
        assert await status(server.url, additional_headers=bearer("a")) == 101
        write_keys(file, entry("b", "u"))
        await until(lambda: authority.is_current)
        assert await status(server.url, additional_headers=bearer("a")) == 401
        tenants = {name for name, _ in authority.accounts.tenants()}
        assert tenants == {"u"}


# -- maximum age of sockets


async def test_socket_over_max_session_finishes_contexts_and_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = take_over_housekeeping(monkeypatch)
    async with gateway(max_session_s=60.0) as server, client(server.url) as talk:
        (look,), opened_at = looks, time.monotonic()
        asked, may_answer = hold_codec(server, monkeypatch)
        handle = await talk.create()
        await talk.send("text.append", context_id="c", text="A sentence that takes its time.")
        await talk.send("context.end", context_id="c")
        await asked.wait()
        look(opened_at + 60.0)
        assert (await talk.until("going_away"))["deadline_ms"] == 150_000
        await talk.send("context.create", context_id="d")
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("draining", "d")
        look(opened_at + 209.9)  # just before the deadline's end
        may_answer.set()
        await talk.until("context.done")
        assert len(talk.samples(handle)) == len(server.whole("A sentence that takes its time."))
        await until(lambda: look(opened_at + 209.9) and talk.socket.close_code)
        assert talk.socket.close_code == 1001
        async with client(server.url):  # the server itself goes on
            assert server.runtime.lifecycle.is_ready


@pytest.mark.parametrize("late_s", [0.0, 0.6])
async def test_context_unfinished_at_end_of_old_socket_gets_error(
    monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Also when housekeeping is so late that the socket closes in the same look."""
    looks = take_over_housekeeping(monkeypatch)
    talker = FakeTalker(row_s=0.05, frames_per_character=50)
    limits: dict[str, Any] = {"max_session_s": 60.0, "drain_s": 20.0}
    async with gateway(talker, **limits) as server, client(server.url) as talk:
        (look,), opened_at = looks, time.monotonic()
        await talk.create()
        await talk.send("text.append", context_id="c", text="This takes much too long.")
        await talk.send("context.end", context_id="c")
        await until(lambda: server.talker.outstanding)
        look(opened_at + 60.0)
        await talk.until("going_away")
        look(opened_at + 80.0 + late_s)
        error = await talk.error()
        assert (error["code"], error["context_id"]) == ("draining", "c")
        assert (await talk.until("context.done"))["reason"] == "error"
        look(opened_at + 80.6)
        with pytest.raises(ConnectionClosed):
            await talk.until("never")
        assert talk.socket.close_code == 1001
        assert server.runtime.metrics.cut_by_drain._value.get() == 1
        await server.until_free()


async def test_context_of_old_socket_may_send_ahead_of_playback() -> None:
    """It has a minute of audio, of which only a part could be played before the deadline."""
    limits: dict[str, Any] = {"max_session_s": 2.0, "drain_s": 20.0, "default_lead_ms": 500}
    text = "This takes much too long to be played."
    async with gateway(FakeTalker(frames_per_character=40), **limits) as server:
        async with client(server.url) as talk:
            handle = await talk.create()
            await talk.send("text.append", context_id="c", text=text)
            await talk.send("context.end", context_id="c")
            await talk.until("going_away")
            assert (await talk.until("context.done"))["reason"] == "complete"
            assert len(talk.samples(handle)) == len(server.whole(text))
        await server.until_free()


# -- the admin listener


@contextlib.asynccontextmanager
async def administered(server: Gateway) -> AsyncIterator[tuple[httpx.AsyncClient, list[int]]]:
    """Yield a client of the admin listener, and a list with one entry per request to exit."""
    ends: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_admin_app(server.runtime, lambda: ends.append(1))
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    async with Server(config, listener) as admin:
        url = f"http://127.0.0.1:{admin.port}"
        async with httpx.AsyncClient(timeout=60, base_url=url) as http:
            yield http, ends


@pytest.mark.long
async def test_admin_drain_can_be_started_and_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        gateway() as server,
        administered(server) as (http, ends),
        client(server.url) as talk,
    ):
        asked, may_answer = hold_codec(server, monkeypatch)
        handle = await talk.create()
        await talk.send("text.append", context_id="c", text="One sentence to finish.")
        await talk.send("context.end", context_id="c")
        await asked.wait()
        told = await http.post("/admin/drain")
        assert (told.status_code, told.json()["contexts"]) == (202, 1)
        await talk.until("going_away")
        assert (await http.get("/health/ready")).status_code == 503
        assert "tts_draining 1.0" in (await http.get("/metrics")).text
        assert await status(server.url) == 503
        may_answer.set()
        await talk.until("context.done")
        assert len(talk.samples(handle)) == len(server.whole("One sentence to finish."))
        undone = await http.delete("/admin/drain")
        assert (undone.status_code, undone.json()["draining"]) == (200, False)
        assert (await http.get("/health/ready")).status_code == 200
        assert await status(server.url) == 101
        assert ends == []
        await http.post("/admin/drain", params={"exit": "true"})
        assert ends == [1]


async def test_admin_drain_cannot_be_withdrawn_from_ending_server() -> None:
    async with gateway() as server, administered(server) as (http, _):
        await server.runtime.lifecycle.drain()
        assert (await http.delete("/admin/drain")).status_code == 409
        assert (await http.get("/admin/drain")).json()["draining"] is True


async def test_admin_drain_refuses_foreign_origin() -> None:
    async with gateway() as server, administered(server) as (http, _):
        for method in ("POST", "DELETE"):
            page = await http.request(
                method, "/admin/drain", headers={"Origin": "http://x.example"}
            )
            assert (page.status_code, page.json()["error"]["code"]) == (403, "forbidden_origin")
            assert page.headers["x-request-id"]
        assert server.runtime.lifecycle.is_ready


async def test_admin_drain_requires_admin_scope(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "k.json", entry("ops", "t", "admin"), entry("k", "t"))
    async with gateway(api_keys_file=file) as server, administered(server) as (http, _):
        for method in ("GET", "POST", "DELETE"):
            for key, wanted in ((None, 401), ("k", 403), ("ops", None)):
                headers = {} if key is None else bearer(key)
                answer = await http.request(method, "/admin/drain", headers=headers)
                assert answer.status_code == wanted or (wanted is None and answer.is_success)
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get("/v1/models", headers=bearer("ops"))).status_code == 404
        assert (await http.get("/docs")).status_code == 401


# -- logs


async def test_logs_contain_key_id_but_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "talkwire_very-secret"
    file = write_keys(tmp_path / "k.json", entry(secret, "t") | {"id": "key_7"})
    with as_it_logs("debug"):
        async with gateway(api_keys_file=file) as server:
            async with client(server.url, additional_headers=bearer(secret)) as talk:
                await talk.send("text.append", context_id="none", text="x")
                await talk.error()
            cartesia = server.http.replace("http", "ws", 1) + "/tts/websocket"
            assert await status(f"{cartesia}?api_key={secret}") == 101
            assert await status(server.url, additional_headers=bearer(secret + "x")) == 401
    lines = capsys.readouterr().err.splitlines()
    assert {"key_7", "unknown"} <= {json.loads(line).get("key") for line in lines}
    assert not [line for line in lines if secret in line]


@contextlib.contextmanager
def as_it_logs(level: str) -> Iterator[None]:
    """Set up logging as ``talkwire serve`` does."""
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    try:
        writer = set_up(level, "json")
        yield
        writer.close(60.0)
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[type[Event], set[str | None]]:
    """The ids of the keys with which contexts handle each type of event."""
    served: dict[type[Event], set[str | None]] = {}
    post = ContextDriver.post

    def spy(driver: ContextDriver, event: Event) -> None:
        served.setdefault(type(event), set()).add(current_caller().key_id)
        post(driver, event)

    monkeypatch.setattr(ContextDriver, "post", spy)
    return served


async def test_socket_callbacks_run_with_caller_of_connection(
    tmp_path: Path, served: dict[type[Event], set[str | None]]
) -> None:
    """Messages, pongs and timers run in callbacks of the event loop, not in the socket's tasks."""
    keys = write_keys(tmp_path / "k.json", entry("k", "t"), entry("other", "u"))
    async with gateway(api_keys_file=keys) as server:
        async with client(server.url, additional_headers=bearer("k")) as talk:
            await talk.say("One sentence that is long enough to be read while it is spoken.")
        await server.until_free()
    assert {TextAppended, AudioRead, RowsReceived, AudioDecoded} <= set(served)
    assert set().union(*served.values()) == {"key_k"}


async def test_drain_is_told_to_contexts_with_their_own_caller(
    tmp_path: Path, served: dict[type[Event], set[str | None]]
) -> None:
    keys = write_keys(tmp_path / "k.json", entry("ops", "t", "admin"), entry("k", "u"))
    talker = FakeTalker(row_s=0.05, frames_per_character=50)
    async with (
        gateway(talker, api_keys_file=keys, drain_s=0.2) as server,
        administered(server) as (http, _),
        client(server.url, additional_headers=bearer("k")) as talk,
    ):
        await talk.create()
        await talk.send("text.append", context_id="c", text="This takes much too long. ")
        await talk.until("audio.started")
        assert (await http.post("/admin/drain", headers=bearer("ops"))).status_code == 202
        assert (await talk.error())["code"] == "draining"
    assert {LeadLifted, Failed} <= set(served)
    assert set().union(*served.values()) == {"key_k"}
