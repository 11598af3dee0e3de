"""The codec engine with real workers that are killed, stopped, or given windows that break them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from codec import workers
from codec.engine import CodecWorkerEngine
from codec.families.higgs.decoder import HiggsDecoder
from codec.messages import Decoded, Decoding
from ipc import supervisor
from ipc.child_process import ChildProcess
from ipc.supervisor import ChildFailed, Watch
from loadtest.fakes.codec import FakeDecoder
from streaming.errors import BackendError, CapacityError, ErrorCode
from streaming.ports import DecodeStats
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow
from tests.waiting import until

#: The spec of odd_worker.py, and the orders that it reads from a window's first code.
SPEC = CodecSpec(24_000, 6, (1000,) * 2, 3, 3)
DIE, HANG, ERR, SLOW = 999, 998, 997, 996
FAKE = FakeDecoder(SPEC)


class Rig:
    """An engine, and the statistics of its decodes."""

    def __init__(self, engine_options: dict, model: str) -> None:
        self.stats: list[DecodeStats] = []
        self.engine = CodecWorkerEngine(model, **engine_options)

    async def decode(self, window: DecodeWindow, deadline_s: float) -> Samples:
        samples, stats = await self.engine.decode(window, deadline_s)
        self.stats.append(stats)
        return samples

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, timeout_s=240)  # a start takes half a minute on a busy machine


def odd(**options: object) -> Rig:
    chosen = {
        "module": "odd_worker",
        "env": {"PYTHONPATH": str(Path(__file__).parent)},
        "watch": Watch(hang_timeout_s=20.0, stop_timeout_s=2.0),
        **options,
    }
    return Rig(chosen, "fake")


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = odd()
    await rig.engine.start()
    yield rig
    await rig.engine.stop()


class Gated(Rig):
    """An engine whose worker finishes SLOW windows only once the gate's file exists."""

    def __init__(self, gate: Path) -> None:
        env = {"PYTHONPATH": str(Path(__file__).parent), "GATE": str(gate)}
        watch = Watch(hang_timeout_s=20.0, stop_timeout_s=2.0)
        super().__init__({"module": "odd_worker", "env": env, "watch": watch}, "fake")
        self.gate = gate

    async def block(self) -> asyncio.Task[Samples]:
        """Request a SLOW window, and return once the worker decodes it."""
        blocker = asyncio.create_task(self.decode(window(SLOW), soon(-9.0)))
        await self.until(lambda: bool(self.engine._decodes._in_hand))
        return blocker

    async def heard(self, messages: int) -> None:
        """Return once the worker has received this number of messages."""
        read = self.gate.with_name("gate.read")
        await self.until(lambda: read.exists() and read.stat().st_size >= messages)


@pytest_asyncio.fixture
async def gated(tmp_path: Path) -> AsyncIterator[Gated]:
    rig = Gated(tmp_path / "gate")
    await rig.engine.start()
    yield rig
    await rig.engine.stop()


@pytest_asyncio.fixture
async def brisk() -> AsyncIterator[Rig]:
    """An engine that detects hangs after a few seconds."""
    rig = odd(watch=Watch(hang_timeout_s=4.0, stop_timeout_s=2.0))
    await rig.engine.start()
    yield rig
    await rig.engine.stop()


@pytest_asyncio.fixture
async def real(checkpoint: Path) -> AsyncIterator[Rig]:
    rig = Rig({}, str(checkpoint))
    await rig.engine.start()
    yield rig
    await rig.engine.stop()


def window(first_code: int = 1, new: int = 4, seed: int = 0, left: int = 3) -> DecodeWindow:
    codes = np.random.default_rng(seed).integers(0, 900, (2, left + new + 3)).astype(np.int16)
    codes[0, 0] = first_code
    return DecodeWindow(codes, left, new, 3)


def soon(seconds: float = 1.0) -> float:
    return time.monotonic() + seconds


def assert_right(window: DecodeWindow, samples: np.ndarray) -> None:
    assert np.array_equal(samples, FAKE.decode_windows([window])[0])


