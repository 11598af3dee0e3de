"""The speaker encoder of Qwen3-TTS against its makers' package, from clip to vector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file

from codec.families.qwen3_tts.speaker_encoder import (
    Qwen3TTSSpeakerEncoder,
    SpeakerSizes,
    parse_speaker_config,
    speaker_shapes,
)
from tests.codec.qwen3_tts_checkpoint import random_tensors
from tests.codec.speaker_clips import SIZES, voiced

_INSTALLED = Path(__file__).parents[2] / ".venv-reference"
#: The makers' mel takes 128 bands.
SMALL = SpeakerSizes(**{**asdict(SIZES), "mel_dim": 128})


@pytest.mark.parametrize("sizes", [SMALL, SpeakerSizes()])
def test_qwen3_tts_speaker_vectors_equal_makers(tmp_path: Path, sizes: SpeakerSizes) -> None:
    clips = {"short": voiced(120, 1, 0.1), "low": voiced(90, 2), "high": voiced(240, 3, 4.0)}
    tensors = random_tensors(speaker_shapes(sizes))
    config = {"speaker_encoder_config": asdict(sizes)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = {name.removeprefix("speaker_encoder."): tensor for name, tensor in tensors.items()}
    save_file(stored, tmp_path / "model.safetensors")
    np.savez(tmp_path / "clips.npz", allow_pickle=False, **clips)
    program = Path(__file__).with_name("qwen3_tts_speaker_child.py")
    child = subprocess.run(
        [sys.executable, program, _INSTALLED, tmp_path],
        env=os.environ | {"PYTHONPATH": str(_INSTALLED), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    theirs = np.load(tmp_path / "vectors.npz")
    encoder = Qwen3TTSSpeakerEncoder(parse_speaker_config(json.loads(json.dumps(config))), tensors)
    for name, clip in clips.items():
        own = encoder.encode(clip)
        assert np.abs(own - theirs[name]).max() < 1e-4 * theirs[name].std(), name
    assert np.abs(theirs["low"] - theirs["high"]).max() > 0.01 * theirs["low"].std()
