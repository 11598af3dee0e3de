"""A child process: vectors of speakers by Qwen3-TTS' makers, with the transformers they ask for.

``python qwen3_tts_speaker_child.py INSTALLED FOLDER``, with INSTALLED first in PYTHONPATH. FOLDER
has ``config.json``, ``model.safetensors`` and ``clips.npz``; ``vectors.npz`` gets each clip's
vector, by its name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from qwen3_tts_prompt_child import import_core
from safetensors.torch import load_file


def main() -> None:
    installed, folder = map(Path, sys.argv[1:])
    core = import_core(installed)
    part = json.loads((folder / "config.json").read_text())["speaker_encoder_config"]
    encoder = core["Qwen3TTSSpeakerEncoder"](core["Qwen3TTSSpeakerEncoderConfig"](**part))
    encoder.load_state_dict(load_file(folder / "model.safetensors"))
    encoder.eval().requires_grad_(False)
    model = SimpleNamespace(speaker_encoder=encoder, device="cpu", dtype=torch.float32)
    extract = core["Qwen3TTSForConditionalGeneration"].extract_speaker_embedding
    clips = np.load(folder / "clips.npz")
    vectors = {name: extract(model, clips[name], 24_000).numpy() for name in clips}
    np.savez(folder / "vectors.npz", **vectors)


if __name__ == "__main__":
    main()