def test_engine_module_does_not_import_torch() -> None:
    code = "import codec.engine, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_engine_returns_samples_of_decoder(
    real: Rig, decoder: HiggsDecoder, random_codes: Callable, windows_of: Callable
) -> None:
    assert real.engine.is_ready
    assert real.engine.spec == decoder.spec
    assert real.engine.cost.seconds(10) > 0
    codes = random_codes(120)
    windows = windows_of(codes, [1, 5, 12, 30, 60], 10, 10)
    answers = await asyncio.gather(*(real.decode(w, soon()) for w in windows))
    assert np.array_equal(np.concatenate(answers), decoder.decode([codes])[0])
    assert sorted(s.new_frames for s in real.stats) == sorted(w.new_frames for w in windows)
    assert all(s.frames > s.new_frames and s.decode_s > 0 and s.batch >= 1 for s in real.stats)
    assert real.engine.outstanding == 0


async def test_worker_kill_loses_no_window(
    real: Rig, decoder: HiggsDecoder, random_codes: Callable, windows_of: Callable
) -> None:
    """After SIGKILL during a batch, every window is answered once, with equal bits."""
    codes = random_codes(900)
    windows = windows_of(codes, [30], 10, 10)
    windows += windows_of(codes[:, :300], [300], 0, 0)
    first = real.engine.pid
    assert first is not None
    tasks = [asyncio.create_task(real.decode(w, soon())) for w in windows]
    await real.until(lambda: len(real.stats) >= 1)
    os.kill(first, signal.SIGKILL)
    answers = await asyncio.gather(*tasks)
    whole = decoder.decode([codes])[0]
    assert np.array_equal(np.concatenate(answers[:30]), whole)
    assert np.array_equal(answers[30], decoder.decode([codes[:, :300]])[0])
    assert len(real.stats) == len(windows)
    await real.until(lambda: real.engine.restarts == 1)
    assert real.engine.pid != first


async def test_several_workers_return_the_samples_of_one(
    checkpoint: Path, decoder: HiggsDecoder, random_codes: Callable, windows_of: Callable
) -> None:
    """Bit for bit, while each decodes windows of the same stream, and after one was killed."""
    several = Rig({"workers": 2}, str(checkpoint))
    await several.engine.start()
    codes = random_codes(900)
    windows = windows_of(codes, [30], 10, 10)
    whole = decoder.decode([codes])[0]
    tasks = [asyncio.create_task(several.decode(w, soon())) for w in windows]
    await several.until(lambda: len(several.engine._decodes._in_hand) == 2)
    first, second = several.engine.pids
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert np.array_equal(np.concatenate(await asyncio.gather(*tasks)), whole)
    assert several.engine.outstanding == 0
    await several.until(lambda: several.engine.restarts == 1)
    await several.until(lambda: several.engine.workers == 2)
    assert several.engine.pids[1] == second
    again = await asyncio.gather(*(several.decode(w, soon()) for w in windows))
    assert np.array_equal(np.concatenate(again), whole)
    await several.engine.stop()


async def test_windows_of_killed_worker_go_to_the_other_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", (3600.0,))  # no restart during the test
    rig = odd(workers=2)
    await rig.engine.start()
    assert (rig.engine.workers, len(set(rig.engine.pids))) == (2, 2)
    windows = [window(SLOW, seed=n) for n in range(6)]
    tasks = [asyncio.create_task(rig.decode(w, soon())) for w in windows]
    await rig.until(lambda: len(rig.engine._decodes._in_hand) == 2)
    victim = rig.engine.pids[1]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    for w, samples in zip(windows, await asyncio.gather(*tasks), strict=True):
        assert_right(w, samples)
    await rig.until(lambda: rig.engine.restarts == 1)
    assert (rig.engine.is_ready, rig.engine.workers) == (True, 1)
    await rig.engine.stop()


async def test_spare_takes_the_place_of_one_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_BACKOFF_S", (3600.0,))
    rig = odd(workers=2, spare=True)
    await rig.engine.start()
    await rig.until(lambda: bool(rig.engine.has_spare_ready))
    (first, second), spare = rig.engine.pids, rig.engine.spare_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await rig.until(lambda: rig.engine.takeovers == 1)
    assert (rig.engine.pids, rig.engine.workers) == ([second, spare], 2)
    answers = await asyncio.gather(*(rig.decode(window(seed=n), soon()) for n in range(4)))
    for n, samples in enumerate(answers):
        assert_right(window(seed=n), samples)
    await rig.engine.stop()


