"""The Fish codec: equality with its oracle, streaming with and without state, checkpoints."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from codec import stream_decoder
from codec.checkpoint import check_tensors, find_sources, merged, weight_norm_names
from codec.engine import CodecWorkerEngine
from codec.families import open_codec
from codec.families.fish import encoder as encoder_module
from codec.families.fish.config import FishConfig, decoder_shapes, encoder_shapes
from codec.families.fish.decoder import FishDecoder
from codec.families.fish.encoder import FishEncoder
from codec.family import CheckpointError, ClipError, CodesError
from streaming.spec import UNKNOWN, Codes, Samples
from streaming.window import DecodeWindow, SlidingWindowChunker
from tests.codec.fish_checkpoint import TINY, published_state, write_codec_safetensors
from tests.codec.fish_oracle import FishOracle

#: Largest difference of samples within [-1, 1] that another order of float32 sums may cause.
ROUNDING = 1e-5
FRAMES = 70


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return published_state()


@pytest.fixture(scope="module")
def oracle(state: dict[str, Tensor]) -> FishOracle:
    return FishOracle(
        state,
        window=TINY.window,
        head_dim=TINY.head_dim,
        encoder_window=TINY.encoder_window,
        encoder_head_dim=TINY.encoder_head_dim,
    )


@pytest.fixture(scope="module")
def tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    shapes = decoder_shapes(TINY) | encoder_shapes(TINY)
    sources = find_sources(shapes, weight_norm_names, state.__contains__)
    found = {key: merged([state[name] for name in parts]) for key, parts in sources.items()}
    check_tensors(found, shapes)
    return found


@pytest.fixture
def decoder(tensors: dict[str, Tensor]) -> FishDecoder:
    return FishDecoder(TINY, tensors)


def random_codes(frames: int = FRAMES, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    sizes = TINY.spec().codebook_sizes
    return np.stack([rng.integers(0, size, frames) for size in sizes]).astype(np.int16)


def windows_of(codes: Codes, sizes: list[int]) -> list[DecodeWindow]:
    spec = TINY.spec()
    chunker = SlidingWindowChunker(spec.left_frames, spec.history_frames)
    chunker.push(np.ascontiguousarray(codes.T))
    chunker.finish()
    windows = []
    while chunker.pending:
        size = sizes[len(windows) % len(sizes)]
        windows.append(chunker.take(min(size, chunker.pending), 0))
    return windows


def error(one: Samples, other: Samples) -> float:
    return float(np.abs(one - other).max())


# -- decoding


def test_decode_equals_oracle(
    oracle: FishOracle, tensors: dict[str, Tensor], decoder: FishDecoder
) -> None:
    codes = random_codes()
    expected = oracle.decode(codes)
    assert expected.shape == (FRAMES * TINY.hop_length,)
    assert expected.std() > 0.1
    exact = FishDecoder(TINY, tensors, dtype=torch.float64)
    assert error(exact.decode([codes])[0], expected) < 1e-7
    assert error(decoder.decode([codes])[0], expected) < ROUNDING


@pytest.mark.parametrize("sizes", [[1], [3], [5, 7, 2, 1], [16], [29, 41]])
def test_decode_windows_in_any_chunks_equals_whole(decoder: FishDecoder, sizes: list[int]) -> None:
    codes = random_codes()
    windows = windows_of(codes, sizes)
    streamed = np.concatenate([decoder.decode_windows([window])[0] for window in windows])
    assert error(streamed, decoder.decode([codes])[0]) < ROUNDING
    assert decoder.cache.misses == 0, "each window goes on from the state that the last one left"
    assert decoder.cache.hits == len(windows) - 1
    assert len(decoder.cache) == 0, "nothing is kept of a stream that is over"


@pytest.mark.parametrize("sizes", [[1], [6], [40]])
def test_decode_windows_without_state_equals_whole(decoder: FishDecoder, sizes: list[int]) -> None:
    """A new worker decodes without state. The stream is longer than the history."""
    codes = random_codes()
    parts = []
    for window in windows_of(codes, sizes):
        decoder.cache.clear()
        parts.append(decoder.decode_windows([window])[0])
    assert error(np.concatenate(parts), decoder.decode([codes])[0]) < ROUNDING


def test_decode_windows_without_history_differs(decoder: FishDecoder) -> None:
    """The tests above rely on this: the samples do depend on the history."""
    codes = random_codes()
    (window,) = [w for w in windows_of(codes, [50, 20]) if w.first_frame]
    assert window.history is not None
    short = DecodeWindow(
        window.codes, window.left_context, window.new_frames, 0, window.first_frame
    )
    exact = decoder.decode([codes])[0][50 * TINY.hop_length :]
    assert error(decoder.decode_windows([window])[0], exact) < ROUNDING
    decoder.cache.clear()
    assert error(decoder.decode_windows([short])[0], exact) > 10 * ROUNDING


def test_receptive_field_matches_spec(tensors: dict[str, Tensor]) -> None:
    """A changed frame changes no sample before it and none beyond the receptive field."""
    exact = FishDecoder(TINY, tensors, dtype=torch.float64)
    spec = exact.spec
    codes = np.stack([random_codes(90), random_codes(90)])
    codes[1, :, 20] = (codes[1, :, 20] + 5) % 16
    before, after = exact.decode(list(codes))
    moved = np.flatnonzero(before != after) // spec.hop_length
    assert moved.min() == 20
    reach = spec.left_frames + spec.history_frames
    assert 20 + reach - 2 <= moved.max() <= 20 + reach, "the last convolutions hear it faintly"


def test_spec_of_published_sizes() -> None:
    spec = FishConfig().spec()
    assert (spec.sample_rate, spec.hop_length) == (44_100, 2048)
    assert spec.codebook_sizes == (4096, *(1024,) * 9)
    assert (spec.left_frames, spec.right_frames, spec.history_frames) == (10, 0, 1016)


def test_decode_windows_of_several_streams_equals_whole(decoder: FishDecoder) -> None:
    streams = [random_codes(frames, seed) for seed, frames in enumerate((40, 44, 52))]
    queues = [windows_of(codes, [4]) for codes in streams]
    parts: list[list[Samples]] = [[] for _ in streams]
    while any(queues):
        turn = [index for index, queue in enumerate(queues) if queue]
        made = decoder.decode_windows([queues[index].pop(0) for index in turn])
        for index, samples in zip(turn, made, strict=True):
            parts[index].append(samples)
    for codes, made in zip(streams, parts, strict=True):
        assert error(np.concatenate(made), decoder.decode([codes])[0]) < ROUNDING


def test_fish_decoder_ignores_lookahead(decoder: FishDecoder) -> None:
    codes = random_codes(12)
    looking = codes.copy()
    looking[3, 10:] = UNKNOWN
    plain = decoder.decode_windows([DecodeWindow(codes[:, :10], 0, 10, 0)])[0]
    assert np.array_equal(decoder.decode_windows([DecodeWindow(looking, 0, 10, 2)])[0], plain)


@pytest.mark.parametrize(("book", "code"), [(0, 64), (1, 16), (9, 16), (4, -1)])
def test_decode_refuses_codes_outside_codebook(decoder: FishDecoder, book: int, code: int) -> None:
    codes = random_codes(5)
    codes[book, 2] = code
    with pytest.raises(CodesError):
        decoder.decode([codes])
    with pytest.raises(CodesError):
        decoder.decode_windows([DecodeWindow(codes, 0, 5, 0)])
    good = random_codes(5)
    with pytest.raises(CodesError):
        decoder.decode_windows([DecodeWindow(good, 2, 3, 0, 7, False, codes)])


def test_streams_beyond_the_states_kept_are_exact(tensors: dict[str, Tensor]) -> None:
    """With a cache for two streams, three that take turns are slower, but exact."""
    decoder = FishDecoder(TINY, tensors)
    decoder.decode_windows([DecodeWindow(random_codes(20), 0, 20, 0)])
    one = decoder.cache.total_size
    small = FishDecoder(TINY, tensors, cache_bytes=2 * one)
    streams = [random_codes(60, seed) for seed in range(3)]
    queues = [windows_of(codes, [20]) for codes in streams]
    parts: list[list[Samples]] = [[] for _ in streams]
    for turn in range(3):
        for index, queue in enumerate(queues):
            parts[index] += small.decode_windows([queue[turn]])
            assert small.cache.total_size <= 2 * one
    assert small.cache.misses == 2, "three states, room for two: one of them is missing each time"
    for codes, made in zip(streams, parts, strict=True):
        assert error(np.concatenate(made), decoder.decode([codes])[0]) < ROUNDING


def test_catch_up_leaves_state_for_next_decode(decoder: FishDecoder) -> None:
    codes = random_codes()
    late = windows_of(codes, [50, 20])[1]
    slices = list(decoder.catch_up(late))
    assert decoder.cache.misses == 1
    samples = decoder.decode_windows([late])[0]
    assert decoder.cache.hits == 1
    assert error(samples, decoder.decode([codes])[0][50 * TINY.hop_length :]) < ROUNDING
    assert slices == [], "29 frames are one slice"
    assert list(decoder.catch_up(windows_of(codes, [70])[0])) == [], "a begin has no state"


def test_catch_up_yields_between_slices(
    decoder: FishDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_decoder, "_SLICE_FRAMES", 10)
    codes = random_codes()
    late = windows_of(codes, [50, 20])[1]
    assert len(list(decoder.catch_up(late))) == 2, "29 frames in three slices"
    exact = decoder.decode([codes])[0][50 * TINY.hop_length :]
    assert error(decoder.decode_windows([late])[0], exact) < ROUNDING
    bad = DecodeWindow(codes[:, :5], 2, 3, 0, 7, False, codes[::-1, :5])
    with pytest.raises(CodesError):
        list(decoder.catch_up(bad))


def test_streams_with_equal_beginnings_stay_separate(decoder: FishDecoder) -> None:
    """Their states share a key only as long as their codes are equal."""
    codes = random_codes(30)
    other = codes.copy()
    other[2, 17] = (other[2, 17] + 1) % 16
    ours, theirs = windows_of(codes, [10]), windows_of(other, [10])
    made = [decoder.decode_windows([mine, yours]) for mine, yours in zip(ours, theirs, strict=True)]
    for index, whole in enumerate((codes, other)):
        streamed = np.concatenate([pair[index] for pair in made])
        assert error(streamed, decoder.decode([whole])[0]) < ROUNDING


# -- encoding


def clip(frames: int, seed: int = 3) -> Samples:
    rng = np.random.default_rng(seed)
    size = frames * TINY.hop_length - 11
    envelope = np.repeat(rng.uniform(0, 2, frames), TINY.hop_length)[:size]
    return (rng.normal(size=size) * envelope).astype(np.float32)


def test_encode_equals_oracle(
    oracle: FishOracle, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = clip(40)
    expected = oracle.encode(samples, TINY.hop_length)
    assert expected.shape == (10, 40)
    assert min(len(np.unique(book)) for book in expected) > 3
    exact = FishEncoder(TINY, tensors, dtype=torch.float64)
    assert np.array_equal(exact.encode(samples), expected)
    assert np.mean(FishEncoder(TINY, tensors).encode(samples) == expected) > 0.98
    monkeypatch.setattr(encoder_module, "_PIECE_FRAMES", 7)
    assert np.array_equal(exact.encode(samples), expected), "convolved in pieces"


@pytest.mark.parametrize(
    "bad", [np.zeros(0, np.float32), np.zeros((2, 64), np.float32), np.full(64, np.nan)]
)
def test_encode_refuses_malformed_clip(tensors: dict[str, Tensor], bad: Samples) -> None:
    with pytest.raises(ClipError):
        FishEncoder(TINY, tensors).encode(bad)


# -- in a worker


@pytest.mark.parametrize("module", ["codec.worker", "tests.codec.graph_worker"])
async def test_stream_continues_after_worker_kill(tmp_path: Path, module: str) -> None:
    """The stream is longer than the history; the new worker recomputes the state from a window,
    and goes on with it, also in graphs.
    """
    write_codec_safetensors(tmp_path)
    codec = open_codec(str(tmp_path))
    codes = random_codes(70)
    whole = codec.load_decoder().decode([codes])[0]
    engine = CodecWorkerEngine(str(tmp_path), device="cpu", max_batch=1, module=module)
    await engine.start()
    try:
        assert engine.spec == TINY.spec()
        parts = []
        for window in windows_of(codes, [5]):
            if window.first_frame == 50:
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
            parts.append(await decoded(engine, window))
        assert engine.restarts == 1
        assert error(np.concatenate(parts), whole) < ROUNDING
        one_go = DecodeWindow(codes, 0, 70, 0, is_last=True)
        assert error(await decoded(engine, one_go), whole) < ROUNDING, "cut into pieces"
        made, _ = await engine.encode(clip(12))
        assert np.array_equal(made, codec.load_encoder().encode(clip(12)))
    finally:
        await engine.stop()


async def test_streams_on_two_workers_keep_theirs_and_equal_those_of_one(tmp_path: Path) -> None:
    """Bit for bit: no worker recomputes a state, which would differ by rounding."""
    write_codec_safetensors(tmp_path)
    streams = {f"r{n}": windows_of(random_codes(60, n), [5, 3, 9]) for n in range(4)}

    async def speak(engine: CodecWorkerEngine, name: str) -> Samples:
        return np.concatenate([await decoded(engine, one, name) for one in streams[name]])

    made: list[list[Samples]] = []
    for workers in (1, 2):
        engine = CodecWorkerEngine(str(tmp_path), device="cpu", workers=workers, max_batch=1)
        await engine.start()
        chosen: dict[str, set[int | None]] = {name: set() for name in streams}
        choose = engine._choice.choose

        def note(new: Any, pending: Any, choose: Any = choose, chosen: Any = chosen) -> Any:
            worker = choose(new, pending)
            chosen[new.request_id].add(worker)
            return worker

        engine._choice.choose = note  # type: ignore[method-assign]
        made.append(await asyncio.gather(*(speak(engine, name) for name in streams)))
        await engine.stop()
        assert all(len(one) == 1 for one in chosen.values()), "a stream has one worker"
        assert len(set.union(*chosen.values())) == workers
    for one, two in zip(*made, strict=True):
        assert np.array_equal(one, two)


async def decoded(engine: CodecWorkerEngine, window: DecodeWindow, name: str = "") -> Samples:
    async with asyncio.timeout(60):
        samples, stats = await engine.decode(window, time.monotonic(), name)
    assert stats.new_frames == window.new_frames
    return samples


# -- checkpoints


def test_open_codec_finds_converted_codec(tmp_path: Path) -> None:
    write_codec_safetensors(tmp_path)
    found = open_codec(str(tmp_path))
    assert found.family.name == "fish_s2"
    assert "non-commercial" in found.family.licence
    assert found.can_encode()


def test_open_codec_of_bare_talker_names_convert_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "fish_qwen3_omni"}')
    with pytest.raises(CheckpointError, match=r"codec\.pth there.*talkwire convert.*codec_model"):
        open_codec(str(tmp_path))
    (tmp_path / "codec.pth").write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"run `talkwire convert {tmp_path}`"):
        open_codec(str(tmp_path))


def test_open_codec_refuses_talker_with_other_codebook_count(tmp_path: Path) -> None:
    write_codec_safetensors(tmp_path / "codec")
    talker = tmp_path / "talker"
    talker.mkdir()
    config = talker / "config.json"
    config.write_text('{"audio_decoder_config": {"num_codebooks": 10}}')
    assert open_codec(str(tmp_path / "codec"), str(talker)).can_encode()
    config.write_text('{"audio_decoder_config": {"num_codebooks": 8}}')
    with pytest.raises(CheckpointError, match="speaks 8 codebooks, the codec has 10"):
        open_codec(str(tmp_path / "codec"), str(talker))
