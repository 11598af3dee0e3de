"""Servers to measure, each in a process of its own on a free loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError

from loadtest.run import LoadTestError
from talkwire_client.protocol import PATH

_START_S = 300.0
_STOP_S = 15.0
#: Bytes of a server's log that are searched and shown; on a GPU vLLM writes hundreds of lines.
_MOST_LOG = 1 << 20
#: The fake decoder's matrix products are small; a pool of threads would only waste time on them.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


#: The program of this environment.
TALKWIRE = Path(sys.executable).with_name("talkwire")
#: Settings of ``talkwire serve`` that would change the address of a server that is started here.
_OF_ADDRESS = frozenset(("TALKWIRE_TLS_CERTIFICATE", "TALKWIRE_TLS_KEY"))


class Command(NamedTuple):
    """A command that starts a server; ``env`` is added to the environment."""

    args: list[str]
    env: dict[str, str]

    def environment(self) -> dict[str, str]:
        """Return the environment of the server's process."""
        kept = {name: to for name, to in os.environ.items() if name.upper() not in _OF_ADDRESS}
        return kept | self.env


class Server(NamedTuple):
    """A running server."""

    url: str
    pid: int


def real(options: Sequence[str] = (), talkwire: Path = TALKWIRE) -> Command:
    """Return the command line of ``talkwire serve``: without TLS on loopback, whatever the
    environment says.
    """
    return Command([str(talkwire), "serve", "--host", "127.0.0.1", "--port", "0", *options], {})


def fake(options: Sequence[str] = ()) -> Command:
    """Return the command of the gateway with a fake talker and a fake codec."""
    return Command([sys.executable, "-m", "loadtest.fake_server", *options], _ONE_THREAD)


def bare(recording: Path) -> Command:
    """Return the command of a bare WebSocket server that replays a recording."""
    return Command([sys.executable, "-m", "loadtest.bare_server", str(recording)], {})


@contextlib.asynccontextmanager
async def started(command: Command) -> AsyncIterator[Server]:
    """Run a server until the block ends. Raises LoadTestError if it does not become ready."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command.args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            env=command.environment(),
        )
        try:
            port = await _ready_port(process, log.fileno())
            yield Server(f"ws://127.0.0.1:{port}{PATH}", process.pid)
        finally:
            if process.returncode is None:
                process.terminate()
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _ready_port(process: asyncio.subprocess.Process, log: int) -> int:
    deadline = time.monotonic() + _START_S
    while process.returncode is None and time.monotonic() < deadline:
        if found := re.search(rb"http://127\.0\.0\.1:(\d+)", os.pread(log, _MOST_LOG, 0)):
            port = int(found[1])
            if await asyncio.to_thread(_is_ready, port):
                return port
        await asyncio.sleep(0.05)
    said = os.pread(log, _MOST_LOG, 0).decode(errors="replace")
    raise LoadTestError(f"the server did not start:\n{said}")


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=2):
            return True
    except OSError:
        return False


def capacity(url: str, api_key: str | None = None) -> int | None:
    """Return the number of contexts that a server reports as its capacity. None if it does not
    report one: it may do so only to keys of the scope ``admin``. Raises LoadTestError if there is
    no connection to it.
    """
    address = re.sub(r"^ws", "http", url).split("/v1/")[0].rstrip("/") + "/metrics"
    try:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=5
        ) as answer:
            found = re.search(r"^tts_capacity_contexts (\S+)", answer.read().decode(), re.M)
    except HTTPError:
        return None
    except URLError as error:
        raise LoadTestError(f"no server answers at {url}: {error.reason}") from error
    except (OSError, HTTPException, UnicodeDecodeError):  # perhaps it speaks something else
        return None
    return int(float(found[1])) if found else None
