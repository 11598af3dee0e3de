from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.delay import DelayReverter, RowLayout, WholeRows, apply_delay
from streaming.spec import UNKNOWN, CodecSpec, Codes

SIZE, BOC, EOC = 16, 16, 17


def oracle(rows: list[list[int]], num_codebooks: int) -> tuple[list[list[int]], bool]:
    """Frames by definition, one code at a time, and whether the next one has a special code."""
    frames = []
    t = 0
    while True:
        codes = [rows[t + k][k] for k in range(num_codebooks) if t + k < len(rows)]
        if any(code >= SIZE for code in codes):
            return frames, True
        if len(codes) < num_codebooks:
            return frames, False
        frames.append(codes)
        t += 1


def codes(values: object) -> Codes:
    return np.array(values, np.int16)


@st.composite
def row_streams(draw: st.DrawFn) -> tuple[int, Codes, list[int]]:
    """K, rows with few special codes, and the positions at which pushes split them."""
    num_codebooks = draw(st.integers(1, 5))
    total = draw(st.integers(0, 24))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.integers(0, SIZE, (total, num_codebooks)).astype(np.int16)
    rows[rng.random(rows.shape) < draw(st.sampled_from([0.0, 0.02, 0.2]))] = EOC
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
    return num_codebooks, rows, cuts


@given(row_streams())
def test_delay_reverter_gives_same_frames_for_any_split(case: tuple[int, Codes, list[int]]) -> None:
    num_codebooks, rows, cuts = case
    frames, ended = oracle(rows.tolist(), num_codebooks)
    split, single = (DelayReverter(num_codebooks, SIZE) for _ in range(2))
    parts = [split.push_rows(part) for part in np.split(rows, cuts)]
    assert np.concatenate(parts).tolist() == frames
    assert split.ended is ended
    one_by_one = [frame for row in rows for frame in single.push_rows(row[np.newaxis])]
    assert [frame.tolist() for frame in one_by_one] == frames
    assert single.ended is ended


@given(row_streams(), st.integers(0, 4))
def test_delay_reverter_does_not_wait_for_inert_codebooks(
    case: tuple[int, Codes, list[int]], inert: int
) -> None:
    """The frames are those of the other codebooks alone, padded with zeros."""
    num_codebooks, rows, cuts = case
    inert = min(inert, num_codebooks - 1)
    heard = num_codebooks - inert
    frames, ended = oracle(rows[:, :heard].tolist(), heard)
    reverter = DelayReverter(num_codebooks, SIZE, inert)
    parts = [reverter.push_rows(part) for part in np.split(rows, cuts)]
    assert np.concatenate(parts).tolist() == [frame + [0] * inert for frame in frames]
    assert reverter.ended is ended


@given(row_streams(), st.integers(0, 4), st.integers(0, 6))
def test_incomplete_frames_have_known_codes_of_next_frames(
    case: tuple[int, Codes, list[int]], inert: int, most: int
) -> None:
    num_codebooks, rows, cuts = case
    inert = min(inert, num_codebooks - 1)
    heard = num_codebooks - inert
    reverter = DelayReverter(num_codebooks, SIZE, inert)
    for start, end in pairwise((0, *cuts, len(rows))):
        reverter.push_rows(rows[start:end])
        done, ended = oracle(rows[:end, :heard].tolist(), heard)
        wanted = []
        for at in range(len(done), end):
            if ended or len(wanted) == most:
                break
            known = [int(rows[at + k, k]) for k in range(heard) if at + k < end]
            if max(known) >= SIZE:
                break
            wanted.append(known + [UNKNOWN] * (heard - len(known)) + [0] * inert)
        assert reverter.incomplete(most).tolist() == wanted
        assert reverter.incomplete(most).shape[1] == num_codebooks


@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_apply_delay_and_delay_reverter_round_trip(k: int, total: int, seed: int) -> None:
    frames = np.random.default_rng(seed).integers(0, SIZE, (total, k)).astype(np.int16)
    rows = apply_delay(frames, BOC, EOC)
    assert rows.shape == (total + k - 1, k)
    assert int((rows == BOC).sum()) == int((rows == EOC).sum()) == k * (k - 1) // 2
    reverter = DelayReverter(k, SIZE)
    assert np.array_equal(reverter.push_rows(rows), frames)
    assert reverter.ended is (k > 1)


def test_apply_delay_matches_drawing_in_docstring() -> None:
    frames = codes([[10 * t % SIZE + k for k in range(4)] for t in range(3)])
    assert apply_delay(frames, BOC, EOC).T.tolist() == [
        [0, 10, 4, EOC, EOC, EOC],
        [BOC, 1, 11, 5, EOC, EOC],
        [BOC, BOC, 2, 12, 6, EOC],
        [BOC, BOC, BOC, 3, 13, 7],
    ]


def test_delay_reverter_ends_with_last_frame_and_ignores_later_rows() -> None:
    reverter = DelayReverter(3, SIZE)
    rows = apply_delay(codes([[1, 2, 3], [4, 5, 6]]), BOC, EOC)
    assert [len(reverter.push_rows(row[np.newaxis])) for row in rows] == [0, 0, 1, 1]
    assert reverter.ended
    assert not len(reverter.push_rows(codes([[7, 8, 9]])))
    assert reverter.push_rows(codes([[7, 8, 9]] * 5)).shape == (0, 3)


