"""Stateful decoders in graphs, replayed on the CPU: equality with decoding without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from codec.batching import BatchLimits, cut
from codec.buckets import Bucket
from codec.families.fish.config import decoder_shapes as fish_shapes
from codec.families.fish.decoder import FishDecoder
from codec.families.qwen3_tts.config import decoder_shapes as qwen3_tts_shapes
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.family import CodesError, StatefulDecoder
from codec.stream_decoder import StreamDecoder
from codec.stream_graphs import StreamGraphDecoder, stream_graphed
from codec.warmup import grouping_of, measure_cost
from streaming.spec import Codes, Samples
from streaming.window import DecodeWindow, SlidingWindowChunker
from tests.codec import fish_checkpoint, qwen3_tts_checkpoint
from tests.codec.fake_graphs import FakeRecorder

#: Largest difference of samples within [-1, 1] that another order of float32 sums may cause.
ROUNDING = 1e-5
LIMITS = BatchLimits(rows=4, piece_frames=13)


def fish() -> StreamDecoder:
    tensors = fish_checkpoint.random_tensors(fish_shapes(fish_checkpoint.TINY))
    return FishDecoder(fish_checkpoint.TINY, tensors)


def qwen3_tts() -> StreamDecoder:
    tensors = qwen3_tts_checkpoint.random_tensors(qwen3_tts_shapes(qwen3_tts_checkpoint.TINY))
    return Qwen3TTSDecoder(qwen3_tts_checkpoint.TINY, tensors)


@dataclass
class Pair:
    """A decoder without graphs, and another one of the same codec with graphs."""

    plain: StreamDecoder
    inner: StreamDecoder
    graphs: StreamGraphDecoder
    recorder: FakeRecorder


@pytest.fixture(scope="module", params=[fish, qwen3_tts])
def both(request: pytest.FixtureRequest) -> Pair:
    inner, recorder = request.param(), FakeRecorder()
    graphs = stream_graphed(inner, LIMITS, recorder)
    assert isinstance(graphs, StreamGraphDecoder)
    return Pair(request.param(), inner, graphs, recorder)


@pytest.fixture
def pair(both: Pair) -> Pair:
    both.plain.cache.clear()
    both.inner.cache.clear()
    return both


def random_codes(decoder: StreamDecoder | StreamGraphDecoder, frames: int, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    sizes = decoder.spec.codebook_sizes
    return np.stack([rng.integers(0, size, frames) for size in sizes]).astype(np.int16)


def windows_of(
    decoder: StreamDecoder | StreamGraphDecoder, codes: Codes, sizes: list[int], clip: int = 0
) -> list[DecodeWindow]:
    """Cut codes into windows of these sizes in turn, the first ``clip`` frames being context."""
    spec = decoder.spec
    chunker = SlidingWindowChunker(spec.left_frames, spec.history_frames)
    if clip:
        chunker.continue_from(codes.T[:clip])
    chunker.push(np.ascontiguousarray(codes.T[clip:]))
    chunker.finish()
    windows = []
    while chunker.pending:
        size = sizes[len(windows) % len(sizes)]
        windows.append(chunker.take(min(size, chunker.pending), 0))
    return windows


def error(one: Samples, other: Samples) -> float:
    assert one.shape == other.shape
    return float(np.abs(one - other).max())


@pytest.mark.parametrize("sizes", [[1], [5, 7, 2, 1, 11], [13], [1, 2, 3, 4, 6, 9, 13], [16, 3]])
def test_streamed_in_graphs_equals_whole(pair: Pair, sizes: list[int]) -> None:
    """In lengths of buckets and between them; 16 frames are more than every bucket has."""
    codes = random_codes(pair.plain, 70)
    windows = windows_of(pair.graphs, codes, sizes)
    streamed = np.concatenate([pair.graphs.decode_windows([one])[0] for one in windows])
    assert error(streamed, pair.plain.decode([codes])[0]) < ROUNDING
    assert pair.inner.cache.misses == pair.plain.cache.misses, "every state was found"
    assert len(pair.inner.cache) == 0


def test_streams_of_batch_equal_whole_and_keep_exact_states(pair: Pair) -> None:
    """Streams of other lengths, positions and chunk sizes share a batch; one loses its state, one
    continues a clip. Their samples are whole ones, and their states those without graphs.
    """
    clips = (0, 0, 0, 4, 25)
    streams = [random_codes(pair.plain, 40 + 7 * seed, seed) for seed in range(5)]
    sizes = [[3, 4], [4, 13, 1], [2, 9], [7], [13, 12, 11]]
    queues = [
        windows_of(pair.graphs, codes, size, clip)
        for codes, size, clip in zip(streams, sizes, clips, strict=True)
    ]
    parts: list[list[Samples]] = [[] for _ in streams]
    turn = 0
    while any(queues):
        due = [at for at, queue in enumerate(queues) if queue and turn >= at]
        batch = [queues[at].pop(0) for at in due]
        for at, samples in zip(due, pair.graphs.decode_windows(batch), strict=True):
            parts[at].append(samples)
        pair.plain.decode_windows(batch)
        assert len(pair.inner.cache) == len(pair.plain.cache) > 0 or not any(queues)
        for key, state in pair.inner.cache.items():
            plain = pair.plain.cache[key]
            assert (state.position, state.known) == (plain.position, plain.known)
            for one, other in zip(state.tensors, plain.tensors, strict=True):
                assert one.shape == other.shape
                assert torch.allclose(one, other, rtol=1e-4, atol=ROUNDING)
        if turn == 3:
            pair.inner.cache.popitem()
        turn += 1
    for codes, clip, made in zip(streams, clips, parts, strict=True):
        whole = pair.plain.decode([codes])[0][clip * pair.plain.spec.hop_length :]
        assert error(np.concatenate(made), whole) < ROUNDING


def test_padding_has_no_effect(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in frames after a window's own, in a row without a window, and in its state."""
    streams = [
        windows_of(pair.graphs, random_codes(pair.plain, 38, seed), [10, 11, 12, 5])
        for seed in range(3)
    ]
    batches = list(zip(*streams, strict=True))
    exact = [pair.graphs.decode_windows(batch) for batch in batches]
    pair.inner.cache.clear()
    play = pair.graphs._graphs.play

    def fill_and_play(bucket: Bucket, gather: Callable[[], None], scatter: object) -> object:
        assert bucket.rows == 4
        rows = pair.graphs._graphs.inputs(bucket).numpy()
        codes = rows[:, :-3].reshape(4, pair.graphs.spec.num_codebooks, -1)
        codes[:3, :, int(rows[0, -1]) :] = 11
        codes[3] = 7

        def gather_and_fill() -> None:
            gather()
            for state in pair.graphs._states:
                state[3] = 1e3

        return play(bucket, gather_and_fill, scatter)  # type: ignore[arg-type]

    monkeypatch.setattr(pair.graphs._graphs, "play", fill_and_play)
    for batch, samples in zip(batches, exact, strict=True):
        assert np.array_equal(pair.graphs.decode_windows(batch), samples)


