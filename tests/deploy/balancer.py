"""HAProxy with the configuration that is shipped (deploy/haproxy/haproxy.cfg)."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.deploy.container import ROOT

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin")
CONFIG = ROOT / "deploy" / "haproxy" / "haproxy.cfg"


class Balancer:
    """A running balancer at ``url`` and ``http``, whose services are ``gpu0`` and ``gpu1``."""

    def __init__(self, address: str, statistics: Path) -> None:
        self.url, self.http = f"ws://{address}/v1/tts/stream", f"http://{address}"
        self._statistics = statistics

    async def up(self) -> dict[str, str]:
        """Return the services of each backend that a check has found up, such as ``gpu0 gpu1``."""
        text = (await self._ask("show stat")).removeprefix("# ")
        found: dict[str, list[str]] = {}
        for row in csv.DictReader(text.splitlines()):
            if row["svname"].startswith("gpu"):
                services = found.setdefault(row["pxname"], [])
                # before its first check a service counts as up
                if row["status"] == "UP" and "L7OK" in row["check_status"]:
                    services.append(row["svname"])
        return {backend: " ".join(services) for backend, services in found.items()}

    async def until(self, **expected: str) -> None:
        """Wait until checks have found exactly these services up in each backend."""
        async with asyncio.timeout(120):
            while await self.up() != expected:
                await asyncio.sleep(0.02)

    async def stop_checks(self) -> None:
        """Let all services stay as the last checks have found them."""
        for backend, services in (await self.up()).items():
            for service in services.split():
                assert not (await self._ask(f"disable health {backend}/{service}")).strip()

    async def _ask(self, command: str) -> str:
        reader, writer = await asyncio.open_unix_connection(str(self._statistics))
        writer.write(f"{command}\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.decode()


@contextlib.asynccontextmanager
async def balancer(first: int, second: int) -> AsyncIterator[Balancer]:
    """Run HAProxy in front of services at two ports until the block ends."""
    assert HAPROXY is not None
    config = CONFIG.read_text()
    # the test's own user instead, who may not be root
    for line in ("    user haproxy\n", "    group haproxy\n"):
        assert line in config
        config = config.replace(line, "")
    with (
        tempfile.TemporaryDirectory(prefix="talkwire-") as name,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        shipped, extra, statistics = (Path(name) / part for part in ("shipped", "extra", "socket"))
        shipped.write_text(config)
        extra.write_text(f"global\n    stats socket {statistics} level admin\n")
        environment = {
            "TALKWIRE_LISTEN": f"fd@{listener.fileno()}",
            "TALKWIRE_GPU0": f"127.0.0.1:{first}",
            "TALKWIRE_GPU1": f"127.0.0.1:{second}",
        }
        process = await asyncio.create_subprocess_exec(
            *(HAPROXY, "-db", "-f", shipped, "-f", extra),
            env=os.environ | environment,
            pass_fds=[listener.fileno()],
        )
        try:
            async with asyncio.timeout(60):
                while not statistics.exists():
                    assert process.returncode is None
                    await asyncio.sleep(0.01)
            yield Balancer(f"127.0.0.1:{listener.getsockname()[1]}", statistics)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