def test_delay_reverter_drops_partial_frame_at_end() -> None:
    reverter = DelayReverter(3, SIZE)
    rows = codes([[1, BOC, BOC], [2, 3, BOC], [4, 5, 6], [EOC, EOC, 7], [EOC, EOC, EOC]])
    # Row 3 ends codebooks 0 and 1, so frame 2 is partial; frame 1 is still whole.
    assert reverter.push_rows(rows).tolist() == [[1, 3, 6], [2, 5, 7]]
    assert reverter.ended


def test_delay_reverter_accepts_largest_code() -> None:
    reverter = DelayReverter(1, SIZE)
    assert reverter.push_rows(codes([[0], [SIZE - 1], [SIZE], [3]])).tolist() == [[0], [SIZE - 1]]
    assert reverter.ended


def test_frames_do_not_share_memory_with_rows() -> None:
    rows = codes([[1, 2], [3, 4], [5, 6]])
    reverter = DelayReverter(2, SIZE)
    frames = reverter.push_rows(rows[:2])
    rows[:] = 0
    assert frames.tolist() == [[1, 4]]
    assert reverter.push_rows(codes([[7, 8]])).tolist() == [[3, 8]]


@pytest.mark.parametrize(
    "bad",
    [
        codes([1, 2, 3]),
        codes([[1, 2]]),
        codes([[1, 2, -1]]),
        np.zeros((1, 3), np.int64),
        np.zeros((1, 1, 3), np.int16),
        np.zeros((2, 0), np.int16),
    ],
)
def test_delay_reverter_refuses_wrong_rows_without_effect(bad: Codes) -> None:
    reverter = DelayReverter(3, SIZE)
    reverter.push_rows(codes([[1, 0, 0], [2, 3, 0]]))
    with pytest.raises(ValueError):
        reverter.push_rows(bad)
    assert reverter.push_rows(codes([[4, 5, 6]])).tolist() == [[1, 3, 6]]


def test_delay_refuses_wrong_arguments() -> None:
    with pytest.raises(ValueError):
        DelayReverter(0, SIZE)
    for inert in (-1, 3):
        with pytest.raises(ValueError, match="audible"):
            DelayReverter(3, SIZE, inert)
    with pytest.raises(ValueError):
        DelayReverter(3, SIZE).push_rows(codes([1, 2, 3]))
    with pytest.raises(ValueError):
        apply_delay(codes([[1, -2]]), BOC, EOC)
    with pytest.raises(ValueError):
        apply_delay(np.zeros((0, 2), np.int16), BOC, EOC)


@settings(max_examples=20)
@given(st.integers(0, 40))
def test_delay_reverter_keeps_fewer_rows_than_codebooks(pushes: int) -> None:
    reverter = DelayReverter(4, SIZE)
    for _ in range(pushes):
        reverter.push_rows(codes([[1, 2, 3, 4]]))
    assert len(reverter._tail) == min(pushes, 3)


FISH = CodecSpec(44_100, 2048, (40, 10, 10), 1, 0)


def test_whole_rows_are_frames_up_to_special_code() -> None:
    rows = codes([[39, 9, 9], [0, 0, 0], [12, 9, 10], [1, 1, 1]])
    reader = WholeRows(FISH.codebook_sizes)
    assert reader.push_rows(rows[:2]).tolist() == rows[:2].tolist()
    assert not reader.ended
    assert reader.incomplete(3).shape == (0, 3)
    assert reader.push_rows(rows[2:]).shape == (0, 3)
    assert reader.ended
    assert reader.push_rows(rows[:1]).shape == (0, 3), "nothing follows the end"


def test_whole_rows_end_at_size_of_first_codebook() -> None:
    reader = WholeRows(FISH.codebook_sizes)
    assert reader.push_rows(codes([[11, 1, 1], [40, 1, 1]])).tolist() == [[11, 1, 1]]
    assert reader.ended


@pytest.mark.parametrize("bad", [[[1, 2]], [[1, 2, -1]]])
def test_whole_rows_refuse_invalid_row(bad: list[list[int]]) -> None:
    with pytest.raises(ValueError):
        WholeRows(FISH.codebook_sizes).push_rows(codes(bad))


def test_row_layout_round_trips() -> None:
    frames = codes([[1, 2, 3], [4, 5, 6]])
    delayed = CodecSpec(24_000, 960, (SIZE,) * 3, 1, 1)
    for layout, spec, delay in ((RowLayout.DELAYED, delayed, 2), (RowLayout.WHOLE, FISH, 0)):
        rows = layout.rows(frames, spec)
        assert len(rows) == len(frames) + delay
        assert layout.delay_rows(spec) == delay
        assert layout.reader(spec).push_rows(rows).tolist() == frames.tolist()
        with pytest.raises(ValueError):
            layout.rows(frames[:0], spec)
    with pytest.raises(ValueError, match="differ in size"):
        RowLayout.DELAYED.reader(FISH)
