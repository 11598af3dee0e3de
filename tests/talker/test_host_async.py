"""The async host: failures of the engine, during its start and afterwards."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from talker.messages import Abort, Generate, NewRows
from talker.request_table import RequestTable

if TYPE_CHECKING:
    from talker.host_async import AsyncHost

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


class Engine:
    """Stands for AsyncLLM, with ``cores`` of which some are hung: they never answer."""

    errored = False

    def __init__(self, cores: int, *hung: int) -> None:
        self.cores, self._hung = cores, hung
        self.asked: asyncio.Queue[tuple[str, int | None]] = asyncio.Queue()
        #: Requests that it has stopped working on.
        self.ended: list[str] = []

    async def generate(
        self, prompt: object, params: object, id: str, *, data_parallel_rank: int | None
    ) -> Any:
        await self.asked.put((id, data_parallel_rank))
        if (data_parallel_rank or 0) in self._hung:
            await asyncio.Event().wait()
        try:
            while True:
                yield SimpleNamespace(request_id=id, finished=False)
                if id.startswith("warm-up"):
                    return
                await asyncio.sleep(0)
        finally:
            self.ended.append(id)


def hosted(engine: Engine) -> AsyncHost:
    """An AsyncHost of that engine, which ignores the rows."""
    from talker import host_async

    class Host(host_async.AsyncHost):
        def _start_engine(self, arguments: dict[str, Any]) -> None:
            self._engine, self._processes, self._cores = engine, 0, engine.cores
            self._tasks, self._made, self._outputs = {}, [], Counter()

        def _inputs(self, state: object) -> tuple[Any, Any]:
            return None, None

        def _read(self, outputs: object) -> list[NewRows]:
            return []

    checkpoint: Any = SimpleNamespace(shape=None)
    host = Host({"max_model_len": 64}, checkpoint, 0, RequestTable(64, engine.cores))
    host._link = SimpleNamespace(send=lambda message: None)  # type: ignore[assignment]
    return host


def request(handle: int) -> Generate:
    return Generate(handle, (1,), 9, 1.0, 1.0, 5, 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
@pytest.mark.parametrize(("cores", "ranks"), [(1, [None]), (3, [0, 1, 2])])
async def test_warm_up_speaks_in_each_core(cores: int, ranks: list[int | None]) -> None:
    engine = Engine(cores)
    await hosted(engine).warm_up(request(0))
    asked = [engine.asked.get_nowait() for _ in range(engine.asked.qsize())]
    assert sorted(rank for _, rank in asked) == ranks  # type: ignore[type-var]
    assert len({id for id, _ in asked}) == cores


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    from talker import host_async

    monkeypatch.setattr(host_async, "_STALL_S", 0.05)
    monkeypatch.setattr(host_async, "_STALL_CHECK_S", 0.001)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
async def test_stalled_engine_is_found_although_requests_come_and_go(quick_checks: None) -> None:
    from talker.host_async import EngineGone

    engine = Engine(1, 0)
    host = hosted(engine)
    watching = asyncio.create_task(host._watch())
    async with asyncio.timeout(30):
        for handle in itertools.count(1):
            host._handle(request(handle))
            assert (await engine.asked.get())[0] == f"{handle}.0"
            if watching.done():
                break
            host._handle(Abort(handle))
    with pytest.raises(EngineGone):
        watching.result()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
async def test_stalled_core_is_found_although_another_one_works(quick_checks: None) -> None:
    from talker.host_async import EngineGone

    engine = Engine(2, 1)
    host = hosted(engine)
    host._handle(request(1))
    host._handle(request(2))
    assert [(await engine.asked.get())[1] for _ in range(2)] == [0, 1]
    async with asyncio.timeout(30):
        with pytest.raises(EngineGone):
            await host._watch()
    assert set(host._tasks) == {"1.0", "2.0"}
    host._handle(Abort(1))
    host._handle(Abort(2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
async def test_core_that_works_is_not_taken_for_stalled(
    quick_checks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, checks, enough = hosted(Engine(2)), itertools.count(1), asyncio.Event()

    def is_dead() -> bool:
        if next(checks) > 100:  # twice as many as end a stalled one
            enough.set()
        return False

    monkeypatch.setattr(host, "_is_dead", is_dead)
    host._handle(request(1))
    host._handle(request(2))
    watching = asyncio.create_task(host._watch())
    reached = asyncio.create_task(enough.wait())
    await asyncio.wait([watching, reached], return_when=asyncio.FIRST_COMPLETED)
    assert not watching.done()
    assert set(host._tasks) == {"1.0", "2.0"}
    watching.cancel()
    host._handle(Abort(1))
    host._handle(Abort(2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
async def test_request_with_broken_row_is_ended_in_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would go on to its last frame, in the place of another request."""
    engine = Engine(1)
    host = hosted(engine)

    def read(outputs: object) -> list[NewRows]:
        if 1 in host._requests:
            host._break(1)
        return []

    monkeypatch.setattr(host, "_read", read)
    host._handle(request(1))
    (task,) = host._tasks.values()
    async with asyncio.timeout(30):
        await task
    assert engine.ended == ["1.0"]


class BrokenEngine(Engine):
    async def generate(self, *arguments: object, **options: object) -> Any:
        raise self.error
        yield

    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self.error = error


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("broken")])
async def test_failed_request_is_logged_with_handle_in_message(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The process logs messages only, without the fields of a record."""
    host = hosted(BrokenEngine(error))
    host._handle(request(17))
    await asyncio.gather(*host._tasks.values())
    (record,) = caplog.records
    assert "request 17 " in record.getMessage()
