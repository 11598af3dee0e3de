"""``WordPath``: the path has the lowest cost, and settled parts do not change."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.word_timing import WordPath

BEGINS = [0, 4, 6, 11, 12]
TOTAL = 16
places = st.lists(st.floats(-3, TOTAL + 4) | st.just(float("nan")), min_size=1, max_size=14)


def misfit(word: int, place: float) -> float:
    """Cost of a position: zero within the word, bounded far outside."""
    low = BEGINS[word] if word else -np.inf
    high = BEGINS[word + 1] - 0.05 if word + 1 < len(BEGINS) else np.inf
    if np.isnan(place) or low <= place <= high:
        return 0.0
    return float(min(5.0, min(abs(place - low), abs(place - high)) ** 2 / 2))


def cheapest(frames: list[float], ends: list[int] | None = None) -> float:
    """The cost of the best path, by recursion over its definition."""

    @lru_cache
    def best(frame: int, word: int) -> float:
        here = misfit(word, frames[frame])
        if frame == 0:
            return here + word if word < 3 else np.inf
        before = (
            best(frame - 1, word - step) + max(0, step - 1) for step in range(4) if word - step >= 0
        )
        return here + min(before)

    words = range(len(BEGINS)) if ends is None else ends
    return min(best(len(frames) - 1, word) for word in words)


def cost(frames: list[float], entered: list[int]) -> float:
    """Cost of a path that enters this number of words in each frame."""
    passed = sum(max(0, count - 1) for count in entered)
    words = np.cumsum(entered) - 1
    return passed + sum(misfit(w, p) for w, p in zip(words.tolist(), frames, strict=True))


@given(places)
def test_path_has_lowest_cost(frames: list[float]) -> None:
    path, stepwise = WordPath(BEGINS), WordPath(BEGINS)
    for place in frames:
        path.push(place)
        stepwise.push(place)
    begins = path.settle(len(frames))
    assert begins == sorted(begins)
    assert begins[0] == 0
    # settling one frame at a time shows which words each frame enters
    settled = [stepwise.settle(count) for count in range(1, len(frames) + 1)]
    assert [begin for part in settled for begin in part] == begins
    assert all(frame - 1 <= b <= frame for frame, part in enumerate(settled) for b in part)
    assert cost(frames, list(map(len, settled))) == pytest.approx(cheapest(frames), abs=1e-6)


@given(places)
def test_path_with_known_end_reaches_last_word(frames: list[float]) -> None:
    path = WordPath(BEGINS)
    for place in frames:
        path.push(place)
    begins = path.settle(len(frames), at_end=True)
    if np.isfinite(cheapest(frames, [len(BEGINS) - 1])):
        assert len(begins) == len(BEGINS)
    else:  # there are too few frames for so many words
        assert len(begins) <= 3 * len(frames)


@given(places, st.lists(st.integers(0, 4), min_size=14, max_size=14))
def test_settled_path_stays_in_order(frames: list[float], lags: list[int]) -> None:
    path, begins = WordPath(BEGINS), list[float]()
    for count, (place, lag) in enumerate(zip(frames, lags, strict=False), 1):
        path.push(place)
        begins += path.settle(count - lag)
        assert begins == sorted(begins)
        assert len(begins) <= len(BEGINS)
    begins += path.settle(len(frames), at_end=True)
    assert begins == sorted(begins)
    assert path.frames == len(frames)
    assert path.settle(len(frames)) == []


def test_settled_word_is_not_entered_again() -> None:
    """From the later frames alone, the second word would begin only with the last one."""
    path = WordPath([0, 10, 20])
    for place in (0.0, 11.0):
        path.push(place)
    begins = path.settle(2)
    assert len(begins) == 2
    for place in (5.0, 5.0, 5.0, 12.0):
        path.push(place)
    assert path.settle(6, at_end=False) == []


def test_position_at_first_character_belongs_to_its_word() -> None:
    path = WordPath([0, 2, 4])
    for place in (0.0, 0.0, 2.0, 2.0):
        path.push(place)
    assert path.settle(4) == [0.0, 2.0]


def test_path_goes_on_after_all_frames_are_settled() -> None:
    """A talker whose rows are sent one by one gets the same times."""
    path, begins = WordPath([0, 10]), list[float]()
    for count, place in enumerate((6.0, 9.0, 13.0, 14.0), 1):
        path.push(place)
        begins += path.settle(count)
    assert begins == [0.0, 1.25]


@pytest.mark.parametrize(
    ("places", "begin"),
    [
        ((6.0, 9.0, 13.0, 14.0), 1.25),
        ((6.0, float("nan"), 13.0, 14.0), 1.0),  # nothing to interpolate from
        ((11.0, 10.5, 10.5, 10.5, 10.5), 1.0),  # the talker does not move on
        ((6.0, 9.9, 9.8, 13.0, 14.0), 2.0625),
    ],
)
def test_word_begin_is_interpolated_between_frames(places: tuple[float, ...], begin: float) -> None:
    path = WordPath([0, 10])
    for place in places:
        path.push(place)
    assert path.settle(len(places)) == [0.0, pytest.approx(begin)]
