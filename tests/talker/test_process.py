"""The talker process: start, death and restart, refusals, bad requests, bad checkpoints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from ipc.supervisor import ChildFailed
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError
from streaming.ports import Sampling, SpeechRequest
from talker.checkpoint import open_checkpoint
from talker.engine import TalkerProcessEngine
from talker.messages import Generate, Ready, VoiceRows
from talker.process import warm_up_request
from talker.request_builder import Standalone
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from tests.talker import tiny
from tests.talker.harness import GREEDY, Heard, hear, idle, running, text, until, warm

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def vllm_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty vLLM cache, as on a new machine."""
    folder = tmp_path_factory.mktemp("vllm-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CACHE_ROOT", str(folder))
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_checkpoint: Path, vllm_cache: Path) -> AsyncIterator[TalkerProcessEngine]:
    async with running(tiny_checkpoint, engine="inprocess", max_outstanding=8) as started:
        yield started


async def test_first_start_inspects_no_model_in_subprocess(
    engine: TalkerProcessEngine, vllm_cache: Path
) -> None:
    """vLLM would cache the result of an inspection in this folder."""
    assert not (vllm_cache / "modelinfos").exists()


def a_prompt(handle: int, **changes: object) -> Generate:
    made: dict[str, Any] = {
        "handle": handle, "ids": (1, 2, 3), "max_frames": 5, "temperature": 1.0, "top_p": 0.95,
        "top_k": 50, "seed": 1, **changes,
    }  # fmt: skip
    return Generate(**made)


POISON = {
    "no ids": {"ids": ()},
    "too many ids": {"ids": (1,) * 5000},
    "an id outside the vocabulary": {"ids": (1, tiny.TEXT_ROWS)},
    "a negative id": {"ids": (-1,)},
    "a frame id of nobody": {"ids": (1 << 20,)},
    "no top_k": {"top_k": 0},
    "nan": {"temperature": float("nan"), "top_p": float("nan")},
    "no frames": {"max_frames": 0},
    "a huge seed": {"seed": 1 << 63},
    "voice rows cut short": {"clips": (VoiceRows(b"\0" * 15, 0),)},
    "no voice rows": {"clips": (VoiceRows(b"", 0),)},
    "voice rows beyond the prompt": {"clips": (VoiceRows(b"\0" * 16 * 4, 0),)},
    "a voice at a negative place": {"clips": (VoiceRows(b"\0" * 16, -1),)},
    "a voice of wrong codes": {"clips": (VoiceRows(b"\xff\x7f" * 8, 0),)},
    "an utterance upon the voice": {
        "clips": (VoiceRows(b"\0" * 32, 0), VoiceRows(b"\0" * 16, 1)),
    },
    "an utterance beyond the prompt": {"clips": (VoiceRows(b"\0" * 16 * 4, 0),)},
}  # fmt: skip


@pytest.mark.parametrize("changes", POISON.values(), ids=POISON.keys())
async def test_malformed_request_fails_alone(
    engine: TalkerProcessEngine, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """Past the gateway's checks: no message may kill the talker process."""
    pid = engine.pid
    began = asyncio.Event()
    neighbour = asyncio.create_task(hear(engine, text(1), began=began))
    await began.wait()
    builder = engine._builder
    assert builder is not None
    with monkeypatch.context() as patched:
        patched.setattr(
            builder, "build", lambda request, handle: Standalone(a_prompt(handle, **changes), 0)
        )
        with pytest.raises(BackendError) as error:
            await hear(engine, "never read")
    assert error.value.code is ErrorCode.ENGINE_FAILED
    healthy = await neighbour
    assert (healthy.finish, len(healthy.rows)) != (None, 0)
    assert (await hear(engine, text(1))).rows.tobytes() == healthy.rows.tobytes()
    assert engine.pid == pid
    await idle(engine)


async def test_requests_beyond_max_outstanding_are_refused_at_once(
    engine: TalkerProcessEngine,
) -> None:
    held = asyncio.Event()  # a request is outstanding until its listener has taken the end
    tasks = [asyncio.create_task(hear(engine, text(i), after_first=held.wait)) for i in range(8)]
    await until(lambda: engine.outstanding == 8)
    with pytest.raises(CapacityError) as error:
        await hear(engine, text(0))
    assert error.value.code is ErrorCode.OVERLOADED
    assert error.value.retry_after_ms
    held.set()
    assert all(heard.finish for heard in await asyncio.gather(*tasks))


@pytest.mark.parametrize(
    ("settings", "outstanding"),
    [({}, 600), ({"data_parallel_size": 2}, 1200), ({"max_outstanding": 70}, 70)],
)
async def test_outstanding_requests_follow_the_processs_capacity(
    settings: dict[str, Any], outstanding: int
) -> None:
    engine = TalkerProcessEngine("unread", TalkerSettings(**settings))
    assert engine._pending.max_pending == settings.get("max_outstanding", 256), "before it is known"
    engine._on_ready(Ready(8, 1024, 512, 300, "async", "v2", "bfloat16", {}, {}))
    assert engine._pending.max_pending == outstanding


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (SpeechRequest("r", ""), ErrorCode.INVALID_TEXT, "text"),
        (SpeechRequest("r", "a" * 5000), ErrorCode.TEXT_TOO_LONG, "text"),
        (SpeechRequest("r", "hi", voice="nobody"), ErrorCode.UNKNOWN_VOICE, "voice"),
        (SpeechRequest("r", "hi", max_frames=0), ErrorCode.INVALID_PARAMETER, "max_frames"),
        (
            SpeechRequest("r", "hi", sampling=Sampling(top_k=0)),
            ErrorCode.INVALID_PARAMETER,
            "sampling.top_k",
        ),
    ],
)
async def test_check_and_generate_refuse_alike(
    engine: TalkerProcessEngine, request_: SpeechRequest, code: ErrorCode, param: str
) -> None:
    with pytest.raises(RequestError) as error:
        engine.check(request_)
    assert (error.value.code, error.value.param) == (code, param)
    with pytest.raises(RequestError) as error:
        await anext(engine.generate(request_))
    assert (error.value.code, error.value.param) == (code, param)
    assert engine.outstanding == 0


