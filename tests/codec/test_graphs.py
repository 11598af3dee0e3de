"""Decoding with graphs, replayed on the CPU: padding and replays change no sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codec import layers
from codec.batching import BatchLimits, DeadlineQueue, DecodeCost
from codec.buckets import Bucket, Buckets
from codec.families.higgs.config import CodecConfig
from codec.families.higgs.decoder import HiggsDecoder
from codec.family import CodesError, DeviceError
from codec.graphs import GraphDecoder, choose_device, graphed, in_background, recorder_for
from codec.warmup import grouping_of, measure_cost
from streaming.spec import UNKNOWN, CodecSpec, Codes, Samples
from streaming.window import DecodeWindow
from tests.codec.fake_graphs import FakeRecorder
from tests.codec.reference_decoder import reference_decode

MakeCodes = Callable[..., np.ndarray]
LIMITS = BatchLimits(rows=3, piece_frames=9)
SPEC = CodecSpec(24_000, 960, (1024,) * 8, 10, 10)


@pytest.fixture(scope="module")
def decoder(looking_ahead: HiggsDecoder) -> HiggsDecoder:
    """A decoder with lookahead, so that all kinds of windows occur."""
    return looking_ahead


@pytest.fixture(scope="module")
def recorder() -> FakeRecorder:
    return FakeRecorder()


@pytest.fixture(scope="module")
def graphs(decoder: HiggsDecoder, recorder: FakeRecorder) -> GraphDecoder:
    made = graphed(decoder, LIMITS, recorder)
    assert isinstance(made, GraphDecoder)
    return made


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return torch.equal(torch.from_numpy(one), torch.from_numpy(other))


# Buckets


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 120))
def test_buckets_fit_every_batch_of_queue(rows: int, piece: int) -> None:
    buckets = Buckets.of(BatchLimits(rows=rows, piece_frames=piece), SPEC)
    every = buckets.all()
    assert len(set(every)) == len(every)
    assert every[0] == Bucket(piece, rows), "the largest first"
    for new in range(1, piece + 1):
        length = buckets.length(new)
        assert length is not None
        assert new <= length <= max(new + 1, 1.5 * new)
        for count in range(1, rows + 1):
            fit = buckets.fit(count, length)
            assert fit in every
            assert fit.new_frames == length
            assert count <= fit.rows < 2 * count
    assert buckets.length(piece + 1) is None
    with pytest.raises(ValueError):
        buckets.fit(rows + 1, piece)


def test_buckets_of_default_limits() -> None:
    buckets = Buckets.of(BatchLimits(), SPEC)
    assert buckets.lengths == (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 50)
    assert buckets.rows == (1, 2, 4, 8)


def test_queue_batches_lengths_of_same_bucket() -> None:
    queue = DeadlineQueue(SPEC, DecodeCost(0.0, 0.0), LIMITS, Buckets.of(LIMITS, SPEC))
    shapes = [(10, 7, 4), (3, 8, 4), (10, 6, 4), (10, 9, 0)]
    for id, shape in enumerate(shapes):
        queue.add(id, DecodeWindow(np.zeros((2, sum(shape)), np.int16), *shape), 1e9 + id, 0.0)
    batch = queue.take(0.0)
    assert [job.id for job in batch] == [0, 1, 3], "7 to 9 frames go into 9, 6 into 6"


def test_queue_counts_padding_in_batch_cost() -> None:
    limits = BatchLimits(rows=3, seconds=80.0, piece_frames=9)
    queue = DeadlineQueue(SPEC, DecodeCost(0.0, 1.0), limits, Buckets.of(limits, SPEC))
    for id in range(3):
        queue.add(id, DecodeWindow(np.zeros((2, 7), np.int16), 0, 7, 0), 1e9, 0.0)
    assert len(queue.take(0.0)) == 2, "each is padded to 9 frames and 10 on either side"


def test_lay_out_places_codes_and_stream_edges(random_codes: MakeCodes) -> None:
    windows = [DecodeWindow(random_codes(20), 14, 5, 1), DecodeWindow(random_codes(4), 0, 4, 0)]
    rows = np.full((3, 8 * (6 + 20) + 2), 77, np.int16)
    Buckets.of(LIMITS, SPEC).lay_out(windows, rows)
    codes = rows[:, :-2].reshape(3, 8, 26)
    assert rows[:, -2:].tolist() == [[0, 16], [10, 14], [0, 0]]
    assert np.array_equal(codes[0, :, :16], windows[0].codes[:, 4:]), "ten frames of context"
    assert np.array_equal(codes[1, :, 10:14], windows[1].codes)
    assert not codes[0, :, 16:].any()
    assert not codes[1, :, 14:].any()
    assert not codes[2].any()


# Equality of samples


@pytest.mark.parametrize(
    "shape",
    [(0, 1, 0), (0, 9, 10), (3, 4, 0), (10, 5, 4), (10, 7, 10), (13, 6, 12), (4, 9, 1)],
)
def test_graph_decoder_padded_window_equals_unpadded(
    graphs: GraphDecoder,
    decoder: HiggsDecoder,
    random_codes: MakeCodes,
    shape: tuple[int, int, int],
) -> None:
    window = DecodeWindow(random_codes(sum(shape)), *shape)
    assert same(graphs.decode_windows([window])[0], decoder.decode_windows([window])[0])


def test_graph_decoder_accepts_incomplete_lookahead(
    graphs: GraphDecoder, decoder: HiggsDecoder, random_codes: MakeCodes
) -> None:
    codes = random_codes(7)
    codes[2, 6], codes[3, 5:] = UNKNOWN, UNKNOWN
    windows = [DecodeWindow(codes, 0, 5, 2), DecodeWindow(random_codes(7), 0, 5, 2)]
    for window, samples in zip(windows, graphs.decode_windows(windows), strict=True):
        assert same(samples, decoder.decode_windows([window])[0])
    with pytest.raises(CodesError):
        graphs.decode_windows([DecodeWindow(codes, 0, 6, 1)])


def test_windows_of_batch_do_not_affect_each_other(
    graphs: GraphDecoder, decoder: HiggsDecoder, random_codes: MakeCodes
) -> None:
    """The remains of an earlier, larger batch in the buffers have no effect either."""
    shapes = [(10, 9, 4), (0, 3, 2), (10, 7, 10), (2, 9, 4), (10, 8, 0), (5, 1, 4), (10, 8, 4)]
    windows = [DecodeWindow(random_codes(sum(shape)), *shape) for shape in shapes]
    for chosen in (windows, windows[:1], windows[1:4], windows[::-1]):
        got = graphs.decode_windows(chosen)
        for window, samples in zip(chosen, got, strict=True):
            assert same(samples, decoder.decode_windows([window])[0])


@pytest.mark.parametrize("seed", range(3))
def test_graph_decoder_streamed_equals_whole_bit_for_bit(
    graphs: GraphDecoder,
    decoder: HiggsDecoder,
    random_codes: MakeCodes,
    windows_of: Callable,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    codes = random_codes(int(rng.integers(30, 90)))
    windows = windows_of(codes, rng.integers(1, 10, 8).tolist(), 10, 10)
    whole = decoder.decode([codes])[0]
    assert same(np.concatenate(graphs.decode_windows(windows)), whole)
    one_by_one = [graphs.decode_windows([window])[0] for window in windows]
    assert same(np.concatenate(one_by_one), whole)


def test_graphs_without_onednn_equal_reference_decoder(
    monkeypatch: pytest.MonkeyPatch,
    config: CodecConfig,
    tensors: dict,
    speech_codes: Codes,
    windows_of: Callable,
) -> None:
    """Uses the convolutions for devices other than a CPU."""
    monkeypatch.setattr("codec.layers._has_onednn", lambda weight: False)
    limits = BatchLimits(rows=2, piece_frames=6)
    graphs = graphed(HiggsDecoder(config, tensors), limits, FakeRecorder())
    assert isinstance(graphs, GraphDecoder)
    windows = windows_of(speech_codes, [1, 4, 6], 10, 10)
    streamed = np.concatenate(graphs.decode_windows(windows))
    exact = reference_decode(config, tensors, speech_codes)
    assert np.abs(exact).max() > 0.05
    assert np.abs(streamed - exact).max() < 3e-6


def test_graphs_equal_full_size_decoder(make_tensors: Callable, random_codes: MakeCodes) -> None:
    config = CodecConfig()
    wide = HiggsDecoder(config, make_tensors(config))
    graphs = graphed(wide, BatchLimits(rows=1, piece_frames=3), FakeRecorder())
    assert isinstance(graphs, GraphDecoder)
    for shape in ((10, 2, 2), (0, 3, 4)):
        window = DecodeWindow(random_codes(sum(shape)), *shape)
        assert same(graphs.decode_windows([window])[0], wide.decode_windows([window])[0])


def test_long_windows_and_whole_sequences_bypass_graphs(
    graphs: GraphDecoder, decoder: HiggsDecoder, recorder: FakeRecorder, random_codes: MakeCodes
) -> None:
    before = recorder.waits
    window = DecodeWindow(random_codes(24), 10, 10, 4)
    assert same(graphs.decode_windows([window])[0], decoder.decode_windows([window])[0])
    codes = random_codes(20)
    assert same(graphs.decode([codes])[0], decoder.decode([codes])[0])
    assert recorder.waits == before
    assert (graphs.spec, graphs.fingerprint) == (decoder.spec, decoder.fingerprint)
    assert graphs.decode_windows([]) == []


# Without masks


@pytest.fixture(scope="module")
def steady(decoder: HiggsDecoder) -> GraphDecoder:
    """A graph decoder with unmasked graphs for windows with four frames of lookahead."""
    made = graphed(decoder, BatchLimits(rows=2, piece_frames=6), FakeRecorder(), lookahead=4)
    assert isinstance(made, GraphDecoder)
    return made


def test_only_windows_away_from_stream_edges_need_no_mask(random_codes: MakeCodes) -> None:
    buckets = Buckets.of(LIMITS, SPEC, lookahead=4)
    interior = {
        shape: buckets.is_interior(DecodeWindow(random_codes(sum(shape)), *shape))
        for shape in [(10, 5, 4), (13, 5, 4), (9, 5, 4), (10, 5, 3), (10, 5, 10), (0, 5, 4)]
    }
    assert [shape for shape, is_interior in interior.items() if is_interior] == [
        (10, 5, 4),
        (13, 5, 4),
    ]
    assert len(buckets.all()) == 2 * len(Buckets.of(LIMITS, SPEC).all())
    assert Buckets.of(LIMITS, SPEC, lookahead=10).lookahead == 10, "the whole field"
    assert Buckets.of(LIMITS, SPEC, lookahead=11) == Buckets.of(LIMITS, SPEC), "out of the field"


def test_queue_separates_masked_and_unmasked_windows(random_codes: MakeCodes) -> None:
    buckets = Buckets.of(LIMITS, SPEC, lookahead=4)
    queue = DeadlineQueue(SPEC, DecodeCost(0.0, 0.0), LIMITS, buckets)
    for id, shape in enumerate([(10, 7, 4), (10, 7, 0), (10, 8, 4)]):
        queue.add(id, DecodeWindow(random_codes(sum(shape)), *shape), 1e9 + id, 0.0)
    assert [job.id for job in queue.take(0.0)] == [0, 2]


@pytest.mark.parametrize("new", range(1, 7))
def test_unmasked_window_equals_plain_decoder(
    steady: GraphDecoder, decoder: HiggsDecoder, random_codes: MakeCodes, new: int
) -> None:
    """They are also equal in a longer bucket, whose front has no codes of the stream."""
    windows = [DecodeWindow(random_codes(left + new + 4), left, new, 4) for left in (10, 14, 10)]
    for window, samples in zip(windows, steady.decode_windows(windows), strict=True):
        assert same(samples, decoder.decode_windows([window])[0])


def test_stream_over_both_kinds_of_graphs_equals_plain_decoder(
    steady: GraphDecoder, decoder: HiggsDecoder, random_codes: MakeCodes, windows_of: Callable
) -> None:
    codes = random_codes(45)
    windows = windows_of(codes, [2, 5, 6, 6, 6, 5], 10, 4)
    kinds = [steady.buckets.is_interior(window) for window in windows]
    assert True in kinds[1:-1]
    assert not kinds[0]
    assert not kinds[-1]
    for window, samples in zip(windows, steady.decode_windows(windows), strict=True):
        assert same(samples, decoder.decode_windows([window])[0])


def test_unmasked_graphs_have_fewer_operations(
    config: CodecConfig, make_tensors: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of operations determines the time of a small batch on a GPU."""
    monkeypatch.setattr(layers, "_has_onednn", lambda weight: False)  # as on a GPU
    decoder, lengths = HiggsDecoder(config, make_tensors(config)), {}
    for interior in (False, True):
        recorder = FakeRecorder()
        buckets = Buckets((1,), (4,), 10, 10, 4)
        graphs = GraphDecoder(decoder, buckets, recorder)
        lengths[interior] = recorder.lengths[buckets.all().index(Bucket(4, 1, interior))]
        assert isinstance(graphs, GraphDecoder)
    assert lengths[True] < 0.75 * lengths[False]


