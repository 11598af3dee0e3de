from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talkwire_client.playback import Arrival, LeadingSilence, PlaybackClock, report, underrun

RATE = 1000


def test_playback_report_matches_manual_calculation() -> None:
    # 0.1 s at 1.2; 0.2 s at 1.25 (in time, lasts until 1.5); none; 0.1 s at 1.6 (100 ms late).
    arrivals = [Arrival(1.2, 100), Arrival(1.25, 200), Arrival(1.4, 0), Arrival(1.6, 100)]
    figures = report(arrivals, started_s=1.0, sample_rate=RATE, leading_silence_samples=30)
    assert figures.ttfb_ms == pytest.approx(200)
    assert figures.ttfa_ms == pytest.approx(230)
    assert figures.audio_s == pytest.approx(0.4)
    assert figures.rtf == pytest.approx(0.6 / 0.4)
    assert figures.largest_gap_ms == pytest.approx(350)
    assert (figures.underruns, figures.underrun_ms) == (1, pytest.approx(100))
    assert figures.chunks == 3


def test_ttfa_counts_gap_after_silent_first_chunk() -> None:
    arrivals = [Arrival(1.2, 100), Arrival(1.5, 100)]
    figures = report(arrivals, started_s=1.0, sample_rate=RATE, leading_silence_samples=100)
    assert figures.ttfa_ms == pytest.approx(500)


def test_clock_plays_no_more_than_has_arrived() -> None:
    clock = PlaybackClock(RATE)
    assert clock.played_samples(9.0) == 0
    clock.on_audio(100, 1.0)
    assert [clock.played_samples(at) for at in (0.5, 1.0, 1.04, 1.1, 60.0)] == [0, 0, 40, 100, 100]
    clock.on_audio(100, 60.0)
    assert [clock.played_samples(at) for at in (60.0, 60.05, 90.0)] == [100, 150, 200]
    assert (clock.underruns, clock.underrun_s) == (1, pytest.approx(58.9))


def test_rounding_error_is_no_underrun() -> None:
    clock, now = PlaybackClock(24_000), 0.1
    for _ in range(100):  # each arrives when the one before it has been played
        clock.on_audio(2_400, now)
        now += 0.1
    assert clock.underruns == 0


def test_report_does_not_count_intended_pause() -> None:
    arrivals = [Arrival(0, 100), Arrival(5, 100, continues=False), Arrival(5.05, 100)]
    figures = report(arrivals, started_s=0, sample_rate=RATE)
    assert figures.largest_gap_ms == pytest.approx(50)
    assert figures.underruns == 0


def test_report_without_audible_audio_has_no_ttfa() -> None:
    nothing = report([], started_s=0, sample_rate=RATE)
    assert (nothing.ttfb_ms, nothing.ttfa_ms, nothing.rtf, nothing.chunks) == (None, None, None, 0)
    silent = report([Arrival(1, 10)], started_s=0, sample_rate=RATE, leading_silence_samples=None)
    assert (silent.ttfb_ms, silent.ttfa_ms) == (1000, None)


@given(
    steps=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300)), min_size=1, max_size=30),
    prebuffer_ms=st.integers(0, 500),
)
def test_underrun_matches_sample_by_sample_simulation(
    steps: list[tuple[int, int]], prebuffer_ms: int
) -> None:
    """The oracle plays one sample per millisecond and records when it has none left."""
    times = list(itertools.accumulate(wait for wait, _ in steps))
    left = dict.fromkeys(range(times[-1] + 1), 0)
    for at, (_, samples) in zip(times, steps, strict=True):
        left[at] += samples
    buffered = starved_ms = runs = 0
    starving = False
    for now in range(times[-1] + 1):
        buffered += left[now]
        if now < times[0] + prebuffer_ms:
            continue
        if buffered:
            buffered -= 1
            starving = False
        else:
            starved_ms += 1
            runs += not starving
            starving = True
    arrivals = [Arrival(at / 1000, n) for at, (_, n) in zip(times, steps, strict=True)]
    count, seconds = underrun(arrivals, RATE, prebuffer_ms / 1000)
    assert (count, round(1000 * seconds)) == (runs, starved_ms)


@given(
    samples=st.lists(st.sampled_from([0, 1, -300, 327, 328, -328, 32767, -32768]), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_leading_silence_does_not_depend_on_chunking(samples: list[int], cuts: list[int]) -> None:
    silence = LeadingSilence()
    edges = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]
    for start, end in itertools.pairwise(edges):
        silence.push(struct.pack(f"<{end - start}h", *samples[start:end]))
    loud = [i for i, sample in enumerate(samples) if abs(sample) >= 328]
    assert silence.samples == (loud[0] if loud else None)
