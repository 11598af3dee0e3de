"""The examples, run as a user runs them, against the gateway with fake engines.

The examples for Pipecat and LiveKit need these frameworks; tests/official runs them.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import itertools
import os
import re
import shutil
import signal
import socket
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soxr

from loadtest.fakes.talker import FakeTalker
from talkwire_client import AudioChunk
from talkwire_client.protocol import AudioHeader
from tests.service.live import SPEC, Gateway, gateway
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NODE = shutil.which("node")
TEXT = "Hello there. How are you?"
#: Settings with which streamed audio equals one-shot audio.
EXACT: dict[str, Any] = {
    "first_lookahead_frames": SPEC.right_frames,
    "lookahead_frames": SPEC.right_frames,
}


async def run(name: str, *arguments: str | Path, stdin: bytes = b"") -> str:
    """Run an example and return its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        EXAMPLES / name,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin)
    assert process.returncode == 0, err.decode()
    return out.decode()


def recorded(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def wanted(server: Gateway, *utterances: str) -> np.ndarray:
    """The fake talker's audio of ``utterances``."""
    return np.concatenate([server.whole(text) for text in utterances])


def is_heard(heard: np.ndarray, spoken: np.ndarray, error: float = 2**-15) -> bool:
    """Whether every sample of ``heard`` is within ``error`` of ``spoken``."""
    return len(heard) == len(spoken) and bool(np.all(np.abs(heard - spoken) <= error))


def mulaw(data: bytes) -> np.ndarray:
    """Decode mu-law samples by the formula of G.711."""
    code = ~np.frombuffer(data, np.uint8)
    size = ((((code & 15) << 3) + 132).astype(np.int32) << ((code >> 4) & 7)) - 132
    return np.where(code & 128, -size, size) / 32768


async def test_native_client_writes_speech_to_wav(tmp_path: Path) -> None:
    out = tmp_path / "speech.wav"
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server:
        told = await run("native_client.py", "-", "--url", server.url, "--out", out,
                         stdin=TEXT.encode())  # fmt: skip
        spoken = recorded(out)
        assert is_heard(spoken, wanted(server, "Hello there.", "How are you?"))
    assert told == f"{len(spoken) / 24_000:.1f} s of speech\n"


async def test_native_client_tells_that_there_is_no_player(tmp_path: Path) -> None:
    async with gateway(FakeTalker(row_s=0.001)) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            EXAMPLES / "native_client.py",
            TEXT,
            "--play",
            "--url",
            server.url,
            env=os.environ | {"PATH": str(tmp_path)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, told = await process.communicate()
    assert process.returncode == 1
    assert told.decode().splitlines() == ["no player found: install pw-play, aplay, ffplay or play"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["native_client.py", "Hello.", "--out", "missing/x.wav"], "missing/x.wav"),
        (["native_client.py", "-", "--out", "x.wav"], "utf-8"),
        (["batch.py", "missing.txt"], "missing.txt"),
        (["telephony.py", "Hello.", "--to", "no.such.host.invalid:4000"], ""),
        (["openai_client.py", "Hello."], "error code: 404"),  # not the address of its API
    ],
)
async def test_example_names_what_it_cannot_use(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    async with gateway() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(EXAMPLES / arguments[0]),
            *(*arguments[1:], "--url", server.url),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        _, said = await process.communicate(b"caf\xe9")
    assert process.returncode == 1
    assert told in said.decode().lower()
    assert len(said.splitlines()) == 1, said.decode()


async def test_openai_client_writes_speech_to_wav(tmp_path: Path) -> None:
    out = tmp_path / "speech.wav"
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server:
        await run("openai_client.py", TEXT, "--url", f"{server.http}/v1", "--out", out)
        assert is_heard(recorded(out), wanted(server, "Hello there.", "How are you?"))


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("name", ["openai_client.py", "batch.py", "telephony.py"])
async def test_example_ends_without_traceback_on_interrupt(name: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join([TEXT] * 8))
    said = tmp_path / "lines.txt" if name == "batch.py" else TEXT
    async with gateway(FakeTalker(row_s=1.0)) as server:
        url = f"{server.http}/v1" if name == "openai_client.py" else server.url
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, EXAMPLES / name, said, "--url", url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        await until(lambda: server.runtime.admission.active == (4 if name == "batch.py" else 1))
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert (process.returncode, out, err.decode()) == (130, b"", "")


@pytest.mark.usefixtures("ctrl_c")
async def test_native_client_ends_without_traceback_on_interrupt_of_handshake(
    tmp_path: Path,
) -> None:
    connected = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, EXAMPLES / "native_client.py", TEXT, "--url", url),
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        async with asyncio.timeout(60):
            await connected.wait()
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (130, "")