async def test_check_options_checks_all_but_text(engine: TalkerProcessEngine) -> None:
    engine.check_options(SpeechRequest("r", ""))
    with pytest.raises(RequestError):
        engine.check_options(SpeechRequest("r", "hi", voice="nobody"))
    with pytest.raises(RequestError):
        engine.check_options(SpeechRequest("r", "hi", max_frames=-1))
    assert engine.voices == ("default", "alto", "bass")


async def test_requests_without_seed_differ(engine: TalkerProcessEngine) -> None:
    free = Sampling(temperature=1.0)
    heard = await asyncio.gather(*(hear(engine, text(3), free, rows=20) for _ in range(4)))
    assert len({h.rows.tobytes() for h in heard}) == 4


async def test_max_frames_truncates_speech(engine: TalkerProcessEngine) -> None:
    cut = await hear(engine, text(0), rows=9)
    assert (len(cut.rows), cut.finish) == (9, "length")


async def test_process_death_fails_open_streams_and_process_restarts(
    tiny_checkpoint: Path,
) -> None:
    async with running(tiny_checkpoint, engine="inprocess") as engine:
        before = await hear(engine, text(0))
        began = [asyncio.Event() for _ in range(5)]
        tasks = [
            asyncio.create_task(hear(engine, text(i), warm(i), began=begin))
            for i, begin in enumerate(began)
        ]
        await asyncio.gather(*(begin.wait() for begin in began))
        assert engine.pid is not None
        # Some of these may have ended by now. A stream sent to a stopped process cannot end.
        os.kill(engine.pid, signal.SIGSTOP)
        last = asyncio.create_task(hear(engine, text(5), warm(5)))
        await until(lambda: engine.outstanding > sum(not task.done() for task in tasks))
        os.kill(engine.pid, signal.SIGKILL)
        results = await asyncio.gather(*tasks, last, return_exceptions=True)
        died = [result for result in results if not isinstance(result, Heard)]
        assert isinstance(results[-1], BackendError)
        for error in died:
            assert isinstance(error, BackendError)
            assert error.code is ErrorCode.ENGINE_RESTARTING
            assert error.retryable
            assert error.retry_after_ms
        assert (engine.is_ready, engine.outstanding, engine.live) == (False, 0, 0)
        with pytest.raises(BackendError) as error_while_down:
            await hear(engine, text(0))
        assert error_while_down.value.code is ErrorCode.ENGINE_RESTARTING
        await until(lambda: engine.is_ready)
        assert (await hear(engine, text(0))).rows.tobytes() == before.rows.tobytes()
        assert engine.restarts == 1


def descendants(pid: int) -> list[int]:
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return children + [deeper for child in children for deeper in descendants(child)]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.long
async def test_engine_cores_die_with_talker_process(tiny_checkpoint: Path) -> None:
    async with running(tiny_checkpoint, engine="async") as engine:
        assert engine.pid is not None
        family = descendants(engine.pid)
        assert family, "the engine cores are processes of their own"
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: not any(map(is_running, family)))


