"""The committed benchmark results, which must be standard JSON, and the files of new ones."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from benchmarks.codec_throughput import main
from loadtest.program import output_file

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
assert RESULTS, "there are no results to test"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_have_no_constants_outside_json(path: Path) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{path.name} holds {constant}")

    assert json.loads(path.read_text(), parse_constant=refuse)


def page(path: str) -> str:
    return (ROOT / path).read_text()


def on_gpu(stage: str, run: int) -> dict[str, float]:
    """The figures of a run's stage on the H200, by their names."""
    recorded = json.loads(page("benchmarks/results/gpu_h200.json"))["results"]
    (figures,) = [one["figures"] for one in recorded if (one["stage"], one["run"]) == (stage, run)]
    return {figure["name"]: figure["measured"] for figure in figures}


def test_pages_have_recorded_figures_of_speakers() -> None:
    speakers = json.loads(page("benchmarks/results/speakers.json"))["speakers"]
    peers = [], []
    for count in ("1", "4", "8"):
        figures = speakers[count]
        p50, p95 = (f"{figures[name]:.0f}" for name in ("ttfa_p50_ms", "ttfa_p95_ms"))
        rtf = f"{figures['rtf_p50']:.2f}"
        row = rf"\| {count} \| {p50} ms \| {p95} ms \| 100 % \| {rtf} \|"
        assert re.search(row, page("README.md")), row
        row = rf"\| {count} \| \d+ \| {p50} / {p95} \| 100 % \| {rtf[1:]} \|"
        assert re.search(row, page("benchmarks/README.md")), row
        peers[0].append(p50)
        peers[1].append(rtf)
    times, factors = ("; ".join(column) for column in peers)
    assert f"{times} ms (p50), heard | talker's RTF {factors};" in page("benchmarks/peers.md")


def test_page_has_recorded_counts_of_codecs() -> None:
    cells = {"Fish S2 Pro": "fish_s2", "Qwen3-TTS": "qwen3_tts", "Higgs": "higgs"}
    recorded = json.loads(page("benchmarks/results/codec_launches.json"))["figures"]
    for name, family in cells.items():
        for rows, frames, first in (
            (2, 14, rf"{name} \| 2 of 14( frames)?"),
            (8, 25, r" *\| 8 of 25"),
        ):
            found = [
                rf"{one['launches']}; {one['gigabytes']:.3g}".replace(".", r"\.")
                for one in recorded
                if (one["family"], one["rows"], one["frames"]) == (family, rows, frames)
            ]
            assert len(found) == 4
            row = rf"\| *{first} \| " + r" \| ".join(found) + r" \|"
            assert re.search(row, page("benchmarks/README.md")), row


def test_pages_have_recorded_figures_of_gpu() -> None:
    benchmarks, gpu = page("benchmarks/README.md"), page("docs/guides/gpu.md")
    steps = {
        stage: [on_gpu(stage, 5)[f"step at {streams}"] for streams in (1, 4, 16, 64)]
        for stage in ("talker", "talker-int8", "talker-fp8", "talker-invariant", "talker-higgs-v2")
    }
    for row in steps.values():
        assert f"| {' | '.join(f'{ms:.3g}' for ms in row)} |" in benchmarks
    relative = {
        stage: [row[at] / steps["talker"][at] for at in (0, -1)] for stage, row in steps.items()
    }
    int8, fp8 = (
        [f"{100 * (1 - x):.0f} %" for x in relative[f"talker-{q}"]] for q in ("int8", "fp8")
    )
    assert f"{int8[0]} less time with `int8` and {fp8[0]} less with `fp8`" in gpu
    assert f"{int8[1]} and {fp8[1]} with 64 streams" in gpu
    assert [round(factor) for factor in relative["talker-invariant"]] == [4, 2]
    assert "[two to four times as long]" in gpu
    ready = on_gpu("talker", 4)["ready"], on_gpu("service", 2)["ready"]
    assert f"| {ready[0]:.0f}; {ready[1]:.0f} s |" in benchmarks
    heard = [f"{on_gpu('service', 5)[f'TTFA p50 at {streams}']:.0f}" for streams in (1, 16, 32, 64)]
    assert f"TTFA p50 | {', '.join(heard)} ms;" in benchmarks
    assert f"{heard[0]} ms at one speaker and {heard[-1]} ms at 64" in page("README.md")


def test_output_file_makes_its_folder_and_keeps_what_is_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new" / "a.json", tmp_path / "old.json"
    old.write_text("{}")
    assert output_file(str(new)) == new
    assert (new.parent.is_dir(), new.exists()) == (True, False)
    assert output_file(str(old)).read_text() == "{}"
    with pytest.raises(argparse.ArgumentTypeError, match=r"cannot write .*: Is a directory"):
        output_file(str(tmp_path))


def test_output_file_keeps_link_whose_file_does_not_exist_yet(tmp_path: Path) -> None:
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    link.symlink_to(target)
    output_file(str(link))
    assert (link.is_symlink(), target.exists()) == (True, False)


def test_benchmark_refuses_unwritable_file_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--json", str(tmp_path)])
    assert ended.value.code == 2
    assert f"argument --json: cannot write {tmp_path}" in capsys.readouterr().err
