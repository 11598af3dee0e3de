"""The Qwen3-TTS codec: equality with its oracle, streaming with and without state, checkpoints."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from codec.checkpoint import Shapes
from codec.engine import CodecWorkerEngine
from codec.families import open_codec, open_speaker_encoder
from codec.families.qwen3_tts import encoder as encoder_module
from codec.families.qwen3_tts.config import (
    Qwen3TTSCodecConfig,
    decoder_shapes,
    encoder_shapes,
    parse_codec_config,
)
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.families.qwen3_tts.encoder import Qwen3TTSEncoder
from codec.family import CheckpointError, ClipError, CodesError
from codec.warmup import later_windows, meet_first_windows
from streaming.errors import ErrorCode, RequestError
from streaming.spec import UNKNOWN, Codes, Samples
from streaming.window import DecodeWindow, SlidingWindowChunker
from tests.codec.qwen3_tts_checkpoint import (
    TINY,
    published_config,
    published_shapes,
    random_tensors,
    write_codec,
)
from tests.codec.qwen3_tts_oracle import Qwen3TTSCodecOracle
from tests.codec.speaker_clips import voiced
from tests.talker.tiny_qwen3_tts import write_checkpoint

#: Largest difference of samples within [-1, 1] that another order of float32 sums may cause.
ROUNDING = 1e-5
FRAMES = 60
HOP = TINY.hop_length


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return random_tensors(published_shapes())


@pytest.fixture(scope="module")
def oracle(tensors: dict[str, Tensor]) -> Qwen3TTSCodecOracle:
    return Qwen3TTSCodecOracle(TINY, tensors)


def part(tensors: dict[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    return {name: tensors[name] for name in shapes}


@pytest.fixture
def decoder(tensors: dict[str, Tensor]) -> Qwen3TTSDecoder:
    return Qwen3TTSDecoder(TINY, part(tensors, decoder_shapes(TINY)))


@pytest.fixture(scope="module")
def whole(tensors: dict[str, Tensor]) -> Samples:
    """The samples of ``random_codes()`` in one go."""
    return Qwen3TTSDecoder(TINY, part(tensors, decoder_shapes(TINY))).decode([random_codes()])[0]


def random_codes(frames: int = FRAMES, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 64, (16, frames)).astype(np.int16)


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


# -- the published layout


def test_published_layout_has_published_counts() -> None:
    """Those counted in the real ``speech_tokenizer/model.safetensors``."""
    config = Qwen3TTSCodecConfig()
    shapes = published_shapes(config)
    assert len(shapes) == 496
    assert sum(map(math.prod, shapes.values())) == 170_557_441
    needed = decoder_shapes(config) | encoder_shapes(config)
    unused = {name.rsplit(".", 2)[-2] for name in shapes.keys() - needed.keys()}
    assert unused == {"input_proj", "output_proj", "codebook"}


def test_spec_of_published_sizes() -> None:
    spec = Qwen3TTSCodecConfig().spec()
    assert (spec.sample_rate, spec.hop_length) == (24_000, 1920)
    assert spec.codebook_sizes == (2048,) * 16
    assert (spec.left_frames, spec.right_frames, spec.history_frames) == (10, 0, 570)


def test_config_of_published_sizes_is_read() -> None:
    full = Qwen3TTSCodecConfig()
    assert parse_codec_config(published_config(full)) == full
    assert parse_codec_config(published_config()) == TINY
    # Mimi's own sizes may be left out
    assert parse_codec_config(published_config(full) | {"encoder_config": {}}) == full


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("decoder_config", {"hidden_size": "16"}, r"hidden_size must be a whole.*'16'"),
        ("decoder_config", {"rms_norm_eps": 0}, r"rms_norm_eps must be a number above 0, not 0"),
        ("decoder_config", {"upsample_rates": []}, r"upsample_rates must be a list.*\[\]"),
        (
            "decoder_config",
            {"upsample_rates": [8, 5, 4]},
            r"640 samples in decoder.* and 1920",
        ),
        ("decoder_config", {"hidden_act": "gelu"}, r"hidden_act is 'gelu'; only 'silu' is known"),
        ("decoder_config", {"num_key_value_heads": 1}, r"num_key_value_heads must be 2.*not 1"),
        ("decoder_config", {"num_quantizers": 8}, r"encoder_valid_num_quantizers must be 8, not"),
        ("decoder_config", {"decoder_dim": 40}, r"decoder_dim 40 cannot be halved 4 times"),
        ("encoder_config", {"use_causal_conv": False}, r"use_causal_conv is False; only True"),
        ("encoder_config", {"codebook_size": 32}, r"codebook_size is 64 .* and 32 in encoder"),
        ("encoder_config", {"head_dim": True}, r"head_dim must be a whole number.*True"),
        ("encoder_config", {"head_dim": 7}, r"encoder_config.head_dim must be even, not 7"),
    ],
)
def test_bad_config_is_refused_by_name(section: str, change: dict[str, Any], message: str) -> None:
    raw = published_config()
    raw[section] |= change
    with pytest.raises(CheckpointError, match=message):
        parse_codec_config(raw)


def test_config_without_decoder_field_is_refused() -> None:
    """The defaults of the makers' code are another model's."""
    raw = published_config()
    del raw["decoder_config"]["sliding_window"]
    with pytest.raises(CheckpointError, match="decoder_config lacks sliding_window"):
        parse_codec_config(raw)
    with pytest.raises(CheckpointError, match="decoder_config must be an object, not None"):
        parse_codec_config({})


# -- decoding


def test_decode_equals_oracle(
    oracle: Qwen3TTSCodecOracle, tensors: dict[str, Tensor], whole: Samples
) -> None:
    expected = oracle.decode(random_codes())
    assert expected.shape == (FRAMES * HOP,)
    assert expected.std() > 0.03
    assert np.abs(expected).max() < 1
    exact = Qwen3TTSDecoder(TINY, part(tensors, decoder_shapes(TINY)), dtype=torch.float64)
    assert error(exact.decode([random_codes()])[0], expected) < 1e-6
    assert error(whole, expected) < ROUNDING


def test_samples_are_clamped(tensors: dict[str, Tensor]) -> None:
    loud = part(tensors, decoder_shapes(TINY))
    loud["decoder.decoder.6.conv.weight"] = loud["decoder.decoder.6.conv.weight"] * 100
    samples = Qwen3TTSDecoder(TINY, loud).decode([random_codes(5)])[0]
    expected = Qwen3TTSCodecOracle(TINY, loud).decode(random_codes(5))
    assert np.abs(samples).max() == 1
    assert error(samples, expected) < 100 * ROUNDING


@pytest.mark.parametrize("sizes", [[1], [1, 2, 3, 5, 8, 13, 21], [4, 25], [16], [29, 31]])
def test_decode_windows_in_any_chunks_equals_whole(
    decoder: Qwen3TTSDecoder, whole: Samples, sizes: list[int]
) -> None:
    windows = windows_of(random_codes(), sizes)
    streamed = np.concatenate([decoder.decode_windows([window])[0] for window in windows])
    assert error(streamed, whole) < ROUNDING
    assert decoder.cache.misses == 0, "each window goes on from the state that the last one left"
    assert decoder.cache.hits == len(windows) - 1
    assert len(decoder.cache) == 0, "nothing is kept of a stream that is over"


@pytest.mark.parametrize("sizes", [[1], [7], [40]])
def test_decode_windows_without_state_equals_whole(
    decoder: Qwen3TTSDecoder, whole: Samples, sizes: list[int]
) -> None:
    """A new worker decodes without state. The stream is longer than the history."""
    parts = []
    for window in windows_of(random_codes(), sizes):
        decoder.cache.clear()
        parts.append(decoder.decode_windows([window])[0])
    assert error(np.concatenate(parts), whole) < ROUNDING


def test_decode_windows_without_history_differs(decoder: Qwen3TTSDecoder, whole: Samples) -> None:
    """The tests above rely on this: the samples do depend on the history."""
    late = windows_of(random_codes(), [45, 15])[1]
    assert late.history is not None
    exact = whole[45 * HOP :]
    assert error(decoder.decode_windows([late])[0], exact) < ROUNDING
    decoder.cache.clear()
    short = DecodeWindow(late.codes, late.left_context, late.new_frames, 0, late.first_frame)
    assert error(decoder.decode_windows([short])[0], exact) > 10 * ROUNDING


def test_receptive_field_matches_spec(tensors: dict[str, Tensor]) -> None:
    """A changed frame changes no sample before it and none beyond the receptive field."""
    exact = Qwen3TTSDecoder(TINY, part(tensors, decoder_shapes(TINY)), dtype=torch.float64)
    spec = exact.spec
    assert (spec.left_frames, spec.history_frames) == (10, 17)
    codes = np.stack([random_codes(60), random_codes(60)])
    codes[1, :, 20] = (codes[1, :, 20] + 5) % 64
    before, after = exact.decode(list(codes))
    moved = np.flatnonzero(before != after) // spec.hop_length
    assert moved.min() == 20
    reach = spec.left_frames + spec.history_frames
    assert 20 + reach - 2 <= moved.max() <= 20 + reach, "the last convolutions hear it faintly"


def test_streams_at_other_positions_share_a_batch(decoder: Qwen3TTSDecoder) -> None:
    """Streams that began earlier than others, of which some lose their state on the way."""
    streams = [random_codes(frames, seed) for seed, frames in enumerate((40, 44, 52))]
    queues = [windows_of(codes, [4]) for codes in streams]
    parts: list[list[Samples]] = [[] for _ in streams]
    turn = 0
    while any(queues):
        together = [at for at, queue in enumerate(queues) if queue and turn >= 4 * at]
        made = decoder.decode_windows([queues[at].pop(0) for at in together])
        for at, samples in zip(together, made, strict=True):
            parts[at].append(samples)
        turn += 1
        if turn == 6:
            decoder.cache.clear()
    assert decoder.cache.misses == 2, "the third stream began later"
    for codes, made in zip(streams, parts, strict=True):
        assert error(np.concatenate(made), decoder.decode([codes])[0]) < ROUNDING


def test_state_cache_counts_inputs_and_attention(tensors: dict[str, Tensor]) -> None:
    decoder = Qwen3TTSDecoder(TINY, part(tensors, decoder_shapes(TINY)))
    decoder.decode_windows([DecodeWindow(random_codes(20), 0, 20, 0)])
    keys_values = 3 * 2 * 5 * 2 * 16
    assert decoder.cache.total_size == 4 * (keys_values + 2 * 32 + 10 * 32)


def test_state_of_published_sizes_is_small() -> None:
    """The cache holds the states of some 220 streams."""
    from codec.stream_decoder import CACHE_BYTES, StreamState

    sizes = Qwen3TTSCodecConfig().decoder
    with torch.device("meta"):
        attention = torch.empty(8, 2, sizes.sliding_window - 1, 16, 64)
        inputs = torch.empty(2, sizes.codebook_dim)
        state = StreamState(0, 0, (inputs, attention, torch.empty(10, sizes.latent_dim)))
    assert 220 < CACHE_BYTES / state.size_bytes < 240


def test_lookahead_has_no_effect(decoder: Qwen3TTSDecoder) -> None:
    codes = random_codes(12)
    looking = codes.copy()
    looking[3, 10:] = UNKNOWN
    plain = decoder.decode_windows([DecodeWindow(codes[:, :10], 0, 10, 0)])[0]
    assert np.array_equal(decoder.decode_windows([DecodeWindow(looking, 0, 10, 2)])[0], plain)


@pytest.mark.parametrize(("book", "code"), [(0, 64), (15, 64), (4, -1)])
def test_decode_refuses_codes_outside_codebook(
    decoder: Qwen3TTSDecoder, book: int, code: int
) -> None:
    codes = random_codes(5)
    codes[book, 2] = code
    with pytest.raises(CodesError):
        decoder.decode_windows([DecodeWindow(codes, 0, 5, 0)])


def test_fingerprint_follows_codebooks(tensors: dict[str, Tensor]) -> None:
    own = part(tensors, decoder_shapes(TINY))
    first = Qwen3TTSDecoder(TINY, own).fingerprint
    assert Qwen3TTSDecoder(TINY, own).fingerprint == first
    name = "decoder.quantizer.rvq_rest.vq.layers.14._codebook.cluster_usage"
    assert Qwen3TTSDecoder(TINY, own | {name: own[name] + 1}).fingerprint != first
    name = "decoder.pre_conv.conv.bias"
    assert Qwen3TTSDecoder(TINY, own | {name: own[name] + 1}).fingerprint == first


@pytest.mark.parametrize("clip_frames", [1, 9, 40])
@pytest.mark.parametrize("cached", [True, False])
def test_stream_after_clip_equals_rest_of_both(
    tensors: dict[str, Tensor], whole: Samples, clip_frames: int, cached: bool
) -> None:
    own = part(tensors, decoder_shapes(TINY))
    decoder = Qwen3TTSDecoder(TINY, own, cache_bytes=1 << 24 if cached else 0)
    codes, spec = random_codes(), TINY.spec()
    chunker = SlidingWindowChunker(spec.left_frames, spec.history_frames)
    chunker.continue_from(codes.T[:clip_frames])
    chunker.push(codes.T[clip_frames:])
    chunker.finish()
    parts = []
    while chunker.pending:
        window = chunker.take(min(7, chunker.pending), 0)
        parts += decoder.decode_windows([window])
    rest = whole[clip_frames * HOP :]
    assert error(np.concatenate(parts), rest) < ROUNDING
    alone = decoder.decode([codes[:, clip_frames:]])[0]
    assert error(alone, rest) > 100 * ROUNDING, "the clip matters"


def test_warm_up_leaves_streams_exact(decoder: Qwen3TTSDecoder, whole: Samples) -> None:
    meet_first_windows(decoder)
    for window in later_windows(decoder, 3):
        assert decoder.decode_windows([window])[0].shape == (window.new_frames * HOP,)
    parts = [decoder.decode_windows([window])[0] for window in windows_of(random_codes(), [9])]
    assert error(np.concatenate(parts), whole) < ROUNDING


# -- encoding


def clip(samples: int, seed: int = 3) -> Samples:
    rng = np.random.default_rng(seed)
    envelope = np.repeat(rng.uniform(0, 1, -(-samples // HOP)), HOP)[:samples]
    return (rng.normal(size=samples) * envelope).astype(np.float32)


@pytest.mark.parametrize("length", [1, HOP, HOP + 1, 30 * HOP - 11])
def test_encode_equals_oracle(
    oracle: Qwen3TTSCodecOracle,
    tensors: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    length: int,
) -> None:
    samples = clip(length)
    expected = oracle.encode(samples)
    assert expected.shape == (16, -(-length // HOP))
    own = part(tensors, encoder_shapes(TINY))
    exact = Qwen3TTSEncoder(TINY, own, dtype=torch.float64)
    assert np.array_equal(exact.encode(samples), expected)
    assert np.mean(Qwen3TTSEncoder(TINY, own).encode(samples) == expected) > 0.98
    if length > 10 * HOP:
        assert min(len(np.unique(book)) for book in expected) > 3
    monkeypatch.setattr(encoder_module, "_PIECE_FRAMES", 4)
    assert np.array_equal(exact.encode(samples), expected), "convolved in pieces"


def test_encoder_window_is_that_of_config(tensors: dict[str, Tensor]) -> None:
    """A clip longer than the window is encoded otherwise with a longer one."""
    own = part(tensors, encoder_shapes(TINY))
    wider = replace(TINY, encoder=replace(TINY.encoder, sliding_window=100))
    short, long = clip(5 * HOP), clip(20 * HOP)
    one, other = (Qwen3TTSEncoder(config, own, dtype=torch.float64) for config in (TINY, wider))
    assert np.array_equal(one.encode(short), other.encode(short))
    assert not np.array_equal(one.encode(long), other.encode(long))


@pytest.mark.parametrize(
    "bad", [np.zeros(0, np.float32), np.zeros((2, 64), np.float32), np.full(64, np.nan)]
)
def test_encode_refuses_malformed_clip(tensors: dict[str, Tensor], bad: Samples) -> None:
    with pytest.raises(ClipError):
        Qwen3TTSEncoder(TINY, part(tensors, encoder_shapes(TINY))).encode(bad)


# -- in a worker


async def test_stream_continues_after_worker_kill(tmp_path: Path, whole: Samples) -> None:
    """The stream is longer than the history; the new worker recomputes the state from a window."""
    write_codec(tmp_path)
    engine = CodecWorkerEngine(str(tmp_path), device="cpu")
    await engine.start()
    try:
        assert engine.spec == TINY.spec()
        parts = []
        for window in windows_of(random_codes(), [5]):
            if window.first_frame == 40:
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
            parts.append(await decoded(engine, window))
        assert engine.restarts == 1
        assert error(np.concatenate(parts), whole) < ROUNDING
        one_go = DecodeWindow(random_codes(), 0, FRAMES, 0, is_last=True)
        assert error(await decoded(engine, one_go), whole) < ROUNDING, "cut into pieces"
        made, _ = await engine.encode(clip(12 * HOP))
        expected = open_codec(str(tmp_path)).load_encoder().encode(clip(12 * HOP))
        assert np.array_equal(made, expected)
    finally:
        await engine.stop()


async def decoded(engine: CodecWorkerEngine, window: DecodeWindow) -> Samples:
    async with asyncio.timeout(60):
        samples, stats = await engine.decode(window, time.monotonic())
    assert stats.new_frames == window.new_frames
    return samples


# -- checkpoints


async def test_worker_makes_vector_of_cloning_talker(tmp_path: Path) -> None:
    """Its voices are not those of the same codec with another talker."""
    plain = write_codec(tmp_path / "codec")
    marks = []
    for name, width in (("one", 64), ("two", 48)):
        folder = tmp_path / name
        folder.mkdir()
        write_checkpoint(folder, kind="base", width=width)
        write_codec(folder / "speech_tokenizer")
        engine = CodecWorkerEngine(str(folder), device="cpu")
        await engine.start()
        try:
            marks.append(engine.fingerprint)
            samples = voiced(120, 1, 1.0)
            codes, vector = await engine.encode(samples)
            assert np.array_equal(codes, open_codec(str(plain)).load_encoder().encode(samples))
            encoder = open_speaker_encoder(str(folder))
            assert encoder is not None
            assert vector is not None
            assert (vector.dtype, vector.shape) == (np.float32, (width,))
            assert np.abs(vector - encoder.encode(samples)).max() < ROUNDING * vector.std()
            with pytest.raises(RequestError) as refused:
                await engine.encode(samples[:1000])
            assert refused.value.code is ErrorCode.INVALID_AUDIO
        finally:
            await engine.stop()
    assert len({*marks, open_codec(str(plain)).load_decoder().fingerprint}) == 3


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("speaker_encoder.fc.bias", None, r"lacks speaker_encoder\.fc\.bias"),
        ("speaker_encoder.fc.bias", torch.zeros(3), r"wrong shapes: speaker_encoder\.fc\.bias"),
        ("speaker_encoder.more", torch.zeros(3), r"1 tensors .* first speaker_encoder\.more"),
        ("speaker_encoder.fc.bias", torch.full((64,), torch.nan), "not finite"),
    ],
)
def test_speaker_encoder_has_named_tensors_only(
    tmp_path: Path, name: str, change: Tensor | None, named: str
) -> None:
    write_checkpoint(tmp_path, kind="base")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors | ({} if change is None else {name: change}), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=named):
        open_speaker_encoder(str(tmp_path))


def test_other_talkers_have_no_speaker_encoder(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, kind="custom_voice")
    assert open_speaker_encoder(str(tmp_path)) is None
    assert open_speaker_encoder(str(write_codec(tmp_path / "codec"))) is None


def write_talker_config(folder: Path, books: int = 16) -> None:
    config = {"model_type": "qwen3_tts", "talker_config": {"num_code_groups": books}}
    (folder / "config.json").write_text(json.dumps(config))


def test_open_codec_finds_it_beside_talker_and_alone(tmp_path: Path) -> None:
    write_codec(tmp_path / "speech_tokenizer")
    write_talker_config(tmp_path)
    for folder in (tmp_path, tmp_path / "speech_tokenizer"):
        found = open_codec(str(folder))
        assert found.family.name == "qwen3_tts"
        assert found.can_encode()
    (tmp_path / "talker").mkdir()
    write_talker_config(tmp_path / "talker")
    assert open_codec(str(tmp_path), str(tmp_path / "talker")).can_encode()


def test_open_codec_refuses_talker_with_other_codebook_count(tmp_path: Path) -> None:
    write_codec(tmp_path / "codec")
    write_talker_config(tmp_path, books=32)
    with pytest.raises(CheckpointError, match="speaks 32 codebooks, the codec has 16"):
        open_codec(str(tmp_path / "codec"), str(tmp_path))


def test_open_codec_of_bare_talker_names_folder_and_setting(tmp_path: Path) -> None:
    write_talker_config(tmp_path)
    with pytest.raises(CheckpointError, match=r"lacks its codec.*speech_tokenizer.*codec_model"):
        open_codec(str(tmp_path))
    write_codec(tmp_path / "speech_tokenizer")
    (tmp_path / "speech_tokenizer" / "config.json").write_text(
        '{"model_type": "qwen3_tts_tokenizer_25hz"}'
    )
    with pytest.raises(CheckpointError, match=r"25hz'; only 'qwen3_tts_tokenizer_12hz' is known"):
        open_codec(str(tmp_path))


def test_checkpoint_of_other_sizes_is_refused(tmp_path: Path) -> None:
    write_codec(tmp_path)
    raw = published_config()
    raw["decoder_config"]["latent_dim"] = 40
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=r"wrong shapes: decoder\.pre_conv"):
        open_codec(str(tmp_path)).load_decoder()