async def test_invalid_checkpoint_starts_no_process(tmp_path: Path) -> None:
    tiny.write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    engine = TalkerProcessEngine(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        await engine.start()
    assert (engine.pid, engine.is_ready) == (None, False)
    with pytest.raises(RuntimeError):
        _ = engine.spec
    with pytest.raises(BackendError) as error:
        engine.check(SpeechRequest("r", "hello", sampling=GREEDY))
    assert error.value.code is ErrorCode.NOT_READY


async def test_warm_up_request_needs_room_for_text(tiny_checkpoint: Path) -> None:
    prompts = open_checkpoint(str(tiny_checkpoint)).prompt_builder(4)
    with pytest.raises(CheckpointError, match="4 positions"):
        warm_up_request(prompts, 4)


async def test_talker_process_reports_checkpoint_error(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process checks the folder again, because it may have changed since."""
    engine = TalkerProcessEngine(str(tiny_checkpoint))
    broken = tiny.write_checkpoint(tmp_path)
    (broken / "model.safetensors").unlink()
    monkeypatch.setattr(
        "talker.engine._arguments", lambda opened, settings: ["--model", str(broken)]
    )
    with pytest.raises(ChildFailed, match=r"model\.safetensors"):
        await engine.start()
    await engine.stop()


def with_nan(folder: Path, row: int) -> Path:
    """A tiny checkpoint whose text embedding of one id is not a number."""
    file = tiny.write_checkpoint(folder) / "model.safetensors"
    tensors = load_file(file)
    (name,) = (name for name, one in tensors.items() if one.shape == (tiny.TEXT_ROWS, tiny.HIDDEN))
    tensors[name][row] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


async def test_logits_that_are_not_finite_fail_and_process_is_replaced(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """On a CPU they would be spoken as noise, and so would all that comes after them: vLLM's
    attention keeps what is not a number.
    """
    prompts = open_checkpoint(str(tiny_checkpoint)).prompt_builder(1024)
    row = next(id for id in prompts.build("zoo").ids if id not in prompts.build("hello").ids)
    async with running(with_nan(tmp_path, row), engine="inprocess") as engine:
        healthy = await hear(engine, "hello", GREEDY)
        assert healthy.finish
        for _ in range(3):
            with pytest.raises(BackendError, match="not finite") as error:
                await hear(engine, "zoo", GREEDY)
            assert error.value.code is ErrorCode.ENGINE_FAILED
        assert {name: n for name, n in engine.failures.items() if n} == {"logits": 3}
        await until(lambda: engine.restarts == 1 and engine.is_ready)
        assert (await hear(engine, "hello", GREEDY)).rows.tobytes() == healthy.rows.tobytes()


async def test_model_that_cannot_speak_at_all_is_reported_without_restart(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    row = open_checkpoint(str(tiny_checkpoint)).prompt_builder(1024).build("hello").ids[0]
    engine = TalkerProcessEngine(str(with_nan(tmp_path, row)), TalkerSettings(engine="inprocess"))
    with pytest.raises(ChildFailed, match=r"warm-up.*logits"):
        await engine.start()
    assert engine.restarts == 0
    await engine.stop()


async def test_unsupported_runner_is_reported_without_restart(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process finds no Triton, even if it is installed."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['triton'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = TalkerProcessEngine(str(tiny_checkpoint), TalkerSettings(runner="v2"))
    with pytest.raises(ChildFailed, match="Triton"):
        await engine.start()
    assert engine.restarts == 0
    await engine.stop()


@pytest.mark.long
async def test_engine_core_start_failure_is_reported_without_restart(
    tiny_checkpoint: Path,
) -> None:
    """The KV cache is too small for a single request; the core reports this only in the log."""
    engine = TalkerProcessEngine(
        str(tiny_checkpoint), TalkerSettings(engine="async", kv_positions=64)
    )
    with pytest.raises(ChildFailed, match="the log above says why"):
        await engine.start()
    assert engine.restarts == 0
    await engine.stop()


@pytest.mark.parametrize("argument", ["{", '{"no_such_setting": 1}', '{"max_num_seqs": 0}'])
async def test_talker_settings_reject_invalid_arguments(argument: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(argument, type=TalkerSettings)


async def test_engine_module_imports_no_torch_vllm_or_transformers() -> None:
    code = (
        "import sys, json, talker.engine, loadtest.fakes.talker;"
        "print(json.dumps([m for m in ('torch', 'vllm', 'transformers') if m in sys.modules]))"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await child.communicate()
    assert json.loads(printed) == []
