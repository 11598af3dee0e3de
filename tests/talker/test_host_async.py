"""The async host: failures of the engine, during its start and afterwards."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ipc.child import LinkClosed
from talker.frames import FRAME_BASE
from talker.messages import Abort, Failed, FromGateway, Generate, NewRows, Pause, Resume, Step
from talker.request_table import RequestTable
from talker.vllm_setup import Totals

if TYPE_CHECKING:
    from talker.host_async import AsyncHost

#: Raised by PyTorch when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BOOKS, SIZE = 2, 100
SHAPE: Any = SimpleNamespace(
    num_codebooks=BOOKS,
    codebook_rows=SIZE,
    is_delayed=True,
    backbone=SimpleNamespace(vocab_size=50),
    holds_prompt=lambda ids: 0 <= min(ids) <= max(ids) < 50,
)

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


def test_engine_core_start_failure_raises_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The talker process is not started again after a ValueError."""
    from talker import vllm_core

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Engine core initialization failed. See root cause above.")

    monkeypatch.setattr(vllm_core, "_start", fail)
    with pytest.raises(ValueError, match="the log above says why"):
        vllm_core.start_async({"disable_log_stats": True, "model": "no-such-model"})


class Cores:
    """Stands for vLLM's client of ``cores`` engine cores, which answer when they are told to.

    Each request and abort is put into ``asked``, as ``(id, core)`` and ``id``.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.resources = SimpleNamespace(engine_dead=False)
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.made: asyncio.Queue[Any] = asyncio.Queue()
        #: Raised for each request.
        self.error: Exception | None = None
        self._counter = itertools.count(FRAME_BASE)

    @staticmethod
    def make_request(id: str, prompt: Any, params: Any, rank: int | None, priority: int) -> Any:
        return SimpleNamespace(request_id=id, rank=rank)

    async def add_request_async(self, request: Any) -> None:
        if self.error is not None:
            raise self.error
        await self.asked.put((request.request_id, request.rank))
        if request.request_id.startswith("warm-up"):
            self.speak(request.rank or 0, [request.request_id], "length")

    async def abort_requests_async(self, ids: list[str]) -> None:
        for id in ids:
            await self.asked.put(id)

    async def get_output_async(self) -> Any:
        made = await self.made.get()
        if isinstance(made, Exception):
            raise made
        return made

    def speak(
        self, core: int, ids: Sequence[str], reason: str | None = None, *, code: int = 7,
        events: Sequence[Any] = (), hits: int | None = None,
    ) -> None:  # fmt: skip
        """Let a core make one step, with a row of each of these requests."""
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
        from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
        from vllm.v1.outputs import LogprobsLists

        rows = np.array([[code, SIZE + 8]], np.int32)
        channel = LogprobsLists(rows, np.zeros((1, BOOKS), np.float32), np.zeros(1, np.int32))
        finish = None if reason is None else FinishReason[reason.upper()]
        is_failure = reason in ("abort", "error")
        outputs = [
            EngineCoreOutput(
                id,
                [] if is_failure else [next(self._counter)],
                None if is_failure else channel,
                finish_reason=finish,
                events=list(events) or None,
            )
            for id in ids
        ]
        made = EngineCoreOutputs(engine_index=core, outputs=outputs)
        if hits is not None:
            made.scheduler_stats = SchedulerStats(prefix_cache_stats=PrefixCacheStats(hits=hits))
        self.made.put_nowait(made)


class Link:
    """The gateway's link: ``inbox`` is what the host receives, ``sent`` what it sends."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[FromGateway] = asyncio.Queue()
        self.sent: asyncio.Queue[Step | Failed] = asyncio.Queue()
        self.is_closed = False

    def send(self, message: Any) -> None:
        if self.is_closed:
            raise LinkClosed
        self.sent.put_nowait(message)


def hosted(cores: Cores) -> AsyncHost:
    """An AsyncHost of these cores."""
    from talker import host_async

    class Host(host_async.AsyncHost):
        def _start_engine(self, arguments: dict[str, Any]) -> Any:
            self._client, self._processes = cores, 0
            self._outbox, self._outputs = asyncio.Queue(), Counter()
            return cores.make_request

        async def _read_inbox(self, link: Any) -> Any:
            while True:
                self._handle(await link.inbox.get())

    checkpoint: Any = SimpleNamespace(shape=SHAPE)
    given = {"max_model_len": 64, "data_parallel_size": cores.cores}
    host = Host(given, checkpoint, 0, RequestTable(64, cores.cores))
    host._link = Link()  # type: ignore[assignment]
    return host


def request(handle: int) -> Generate:
    return Generate(handle, (1,), 9, 1.0, 1.0, 5, 0)


