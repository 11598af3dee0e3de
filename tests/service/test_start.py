"""The first moments of ``talkwire serve``, which listens before it imports anything heavy."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service import server

#: Stops at the first import of each module that it names, until a line is read. The engines are
#: fakes.
_PROGRAM = """
import collections, sys, types

stops = set(sys.argv.pop().split(","))

def stop(event, args):
    if event == "import" and args[0] in stops:
        stops.remove(args[0])
        print(args[0], flush=True)
        sys.stdin.readline()

def build_engines(*_):
    from loadtest.fakes.codec import FakeCodecEngine
    from service.engines.contracts import Engines
    from streaming.spec import CodecSpec
    from loadtest.fakes.talker import FakeTalker
    return Engines(FakeTalker(), FakeCodecEngine(CodecSpec(24_000, 960, (1024,) * 8, 0, 0), 0.0))

def build_library(_):
    from service.voices.registry import VoiceLibrary
    return VoiceLibrary(None, 0)

launch = types.ModuleType("service.launch")
launch.Launch = collections.namedtuple("Launch", "engines library starting since")
launch.build_engines, launch.build_library, launch.OnProgress = build_engines, build_library, object
sys.modules["service.launch"] = launch
sys.addaudithook(stop)
from service import cli
cli.main()
"""
_HANDSHAKE = (
    b"GET /v1/tts/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Starting:
    """A service that stops at its imports."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.port = process, port
        self._go, self._said = process.stdin, process.stdout

    def stopped_at(self) -> str:
        return self._said.readline().decode().strip()

    def go_on(self) -> None:
        self._go.write(b"\n")
        self._go.flush()

    def connect(self) -> socket.socket:
        """Connect, and ask for a WebSocket."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        client.sendall(_HANDSHAKE)
        return client


@contextlib.contextmanager
def starting(stops: str) -> Iterator[Starting]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "serve", "--port", str(port), stops],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TALKWIRE_HOLD_S": "600"},
    )
    with process:
        try:
            yield Starting(process, port)
        finally:
            process.kill()


def test_clients_that_connect_before_imports_are_answered() -> None:
    with starting("asyncio,fastapi") as service, contextlib.ExitStack() as stack:
        clients = []
        for module in ("asyncio", "fastapi"):
            assert service.stopped_at() == module
            clients.append(stack.enter_context(service.connect()))
            service.go_on()
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
            client.close()
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            service.process.send_signal(number)
        _, said = service.process.communicate(timeout=60)
        assert service.process.returncode == 0, said
        assert b"Stopped." in said


@pytest.mark.parametrize("module", ["asyncio", "fastapi"])
def test_sigterm_during_imports_ends_service(module: str) -> None:
    with starting(module) as service:
        assert service.stopped_at() == module
        service.process.send_signal(signal.SIGTERM)
        if module == "fastapi":  # imported in a thread, which is waited for
            assert service.process.stderr is not None
            while b"Stopped." not in (line := service.process.stderr.readline()):
                assert line
            service.go_on()
        _, said = service.process.communicate(timeout=60)
        assert (service.process.returncode, b"Traceback" in said) == (0, False), said


def test_service_that_must_not_be_reached_does_not_listen() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "serve", "--port", "0", "--host", "0.0.0.0", "asyncio"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"talkwire: host 0.0.0.0 would let anybody")


@pytest.mark.parametrize(
    ("devices", "is_gpu_build", "says"),
    [
        (("nvidia0", "nvidiactl"), False, True),
        (("nvidia3",), False, True),  # as in a container that is given one of several
        (("nvidia0",), True, False),
        (("nvidiactl", "dri"), False, False),
        ((), False, False),
    ],
)
def test_environment_for_the_cpu_says_so_beside_a_gpu(
    devices: tuple[str, ...],
    is_gpu_build: bool,
    says: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "is_gpu_build", lambda: is_gpu_build)
    for name in devices:
        (tmp_path / name).touch()
    said: list[str] = []
    log: Any = SimpleNamespace(say=said.append)
    server._tell_of_unused_gpu(log, tmp_path)
    assert [("GPU" in line, "HARDWARE=cuda" in line) for line in said] == [(True, True)] * says
