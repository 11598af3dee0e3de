"""A very small Whisper that tells a low tone from a high one, trained here within seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

if TYPE_CHECKING:  # importing it would delay every test run
    from transformers import WhisperConfig

WORDS = {"<|endoftext|>": 0, "<|startoftranscript|>": 1, "low": 2, "high": 3, "tone": 4}
LOW, HIGH = 300.0, 3000.0
#: Length of Whisper's input: 30 s in published models, less here for speed.
SECONDS = 2


def tone(hertz: float, rate: int, seconds: float = 2.0) -> np.ndarray:
    times = np.arange(int(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


def config() -> WhisperConfig:
    from transformers import WhisperConfig

    return WhisperConfig(
        vocab_size=len(WORDS),
        num_mel_bins=80,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=50 * SECONDS,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )


def make(folder: Path) -> None:
    """Train a model on "low tone" and "high tone" and save it in transformers' format."""
    from transformers import (
        PreTrainedTokenizerFast,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = WhisperForConditionalGeneration(config())
    extract = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
    clips = [tone(hertz, 16_000) for hertz in (LOW, HIGH)]
    features = extract(clips, sampling_rate=16_000, return_tensors="pt").input_features
    labels = torch.tensor([[2, 4, 0], [3, 4, 0]])
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(200):
        loss = model(input_features=features, labels=labels).loss
        if loss.item() < 0.05:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    else:
        raise AssertionError(f"it has not learnt: {loss.item()}")
    model.eval().save_pretrained(folder)
    extract.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        bos_token="<|startoftranscript|>",
    ).save_pretrained(folder)
