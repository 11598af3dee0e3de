"""TLS on both event loops: speech, unfinished handshakes, and certificates."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from fastapi import FastAPI

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service import server
from service.engines.contracts import Engines
from service.gateway import _checked
from service.listening import Listeners, Unable
from service.logs import LogWriter
from service.settings import Settings, SettingsError, load_settings
from service.transport.server_config import SPARE, ServerConfig, server_config
from tests.service.live import SPEC, Gateway, client, gateway
from tests.service.transport.raw_connection import raw, rest
from tests.waiting import until

Loop = Callable[[], asyncio.AbstractEventLoop]
both_loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
HEALTH = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-out", str(files[0]), "-keyout", str(files[1])],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return files


def run(loop: Loop, talk: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(talk)


def trusting(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


def tls(certificate: tuple[Path, Path]) -> dict[str, Any]:
    return {"tls_certificate": certificate[0], "tls_key": certificate[1]}


async def health(server: Gateway, trust: ssl.SSLContext) -> int:
    async with httpx.AsyncClient(timeout=60, verify=trust) as http:
        address = server.http.replace("http://127.0.0.1", "https://localhost")
        return (await http.get(address + "/health/ready")).status_code


@both_loops
def test_tls_carries_speech(loop: Loop, certificate: tuple[Path, Path]) -> None:
    async def talk() -> None:
        trust = trusting(certificate)
        async with gateway(**tls(certificate)) as server:
            url = server.url.replace("ws://127.0.0.1", "wss://localhost")
            async with client(url, ssl=trust) as talk:
                assert len(await talk.say("Hello there.")) > 0
                secured = talk.socket.transport.get_extra_info("ssl_object")
                assert secured.version() in ("TLSv1.2", "TLSv1.3")
            assert await health(server, trust) == 200

    run(loop, talk())


def test_connection_is_closed_if_its_socket_cannot_be_moved(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dup(_: TransportSocket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    async def talk() -> None:
        async with gateway(**tls(certificate)) as server:
            monkeypatch.setattr(TransportSocket, "dup", dup)
            async with raw(server) as (reader, _):
                assert await rest(reader) == b""

    run(asyncio.new_event_loop, talk())


@both_loops
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02"], ids=["nothing", "half a record"])
def test_unfinished_tls_handshake_is_cut_off(
    loop: Loop, said: bytes, certificate: tuple[Path, Path]
) -> None:
    async def talk() -> None:
        async with (
            gateway(handshake_s=0.3, **tls(certificate)) as server,
            raw(server) as (reader, writer),
        ):
            writer.write(said)
            assert await rest(reader) == b""

    run(loop, talk())


@both_loops
def test_unfinished_head_after_tls_handshake_is_cut_off(
    loop: Loop, certificate: tuple[Path, Path]
) -> None:
    async def talk() -> None:
        async with gateway(handshake_s=0.8, **tls(certificate)) as server:
            address = httpx.URL(server.http)
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=trusting(certificate)
            )
            writer.write(HEALTH[:20])
            assert await rest(reader) == b""
            writer.close()

    run(loop, talk())


@both_loops
def test_plain_http_is_refused_on_tls_port(loop: Loop, certificate: tuple[Path, Path]) -> None:
    async def talk() -> None:
        async with gateway(**tls(certificate)) as server:
            async with raw(server) as (reader, writer):
                writer.write(HEALTH)
                assert b"HTTP" not in await rest(reader)
            assert await health(server, trusting(certificate)) == 200

    run(loop, talk())


@both_loops
def test_oldest_tls_handshakes_are_closed_over_limit(
    loop: Loop, certificate: tuple[Path, Path]
) -> None:
    async def talk() -> None:
        async with (
            gateway(max_connections=2, **tls(certificate)) as server,
            contextlib.AsyncExitStack() as stack,
        ):
            most = SPARE + 2
            silent = [await stack.enter_async_context(raw(server)) for _ in range(most + 20)]
            assert await health(server, trusting(certificate)) == 200
            for reader, _ in silent[:20]:  # the oldest were closed
                assert await rest(reader) == b""
            assert not silent[-1][0].at_eof()

    run(loop, talk())


@both_loops
def test_request_in_last_packet_of_tls_handshake_is_answered(
    loop: Loop, certificate: tuple[Path, Path]
) -> None:
    async def talk() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = trusting(certificate).wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with gateway(**tls(certificate)) as server, raw(server) as (reader, writer):
            async with asyncio.timeout(30):
                while True:
                    try:
                        ends.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        writer.write(outgoing.read())
                        incoming.write(await reader.read(65536))
                ends.write(HEALTH)
                writer.write(outgoing.read())  # the client's Finished, and the request
                answer = b""
                while b"\r\n\r\n" not in answer:
                    incoming.write(await reader.read(65536))
                    with contextlib.suppress(ssl.SSLWantReadError):
                        answer += ends.read(65536)
                assert b"200 OK" in answer

    run(loop, talk())


def test_tls_key_setting_requires_certificate(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tls_key"):
        load_settings(tls_key=tmp_path / "key.pem")


def test_unreadable_certificate_stops_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for file in (broken, tmp_path / "nowhere.pem"):
        with pytest.raises(Unable, match="the TLS certificate or its key cannot be used"):
            _checked(server_config(FastAPI(), Settings(tls_certificate=file), 1))


@pytest.mark.parametrize("algorithm", ["rsa:2048", "ed25519"])
def test_fault_of_certificate_or_key_names_the_file(
    certificate: tuple[Path, Path], tmp_path: Path, algorithm: str
) -> None:
    other, junk, absent = (tmp_path / name for name in ("other.pem", "junk.pem", "absent.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", algorithm, "-nodes", "-subj", "/CN=localhost",
         "-out", "/dev/null", "-keyout", str(other)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    junk.write_text("-----BEGIN NOTHING-----")
    good, key = certificate
    for files, told in (
        ((good, None), f"{good} has no private key in PEM"),
        ((good, absent), f"cannot read {absent}: No such file or directory"),
        ((good, junk), f"{junk} has no private key in PEM"),
        ((good, other), f"{other} is not the key of {good}"),
        ((absent, key), f"cannot read {absent}: No such file or directory"),
        ((junk, key), f"{junk} has no certificate in PEM"),
        ((tmp_path, key), f"cannot read {tmp_path}: Is a directory"),
    ):
        with pytest.raises(Unable) as unable:
            _checked(server_config(FastAPI(), Settings(**tls(files)), 1))  # type: ignore[arg-type]
        assert str(unable.value).endswith(f"cannot be used: {told}")


def test_certificate_is_reloaded_and_broken_file_is_ignored(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for source, copy in zip(certificate, files, strict=True):
        copy.write_bytes(source.read_bytes())
    config = server_config(FastAPI(), Settings(**tls(files)), 1)
    config.load()
    first = config.limits.tls
    config.reload_certificate()
    second = config.limits.tls
    assert second is not None
    assert second is not first
    files[0].write_text("no certificate")
    config.reload_certificate()
    assert config.limits.tls is second


def test_expiry_is_that_of_the_certificate_that_is_used(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    files = tmp_path / "certificate.pem", certificate[1]
    files[0].write_bytes(certificate[0].read_bytes())
    config = server_config(FastAPI(), Settings(**tls(files)), 1)
    config.load()
    first = config.expires_at
    told = subprocess.check_output(["openssl", "x509", "-noout", "-enddate", "-in", files[0]])
    assert first == ssl.cert_time_to_seconds(told.decode().strip().removeprefix("notAfter="))
    files[0].write_text("no certificate")
    config.reload_certificate()
    assert config.expires_at == first
    subprocess.run(
        ["openssl", "req", "-x509", "-key", files[1], "-days", "9", "-subj", "/CN=localhost",
         "-out", files[0]],
        check=True,
    )  # fmt: skip
    config.reload_certificate()
    assert config.expires_at is not None
    assert config.expires_at > first


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem"])
@pytest.mark.parametrize("content", ["no PEM", None])
def test_reload_names_file_that_cannot_be_used(
    certificate: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    content: str | None,
) -> None:
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    for source, copy in zip(certificate, files, strict=True):
        copy.write_bytes(source.read_bytes())
    config = server_config(FastAPI(), Settings(**tls(files)), 1)
    config.load()
    broken = tmp_path / name
    broken.unlink()
    if content is not None:
        broken.write_text(content)
    config.reload_certificate()
    (refused,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert str(broken) in vars(refused)["reason"]


async def test_hangup_reads_certificate_in_a_thread_and_metrics_have_its_expiry(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> Engines:
        return Engines(FakeTalker(), FakeCodecEngine(SPEC, 0.0))

    threads: list[int] = []
    monkeypatch.setattr(server, "build_engines", build)
    monkeypatch.setattr(
        ServerConfig, "reload_certificate", lambda _: threads.append(threading.get_ident())
    )
    settings, log = Settings(**tls(certificate)), LogWriter(io.StringIO())
    listener = socket.create_server(("127.0.0.1", 0))
    port, listeners = listener.getsockname()[1], Listeners(listener, None, time.monotonic())
    serving = asyncio.create_task(server._serve(settings, log, listeners))
    address = f"https://127.0.0.1:{port}"
    async with httpx.AsyncClient(timeout=60, verify=trusting(certificate)) as http:
        told = (await http.get(address + "/metrics")).text
        assert "\ntts_tls_certificate_expiry_timestamp_seconds 1." in told
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: threads)
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert threading.get_ident() not in threads


def test_encrypted_key_is_named_and_reload_asks_no_terminal_for_its_passphrase(
    certificate: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(certificate[1].read_bytes())
    config = server_config(FastAPI(), Settings(**tls((certificate[0], key))), 1)
    config.load()
    first = config.limits.tls
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:secret",
         "-in", str(certificate[1]), "-out", str(key)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    config.reload_certificate()
    assert config.limits.tls is first
    (refused,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert vars(refused)["reason"] == f"the key in {key} is encrypted"
    assert "phrase" not in capfd.readouterr().err
