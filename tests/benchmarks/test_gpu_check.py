"""``make gpu-check``: its arithmetic, its stages on a machine without a GPU, and its runner."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch

from benchmarks.gpu_check import arithmetic, stages
from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.arithmetic import FULL, SMALL, Range
from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.dummy_model import make
from benchmarks.gpu_check.report import Report, Result, figure
from benchmarks.gpu_check.talker_stages import Conformance
from benchmarks.reference_talker import Chance, ReferenceTalker, Spoken
from codec.families import open_codec
from talker.checkpoint import open_checkpoint

ODD = ["--small", "--module", "tests.benchmarks.odd_stages"]


def run(work: Path, *options: str, module: list[str] = ODD) -> tuple[int, dict[str, Result]]:
    status = main(["--work", str(work), *module, *options])
    report = msgspec.json.decode((work / "report.json").read_bytes(), type=Report)
    return status, {result.stage: result for result in report.results}


def wait_for_end(pid: int) -> None:
    """Wait for a process that was told to end, and does by itself."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("gpu", "streams", "kernels", "expected"),
    [("H100", 1, True, 4.03), ("H100", 1, False, 5.0), ("H200", 1, True, 3.3)],
)
def test_step_time_of_4b_talker_has_expected_value(
    gpu: str, streams: int, kernels: bool, expected: float
) -> None:
    bandwidth = arithmetic.bandwidth(f"NVIDIA {gpu} 80GB HBM3")
    assert bandwidth is not None
    assert FULL.step_bytes == pytest.approx(7.31e9, rel=0.002)
    assert FULL.position_bytes == 147_456
    found = arithmetic.step_ms(FULL, streams, bandwidth, kernels=kernels)
    assert found.expected == pytest.approx(expected, rel=0.03)
    assert found.floor is not None
    assert found.expected is not None
    assert found.floor < found.expected
    assert arithmetic.rtf(found).expected == pytest.approx(expected / 40, rel=0.03)


def test_unknown_gpu_has_no_expected_step_time() -> None:
    assert arithmetic.bandwidth("NVIDIA GeForce 256") is None
    assert arithmetic.step_ms(FULL, 1, None) == Range(None, None)
    assert arithmetic.rtf(Range(None, None)) == Range(None, None)


@pytest.mark.parametrize(
    ("measured", "higher", "verdict"),
    [
        (9.0, False, "as good"),
        (11.0, False, "near"),
        (20.0, False, "2.0 x worse"),
        (20.0, True, "as good"),
        (5.0, True, "2.0 x worse"),
    ],
)
def test_figure_verdict_compares_with_expected_range(
    measured: float, higher: bool, verdict: str
) -> None:
    assert figure("f", "ms", measured, Range(1.0, 10.0), higher=higher).verdict == verdict
    assert figure("f", "ms", measured).verdict == ""


def test_dummy_model_is_loadable_and_made_once(tmp_path: Path) -> None:
    folder = make(tmp_path / "talker", SMALL, "cpu", full_codec=False)
    assert open_checkpoint(str(folder)).shape.backbone.num_layers == SMALL.layers
    open_codec(str(folder)).load_decoder()
    before = (folder / "config.json").stat().st_mtime_ns
    assert make(folder, SMALL, "cpu", full_codec=False) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before, "made once"
    (folder / "complete").unlink()  # as if it had been interrupted
    make(folder, SMALL, "cpu", full_codec=False)
    assert (folder / "config.json").stat().st_mtime_ns != before


