from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.spec import UNKNOWN, Codes
from streaming.window import DecodeWindow, SlidingWindowChunker

HOP = 3


class FieldDecoder:
    """A decoder whose samples depend on exactly ``field`` frames on either side.

    Sample j of frame t is a weighted sum over frames t - field .. t + field, with zeros
    beyond the edges, like a convolution with padding. All numbers are integers, so that
    results can be compared exactly.
    """

    def __init__(self, field: int) -> None:
        self._field = field

    def decode(self, codes: Codes) -> npt.NDArray[np.float32]:
        """``[K, T]`` -> ``[T * HOP]``."""
        frame = (codes * (1 + np.arange(len(codes)))[:, np.newaxis]).sum(axis=0) + 1.0
        padded = np.pad(frame, self._field)
        around = np.lib.stride_tricks.sliding_window_view(padded, 2 * self._field + 1)
        weights = np.arange(1, 2 * self._field + 2)[:, np.newaxis] * np.arange(1, HOP + 1)
        return (around @ weights).astype(np.float32).reshape(-1)


def frames_of(total: int, seed: int = 0) -> Codes:
    return np.random.default_rng(seed).integers(0, 50, (total, 2)).astype(np.int16)


def stream(
    frames: Codes, left: int, lookahead: int, rng: Random, history: int = 0
) -> list[DecodeWindow]:
    """Split ``frames`` into windows by random pushes and takes."""
    chunker = SlidingWindowChunker(left, history)
    windows: list[DecodeWindow] = []
    pushed = 0
    while not (chunker.finished and chunker.pending == 0):
        if not chunker.finished and rng.random() < 0.5:
            count = rng.randint(1, 9)
            chunker.push(frames[pushed : pushed + count])
            pushed += count
            if pushed >= len(frames):
                chunker.finish()
        most = chunker.pending - (0 if chunker.finished else lookahead)
        if most > 0:
            windows.append(chunker.take(rng.randint(1, most), lookahead))
    return windows


def test_incomplete_frames_follow_pending_frames() -> None:
    chunker, frames = SlidingWindowChunker(2), frames_of(8)
    chunker.push(frames[:6])
    begun = frames[6:].copy()
    begun[:, 1] = UNKNOWN
    with pytest.raises(ValueError, match="between"):
        chunker.take(3, 1, begun)
    first = chunker.take(3, 3, begun)
    assert (first.left_context, first.new_frames, first.lookahead) == (0, 3, 5)
    assert np.array_equal(first.codes.T, np.concatenate([frames[:6], begun]))
    chunker.push(frames[6:])
    assert np.array_equal(chunker.take(2, 3).codes.T, frames[1:8]), "they come again, complete"


