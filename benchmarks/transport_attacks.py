"""How long clients can hold up the event loop: floods of the smallest chunks, frames and records.

``python -m benchmarks.transport_attacks`` starts the gateway with fake engines for each case. A
timer in its loop reports the processor time of the longest turn; turns shorter than the timer's
5 ms read as up to that. Meanwhile a neighbour with another address exchanges pings, and a probe
asks for /health/live. Prints a Markdown table; ``--json FILE`` also writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvicorn

from loadtest import fake_server
from loadtest.process_stats import allow_open_files
from loadtest.program import (
    bounded,
    environment,
    failing,
    markdown_table,
    output_file,
    print_facts,
    write_json,
)

_TIMER_S = 0.005
_REPORT_S = 0.25
#: Seconds in which the last turn of an attack ends, and for a single answer.
_PATIENCE_S = 60.0
#: The neighbour's address. Clients are told apart by address.
_NEIGHBOUR = "127.0.0.2"
_HOST = b"Host: localhost\r\n"
GET_HEALTH = b"GET /health/live HTTP/1.1\r\n" + _HOST + b"\r\n"
UPGRADE = (
    b"GET /v1/tts/stream HTTP/1.1\r\n" + _HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """Return a frame of at most 125 bytes, masked with zeros."""
    return bytes((fin << 7 | opcode, 0x80 | len(data))) + bytes(4) + data


@dataclass(frozen=True)
class Attack:
    """What each of some connections sends first, and then again and again."""

    first: bytes
    flood: bytes
    connections: int = 1
    #: Whether the client reads what it is sent.
    reads: bool = True
    #: Whether each byte of the flood is a TLS record.
    tls: bool = False
    #: The code with which the server closes the connection.
    close_code: int | None = None


def _chunked(path: bytes) -> bytes:
    kind = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return b"POST " + path + b" HTTP/1.1\r\n" + _HOST + kind


_CHUNKS = b"1\r\n \r\n" * 10_000
_EMPTY = frame(0, fin=False) * 10_000
_BEGUN = UPGRADE + frame(1, b"{", fin=False)
_BAD = frame(1, b"{}") * 10_000
_PINGS = frame(9) * 10_000
_VALID = frame(1, b'{"type":"ping","id":"1"}') * 4_000
_MANY_FRAGMENTS = frame(1, b"{}", fin=False) + frame(0, fin=False) * 4000 + frame(0)
_HEAD = b"GET / HTTP/1.1\r\n" + _HOST

ATTACKS = {
    "chunks after a 404": Attack(_chunked(b"/nowhere"), _CHUNKS),
    "chunks after a 404, 20 connections": Attack(_chunked(b"/nowhere"), _CHUNKS, 20),
    "chunks after a 404, 200 connections": Attack(_chunked(b"/nowhere"), _CHUNKS, 200),
    "chunks of a request": Attack(_chunked(b"/v1/audio/speech"), _CHUNKS),
    "pipelined requests": Attack(b"", GET_HEALTH * 1000),
    "endless head": Attack(_HEAD, b"a:b\r\n" * 10_000),
    "empty fragments": Attack(_BEGUN, _EMPTY, close_code=1008),
    "empty fragments, 20 connections": Attack(_BEGUN, _EMPTY, 20, close_code=1008),
    "messages of empty fragments": Attack(UPGRADE, _MANY_FRAGMENTS),
    "bad messages": Attack(UPGRADE, _BAD, close_code=1008),
    "bad messages, unread": Attack(UPGRADE, _BAD, reads=False),
    "pings": Attack(UPGRADE, _PINGS, close_code=1008),
    "pings, unread": Attack(UPGRADE, _PINGS, reads=False),
    "valid messages": Attack(UPGRADE, _VALID),
    "valid messages, 20 connections": Attack(UPGRADE, _VALID, 20),
    "valid messages, 200 connections": Attack(UPGRADE, _VALID, 200),
    "TLS records of a byte": Attack(_HEAD + b"a:", b"a" * 20_000, tls=True),
    "TLS records of a byte, 20 connections": Attack(_HEAD + b"a:", b"a" * 20_000, 20, tls=True),
}


class _Wire:
    """One connection of an attack."""

    def __init__(self, port: int, attack: Attack) -> None:
        self._attack = attack
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(_PATIENCE_S)
        self._tls: ssl.SSLObject | None = None
        if attack.tls:
            self._secure()
        self._send(attack.first.removeprefix(UPGRADE), after=attack.first.startswith(UPGRADE))
        self.socket.setblocking(False)
        self._rest = b""
        #: The last bytes that were received.
        self.tail = b""

    def _secure(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(incoming, self._outgoing)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                incoming.write(self.socket.recv(1 << 16))
            else:
                return

    def _send(self, data: bytes, *, after: bool) -> None:
        if after:
            self.socket.sendall(UPGRADE)
            if b" 101 " not in self.socket.recv(1 << 12):
                raise OSError("the handshake was refused")
        self.socket.sendall(self._records([data]))

    def _records(self, pieces: Sequence[bytes]) -> bytes:
        if self._tls is None:
            return b"".join(pieces)
        for piece in pieces:
            self._tls.write(piece)
        return self._outgoing.read()

    def pump(self) -> int:
        """Read, and send what the system takes; return its bytes. Raises OSError at the end."""
        if self._attack.reads:
            with contextlib.suppress(BlockingIOError):
                data = self.socket.recv(1 << 18)
                self.tail = (self.tail + data)[-64:]
                if not data:
                    raise ConnectionError
        if not self._rest:
            flood = self._attack.flood
            self._rest = self._records([flood] if self._tls is None else [flood[:1]] * len(flood))
        try:
            count = self.socket.send(self._rest)
        except BlockingIOError:
            return 0
        self._rest = self._rest[count:]
        return count


class _Neighbour(threading.Thread):
    """Exchanges pings on its own socket, and asks for /health/live."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self.is_over = threading.Event()
        self.pings_s = [0.0]
        self.probes_s = [0.0]

    def _connect(self) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self._port), _PATIENCE_S, source_address=(_NEIGHBOUR, 0)
        )

    def run(self) -> None:
        """Talk until ``is_over``, or until nothing is answered any more."""
        with contextlib.suppress(OSError), self._connect() as wire:
            wire.sendall(UPGRADE)
            wire.recv(1 << 16)
            while not self.is_over.wait(0.05):
                began = time.monotonic()
                wire.sendall(frame(1, b'{"type":"ping","id":"neighbour"}'))
                while b'"neighbour"' not in (data := wire.recv(1 << 16)):
                    if not data:
                        return
                self.pings_s.append(time.monotonic() - began)
                began = time.monotonic()
                with self._connect() as probe:
                    probe.sendall(GET_HEALTH)
                    probe.recv(100)
                self.probes_s.append(time.monotonic() - began)