def test_in_background_returns_cpu_encoder_unchanged() -> None:
    class Encoder:
        def encode(self, samples: Samples) -> Codes:
            return np.zeros((8, 1), np.int16)

    encoder = Encoder()
    assert in_background(encoder, "cpu") is encoder


# Recording


def test_graph_batch_waits_for_device_once(
    graphs: GraphDecoder, recorder: FakeRecorder, random_codes: MakeCodes
) -> None:
    before = recorder.waits
    graphs.decode_windows([DecodeWindow(random_codes(14 + n), 10, n, 4) for n in (7, 8, 9)])
    assert recorder.waits == before + 1
    assert recorder.log[-1] == 3, "in, replay, out"


def test_all_graphs_are_captured_at_start(
    graphs: GraphDecoder, recorder: FakeRecorder, random_codes: MakeCodes
) -> None:
    assert recorder.captured == len(graphs.buckets.all())
    for count in (1, 2, 3):
        for new in range(1, 10):
            graphs.decode_windows([DecodeWindow(random_codes(new), 0, new, 0)] * count)
    assert recorder.captured == len(graphs.buckets.all())


@pytest.mark.parametrize("fail_at", [0, 3])
def test_graphed_returns_plain_decoder_if_capture_fails(
    decoder: HiggsDecoder, caplog: pytest.LogCaptureFixture, fail_at: int
) -> None:
    assert graphed(decoder, LIMITS, FakeRecorder(fail_at)) is decoder
    assert "out of memory" in caplog.text


