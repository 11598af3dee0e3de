"""Sizes of a small speaker encoder, and clips that sound a little like voices."""

from __future__ import annotations

import numpy as np

from codec.families.qwen3_tts.speaker_encoder import SpeakerSizes
from streaming.spec import Samples

SIZES = SpeakerSizes(
    enc_dim=24, mel_dim=40, enc_channels=(32, 32, 32, 32, 96), enc_attention_channels=12,
    enc_res2net_scale=4, enc_se_channels=10,
)  # fmt: skip


def voiced(hertz: float, seed: int, seconds: float = 1.5) -> Samples:
    """A harmonic tone whose pitch wavers, with noise."""
    dice = np.random.default_rng(seed)
    time = np.arange(round(24_000 * seconds)) / 24_000
    phase = 2 * np.pi * hertz * (time + 0.01 * np.sin(9 * time))
    tone = sum(np.sin(n * phase) / n for n in range(1, 12))
    return (0.1 * tone + dice.normal(0, 0.01, len(time))).astype(np.float32)