class Running:
    """A running host of one core, its link, and the cores."""

    def __init__(self, cores: int = 1) -> None:
        self.cores = Cores(cores)
        self.host, self.link = hosted(self.cores), Link()
        self.running = asyncio.create_task(self.host.run(self.link))  # type: ignore[arg-type]

    async def ask(self, *messages: FromGateway) -> Any:
        """Send messages, and return what the cores are asked for next."""
        for message in messages:
            self.link.inbox.put_nowait(message)
        return await self.asked()

    async def asked(self) -> Any:
        async with asyncio.timeout(30):
            return await self.cores.asked.get()

    async def sent(self) -> Step | Failed:
        async with asyncio.timeout(30):
            return await self.link.sent.get()

    async def step(self, *ids: str, **more: Any) -> Step | Failed:
        """Let the core make a step, and return what the gateway is told."""
        self.cores.speak(0, ids, **more)
        return await self.sent()

    async def end(self) -> BaseException | None:
        """Wait for the end of the host, and return its reason."""
        async with asyncio.timeout(30):
            await asyncio.wait([self.running])
        return self.running.exception()


@pytest.fixture
async def running() -> Any:
    made = Running()
    yield made
    made.running.cancel()


def row(handle: int, finish: Any = "", code: int = 7) -> NewRows:
    return NewRows(handle, np.array([code, 8], np.int16).tobytes(), finish)


@pytest.mark.parametrize(("cores", "ranks"), [(1, [None]), (3, [0, 1, 2])])
async def test_warm_up_speaks_in_each_core(cores: int, ranks: list[int | None]) -> None:
    engine = Cores(cores)
    async with asyncio.timeout(30):
        await hosted(engine).warm_up(request(0))
    asked = [engine.asked.get_nowait() for _ in range(engine.asked.qsize())]
    assert sorted(rank for _, rank in asked) == ranks
    assert len({id for id, _ in asked}) == cores


async def test_step_of_all_streams_is_one_message(running: Running) -> None:
    ids = [(await running.ask(request(handle)))[0] for handle in (1, 2, 3)]
    assert await running.step(*ids) == Step(3, [row(1), row(2), row(3)])
    assert await running.step(ids[1], reason="stop") == Step(2, [row(2, "stop")])
    assert await running.step(ids[0], reason="length") == Step(1, [row(1, "length")])


async def test_rows_after_abort_are_ignored_and_end_is_not_aborted(running: Running) -> None:
    first, _ = await running.ask(request(1))
    second, _ = await running.ask(request(2))
    assert await running.ask(Abort(1), Abort(1)) == first
    assert await running.sent() == await running.sent() == Step(1, [])
    assert await running.step(first, second) == Step(1, [row(2)])
    assert await running.step(second, reason="stop") == Step(0, [row(2, "stop")])
    # the second abort of the first, and the abort of one that has ended, ask for nothing
    third, _ = await running.ask(Abort(2), request(3))
    assert third.startswith("3.")


async def test_request_aborted_before_first_row_is_sent_before_its_abort(running: Running) -> None:
    id, _ = await running.ask(request(1), Abort(1))
    assert await running.asked() == id


async def test_reused_handle_gets_no_rows_of_the_request_before(running: Running) -> None:
    before, _ = await running.ask(request(1), Abort(1), request(1))
    assert await running.asked() == before
    after, _ = await running.asked()
    assert await running.sent() == Step(0, [])
    assert await running.step(before, after, code=9) == Step(1, [row(1, code=9)])


async def test_paused_request_goes_on_in_new_stretch(running: Running) -> None:
    first, _ = await running.ask(request(1))
    assert await running.step(first) == Step(1, [row(1)])
    assert await running.ask(Pause(1)) == first
    assert await running.sent() == Step(0, [])
    second, _ = await running.ask(Resume(1))
    assert await running.step(first, second) == Step(1, [row(1)])
    assert running.host._requests.of(second).prompt == [1, FRAME_BASE, FRAME_BASE + 2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("told", "reason"),
    [({"reason": "error"}, "broken"), ({"reason": "abort"}, "broken"),
     ({"code": SIZE}, "code"), ({"code": BOOKS * SIZE}, "lost"),
     ({"code": BOOKS * SIZE + BOOKS}, "logits")],
)  # fmt: skip
async def test_failed_request_is_ended_in_core_and_affects_no_other(
    running: Running, told: dict[str, Any], reason: str
) -> None:
    """A broken one would go on to its last frame, in the place of another request."""
    failing, _ = await running.ask(request(1))
    other, _ = await running.ask(request(2))
    running.cores.speak(0, [failing], **told)
    assert await running.sent() == Failed(1, reason, 1)  # type: ignore[arg-type]
    assert await running.asked() == failing
    assert await running.step(other) == Step(1, [row(2)])


