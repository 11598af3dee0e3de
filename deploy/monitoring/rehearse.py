"""A real Prometheus scrapes a live gateway, and is asked everything that the dashboard asks.

    python deploy/monitoring/rehearse.py                               around fake engines
    python deploy/monitoring/rehearse.py --url http://127.0.0.1:8000   a service that runs

Everything stays on the loopback and ends by itself. Needs ``prometheus`` (Debian's package of
that name); ``--picture`` needs matplotlib (``pip install matplotlib``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
import yaml
from check import HERE, dashboard_queries, rules
from prometheus_api import Prometheus, PrometheusError

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.app import create_app
from service.auth.keys import Scope, issue
from service.build import assemble
from service.engines.contracts import Engines
from service.settings import Settings
from streaming.spec import CodecSpec
from talkwire_client import Client, ClientError, ServerError

_SPEC = CodecSpec(24_000, 960, (1024,) * 8, 0, 0)
_LABELS = {"namespace": "rehearsal", "pod": "gateway"}
_VOICES = 3
_PAUSE_S = 0.2
_TEXT = "This is a sentence to be heard. And here is one more of them."
#: What Grafana would fill in.
_FILLED = {"$__rate_interval": "30s", "$namespace": "rehearsal", "$pod": "gateway", "$model": ".*"}


class Unable(Exception):
    """The rehearsal cannot be held; the text says why."""


@contextlib.asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The service's own app around fake engines, with one tenant; yields its address and a key."""
    keys = folder / "keys.json"
    _, key = issue(keys, "rehearsal", [Scope.SPEAK])
    settings = Settings(
        admission="fixed", max_contexts=2 * _VOICES, api_keys_file=keys, metrics_public=True
    )
    talker = FakeTalker(row_s=0.008, first_row_s=0.02, frames_per_character=1.0)

    codec = FakeCodecEngine(_SPEC, 0.004)
    runtime = assemble(settings, Engines(talker, codec))
    server = uvicorn.Server(uvicorn.Config(create_app(runtime), log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with asyncio.timeout(30):
                await runtime.lifecycle.ready.wait()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", key
        finally:
            server.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def prometheus(
    program: str, target: str, folder: Path, key: str | None
) -> AsyncIterator[Prometheus]:
    """A ``program`` that scrapes ``target`` (host:port) each second, with our rules."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    job: dict[str, Any] = {
        "job_name": "talkwire",
        "static_configs": [{"targets": [target], "labels": _LABELS}],
    }
    if key is not None:
        job["authorization"] = {"credentials": key}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": [str(HERE / "rules.yml")],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )
    try:
        server = Prometheus(f"http://{address}")
        await server.until_ready()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def talk(url: str, key: str | None, seconds: float) -> None:
    """Speak, break off and err in turn, with a few voices at once, for so long."""
    until = asyncio.get_running_loop().time() + seconds

    async def one(number: int) -> None:
        async with Client(url, api_key=key) as client:
            turn = number
            while asyncio.get_running_loop().time() < until:
                await (_speak, _break_off, _err)[turn % 3](client)
                await asyncio.sleep(_PAUSE_S)
                turn += 1

    await asyncio.gather(*(one(number) for number in range(_VOICES)))


async def _speak(client: Client) -> None:
    async with client.speak(_TEXT) as speech:
        await speech.read()


async def _break_off(client: Client) -> None:
    async with client.speak() as speech:
        await speech.append(_TEXT)
        async for _ in speech:
            break
        await speech.cancel(played_ms=10)


async def _err(client: Client) -> None:
    # With the embedded voice an unknown name means the default voice, but an id never does.
    with contextlib.suppress(ServerError):
        async with client.speak(voice="voice_0000000000000000") as speech:
            await speech.read()


def filled(query: str) -> str:
    """A dashboard's query as Grafana would send it."""
    for name, value in _FILLED.items():
        query = query.replace(name, value)
    return query


async def complaints(server: Prometheus, *, has_tenants: bool) -> list[str]:
    """What is wrong with what Prometheus has, one line each.

    The load has just ended, so all queries are for this moment. While some are answered, the load
    would leave the ranges of the later ones.
    """
    found = []
    now = time.time()
    queries = [
        (title, filled(query))
        for title, query in dashboard_queries()
        if has_tenants or "tts_tenant_" not in query
    ]
    queries += [(rule["record"], rule["record"]) for rule in rules() if "record" in rule]
    for title, query in queries:
        try:
            if not await server.values(query, now):
                found.append(f"{title}: no figure for {query}")
        except PrometheusError as error:
            found.append(f"{title}: {error}")
    found += [f"rule {name}: {health}" for name, health in await server.bad_rules()]
    print(f"{len(queries)} queries sent, {len(found)} complaints")
    return found


async def rehearse(url: str | None, seconds: float, picture: Path | None) -> list[str]:
    """Hold it; returns what is wrong. Raises Unable."""
    program = shutil.which("prometheus")
    if program is None:
        raise Unable("there is no prometheus here; on Debian: apt-get install prometheus")
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            base = url
            key = os.environ.get("TALKWIRE_API_KEY")
            if base is None:
                base, key = await stack.enter_async_context(gateway(Path(folder)))
            host = urlsplit(base).netloc
            server = await stack.enter_async_context(prometheus(program, host, Path(folder), key))
            print(f"speaking to {base} for {seconds:.0f} s", flush=True)
            await talk(f"ws://{host}/v1/tts/stream", key, seconds)
            found = await complaints(server, has_tenants=key is not None)
            if picture is not None:
                from picture import draw

                await draw(server, filled, seconds, picture)
            return found


def main() -> int:
    """Read the command line; 0 if every query had an answer."""
    parser = argparse.ArgumentParser(prog="rehearse", description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="a service that runs already")
    parser.add_argument("--seconds", type=float, default=45.0, help="at least 35")
    parser.add_argument("--picture", type=Path, help="draw the main panels to this PNG")
    chosen = parser.parse_args()
    if chosen.seconds < 35:
        parser.error("--seconds must be at least 35: rules are evaluated every 30")
    try:
        found = asyncio.run(rehearse(chosen.url, chosen.seconds, chosen.picture))
    except (Unable, PrometheusError, ClientError) as error:
        print(error, file=sys.stderr)
        return 2
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