def test_graph_decoder_refuses_special_codes(graphs: GraphDecoder, random_codes: MakeCodes) -> None:
    codes = random_codes(5)
    codes[3, 2] = 1024
    with pytest.raises(CodesError):
        graphs.decode_windows([DecodeWindow(codes, 0, 5, 0)])


def test_measure_cost_decodes_full_batches_with_graphs(
    graphs: GraphDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, decode_windows = [], graphs.decode_windows

    def noting(windows: Sequence[DecodeWindow]) -> list[Samples]:
        sizes.append((windows[0].new_frames, len(windows)))
        return decode_windows(windows)

    monkeypatch.setattr(graphs, "decode_windows", noting)
    cost = measure_cost(graphs, grouping_of(graphs), LIMITS)
    assert set(sizes) == {(2, 1), (25, LIMITS.rows)}
    assert cost.seconds(22) > 0
    assert grouping_of(graphs) is graphs.buckets


def test_cpu_has_no_recorder() -> None:
    assert recorder_for("cpu") is None


@pytest.mark.parametrize(("found", "chosen"), [(0, "cpu"), (2, "cuda")])
def test_choose_device_auto_prefers_gpu(
    found: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    assert choose_device("auto") == chosen
    assert choose_device("cpu") == "cpu"
    with pytest.raises(DeviceError, match=f"cuda:2, but torch finds {found} GPUs"):
        choose_device("cuda:2")


# The fake recorder, which behaves like CUDA graphs


def test_fake_recorder_reads_input_at_replay() -> None:
    source, result, scale = torch.ones(3), torch.zeros(3), [2.0]

    def work() -> None:
        result.copy_((source * scale[0]).sin_())

    play = FakeRecorder().record(work)
    source.fill_(5.0)
    scale[0] = 100.0  # no effect: a replay runs no Python
    play()
    assert torch.allclose(result, torch.full((3,), 10.0).sin())


def test_fake_recorder_refuses_reading_values_on_host() -> None:
    source = torch.ones(3)

    def work() -> None:
        source.mul_(float(source.sum()))

    with pytest.raises(RuntimeError, match="capturing"):
        FakeRecorder().record(work)