class _Server:
    """The gateway in a process of its own, which reports the longest turns of its loop."""

    def __init__(self, options: Sequence[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.transport_attacks", "--serve", *options]
        self.process = psutil.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        self.port = next(int(line.rsplit(":", 1)[1]) for line in lines if line[:4] == "http")
        self.turns_ms: list[float] = []
        threading.Thread(target=self._read, args=[lines], daemon=True).start()

    def _read(self, lines: Iterator[str]) -> None:
        for line in lines:
            if line.startswith("turn "):
                self.turns_ms.append(float(line.split()[1]))

    def cpu_s(self) -> float:
        """Return its processor time."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


async def _watch() -> None:
    """Report the longest turns of the event loop to the parent process."""
    longest = 0.0
    reported_at = time.monotonic()
    used = time.thread_time()
    while True:
        await asyncio.sleep(_TIMER_S)
        now, cpu = time.monotonic(), time.thread_time()
        longest, used = max(longest, cpu - used), cpu
        if now - reported_at > _REPORT_S:
            print(f"turn {1000 * longest:.1f}", file=sys.stderr, flush=True)
            longest, reported_at = 0.0, now


async def _serve(argv: Sequence[str]) -> None:
    watching = asyncio.create_task(_watch())
    await fake_server.serve(fake_server.options(argv))
    watching.cancel()


def _closed_with(tail: bytes) -> int | None:
    """Return the code of the close frame at the end of received bytes."""
    at = tail.rfind(b"\x88")
    is_close = 0 <= at < len(tail) - 3 and tail[at + 1] == len(tail) - at - 2
    return int.from_bytes(tail[at + 2 : at + 4], "big") if is_close else None


def measure(attack: Attack, seconds: float, options: Sequence[str]) -> dict[str, Any]:
    """Run one attack against a new server, and return its figures."""
    server = _Server(options if attack.tls else ())
    neighbour = _Neighbour(server.port)
    try:
        time.sleep(1.5)
        if not attack.tls:
            neighbour.start()
            time.sleep(0.5)
        wires = [_Wire(server.port, attack) for _ in range(attack.connections)]
        server.turns_ms.clear()
        used = server.cpu_s()
        began = time.monotonic()
        sent = 0
        open_ = set(wires)
        while open_ and time.monotonic() - began < seconds:
            before = sent
            for wire in list(open_):
                try:
                    sent += wire.pump()
                except OSError:
                    open_.remove(wire)
            if sent == before:
                time.sleep(0.001)
        lasted = time.monotonic() - began
        used = server.cpu_s() - used
        for wire in wires:
            wire.socket.close()
        reports = len(server.turns_ms) + 4
        until = time.monotonic() + _PATIENCE_S
        while len(server.turns_ms) < reports and time.monotonic() < until:
            time.sleep(0.1)  # the last turn may be a long one
        return {
            "sent_mb": sent / 1e6,
            "cpu_s": used,
            "turn_ms": max(server.turns_ms, default=1000 * _PATIENCE_S),
            "ping_s": max(neighbour.pings_s),
            "probe_s": max(neighbour.probes_s),
            "closed_after_s": None if open_ else lasted,
            "close_code": _closed_with(wires[0].tail),
        }
    finally:
        neighbour.is_over.set()
        server.process.kill()
        server.process.wait()


def _certificate(folder: Path) -> list[str]:
    files = [str(folder / name) for name in ("certificate.pem", "key.pem")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return ["--tls-certificate", files[0], "--tls-key", files[1]]


def _serve_in_process(argv: Sequence[str]) -> None:
    allow_open_files()
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(_serve(argv))


def main() -> None:
    """Run the attacks and print the table."""
    if sys.argv[1:2] == ["--serve"]:
        _serve_in_process(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="benchmarks.transport_attacks", description=__doc__)
    parser.add_argument("--seconds", type=bounded(float, 0.1), default=3.0, help="of each attack")
    parser.add_argument("--json", type=output_file, metavar="FILE")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="(all)")
    chosen = parser.parse_args()
    if unknown := set(chosen.attacks) - set(ATTACKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(ATTACKS)}")
    facts = environment(("uvicorn", "websockets", "h11", "uvloop"))
    print_facts(facts)
    allow_open_files()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        options = _certificate(Path(folder))
        for name in chosen.attacks or ATTACKS:
            figures[name] = measure(ATTACKS[name], chosen.seconds, options)
            print(f"{name}: {figures[name]['turn_ms']:.0f} ms", file=sys.stderr)
            content = {"machine": facts, "seconds": chosen.seconds, "attacks": figures}
            write_json(chosen.json, content)
    names = list(next(iter(figures.values())))
    rows = [[name, *("" if value is None else value for value in one.values())]
            for name, one in figures.items()]  # fmt: skip
    print(markdown_table(["attack", *names], rows))


if __name__ == "__main__":
    with failing("benchmarks.transport_attacks", ssl.SSLError, subprocess.CalledProcessError):
        main()
