"""Command lines of the benchmarks: what is refused before anything is measured."""

from __future__ import annotations

import importlib
import sys

import pytest

WRONG = [
    ("codec_cost", "--rounds 0"),
    ("codec_cost", "--threads 0"),
    ("codec_throughput", "--batches 1 0"),
    ("codec_throughput", "--chunks 0"),
    ("codec_throughput", "--threads -1"),
    ("continuity", "--trials 0"),
    ("quantisation", "--sentences 0"),
    ("quantisation", "--sentences 1000"),
    ("recovery", "--kills 0"),
    ("recovery", "--rounds -1"),
    ("rows", "--streams 4 0"),
    ("rows", "--rows 0"),
    ("rows", "--rho -1"),
    ("rows", "--repeat 0"),
    ("rows_together", "--streams 0"),
    ("rows_together", "--frames -2"),
    ("rows_together", "--together 0"),
    ("rows_together", "--repeat 0"),
    ("sampler_cost", "--streams 0"),
    ("schedule_sim", "--streams 0"),
    ("schedule_sim", "--seed -1"),
    ("seam", "--chunk 0"),
    ("seam", "--left -1"),
    ("simple_estimators", "--seeds 0"),
    ("speakers", "--speakers 0"),
    ("speakers", "--rounds 0"),
    ("step_launches", "--streams 0"),
    ("step_launches", "--streams 17"),
    ("talker_steps", "--streams 0"),
    ("talker_steps", "--frames 1"),
    ("talker_steps", "--repeat 0"),
    ("talker_steps", "--threads 0"),
    ("talker_steps", "--engine bogus"),
    ("talker_steps", "--dtype int4"),
    ("talker_steps", "--quantization int4"),
    ("voice_cache", "--seconds 0"),
    ("voice_cache", "--seconds nan"),
    ("voice_cache", "--voices 0"),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=" ".join)
def test_benchmark_shows_usage_for_wrong_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, wrong: str
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *wrong.split()])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"usage: benchmarks.{name}" in told
    assert f"argument {wrong.split()[0]}: " in told
