"""The report of a context, against figures computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming.ports import Arrival
from streaming.report import ContextReport, Stopwatch

RATE = 1000.0


def report(watch: Stopwatch, generated: int = 1000) -> ContextReport:
    return watch.report(
        sent_samples=0, generated_samples=generated, underrun_s=0, underruns=0, characters=0
    )


def sound(silent: int, audible: int) -> np.ndarray:
    return np.r_[np.zeros(silent), np.full(audible, 0.5)].astype(np.float32)


def test_rtf_excludes_pauses_of_talker() -> None:
    watch = Stopwatch(RATE)
    watch.on_talker_start(10.0, is_first=True)
    watch.on_rows([Arrival(1, 10.1), Arrival(4, 10.3, evenly=True)])
    watch.on_rows([Arrival(0, 15.0), Arrival(1, 15.2)])  # resumed at 15.0
    watch.on_talker_start(20.0, is_first=False)
    watch.on_rows([Arrival(1, 20.5)])
    assert report(watch).rtf == pytest.approx(0.3 + 0.2 + 0.5)
    assert report(watch, generated=0).rtf is None


def test_queue_s_counts_wait_for_first_talker_start() -> None:
    watch = Stopwatch(RATE)
    watch.on_text(1.0)
    watch.on_talker_start(1.0, is_first=True)
    watch.on_talker_start(4.0, is_first=True)  # the voice was ready only then
    watch.on_rows([Arrival(1, 4.5)])
    watch.on_talker_start(6.0, is_first=False)
    assert report(watch).queue_s == 3.0
    assert report(watch).rtf == 0.5


def test_ttfa_counts_first_audible_sample_when_played() -> None:
    watch = Stopwatch(RATE)
    watch.on_text(1.0)
    watch.on_audio(sound(100, 0), 2.0)
    watch.on_audio(sound(50, 10), 5.0)  # after a stall
    watch.on_audio(sound(70, 10), 6.0)
    assert report(watch).ttfa_s == pytest.approx(5.05 - 1.0)
    assert report(watch).leading_silence_s == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("events", "ttfa_s"),
    [
        # the text is at 1.0, before, within or after the pause
        ([("text", 1.0), ("pause", 1.01, 2000), ("sound", 3.01)], 0.06),
        ([("text", 1.0), ("pause", 1.0, 500), ("pause", 1.5, 500), ("sound", 2.5)], 0.55),
        ([("pause", 0.0, 2000), ("text", 1.0), ("sound", 2.0)], 0.05),
        ([("pause", 0.0, 500), ("pause", 0.5, 1500), ("text", 1.0), ("sound", 2.25)], 0.3),
        ([("pause", 0.0, 100), ("text", 1.0), ("sound", 2.0)], 1.05),
        ([("text", 1.0), ("sound", 2.0), ("pause", 2.06, 5000), ("sound", 7.06)], 1.05),
    ],
)
def test_requested_pause_is_no_latency(events: list[tuple[Any, ...]], ttfa_s: float) -> None:
    watch = Stopwatch(RATE)
    for kind, at, *samples in events:
        match kind:
            case "text":
                watch.on_text(at)
            case "pause":
                watch.on_pause(samples[0], at)
            case _:
                watch.on_audio(sound(50, 10), at)
    assert report(watch).ttfa_s == pytest.approx(ttfa_s)
    assert report(watch).leading_silence_s == pytest.approx(0.05)


def test_report_of_silence_has_no_ttfa() -> None:
    watch = Stopwatch(RATE)
    watch.on_audio(sound(100, 0), 2.0)
    nothing = report(watch)
    assert (nothing.queue_s, nothing.ttfa_s, nothing.leading_silence_s) == (None, None, None)
