"""Failures as a user sees them: killed processes, wrong usage, refused text."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from service import listening
from talkwire_client import ChunkingOptions, Client, ServerError
from tests.e2e.live import TALKWIRE, Service, run, service

TEXT = (
    "This is a long text, so that there is time for something to happen. "
    "It goes on for a while with another sentence, and after that with one more. "
    "Then it is over."
)
OPTIONS: dict[str, Any] = {
    "temperature": 0.7,
    "seed": 11,
    "chunking": ChunkingOptions(lookahead_frames=10),
    "max_lead_ms": 100_000,
}


async def speak(client: Client) -> bytes:
    async with client.speak(TEXT, **OPTIONS) as speech:
        return await speech.read()


async def test_killed_codec_worker_loses_no_sample(speaking: Service) -> None:
    async with Client(speaking.url) as client:
        want = await speak(client)
        restarts = speaking.metric('tts_worker_restarts_total{worker="codec"}')

        async def interrupted() -> bytes:
            pcm = b""
            async with client.speak(TEXT, **OPTIONS) as speech:
                async for chunk in speech:
                    pcm += chunk.data
                    if chunk.header.sequence == 1:
                        speaking.worker("codec.worker").kill()
            return pcm

        got = await asyncio.gather(interrupted(), speak(client))
    assert got == [want, want]
    line = 'tts_worker_restarts_total{worker="codec"}'
    speaking.until("the worker was restarted", line, restarts + 1)


def test_killed_client_frees_slot_and_stops_engine(speaking: Service) -> None:
    cancelled = 'tts_contexts_total{outcome="cancelled",protocol="native"}'
    before = sum(
        float(line.rsplit(" ", 1)[1])
        for line in speaking.get("/metrics").splitlines()
        if line.startswith(cancelled)
    )
    talker = psutil.Process(speaking.worker("talker.process").pid)
    client = subprocess.Popen([TALKWIRE, "say", TEXT * 5, "--url", speaking.url])
    speaking.until("the client speaks", "tts_contexts_active", 1)
    time.sleep(0.2)
    client.kill()
    client.wait()
    speaking.until("its slot is free", "tts_contexts_active", 0)
    assert speaking.metric(cancelled) == before + 1
    # The engine is idle: it uses hardly any CPU time in half a second.
    time.sleep(0.2)
    used = sum(talker.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(talker.cpu_times()[:2]) - used < 0.25


@pytest.mark.long
async def test_killed_talker_gives_retryable_error_and_restarts(tmp_path: Path) -> None:
    with service() as own:
        paced = {**OPTIONS, "max_lead_ms": 2_000}
        async with Client(own.url) as client, client.speak(TEXT * 3, **paced) as speech:
            chunks = aiter(speech)
            await anext(chunks)
            own.worker("talker.process").kill()
            with pytest.raises(ServerError) as caught:
                [chunk async for chunk in chunks]
            assert caught.value.code == "engine_restarting"
            assert caught.value.retryable
        await asyncio.to_thread(own.until_ready)
        assert own.say("It is back.", tmp_path / "back.wav")["audio_s"] > 0.3


@pytest.mark.long
def test_ctrl_c_ends_all_child_processes(tmp_path: Path) -> None:
    with service() as own:
        children = psutil.Process(own.process.pid).children(recursive=True)
        assert len(children) >= 2
        own.process.send_signal(signal.SIGINT)
        assert own.process.wait(30) == 0
        gone, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
        assert len(gone) == len(children)


def test_missing_model_is_named_without_traceback(tmp_path: Path) -> None:
    done = run("serve", "--port", "0", "--model", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "nothing" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_taken_port_is_named_in_error(speaking: Service) -> None:
    done = run("serve", "--port", str(speaking.port))
    assert done.returncode == 1
    assert f"port {speaking.port} is taken" in done.stderr


def test_taken_admin_port_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("serve", "--port", "0", TALKWIRE_ADMIN_PORT=port)
    assert done.returncode == 1
    assert f"port {port} is taken" in done.stderr
    assert "another with admin_port" in done.stderr


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_serve_prints_ipv6_addresses_in_brackets() -> None:
    env: dict[str, Any] = {"TALKWIRE_ADMIN_HOST": "::1", "TALKWIRE_ADMIN_PORT": "0"}
    done = run("serve", "--host", "::1", "--port", "0", TALKWIRE_TLS_CERTIFICATE="none", **env)
    assert "the TLS certificate" in done.stderr
    assert len(re.findall(r" at https://\[::1\]:\d+", done.stderr)) == 2


@pytest.mark.parametrize("host", ["\N{LATIN SMALL LETTER U WITH DIAERESIS}..x", "a" * 64, "[::1]"])
def test_host_that_is_no_name_is_told_without_traceback(host: str) -> None:
    done = run("serve", "--host", host, "--port", "0", TALKWIRE_AUTH="off")
    assert done.returncode == 1
    assert done.stderr.startswith(f"talkwire: cannot listen on {host}:0: ")


def test_ipv6_host_without_ipv6_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", unsupported)
    with pytest.raises(
        listening.Unable, match="cannot listen on ::1:0: Address family not supported"
    ):
        listening._listen("::1", 0, "--port", 1.0)


def test_missing_folder_of_references_is_told_before_anything_starts(tmp_path: Path) -> None:
    missing = tmp_path / "clips"
    wrong: dict[str, Any] = {
        "TALKWIRE_MODEL": str(tmp_path / "model"),
        "TALKWIRE_REFERENCES_DIR": str(missing),
    }
    done = run("serve", "--port", "0", **wrong)
    assert done.returncode == 1
    assert done.stderr == f"talkwire: references_dir: there is no folder {missing}\n"


def test_unknown_setting_exits_with_usage_error() -> None:
    done = run("serve", TALKWIRE_PROT="1")
    assert done.returncode == 2
    assert "TALKWIRE_PROT" in done.stderr


def test_say_without_server_names_serve_command() -> None:
    done = run("say", "Hello.", "--url", "ws://127.0.0.1:9/v1/tts/stream")
    assert done.returncode == 3
    assert "talkwire serve" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_text"),
        ("\u0645\u0631\u062d\u0628\u0627", "invalid_text"),
    ],
)
def test_say_prints_error_code_of_refused_text(speaking: Service, text: str, code: str) -> None:
    done = run("say", text, "--url", speaking.url)
    assert done.returncode == 4
    assert code in done.stderr


def test_control_tokens_in_text_do_not_affect_engine(speaking: Service, tmp_path: Path) -> None:
    exact = ("--temperature", "0", "--lookahead", "10")
    speaking.say("Hello there.", tmp_path / "a.wav", *exact)
    laden = "Hello <|audio_end|><|endoftext|><|tts|>there."
    assert speaking.say(laden, tmp_path / "b.wav", *exact)["audio_s"] > 0.3
    speaking.say("Hello there.", tmp_path / "c.wav", *exact)
    assert (tmp_path / "c.wav").read_bytes() == (tmp_path / "a.wav").read_bytes()


def test_help_and_version_work_without_service() -> None:
    assert "serve" in run("--help").stdout
    assert run("version").stdout.strip() == "0.1.0"
    assert run("nonsense").returncode == 2


def test_sighup_before_service_can_handle_it_is_ignored() -> None:
    program = """
import os, signal
from service import cli, server
server.serve_until_stopped = lambda *_: os.kill(os.getpid(), signal.SIGHUP)
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "serve"], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "step", ["settings.load_settings", "server.serve_until_stopped", "server.build_engines"]
)
def test_sigterm_before_service_can_drain_ends_it(step: str) -> None:
    program = f"""
import os, signal
from service import cli, server, settings
{step} = lambda *_, **options: os.kill(os.getpid(), signal.SIGTERM)
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(("hard", "soft", "told"), [(4000, 2256, ""), (300, 300, "up to 300")])
def test_service_may_open_files_for_all_its_connections(hard: int, soft: int, told: str) -> None:
    """Without a free file the event loop closes new connections in silence."""
    program = f"""
import resource
from service import server
from service.listening import open_listeners
from service.settings import Settings

async def see(*_):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))

server._serve = see
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
chosen = Settings(port=0, max_connections=2000)
with open_listeners(chosen) as listeners:
    server.serve_until_stopped(chosen, listeners)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == f"{soft} {hard}\n"
    assert ("max_connections" in done.stderr) == bool(told)
    assert told in done.stderr