@given(
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_streamed_audio_equals_one_shot(
    field: int, more_left: int, more_right: int, total: int, rng: Random
) -> None:
    frames, decoder = frames_of(total), FieldDecoder(field)
    windows = stream(frames, field + more_left, field + more_right, rng)
    streamed = np.concatenate([window.trim(decoder.decode(window.codes)) for window in windows])
    assert np.array_equal(streamed, decoder.decode(np.ascontiguousarray(frames.T)))
    assert [window.is_last for window in windows] == [False] * (len(windows) - 1) + [True]
    starts = np.cumsum([0, *(window.new_frames for window in windows)])
    assert [window.first_frame for window in windows] == starts[:-1].tolist()


@given(st.integers(0, 3), st.integers(0, 12), st.integers(1, 60), st.randoms(use_true_random=False))
def test_chunker_keeps_history_before_left_context(
    left: int, history: int, total: int, rng: Random
) -> None:
    frames = frames_of(total)
    for window in stream(frames, left, 0, rng, history):
        before = frames[: window.first_frame]
        kept = np.empty((2, 0), np.int16) if window.history is None else window.history
        assert window.left_context == min(left, len(before))
        assert kept.shape[1] == min(history, len(before) - window.left_context)
        given = np.concatenate([kept, window.codes], axis=1)
        first = window.first_frame - window.left_context - kept.shape[1]
        assert np.array_equal(given, frames[first : window.first_frame + window.new_frames].T)


@given(
    st.integers(0, 5), st.integers(0, 12), st.integers(1, 20), st.integers(1, 40),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_stream_that_continues_clip_equals_rest_of_both(
    left: int, history: int, before: int, total: int, rng: Random
) -> None:
    frames = frames_of(before + total)
    windows = list[DecodeWindow]()
    chunker = SlidingWindowChunker(left, history)
    chunker.continue_from(frames[:before])
    assert (chunker.pending, chunker.emitted) == (0, 0)
    chunker.push(frames[before:])
    chunker.finish()
    while chunker.pending:
        windows.append(chunker.take(rng.randint(1, chunker.pending), 0))
    assert [window.is_first for window in windows] == [True] + [False] * (len(windows) - 1)
    assert windows[0].first_frame == before
    for window in windows:
        kept = np.empty((2, 0), np.int16) if window.history is None else window.history
        given = np.concatenate([kept, window.codes], axis=1)
        end = window.first_frame + window.new_frames
        assert np.array_equal(given, frames[end - given.shape[1] : end].T)
        assert given.shape[1] - window.new_frames == min(left + history, window.first_frame)
    assert sum(window.new_frames for window in windows) == total
    with pytest.raises(RuntimeError):
        chunker.continue_from(frames)


@pytest.mark.parametrize(
    "history",
    [
        np.zeros((2, 3), np.int16),
        np.zeros((3, 1), np.int16),
        np.zeros((2, 1), np.int64),
        np.zeros(2, np.int16),
    ],
)
def test_window_refuses_mismatched_history(history: Codes) -> None:
    codes = np.zeros((2, 4), np.int16)
    with pytest.raises(ValueError, match=r"history|more frames"):
        DecodeWindow(codes, 2, 2, 0, first_frame=4, history=history)


@pytest.mark.parametrize(("left", "lookahead"), [(1, 2), (2, 1)])
def test_context_below_receptive_field_changes_audio(left: int, lookahead: int) -> None:
    """The comparison with one-shot audio fails with one frame less on either side."""
    frames, decoder = frames_of(12), FieldDecoder(2)
    chunker = SlidingWindowChunker(left)
    chunker.push(frames)
    chunker.finish()
    windows = [chunker.take(4, lookahead) for _ in range(3)]
    streamed = np.concatenate([window.trim(decoder.decode(window.codes)) for window in windows])
    assert not np.array_equal(streamed, decoder.decode(np.ascontiguousarray(frames.T)))


def test_lookahead_is_shortened_only_at_end() -> None:
    chunker = SlidingWindowChunker(2)
    chunker.push(frames_of(6))
    with pytest.raises(ValueError, match="4 \\+ 3 frames requested, 6 pending"):
        chunker.take(4, 3)
    first = chunker.take(3, 3)
    assert (first.left_context, first.lookahead, first.is_last) == (0, 3, False)
    with pytest.raises(ValueError):
        chunker.take(1, 3)
    chunker.finish()
    second = chunker.take(1, 3)
    assert (second.left_context, second.lookahead, second.is_last) == (2, 2, False)
    third = chunker.take(2, 3)
    assert (third.lookahead, third.is_last) == (0, True)
    assert (chunker.pending, chunker.emitted) == (0, 6)
    with pytest.raises(ValueError):
        chunker.take(1, 0)


def test_window_is_unchanged_by_later_pushes() -> None:
    chunker = SlidingWindowChunker(1)
    frames = frames_of(8)
    chunker.push(frames[:4])
    window = chunker.take(2, 2)
    before = window.codes.copy()
    frames[:] = 0
    chunker.push(frames[4:])
    chunker.take(4, 1)
    assert np.array_equal(window.codes, before)
    assert window.codes.flags.c_contiguous


def test_chunker_keeps_only_context_and_pending_frames() -> None:
    chunker = SlidingWindowChunker(10)
    for seed in range(50):
        chunker.push(frames_of(7, seed))
        chunker.take(chunker.pending - 2, 2)
        held = chunker._frames
        assert held is not None
        assert held.base is None
        assert len(held) <= 10 + 2


def test_chunker_refuses_misuse() -> None:
    with pytest.raises(ValueError):
        SlidingWindowChunker(-1)
    chunker = SlidingWindowChunker(3)
    with pytest.raises(ValueError):
        chunker.take(1, 0)
    with pytest.raises(ValueError):
        chunker.push(frames_of(3)[0])
    with pytest.raises(ValueError):
        chunker.push(frames_of(3).astype(np.int64))
    chunker.push(frames_of(3))
    with pytest.raises(ValueError):
        chunker.push(np.zeros((1, 5), np.int16))
    for new_frames, lookahead in ((0, 1), (1, -1)):
        with pytest.raises(ValueError):
            chunker.take(new_frames, lookahead)
    chunker.finish()
    chunker.finish()
    with pytest.raises(RuntimeError):
        chunker.push(frames_of(1))
    assert chunker.pending == 3
