"""Command lines of the benchmarks: what is refused before anything is measured, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from benchmarks import speakers, talker_steps

WRONG = [
    ("codec_cost", "--rounds 0"),
    ("codec_cost", "--threads 0"),
    ("codec_growth", "--rounds 0"),
    ("codec_growth", "--frames 1"),
    ("codec_throughput", "--batches 1 0"),
    ("codec_throughput", "--chunks 0"),
    ("codec_throughput", "--threads -1"),
    ("frame_launches", "--rows 0"),
    ("frame_launches", "--rows 65"),
    ("quantisation", "--sentences 0"),
    ("quantisation", "--sentences 1000"),
    ("recovery", "--kills 0"),
    ("recovery", "--rounds -1"),
    ("rows", "--streams 4 0"),
    ("rows", "--rows 0"),
    ("rows", "--rho -1"),
    ("rows", "--repeat 0"),
    ("speakers", "--speakers 0"),
    ("speakers", "--rounds 0"),
    ("speakers", "--neighbours 0"),
    ("step_launches", "--streams 0"),
    ("step_launches", "--streams 17"),
    ("talker_steps", "--streams 0"),
    ("talker_steps", "--frames 1"),
    ("talker_steps", "--repeat 0"),
    ("talker_steps", "--threads 0"),
    ("talker_steps", "--engine bogus"),
    ("talker_steps", "--dtype int4"),
    ("talker_steps", "--quantization int4"),
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


NO_MODEL = "/nowhere"
UNUSABLE = [
    ("codec_cost", f"--model {NO_MODEL}", "neither a folder nor a hub id"),
    ("codec_throughput", f"--model {NO_MODEL}", "neither a folder nor a hub id"),
    ("codec_throughput", "--device bogus", "bogus, which torch does not know"),
    ("quantisation", f"--model {NO_MODEL}", "no folder"),
    ("talker_steps", f"--model {NO_MODEL}", "no folder"),
    ("word_timings", f"--texts {NO_MODEL}", "No such file"),
    ("word_timings", "--url ws://127.0.0.1:1/", "no server answers"),
]


@pytest.mark.parametrize(("name", "unusable", "told"), UNUSABLE)
def test_benchmark_tells_what_it_cannot_use_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, unusable: str, told: str
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *unusable.split()])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert isinstance(ended.value.code, str), "the interpreter prints it, and exits with 1"
    assert ended.value.code.startswith(f"benchmarks.{name}: ")
    assert told in ended.value.code
    assert "\n" not in ended.value.code


def test_benchmark_ends_in_silence_if_reader_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = "from loadtest.program import failing\nwith failing('name'): print('a table')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_speakers_ends_its_service_on_sigterm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = []

    @contextlib.asynccontextmanager
    async def served(**options: object) -> AsyncIterator[tuple[str, float]]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
            yield "", 0.0
        finally:
            ended.append(True)

    async def ideal_ms() -> dict[str, float]:
        return {}

    monkeypatch.setattr(speakers, "ideal_ms", ideal_ms)
    monkeypatch.setattr(speakers, "served", served)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as stopped:
            speakers.main([])
    finally:
        signal.signal(signal.SIGINT, before)
    assert (stopped.value.code, capsys.readouterr().err) == (130, "benchmarks.speakers: stopped\n")
    assert ended == [True]


async def test_talker_steps_refuses_rate_of_streams_that_never_speak_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stamps = [[(0.0, 0), (1.0, 1), (2.0, 20)], [(0.0, 0), (3.0, 1), (4.0, 20)]]

    async def speak(engine: object, number: int, frames: int) -> list[tuple[float, int]]:
        return stamps[number]

    monkeypatch.setattr(talker_steps, "speak", speak)
    with pytest.raises(ValueError, match="2 streams never spoke all at once"):
        await talker_steps.steps_per_s(object(), 2, 20)  # type: ignore[arg-type]
