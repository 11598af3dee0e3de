from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.audio.timeline import Timeline
from service.contexts.speech_context import Words
from streaming.word_timing import WordTiming


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=20), st.integers(0, 10**6))
def test_timeline_at_codec_rate_keeps_positions(parts: list[tuple[int, bool]], asked: int) -> None:
    timeline = Timeline(24_000, 24_000)
    for samples, ends in parts:
        timeline.add(samples, samples, ends_utterance=ends)
    assert timeline.to_codec(asked) == min(asked, sum(samples for samples, _ in parts))


def test_timeline_maps_samples_of_another_rate() -> None:
    timeline = Timeline(24_000, 8_000)
    timeline.add(2400, 700, ends_utterance=False)  # the resampler holds back 100
    assert timeline.to_codec(700) == 2100
    timeline.add(2400, 900, ends_utterance=True)
    assert [timeline.to_codec(n) for n in (0, 1, 1599, 1600, 1601)] == [0, 3, 4797, 4800, 4800]


def test_timeline_excludes_encoder_delay_and_padding() -> None:
    timeline = Timeline(24_000, 48_000, 312)
    for _ in range(2):  # 1000 codec samples are 2000 sent ones, in three packets of 960
        timeline.add(1000, 1920, ends_utterance=False)
        timeline.add(0, 960, ends_utterance=True)
    assert [timeline.to_codec(n) for n in (0, 312, 314, 2312, 2880)] == [0, 0, 1, 1000, 1000]
    second = [timeline.to_codec(2880 + n) for n in (0, 312, 314, 2312, 2880, 10**9)]
    assert second == [1000, 1000, 1001, 2000, 2000, 2000]
    assert timeline.sent_samples == 5760


def test_late_s_is_encoder_delay_plus_earlier_padding() -> None:
    timeline = Timeline(24_000, 48_000, 312)
    for number in range(3):
        assert timeline.late_s == pytest.approx(312 / 48_000 + number * 880 / 48_000)
        timeline.add(1000, 2880, ends_utterance=True)  # 2000 of them are audio
    plain = Timeline(24_000, 24_000)
    plain.add(1000, 1000, ends_utterance=True)
    assert plain.late_s == 0.0


def test_heard_shifts_word_timings() -> None:
    word = WordTiming("so", 1, 3, 100.0, 200.0)
    assert Words((word,), 50.0).heard() == [WordTiming("so", 1, 3, 150.0, 250.0)]


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 6000), st.booleans()), min_size=1))
def test_timeline_never_runs_backwards(parts: list[tuple[int, int, bool]]) -> None:
    timeline = Timeline(24_000, 48_000, 312)
    for codec, sent, ends in parts:
        timeline.add(codec, sent, ends_utterance=ends)
    places = [timeline.to_codec(n) for n in range(0, timeline.sent_samples + 100, 97)]
    assert places == sorted(places)
    assert places[-1] <= sum(codec for codec, _, _ in parts)