async def test_rows_that_cannot_be_kept_break_their_request_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, _ = await running.ask(request(1))
    other, _ = await running.ask(request(2))
    collect = running.host._requests.collect

    def fail_for_first(new: NewRows) -> NewRows | None:
        if new.handle == 1:
            raise KeyError(new.handle)
        return collect(new)

    monkeypatch.setattr(running.host._requests, "collect", fail_for_first)
    assert await running.step(failing, other) == Failed(1, "broken", 1)
    assert await running.sent() == Step(1, [row(2)])
    assert await running.asked() == failing
    assert await running.step(other) == Step(1, [row(2)])


async def test_preemptions_and_cached_positions_are_reported(running: Running) -> None:
    from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType

    id, _ = await running.ask(request(1))
    kinds = (EngineCoreEventType.QUEUED, EngineCoreEventType.PREEMPTED)
    events = [EngineCoreEvent(kind, 0.0) for kind in kinds]
    assert await running.step(id, events=events, hits=3) == Step(1, [row(1)], 1, 3)
    assert await running.step(id, hits=4) == Step(1, [row(1)], 1, 7)
    assert running.host._totals == Totals(1, 7)


async def test_death_of_core_ends_host(running: Running) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    from talker.host_async import EngineGone

    await running.ask(request(1))
    running.cores.made.put_nowait(EngineDeadError())
    assert isinstance(await running.end(), EngineGone)
    assert running.link.sent.empty(), "the request is not to blame"


async def test_request_that_dying_core_aborts_is_not_blamed(running: Running) -> None:
    from talker.host_async import EngineGone

    id, _ = await running.ask(request(1))
    running.cores.resources.engine_dead = True
    running.cores.speak(0, [id], "abort")
    assert isinstance(await running.end(), EngineGone)
    assert running.link.sent.empty()


async def test_request_to_dead_core_ends_host(running: Running) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    from talker.host_async import EngineGone

    running.cores.error = EngineDeadError()
    running.link.inbox.put_nowait(request(1))
    assert isinstance(await running.end(), EngineGone)


async def test_closed_link_ends_host(running: Running) -> None:
    id, _ = await running.ask(request(1))
    running.link.is_closed = True
    running.cores.speak(0, [id])
    assert isinstance(await running.end(), LinkClosed)


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    from talker import host_async

    monkeypatch.setattr(host_async, "_STALL_S", 0.05)
    monkeypatch.setattr(host_async, "_STALL_CHECK_S", 0.001)


async def test_stalled_engine_is_found_although_requests_come_and_go(quick_checks: None) -> None:
    from talker.host_async import EngineGone

    host = hosted(Cores(1))
    watching = asyncio.create_task(host._watch())
    async with asyncio.timeout(30):
        for handle in itertools.count(1):
            host._handle(request(handle))
            await asyncio.sleep(0.001)
            if watching.done():
                break
            host._handle(Abort(handle))
    with pytest.raises(EngineGone):
        watching.result()


async def test_stalled_core_is_found_although_another_one_works(quick_checks: None) -> None:
    from talker.host_async import EngineGone

    running = Running(2)
    assert [(await running.ask(request(handle)))[1] for handle in (1, 2)] == [0, 1]

    async def work() -> None:
        while True:
            (id,) = (state.engine_id for state in running.host._requests.working if not state.core)
            running.cores.speak(0, [id])
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    assert isinstance(await running.end(), EngineGone)
    working.cancel()
    assert running.host._outputs[0] > 0
    assert not running.host._outputs[1]


async def test_core_that_works_is_not_taken_for_stalled(
    quick_checks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, checks, enough = Running(2), itertools.count(1), asyncio.Event()

    def is_dead() -> bool:
        for state in running.host._requests.working:
            running.cores.speak(state.core, [state.engine_id])
        if next(checks) > 100:  # twice as many as end a stalled one
            enough.set()
        return False

    monkeypatch.setattr(running.host, "_is_dead", is_dead)
    await running.ask(request(1))
    await running.ask(request(2))
    reached = asyncio.create_task(enough.wait())
    await asyncio.wait([running.running, reached], return_when=asyncio.FIRST_COMPLETED)
    assert not running.running.done()
    running.running.cancel()


@pytest.mark.parametrize(
    ("error", "reason"), [(ValueError("no"), "broken"), (RuntimeError("broken"), "broken")]
)
async def test_failed_request_is_logged_with_handle_in_message(
    running: Running, error: Exception, reason: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The process logs messages only, without the fields of a record."""
    running.cores.error = error
    running.link.inbox.put_nowait(request(17))
    assert await running.sent() == Failed(17, reason, 0)
    (record,) = caplog.records
    assert "request 17 " in record.getMessage()


async def test_refused_request_never_reaches_core(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.link.inbox.put_nowait(Generate(17, (), 9, 1.0, 1.0, 5, 0))
    assert await running.sent() == Failed(17, "refused", 0)
    assert "request 17 " in caplog.records[0].getMessage()
    assert (await running.asked()).startswith("17."), "an abort of it does no harm"
    id, _ = await running.ask(request(18))
    assert id.startswith("18.")
