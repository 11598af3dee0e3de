"""The committed benchmark results, which must be standard JSON, and the files of new ones."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from benchmarks.report import output_file
from benchmarks.seam import Seam, as_json, main

RESULTS = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))
assert RESULTS, "there are no results to test"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_have_no_constants_outside_json(path: Path) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(f"{path.name} holds {constant}")

    assert json.loads(path.read_text(), parse_constant=refuse)


def test_infinite_snr_of_seam_is_written_as_null() -> None:
    written = as_json(Seam(10, math.inf, 3.0))
    assert written == {
        "lookahead": 10, "snr_db": None, "worst_chunk_db": 3.0, "incomplete": False,
    }  # fmt: skip
    json.dumps(written, allow_nan=False)


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
