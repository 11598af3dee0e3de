"""Plans and receptive fields, compared by brute force with the definition of each layer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.layer_ranges import DILATIONS, Layer, architecture, plan, receptive_field

HIGGS = architecture((8, 5, 4, 2, 3))
SMALL = architecture((2, 3))


def inputs_of(layer: Layer, output: int) -> set[int]:
    """Positions of the inputs that one output reads, by the definition of the layer."""
    if layer.stride == 1:
        dilation = layer.left // 3
        return {output + dilation * tap for tap in range(-3, 4)}
    kernel = 2 * layer.stride
    first = (output + layer.cut) // layer.stride - 3
    return {
        position
        for position in range(first, first + 6)
        if 0 <= output + layer.cut - position * layer.stride < kernel
    }


def test_receptive_field_of_higgs_is_ten_frames() -> None:
    assert receptive_field(HIGGS) == (10, 10)


@pytest.mark.parametrize("ratios", [(2, 3), (3, 2), (4,), (8, 5, 4, 2, 3)])
def test_receptive_field_equals_brute_force(ratios: tuple[int, ...]) -> None:
    layers = architecture(ratios)
    hop = layers[-1].rate
    wanted = {0, hop - 1}
    for layer in reversed(layers):
        reads = [inputs_of(layer, position) for position in wanted]
        wanted = {min(map(min, reads)), max(map(max, reads))}
    assert receptive_field(layers) == (-min(wanted), max(wanted))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 6), st.integers(1, 4), st.integers(0, 6))
def test_plan_covers_exactly_needed_inputs(left: int, new: int, lookahead: int) -> None:
    """Each step's range must contain the inputs that its outputs read, and no others."""
    frames, hop = left + new + lookahead, SMALL[-1].rate
    result = plan(SMALL, left, new, lookahead)
    lo, hi = left * hop, (left + new) * hop
    for layer, step in zip(reversed(SMALL), reversed(result.steps), strict=True):
        assert step.length == hi - lo
        reads = set().union(*(inputs_of(layer, output) for output in range(lo, hi)))
        inside = {position for position in reads if 0 <= position < frames * layer.rate}
        assert len(reads) > len(inside) or step.pad_left == step.pad_right == 0
        want_lo, want_hi = min(reads), max(reads) + 1
        if layer.stride == 1:
            assert step.skip == lo - min(inside)
        else:
            # Outputs come in strides, so there may be one input before the first one that is read.
            first = (lo + layer.cut) // layer.stride - 1
            assert want_lo - first in (0, 1)
            assert step.skip == lo + layer.cut - (first + 1) * layer.stride
            want_lo = first
        lo, hi = want_lo + step.pad_left, want_hi - step.pad_right
        assert lo == max(0, want_lo)
        assert hi == min(frames * layer.rate, want_hi)
    assert (result.first_frame, result.end_frame) == (lo, hi)


def test_plan_of_whole_sequence_computes_each_position_once() -> None:
    result = plan(HIGGS, 0, 7, 0)
    rates = [layer.rate * layer.stride for layer in HIGGS]
    assert [step.length for step in result.steps] == [7 * rate for rate in rates]
    assert (result.first_frame, result.end_frame) == (0, 7)


def test_plan_skips_context_beyond_receptive_field() -> None:
    narrow, far = plan(HIGGS, 10, 5, 10), plan(HIGGS, 30, 5, 25)
    assert far.steps == narrow.steps
    assert (far.first_frame, far.end_frame) == (20, 45)


def multiplications(left: int, new: int, lookahead: int, width: int = 1024) -> int:
    """Count those of the full-size decoder: channels in x out x taps x outputs, over all layers."""
    total, channels = 0, width
    for index, step in enumerate(plan(HIGGS, left, new, lookahead).steps):
        layer = HIGGS[index]
        if index == 0:
            total += 256 * channels * 7 * step.length
        elif layer.stride > 1:
            channels //= 2
            total += 2 * channels * channels * 2 * step.length
        elif index < len(HIGGS) - 1:
            total += channels * channels * (7 + 1) * step.length
        else:
            total += channels * 7 * step.length
    return total


@pytest.mark.parametrize(
    ("new", "lookahead", "most"), [(5, 2, 1.45), (5, 4, 1.52), (10, 4, 1.26), (25, 4, 1.11)]
)
def test_plan_of_chunk_costs_little_more_than_new_frames(
    new: int, lookahead: int, most: float
) -> None:
    once = multiplications(0, 100, 0) / 100
    assert multiplications(10, new, lookahead) / new / once < most


def test_architecture_has_declared_dilations() -> None:
    assert [layer.left // 3 for layer in HIGGS[2:5]] == list(DILATIONS)
