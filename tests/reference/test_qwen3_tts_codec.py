"""The Qwen3-TTS codec against its makers' package, and its encoder against transformers' Mimi.

All load one checkpoint of random weights in the published format. The makers' code runs in a child
process, since it needs an older transformers. There a position of the encoder sees all earlier
ones; in the installed version it sees those in the window of config.json, as in this project.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MimiConfig, MimiModel

from codec.families import open_codec
from codec.families.qwen3_tts.config import encoder_shapes
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.families.qwen3_tts.encoder import Qwen3TTSEncoder
from streaming.window import SlidingWindowChunker
from tests.codec.qwen3_tts_checkpoint import (
    TINY,
    published_config,
    published_shapes,
    random_tensors,
    write_codec,
)

_INSTALLED = Path(__file__).parents[2] / ".venv-reference"
#: Difference of samples within [-1, 1] due to the order of float32 sums.
ROUNDING = 1e-5
#: No clip here is longer than the window.
SIZES = replace(TINY, encoder=replace(TINY.encoder, sliding_window=250))
HOP = SIZES.hop_length
FRAMES = 90
CLIPS = {
    f"clip_{length}": np.random.default_rng(length).normal(0, 0.3, length).astype(np.float32)
    for length in (1, HOP, HOP + 1, 31_337, 40 * HOP)
}
CODES = np.random.default_rng(7).integers(0, 64, (16, FRAMES)).astype(np.int16)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_codec(tmp_path_factory.mktemp("qwen3-tts-codec"), SIZES)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> dict[str, np.ndarray]:
    """What the makers' code makes of the codes and clips."""
    inputs, outputs = checkpoint / "inputs.npz", checkpoint / "outputs.npz"
    np.savez(inputs, allow_pickle=False, codes=CODES, **CLIPS)
    program = Path(__file__).with_name("qwen3_tts_child.py")
    child = subprocess.run(
        [sys.executable, program, _INSTALLED, checkpoint, inputs, outputs],
        env=os.environ | {"PYTHONPATH": str(_INSTALLED), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return dict(np.load(outputs))


def test_qwen3_tts_decoder_equals_makers(
    checkpoint: Path, reference: dict[str, np.ndarray]
) -> None:
    right = reference["samples"]
    assert right.std() > 0.05
    assert np.abs(right).max() < 1
    made = open_codec(str(checkpoint)).load_decoder().decode([CODES])[0]
    assert made.shape == right.shape
    assert np.abs(made - right).max() < ROUNDING


@pytest.mark.parametrize("size", [1, 7, 25])
def test_qwen3_tts_decoder_in_chunks_equals_makers(
    checkpoint: Path, reference: dict[str, np.ndarray], size: int
) -> None:
    decoder = open_codec(str(checkpoint)).load_decoder()
    assert isinstance(decoder, Qwen3TTSDecoder)
    chunker = SlidingWindowChunker(decoder.spec.left_frames, decoder.spec.history_frames)
    chunker.push(np.ascontiguousarray(CODES.T))
    chunker.finish()
    parts = []
    while chunker.pending:
        window = chunker.take(min(size, chunker.pending), 0)
        parts.append(decoder.decode_windows([window])[0])
    assert np.abs(np.concatenate(parts) - reference["samples"]).max() < ROUNDING


def test_qwen3_tts_encoder_equals_makers(reference: dict[str, np.ndarray]) -> None:
    """Both run in float64: rounding would decide between vectors at nearly equal distance."""
    tensors = random_tensors(published_shapes(SIZES))
    own = {name: tensors[name] for name in encoder_shapes(SIZES)}
    encoder = Qwen3TTSEncoder(SIZES, own, dtype=torch.float64)
    for name, clip in CLIPS.items():
        made = encoder.encode(clip)
        assert made.shape == (16, -(-len(clip) // HOP))
        assert np.array_equal(made, reference[name]), name
    assert len(np.unique(reference[f"clip_{40 * HOP}"])) > 30


@torch.inference_mode()
def test_qwen3_tts_encoder_with_window_equals_mimi() -> None:
    """The clip is four times as long as the window."""
    tensors = random_tensors(published_shapes(TINY))
    model = MimiModel(MimiConfig(**published_config(TINY)["encoder_config"]))
    held = {
        name.removeprefix("encoder."): tensor
        for name, tensor in tensors.items()
        if name.startswith("encoder.")
    }
    missing, unexpected = model.load_state_dict(held, strict=False)
    assert not unexpected
    assert all(name.startswith(("decoder", "upsample")) for name in missing), missing
    clip = CLIPS[f"clip_{40 * HOP}"][: 20 * HOP]
    values = torch.from_numpy(clip).double()[None, None]
    right = model.double().eval().encode(values, num_quantizers=16).audio_codes[0].numpy()
    own = {name: tensors[name] for name in encoder_shapes(TINY)}
    made = Qwen3TTSEncoder(TINY, own, dtype=torch.float64).encode(clip)
    assert np.array_equal(made, right)
    wide = Qwen3TTSEncoder(SIZES, own, dtype=torch.float64).encode(clip)
    assert not np.array_equal(wide, right), "the window matters"
