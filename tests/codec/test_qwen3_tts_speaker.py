"""The speaker encoder of Qwen3-TTS: names, mel filters and what it makes of clips."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers.audio_utils import mel_filter_bank

from codec.families.qwen3_tts.speaker_encoder import (
    Qwen3TTSSpeakerEncoder,
    SpeakerSizes,
    mel_filters,
    parse_speaker_config,
    speaker_shapes,
)
from codec.family import CheckpointError, ClipError
from tests.codec.qwen3_tts_checkpoint import random_tensors
from tests.codec.speaker_clips import SIZES, voiced


@pytest.fixture(scope="module")
def encoder() -> Qwen3TTSSpeakerEncoder:
    return Qwen3TTSSpeakerEncoder(SIZES, random_tensors(speaker_shapes(SIZES)))


def test_published_sizes_have_published_number_of_tensors() -> None:
    sizes = parse_speaker_config({"speaker_encoder_config": {"enc_dim": 2048}})
    assert sizes == SpeakerSizes(enc_dim=2048)
    shapes = speaker_shapes(sizes)
    assert len(shapes) == 76
    assert shapes["speaker_encoder.fc.weight"] == (2048, 3072, 1)


def test_mel_filters_equal_transformers() -> None:
    theirs = mel_filter_bank(513, 128, 0.0, 12_000.0, 24_000, norm="slaney", mel_scale="slaney")
    assert np.abs(mel_filters(128).numpy() - theirs.T).max() < 1e-6 * theirs.max()


def test_spectra_of_a_tone_peak_at_its_mel(encoder: Qwen3TTSSpeakerEncoder) -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(24_000) / 24_000).astype(np.float32)
    spectra = encoder.spectra(torch.from_numpy(tone))
    assert spectra.shape == (1, SIZES.mel_dim, 24_000 // 256)
    best = spectra[0, :, 40].argmax()
    peaks = mel_filters(SIZES.mel_dim)[best].argmax() * 24_000 / 1024
    assert math.isclose(float(peaks), 1000, abs_tol=150)


def test_vectors_tell_voices_apart_and_repeat(encoder: Qwen3TTSSpeakerEncoder) -> None:
    low, again, high = (
        encoder.encode(clip) for clip in (voiced(100, 1), voiced(100, 1), voiced(230, 2))
    )
    assert (low.shape, low.dtype) == ((SIZES.enc_dim,), np.float32)
    assert np.array_equal(low, again)
    assert np.abs(low - high).max() > 0.01 * low.std()


@pytest.mark.parametrize(
    "clip", [np.zeros(0), np.zeros((2, 24_000)), np.full(24_000, np.nan), np.zeros(1023)]
)
def test_unusable_clips_are_refused(encoder: Qwen3TTSSpeakerEncoder, clip: np.ndarray) -> None:
    with pytest.raises(ClipError):
        encoder.encode(clip.astype(np.float32))


def test_shortest_clip_has_a_vector(encoder: Qwen3TTSSpeakerEncoder) -> None:
    length = max(1024, 256 * (SIZES.reach + 1))
    assert np.isfinite(encoder.encode(voiced(100, 1)[:length])).all()


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (None, "speaker_encoder_config must be an object"),
        ({"enc_dim": 0}, "enc_dim"),
        ({"enc_dim": True}, "enc_dim"),
        ({"enc_channels": 512}, "enc_channels"),
        ({"enc_channels": [512, 256, 512, 512, 1536]}, "equal but for the last"),
        ({"enc_dilations": [1, 2, 3]}, "as many of each"),
        ({"enc_res2net_scale": 7}, "enc_res2net_scale 7"),
        ({"sample_rate": 16_000}, "sample_rate must be 24000"),
    ],
)
def test_other_sizes_are_refused(part: dict[str, Any] | None, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        parse_speaker_config({"speaker_encoder_config": part})
