"""The Higgs decoder with causal weights: zero taps that look ahead are detected and skipped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from codec.batching import BatchLimits
from codec.buckets import Buckets
from codec.families.higgs.config import CodecConfig
from codec.families.higgs.decoder import HiggsDecoder
from tests.codec.reference_decoder import reference_decode

Tensors = dict[str, torch.Tensor]
CONFIG = CodecConfig(latent_dim=16, quantizer_dim=24, codebook_dim=8, decoder_dim=64)


def zeroed(tensors: Tensors, ahead: Callable[[str], int]) -> Tensors:
    """Zero the taps that look further ahead than ``ahead(name)`` allows for each convolution."""
    made = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, kernel in made.items():
        if name.startswith("acoustic_decoder") and kernel.dim() == 3 and kernel.shape[2] > 1:
            if "conv_t1" in name:
                if not ahead(name):
                    kernel[:, :, : (kernel.shape[2] // 2 + 1) // 2] = 0
            else:
                kernel[:, :, kernel.shape[2] // 2 + 1 + ahead(name) :] = 0
    return made


@pytest.fixture(scope="module")
def causal(make_tensors: Callable) -> Tensors:
    return zeroed(make_tensors(CONFIG), lambda name: 0)


def test_decoder_with_causal_weights_has_no_lookahead(
    causal: Tensors, random_codes: Callable
) -> None:
    decoder, codes = HiggsDecoder(CONFIG, causal), random_codes(14)
    assert (decoder.spec.left_frames, decoder.spec.right_frames) == (11, 0)
    exact = reference_decode(CONFIG, causal, codes)
    assert np.abs(exact).max() > 0.05
    assert np.abs(decoder.decode([codes])[0] - exact).max() < 1e-5


def test_causal_decoder_streams_bit_for_bit_without_lookahead(
    causal: Tensors, random_codes: Callable, windows_of: Callable
) -> None:
    decoder, codes = HiggsDecoder(CONFIG, causal), random_codes(60)
    whole = decoder.decode([codes])[0]
    windows = windows_of(codes, [1, 2, 5, 13], 10, 0)
    streamed = np.concatenate([decoder.decode_windows([window])[0] for window in windows])
    assert np.array_equal(streamed, whole)


def test_causal_decoder_batch_in_bucket_equals_single_windows(
    causal: Tensors, random_codes: Callable, windows_of: Callable
) -> None:
    decoder, codes = HiggsDecoder(CONFIG, causal), random_codes(30)
    windows = windows_of(codes, [5], 10, 0)
    buckets = Buckets.of(BatchLimits(rows=8, piece_frames=5), decoder.spec)
    size = buckets.row_size(buckets.fit(len(windows), 5), decoder.spec.num_codebooks)
    rows = np.zeros((len(windows), size), np.int16)
    buckets.lay_out(windows, rows)
    batched = decoder.decode_laid_out(torch.from_numpy(rows), 5).numpy()
    for window, samples in zip(windows, batched, strict=True):
        wanted = decoder.decode_windows([window])[0]
        assert np.abs(samples[: len(wanted)] - wanted).max() < 1e-5


@pytest.mark.parametrize(("ahead", "frames"), [({"conv1": 0}, 1), ({"conv1": 1}, 2), ({}, 10)])
def test_decoder_lookahead_covers_only_nonzero_taps(
    make_tensors: Callable, random_codes: Callable, ahead: dict[str, int], frames: int
) -> None:
    """The samples depend on exactly as many later frames as the spec says."""

    def kept(name: str) -> int:
        if not ahead:
            return 3
        return ahead["conv1"] if "decoder.conv1" in name else int("conv_t1" in name)

    tensors = zeroed(make_tensors(CONFIG), kept)
    decoder, codes = HiggsDecoder(CONFIG, tensors, dtype=torch.float64), random_codes(31)
    assert (decoder.spec.left_frames, decoder.spec.right_frames) == (10, frames)
    others = codes.copy()
    others[:, 15] = (codes[:, 15] + 512) % 1024
    before, after = decoder.decode([codes, others])
    moved = np.flatnonzero(before != after) // decoder.spec.hop_length
    assert (moved.min(), moved.max()) == (15 - frames, 25)


def test_decoder_accepts_layer_of_zeros(causal: Tensors, random_codes: Callable) -> None:
    silent = causal | {
        name: torch.zeros_like(kernel)
        for name, kernel in causal.items()
        if name.startswith("acoustic_decoder.block.1") and kernel.dim() == 3
    }
    decoder, codes = HiggsDecoder(CONFIG, silent), random_codes(8)
    exact = reference_decode(CONFIG, silent, codes)
    assert np.abs(decoder.decode([codes])[0] - exact).max() < 1e-5
