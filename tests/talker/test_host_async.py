"""The async host: failures of the engine, during its start and afterwards."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from talker.messages import Abort, Generate
from talker.request_table import RequestTable

#: A scripted host in the real runner: a thread waits for messages that never come, as
#: ChildLink.receive does, and the engine dies.
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


def test_talker_process_exits_when_engine_dies() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DYING], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "the engine is gone" in done.stderr


def test_engine_core_start_failure_raises_value_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The talker process is not started again after a ValueError."""
    from talker.host_async import AsyncHost

    def refuse(arguments: object, stat_loggers: object) -> None:
        raise RuntimeError("Engine core initialization failed. See root cause above.")

    for name, made in {
        "vllm.engine.arg_utils": {"AsyncEngineArgs": lambda **arguments: None},
        "vllm.v1.engine.async_llm": {"AsyncLLM": SimpleNamespace(from_engine_args=refuse)},
    }.items():
        module = ModuleType(name)
        vars(module).update(made)
        monkeypatch.setitem(sys.modules, name, module)
    checkpoint: Any = SimpleNamespace(shape=None)
    given = {"max_model_len": 64, "disable_log_stats": True}
    with pytest.raises(ValueError, match="the log above says why"):
        AsyncHost(given, checkpoint, 0, None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
async def test_stalled_engine_is_found_although_requests_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from talker import host_async

    asked = asyncio.Queue[str]()

    class Hung:
        errored = False

        async def generate(self, prompt: object, params: object, id: str, **_: object) -> Any:
            await asked.put(id)
            await asyncio.Event().wait()
            yield

    class Host(host_async.AsyncHost):
        def _start_engine(self, arguments: dict[str, Any]) -> None:
            self._engine, self._processes, self._is_spread = Hung(), 0, False
            self._tasks, self._outputs = {}, 0

        def _inputs(self, state: object) -> tuple[Any, Any]:
            return None, None

    monkeypatch.setattr(host_async, "_STALL_S", 0.05)
    monkeypatch.setattr(host_async, "_STALL_CHECK_S", 0.001)
    checkpoint: Any = SimpleNamespace(shape=None)
    host = Host({"max_model_len": 64}, checkpoint, 0, RequestTable(slots=64))
    host._link = SimpleNamespace(send=lambda message: None)
    watching = asyncio.create_task(host._watch())
    async with asyncio.timeout(30):
        for handle in itertools.count(1):
            host._handle(Generate(handle, (1,), 9, 1.0, 1.0, 5, 0))
            assert await asked.get() == f"{handle}.0"
            if watching.done():
                break
            host._handle(Abort(handle))
    with pytest.raises(host_async.EngineGone):
        watching.result()