def test_dummy_model_speaks_on_with_logits_of_a_usual_spread(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = make(tmp_path / "talker", SMALL, "cpu", full_codec=False)
    assert open_checkpoint(str(folder)).sampler_rules == {"end_codebooks": 1}
    talker = ReferenceTalker(folder)
    spoken = talker.speak((5, 6, 7), 20, Chance(1, 1.0, 50, 1.0))
    logits = talker.logits((5, 6, 7), spoken.rows)
    assert 2 < float(logits.std(-1).mean()) < 3
    better = logits[:, 0] > logits[:, 0, -1:]
    assert int(better.sum(-1).min()) > 50, "EOC is not among the codes to draw from"


@pytest.mark.parametrize(("row", "agrees", "rows"), [(None, True, 4), (1, False, 1), (2, True, 2)])
def test_stream_agrees_up_to_near_tie(row: int | None, agrees: bool, rows: int) -> None:
    said = np.arange(12, dtype=np.int16).reshape(4, 3)
    wanted = Spoken(said, "length", np.array([0.5, 0.5, 1e-6, 0.5]), np.zeros(0, np.float32))
    heard = said.copy()
    if row is not None:
        heard[row:, 1] += 7
    found = Conformance()
    found.add(wanted, heard, near_tie=2e-5)
    assert (found.streams, found.agreeing, found.rows) == (1, agrees, rows)
    assert len(found.differences) == (row is not None)


@pytest.mark.parametrize("heard", [3, 5])
def test_stream_of_another_length_does_not_agree(heard: int) -> None:
    said = np.zeros((4, 3), np.int16)
    wanted = Spoken(said, "stop", np.full(4, 0.5), np.zeros(0, np.float32))
    found = Conformance()
    found.add(wanted, np.zeros((heard, 3), np.int16), near_tie=2e-5)
    assert found.agreeing == 0


def test_runner_reports_every_stage_despite_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = run(tmp_path)
    assert status == 1
    assert {name: result.status for name, result in found.items()} == {
        "sound": "ok",
        "broken": "broken",
        "raising": "broken",
        "crashing": "broken",
        "hanging": "timed out",
        "looking": "ok",
        "gpu-alone": "skipped",
    }
    assert found["broken"].problems == ["a screw is loose"]
    assert found["raising"].problems == ["RuntimeError: no such thing"]
    assert "ended with 7: about to fall over" in found["crashing"].problems[0]
    wait_for_end(int((tmp_path / "child").read_text()))
    said = capsys.readouterr().out
    assert "BROKEN: a screw is loose" in said
    assert "1.5 x worse" in said
    assert "BROKEN: broken, raising, crashing, hanging" in said


def test_runner_ends_stage_and_its_children_on_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        """Is waited for by somebody who presses Ctrl-C as soon as the stage has a child."""

        is_first = True

        def wait(self, timeout: float | None = None) -> int:
            if self.is_first and "--only" in self.args:  # type: ignore[operator]
                self.is_first = False
                while not ((tmp_path / "child").exists() and (tmp_path / "child").read_text()):
                    time.sleep(0.02)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "--stages", "hanging")
    wait_for_end(int((tmp_path / "child").read_text()))


def test_runner_makes_folder_of_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "new" / "report.json"
    wanted = ["--stages", "looking", "--json", str(report)]
    assert main(["--work", str(tmp_path), *ODD, *wanted]) == 0
    assert msgspec.json.decode(report.read_bytes(), type=Report).is_sound
    assert "nothing is broken" in capsys.readouterr().out


def test_runner_repeats_only_broken_stages(tmp_path: Path) -> None:
    only = ("--stages", "sound,broken")
    assert run(tmp_path, *only)[0] == 1
    (tmp_path / "mended").touch()
    status, found = run(tmp_path, *only)
    assert status == 0
    assert found["broken"].status == "ok"
    assert (tmp_path / "runs").read_text() == "x", "what was sound is not run again"
    assert found["sound"].figures, "and is in the report all the same"
    run(tmp_path, *only, "--again")
    assert (tmp_path / "runs").read_text() == "xx"


def test_runner_names_unknown_stage(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no such stage: paint; there are sound, "):
        run(tmp_path, "--stages", "sound,paint")


def test_first_stages_run_without_gpu(tmp_path: Path) -> None:
    wanted = "device,floor,two-mlps,weights,talker-fp8"
    status, found = run(tmp_path, "--stages", wanted, module=["--small"])
    assert status == 0
    assert {name: result.status for name, result in found.items()} == {
        "device": "ok",
        "floor": "ok",
        "two-mlps": "ok",
        "weights": "ok",
        "talker-fp8": "skipped",
    }
    assert any("no GPU" in note for note in found["device"].notes)
    assert all(figure.measured > 0 for figure in found["floor"].figures)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_stages_run_without_gpu(tmp_path: Path) -> None:
    status, found = run(tmp_path, module=["--small"])
    assert status == 0
    skipped = {name for name, result in found.items() if result.status == "skipped"}
    assert skipped == {name for name in found if name.startswith("talker-")}


def test_voice_stage_tells_with_which_settings_it_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALKWIRE_MODEL", "another")

    async def speak(context: Context, measures: bool = True) -> str | None:
        assert "TALKWIRE_MODEL" not in os.environ
        return None if os.environ.get("TALKWIRE_TALKER_GRAPHS") == "mixed" else "it broke"

    monkeypatch.setattr(stages, "_speak_together", speak)
    context = Context(tmp_path, tmp_path / "log", small=True)
    stages.voice(context)
    assert context.problems == ["it broke"]
    assert context.notes[:2] == [
        "with TALKWIRE_TALKER_GRAPHS=mixed: sound",
        "with TALKWIRE_TALKER_STEP_KERNELS=off: it broke",
    ]