def test_all_graphs_are_captured_at_start_and_batch_waits_once(pair: Pair) -> None:
    assert pair.recorder.captured == len(pair.graphs.buckets.all()) == 2 * 7 * 3
    waits = pair.recorder.waits
    windows = [
        windows_of(pair.graphs, random_codes(pair.plain, 30, seed), [9, 8, 7])[1:]
        for seed in range(3)
    ]
    for batch in zip(*windows, strict=True):
        for window in batch:
            list(pair.graphs.catch_up(window))
        pair.graphs.decode_windows(batch)
    assert pair.recorder.waits == waits + 3, "8 frames; 7 frames; the last 6"
    assert pair.recorder.log[-1] == 5, "codes in, states in, replay, states out, samples out"
    assert pair.recorder.captured == len(pair.graphs.buckets.all())


def test_only_beginnings_of_streams_have_masks(pair: Pair) -> None:
    """The number of operations determines the time of a small batch on a GPU."""
    lengths = dict(zip(pair.graphs.buckets.all(), pair.recorder.lengths, strict=True))
    for bucket, length in lengths.items():
        if bucket.interior:
            assert length < lengths[replace(bucket, interior=False)] - 50
    windows = windows_of(pair.graphs, random_codes(pair.plain, 40), [4])
    needed = pair.graphs.spec.left_frames
    assert [pair.graphs.buckets.is_interior(window) for window in windows] == [
        window.first_frame >= needed for window in windows
    ]


def test_worker_sees_stateful_decoder_with_buckets(pair: Pair) -> None:
    assert isinstance(pair.graphs, StatefulDecoder)
    assert grouping_of(pair.graphs) is pair.graphs.buckets
    codes = random_codes(pair.plain, 60)
    window = windows_of(pair.graphs, codes, [30, 30])[1]
    whole = pair.plain.decode([codes])[0][30 * pair.plain.spec.hop_length :]
    limits = replace(LIMITS, piece_frames=9)
    pieces = list(cut(window, limits.piece_frames, pair.graphs.spec))
    assert [pair.graphs.buckets.is_interior(piece) for piece in pieces] == [True] * 4
    parts = [pair.graphs.decode_windows([piece])[0] for piece in pieces]
    assert error(np.concatenate(parts), whole) < ROUNDING
    bad = replace(window, codes=window.codes[::-1].copy() + np.int16(3000))
    with pytest.raises(CodesError):
        pair.graphs.decode_windows([window, bad])
    assert pair.graphs.decode_windows([]) == []


def test_measured_cost_is_that_of_streams_that_go_on(pair: Pair) -> None:
    """Not of those that have lost their state, which the worker does not time either."""
    rebuild, during = pair.inner._rebuild, []

    def note(*args: Any) -> Any:
        during.append(clock.is_running)
        return rebuild(*args)

    class Clock:
        """Whether a timing is running: it is read before and after each."""

        is_running = False

        def monotonic(self) -> float:
            self.is_running = not self.is_running
            return 0.0

    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.inner, "_rebuild", note)
        patch.setattr("codec.warmup.time", clock)
        measure_cost(pair.graphs, grouping_of(pair.graphs), LIMITS)
    assert during
    assert True not in during


def test_lookahead_has_no_effect(pair: Pair) -> None:
    codes = random_codes(pair.plain, 30)
    window = windows_of(pair.graphs, codes, [24, 4])[1]
    exact = pair.plain.decode_windows([window])[0]
    wider = DecodeWindow(codes[:, 14:], 10, 4, 2, 24, False, codes[:, :14])
    assert error(pair.graphs.decode_windows([wider])[0], exact) < ROUNDING


@pytest.mark.parametrize("fail_at", [0, 3])
def test_decoder_stays_as_it_is_if_capture_fails(
    caplog: pytest.LogCaptureFixture, fail_at: int
) -> None:
    decoder = fish()
    assert stream_graphed(decoder, LIMITS, FakeRecorder(fail_at)) is decoder
    assert "out of memory" in caplog.text
