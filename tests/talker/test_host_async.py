"""A talker process whose engine is gone ends, whatever its threads wait for."""

from __future__ import annotations

import subprocess
import sys

#: The host is scripted, what runs it is the real thing: a thread waits for messages that never
#: come, as ChildLink.receive does, and the engine dies.
_DYING = """
import asyncio, threading
from talker import host_async

class Host:
    def __init__(self, *arguments):
        pass
    async def warm_up(self, request):
        pass
    async def run(self, link):
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        raise host_async.EngineGone

class Quiet:
    def send(self, message):
        pass
    def begin(self, phase):
        pass
    def end(self):
        return {}

host_async.AsyncHost = Host
host_async.run_async_host(Quiet(), {}, None, 0, None, None, Quiet(), lambda seconds: None)
"""


def test_an_engine_that_is_gone_takes_its_process_with_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DYING], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "the engine is gone" in done.stderr
