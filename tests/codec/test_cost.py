"""Measurement of the decoding cost, with a fake decoder that takes a given time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from codec import warmup
from codec.batching import BatchLimits, EqualShapes
from codec.buckets import Buckets
from codec.warmup import measure_cost
from loadtest.fakes.codec import FakeDecoder
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow

SPEC = CodecSpec(24_000, 6, (100,) * 2, 3, 4)
#: Frames of the measured windows: left context, 2 or 25 new frames, and 4 frames of lookahead.
SHORT, LONG = 3 + 2 + 4, 3 + 25 + 4


class Timed(FakeDecoder):
    """Takes ``seconds(window)`` by its own clock, and a minute longer for the first batch."""

    def __init__(self, seconds: Callable[[DecodeWindow], float], spec: CodecSpec) -> None:
        super().__init__(spec)
        self._seconds, self.now, self.decoded = seconds, 1000.0, 0

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        self.now += sum(map(self._seconds, windows)) + (0 if self.decoded else 60)
        self.decoded += len(windows)
        return super().decode_windows(windows)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[DecodeWindow], float]], Timed]:
    def make(seconds: Callable[[DecodeWindow], float], spec: CodecSpec = SPEC) -> Timed:
        decoder = Timed(seconds, spec)
        monkeypatch.setattr(warmup, "time", SimpleNamespace(monotonic=lambda: decoder.now))
        return decoder

    return make


def test_measure_cost_fits_line_and_ignores_cold_start(timed: Callable[..., Timed]) -> None:
    decoder = timed(lambda window: 0.01 + 0.002 * window.codes.shape[1])
    cost = measure_cost(decoder, EqualShapes(), BatchLimits())
    assert (cost.fixed_s, cost.frame_s) == (pytest.approx(0.01), pytest.approx(0.002))


def test_measure_cost_covers_both_windows_if_context_is_cheap(
    timed: Callable[..., Timed],
) -> None:
    decoder = timed(lambda window: 0.002 * window.new_frames)
    cost = measure_cost(decoder, EqualShapes(), BatchLimits())
    assert cost.fixed_s == 0
    assert cost.seconds(SHORT) >= 0.002 * 2
    assert cost.seconds(LONG) == pytest.approx(0.002 * 25)


def test_measure_cost_is_constant_if_both_windows_take_equal_time(
    timed: Callable[..., Timed],
) -> None:
    decoder = timed(lambda window: 0.03)
    cost = measure_cost(decoder, EqualShapes(), BatchLimits())
    assert cost.seconds(SHORT) == cost.seconds(LONG) == pytest.approx(0.03)


def test_measure_cost_is_constant_if_longer_window_takes_less_time(
    timed: Callable[..., Timed],
) -> None:
    decoder = timed(lambda window: 0.03 if window.new_frames == 2 else 0.02)
    cost = measure_cost(decoder, EqualShapes(), BatchLimits())
    assert (cost.fixed_s, cost.frame_s) == (pytest.approx(0.03), 0.0)


def test_measure_cost_looks_ahead_no_further_than_receptive_field(
    timed: Callable[..., Timed],
) -> None:
    seen: set[int] = set()

    def seconds(window: DecodeWindow) -> float:
        seen.add(window.lookahead)
        return 0.01

    measure_cost(
        timed(seconds, CodecSpec(24_000, 6, (100,) * 2, 3, 1)), EqualShapes(), BatchLimits()
    )
    assert seen == {1}


@pytest.mark.parametrize("odd_s", [5.0, -0.029])
def test_measure_cost_ignores_single_odd_run(timed: Callable[..., Timed], odd_s: float) -> None:
    decoder: Timed = timed(lambda window: 0.03 + (odd_s if decoder.decoded in (2, 6) else 0))
    cost = measure_cost(decoder, EqualShapes(), BatchLimits())
    assert cost.seconds(SHORT) == cost.seconds(LONG) == pytest.approx(0.03)


def test_measure_cost_with_graphs_counts_all_frames_of_batch(timed: Callable[..., Timed]) -> None:
    decoder = timed(lambda window: 0.002 * window.codes.shape[1])
    vars(decoder)["buckets"] = Buckets.of(BatchLimits(rows=8), decoder.spec)
    cost = measure_cost(decoder, EqualShapes(), BatchLimits(rows=8))
    assert (cost.fixed_s, cost.frame_s) == (pytest.approx(0.0), pytest.approx(0.002))