async def test_clip_goes_on_after_another_worker_died() -> None:
    """One worker encodes all clips, since each that does loads an encoder."""
    rig = odd(workers=2)
    await rig.engine.start()
    samples = np.linspace(0.1, 0.2, 60, dtype=np.float32)
    wanted = FAKE.encode(samples)
    assert np.array_equal((await rig.engine.encode(samples)).codes, wanted)
    encodes = rig.engine._clip_worker
    for victim in rig.engine.pids[::-1]:
        assert victim is not None
        restarts = rig.engine.restarts
        os.kill(victim, signal.SIGKILL)
        await rig.until(lambda: rig.engine.restarts == restarts + 1)  # noqa: B023
        assert np.array_equal((await rig.engine.encode(samples)).codes, wanted)
        encodes = rig.engine._clip_worker
        await rig.until(lambda: rig.engine.workers == 2)
    assert encodes == 1, "the second takes over when the first has died"
    await rig.engine.stop()


async def test_stopped_worker_is_detected_and_replaced(rig: Rig) -> None:
    pid = rig.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    windows = [window(seed=seed) for seed in range(5)]
    answers = await asyncio.gather(*(rig.decode(w, soon()) for w in windows))
    for w, samples in zip(windows, answers, strict=True):
        assert_right(w, samples)
    assert rig.engine.restarts == 1
    assert len(rig.stats) == 5


async def test_window_that_kills_workers_fails_alone(rig: Rig) -> None:
    windows = [window(DIE if n == 2 else 1, seed=n) for n in range(6)]
    answers = await asyncio.gather(
        *(rig.decode(w, soon()) for w in windows), return_exceptions=True
    )
    for n, (w, answer) in enumerate(zip(windows, answers, strict=True)):
        if n == 2:
            assert isinstance(answer, BackendError)
            assert answer.code is ErrorCode.CODEC_FAILED
        else:
            assert not isinstance(answer, BaseException)
            assert_right(w, answer)
    assert rig.engine.restarts == 2
    assert len(rig.stats) == 5


async def test_window_that_hangs_workers_fails_alone(brisk: Rig) -> None:
    bad = asyncio.create_task(brisk.decode(window(HANG), soon()))
    good = window(seed=5)
    assert_right(good, await brisk.decode(good, soon(9.0)))
    with pytest.raises(BackendError):
        await bad
    assert brisk.engine.restarts >= 1


@pytest.mark.parametrize("code", [ERR, -3, 1000])
async def test_bad_window_fails_alone(rig: Rig, code: int) -> None:
    windows = [window(code if n == 2 else 1, seed=n) for n in range(6)]
    answers = await asyncio.gather(
        *(rig.decode(w, soon()) for w in windows), return_exceptions=True
    )
    for n, (w, answer) in enumerate(zip(windows, answers, strict=True)):
        if n == 2:
            assert isinstance(answer, BackendError)
            assert "told to" not in answer.message
        else:
            assert not isinstance(answer, BaseException)
            assert_right(w, answer)
    assert rig.engine.restarts == 0