async def test_openai_client_names_broken_connection(tmp_path: Path) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")  # the end of the request's body
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\0\0\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(break_off, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, EXAMPLES / "openai_client.py", TEXT),
            *("--url", f"http://127.0.0.1:{port}/v1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert "peer closed connection" in err.decode()
    assert len(err.splitlines()) == 1, err.decode()


async def test_batch_speaks_every_line_once(tmp_path: Path) -> None:
    lines, out = tmp_path / "lines.txt", tmp_path / "speech"
    texts = ["One.", "", "Two and\u2028three.", "Four.", "---"]
    lines.write_text("\n".join(texts))
    async with gateway(FakeTalker(row_s=0.001), max_contexts=2, **EXACT) as server:
        arguments = ("batch.py", lines, "--out", out, "--at-once", "8", "--url", server.url)
        told = await run(*arguments)
        files = sorted(path.name for path in out.iterdir())
        # "---" is a short silence
        assert files == ["00001.wav", "00003.wav", "00004.wav", "00005.wav"]
        assert sorted(told.split()) == [str(out / name) for name in files]
        for number in (1, 3, 4):
            spoken = recorded(out / f"{number:05}.wav")
            assert is_heard(spoken, wanted(server, texts[number - 1]))
        (out / "00003.wav").unlink()
        assert (await run(*arguments)).split() == [str(out / "00003.wav")]


async def test_batch_refuses_to_speak_no_text_at_a_time(tmp_path: Path) -> None:
    arguments = ("lines.txt", "--out", tmp_path, "--at-once", "0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, EXAMPLES / "batch.py", *arguments), stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    assert process.returncode == 2
    assert "--at-once: invalid count value: '0'" in told.decode()


class Phone(asyncio.DatagramProtocol):
    """Remote side of a call, which records the RTP packets."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def datagram_received(self, data: bytes, address: object) -> None:
        self.packets.append(data)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1:-1", ":4000"])
async def test_telephony_refuses_address_without_usable_port_or_host(address: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, EXAMPLES / "telephony.py", "Hello.", "--to", address),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert f"{address!r} is not HOST:PORT" in said.decode()


async def test_telephony_sends_speech_as_rtp_talkspurt() -> None:
    loop = asyncio.get_running_loop()
    transport, phone = await loop.create_datagram_endpoint(Phone, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    try:
        async with gateway(FakeTalker(row_s=0.001), **EXACT) as server:
            text = "Hello there."
            await run("telephony.py", text, "--to", f"127.0.0.1:{port}", "--url", server.url)
            spoken = soxr.resample(server.whole(text), 24_000, 8000)
    finally:
        transport.close()
    heads = [packet[:12] for packet in phone.packets]
    assert {len(packet) for packet in phone.packets} == {12 + 160}
    heard = mulaw(b"".join(packet[12:] for packet in phone.packets))[: len(spoken)]
    assert is_heard(heard, spoken, error=0.05)  # for mu-law's steps and the resampler's edges
    assert {head[1] & 0x7F for head in heads} == {0}  # mu-law
    assert heads[0][1] == 0x80  # with a marker
    sequence = [int.from_bytes(head[2:4]) for head in heads]
    stamps = [int.from_bytes(head[4:8]) for head in heads]
    assert all((b - a) % 2**16 == 1 for a, b in itertools.pairwise(sequence))
    for head, (before, stamp) in zip(heads[1:], itertools.pairwise(stamps), strict=True):
        passed = (stamp - before) % 2**32
        assert passed > 160 if head[1] & 0x80 else passed == 160  # a marker: after a pause
    assert len({head[8:12] for head in heads}) == 1


async def test_telephony_marks_pause_of_late_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("telephony", EXAMPLES / "telephony.py")
    assert spec is not None
    assert spec.loader is not None
    telephony = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(telephony)
    now_s = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += max(0.0, seconds)

    async def chunks() -> AsyncIterator[AudioChunk]:
        nonlocal now_s
        for late_s in (0.0, 0.0, 0.015, 0.0, 0.5, 0.0):
            now_s += late_s
            yield AudioChunk(bytes(160), 160, AudioHeader(0, 1, 0), now_s)

    clock = SimpleNamespace(time=lambda: now_s)
    virtual = SimpleNamespace(get_running_loop=lambda: clock, sleep=sleep)
    monkeypatch.setattr(telephony, "asyncio", virtual)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as phone:
        phone.bind(("127.0.0.1", 0))
        call = telephony.RtpStream(phone.getsockname())
        await telephony.speak_into(call, chunks())
        call.close()
        heads = [phone.recv(2048)[:12] for _ in range(6)]
    stamps = [int.from_bytes(head[4:8]) for head in heads]
    passed = [(b - a) % 2**32 for a, b in itertools.pairwise(stamps)]
    assert passed == [160, 160, 160, 160 + 8000 * 0.48, 160]
    assert [head[1] >> 7 for head in heads] == [1, 0, 0, 0, 1, 0]


async def run_page(server: Gateway, folder: Path, **env: str) -> str:
    """Run the page's script with stubs of the browser features that it uses; return its status."""
    page = (EXAMPLES / "browser.html").read_text()
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.S)
    client = (ROOT / "clients/js/talkwire.js").as_uri()
    script = script.replace("../clients/js/talkwire.js", client)
    script = script.replace("ws://127.0.0.1:8000/v1/tts/stream", server.url)
    (folder / "page.mjs").write_text(script)
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(
        NODE,
        "--experimental-websocket",
        Path(__file__).parent / "browser.mjs",
        folder / "page.mjs",
        client,
        env=os.environ | env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    return out.decode().splitlines()[-1]


@pytest.mark.skipif(NODE is None, reason="no Node.js here")
async def test_browser_example_plays_speech(tmp_path: Path) -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server:
        told = await run_page(server, tmp_path, TEXT=TEXT)
        count = len(wanted(server, "Hello there.", "How are you?"))
    assert told == f"{count} samples; {count / 24_000:.1f} s of speech"


@pytest.mark.skipif(NODE is None, reason="no Node.js here")
async def test_browser_example_is_stopped(tmp_path: Path) -> None:
    text = "Hello there. " * 60
    async with gateway(FakeTalker(row_s=0.001)) as server:
        told = await run_page(server, tmp_path, TEXT=text, STOP="1")
    assert told == f"0 samples; Unheard: {text}"


def test_readme_lists_every_example() -> None:
    listed = re.findall(r"\]\(([a-z_]+\.(?:py|html))\)", (EXAMPLES / "README.md").read_text())
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".html")}
    assert set(listed) == there


def blocks() -> list[str]:
    """The Python code blocks of the client's README."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "clients/python/README.md").read_text(), re.S)


async def test_client_readme_program_writes_speech_to_wav(tmp_path: Path) -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server:
        program = tmp_path / "program.py"
        program.write_text(blocks()[0].replace("http://127.0.0.1:8000", server.url))
        process = await asyncio.create_subprocess_exec(sys.executable, program, cwd=tmp_path)
        assert await process.wait() == 0
        spoken = wanted(server, "Hello there.", "How are you?")
        assert is_heard(recorded(tmp_path / "hello.wav"), spoken)


@pytest.mark.parametrize("block", blocks())
def test_client_readme_code_block_compiles(block: str) -> None:
    compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