async def test_worker_whose_windows_all_fail_is_replaced_and_not_ready_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third window, unanswered, is given up after a failure in the next worker."""
    was_ready, pid = [], rig.engine.pid
    down = rig.engine._decodes.on_down

    def note(worker: Any) -> None:
        was_ready.append(rig.engine.is_ready)
        down(worker)

    monkeypatch.setattr(rig.engine._decodes, "on_down", note)
    for _ in range(3):
        with pytest.raises(BackendError) as raised:
            await rig.decode(window(ERR), soon())
        assert raised.value.code is ErrorCode.CODEC_FAILED
    assert was_ready == [False]
    assert rig.engine.restarts == 1
    assert rig.engine.is_ready
    assert rig.engine.pid != pid
    assert_right(window(), await rig.decode(window(), soon()))


async def test_cancel_drops_queued_window(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = gated
    begun: list[int] = []  # windows that the worker reports as being decoded
    hear = rig.engine._decodes.on_message

    def note(message: Decoding | Decoded, worker: int) -> None:
        begun.extend(message.ids if isinstance(message, Decoding) else ())
        hear(message, worker)

    monkeypatch.setattr(rig.engine._decodes, "on_message", note)
    blocker = await rig.block()
    dropped = asyncio.create_task(rig.decode(window(SLOW, new=5), soon(-8.0)))
    await asyncio.sleep(0)
    dropped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    assert rig.engine.outstanding == 1
    await rig.heard(3)  # two windows and one cancellation
    rig.gate.touch()
    await blocker
    after = window()
    assert_right(after, await rig.decode(after, soon()))
    assert [s.new_frames for s in rig.stats] == [4, 4]
    assert begun == [0, 2]


async def test_windows_are_answered_in_deadline_order(gated: Gated) -> None:
    order: list[int] = []

    async def ask(name: int, deadline_s: float) -> None:
        await gated.decode(window(new=4 + name), deadline_s)
        order.append(name)

    blocker = await gated.block()
    now = soon(0)
    asking = [asyncio.create_task(ask(n, now + d)) for n, d in enumerate([3.0, 1.0, 4.0, 2.0])]
    await gated.heard(5)
    gated.gate.touch()
    await asyncio.gather(blocker, *asking)
    assert order == [1, 3, 0, 2]


async def test_first_window_yields_to_streams_close_to_underrun(
    gated: Gated,
) -> None:
    order: list[str] = []

    async def ask(name: str, new: int, deadline_s: float, left: int) -> None:
        await gated.decode(replace(window(new=new, left=left), is_first=not left), deadline_s)
        order.append(name)

    blocker = await gated.block()
    now = soon(0)
    asks = [
        ask("begins", 4, now, 0),
        ask("soon dry", 5, now + 0.1, 3),
        ask("later", 6, now + 2.0, 3),
        ask("dry", 7, now - 0.1, 3),
    ]
    asking = [asyncio.create_task(one) for one in asks]
    await gated.heard(5)
    gated.gate.touch()
    await asyncio.gather(blocker, *asking)
    assert order == ["dry", "soon dry", "begins", "later"]
    assert sorted(round(one.slack_s) for one in gated.stats) == [-9, 0, 0, 0, 2]


async def test_outstanding_windows_are_bounded() -> None:
    rig = odd(max_outstanding=2)
    await rig.engine.start()
    tasks = [asyncio.create_task(rig.decode(window(SLOW), soon())) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(CapacityError) as caught:
        await rig.decode(window(), soon())
    assert caught.value.code is ErrorCode.OVERLOADED
    await asyncio.gather(*tasks)
    assert len(await rig.decode(window(), soon())) == 24
    await rig.engine.stop()


async def test_window_too_long_for_link_is_refused(rig: Rig) -> None:
    frames = 1_400_000
    huge = DecodeWindow(np.zeros((2, frames), np.int16), 0, frames, 0)
    with pytest.raises(BackendError, match="too long"):
        await rig.decode(huge, soon())
    assert rig.engine.restarts == 0


async def test_decode_times_out() -> None:
    rig = odd(patience_s=0.1)
    await rig.engine.start()
    with pytest.raises(BackendError, match="in time"):
        await rig.decode(window(SLOW), soon())
    assert rig.engine.outstanding == 0
    await rig.engine.stop()


async def test_stop_fails_outstanding_windows_and_refuses_new_ones(gated: Gated) -> None:
    decoding = await gated.block()
    queued = asyncio.create_task(gated.decode(window(), soon()))
    await gated.heard(2)
    await gated.engine.stop()
    assert not gated.engine.is_ready
    for answer in (decoding, queued, gated.decode(window(), soon())):
        with pytest.raises(BackendError, match="shutting down"):
            await answer
    assert not gated.engine.outstanding


async def test_spare_takes_over_after_kill_and_is_replaced() -> None:
    rig = odd(spare=True)
    assert not rig.engine.has_spare_ready
    await rig.engine.start()
    await rig.until(lambda: bool(rig.engine.has_spare_ready))
    some, pid, spare = window(), rig.engine.pid, rig.engine.spare_pid
    assert pid is not None
    assert_right(some, await rig.decode(some, soon()))
    os.kill(pid, signal.SIGKILL)
    await rig.until(lambda: rig.engine.restarts == 1)
    assert (rig.engine.is_ready, rig.engine.pid) == (True, spare)
    assert_right(some, await rig.decode(some, soon()))
    await rig.until(lambda: bool(rig.engine.has_spare_ready))
    assert (rig.engine.takeovers, rig.engine.pid) == (1, spare)
    assert rig.engine.spare_pid not in (None, pid)
    await rig.engine.stop()
    assert (rig.engine.is_ready, rig.engine.has_spare_ready) == (False, False)


async def test_window_that_kills_worker_and_spare_fails_alone() -> None:
    rig = odd(spare=True)
    await rig.engine.start()
    await rig.until(lambda: bool(rig.engine.has_spare_ready))
    healthy = window()
    poison, other = await asyncio.gather(
        rig.decode(window(DIE), soon()), rig.decode(healthy, soon(9.0)), return_exceptions=True
    )
    assert isinstance(poison, BackendError)
    assert poison.code is ErrorCode.CODEC_FAILED
    assert isinstance(other, np.ndarray)
    assert_right(healthy, other)
    await rig.until(lambda: rig.engine.restarts == 2)
    await rig.engine.stop()


@pytest.mark.parametrize("error", [ChildFailed("no room for it"), PermissionError("not ours")])
async def test_spare_start_is_retried_after_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_RETRY_S", 0.0)
    rig = odd(spare=True)
    launch, launches = ChildProcess.run, 0

    async def run(child: ChildProcess) -> None:
        nonlocal launches
        launches += 1
        if launches == 2:
            raise error
        await launch(child)

    monkeypatch.setattr(ChildProcess, "run", run)
    await rig.engine.start()
    await rig.until(lambda: bool(rig.engine.has_spare_ready))
    assert launches == 3
    await rig.engine.stop()


async def test_start_fails_for_folder_without_codec(tmp_path: Path) -> None:
    engine = CodecWorkerEngine(str(tmp_path))
    with pytest.raises(ChildFailed, match=r"config\.json"):
        await engine.start()
    await engine.stop()
    with pytest.raises(RuntimeError, match="ready"):
        _ = engine.spec


async def test_start_fails_at_once_for_missing_gpu(checkpoint: Path) -> None:
    engine = CodecWorkerEngine(str(checkpoint), device="cuda:99")
    with pytest.raises(ChildFailed, match=r"cuda:99, but torch finds \d+ GPUs"):
        await engine.start()
    assert engine.restarts == 0
    await engine.stop()


async def test_engine_is_not_ready_before_start(checkpoint: Path) -> None:
    engine = CodecWorkerEngine(str(checkpoint))
    with pytest.raises(BackendError) as caught:
        await engine.decode(window(), soon())
    assert caught.value.code is ErrorCode.NOT_READY
    assert not engine.is_ready
    assert engine.outstanding == 0


@pytest.mark.parametrize(("graphs", "phases"), [("auto", 1), ("off", 0)])
async def test_worker_with_graphs_decodes_equal_samples(
    checkpoint: Path, decoder: HiggsDecoder, graphs: str, phases: int
) -> None:
    """The graphs are replayed on the CPU; ``off`` disables them."""
    seen: list[str] = []
    engine = CodecWorkerEngine(
        str(checkpoint),
        graphs=graphs,
        max_batch=1,
        on_progress=lambda phase, seconds: seen.append(phase),
        module="tests.codec.graph_worker",
    )
    await engine.start()
    try:
        codes = np.random.default_rng(3).integers(0, 1024, (8, 19)).astype(np.int16)
        one = DecodeWindow(codes, 10, 5, 4)
        samples, _ = await engine.decode(one, soon())
        assert np.array_equal(samples, decoder.decode_windows([one])[0])
        assert seen.count("capture graphs") == phases
    finally:
        await engine.stop()
