"""The codec of transformers as an oracle for the encoder, run in a separate process.

The class requires torchaudio, which cannot be installed beside a CPU build of torch, so a stub
replaces it. The class uses only ``resample``, computed here by the sum that defines it, one output
at a time.
"""

from __future__ import annotations

import functools
import importlib.machinery
import json
import math
import sys
import types

import numpy as np
import torch


def resample(wave: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """Compute ``y[j] = sum_i x[i] h(i / old - j / new)``.

    ``h`` is a sinc of six zero crossings with a Hann window, cut off at .99 of half the lower rate.
    """
    y = _resampled(wave.double().numpy().tobytes(), old, new)
    return torch.from_numpy(y).to(wave)[None, None]


@functools.cache  # clips are encoded twice, in float64 and in float32
def _resampled(samples: bytes, old: int, new: int) -> np.ndarray:
    x = np.frombuffer(samples)
    count, cut = math.ceil(len(x) * new / old), 0.99 * min(old, new)
    y = np.zeros(count)
    for j in range(count):
        first = max(0, math.floor((j / new - 6 / cut) * old))
        last = min(len(x), math.ceil((j / new + 6 / cut) * old) + 1)
        t = (np.arange(first, last) / old - j / new) * cut
        h = np.where(np.abs(t) < 6, np.sinc(t) * np.cos(np.pi * t / 12) ** 2, 0.0)
        y[j] = (x[first:last] * h).sum() * cut / old
    return y


def install_stub() -> None:
    """Install a stub that transformers accepts as torchaudio."""
    stub = types.ModuleType("torchaudio")
    stub.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    stub.__version__ = "0"  # type: ignore[attr-defined]
    stub.functional = types.SimpleNamespace(resample=resample)  # type: ignore[attr-defined]
    sys.modules["torchaudio"] = stub
    import transformers.utils.import_utils as checks

    checks.is_torchaudio_available = lambda: True
    checks.BACKENDS_MAPPING["torchaudio"] = (lambda: True, "")


def main(what: str, *arguments: str) -> None:
    """Write a file for the tests.

    ``shapes OUT``: names and shapes of the full-size class. ``encode FOLDER CLIPS OUT``: codes of
    each clip, in float64 and in float32.
    """
    install_stub()
    from transformers import HiggsAudioV2TokenizerConfig, HiggsAudioV2TokenizerModel

    if what == "shapes":
        acoustic = {"downsampling_ratios": [8, 5, 4, 2, 3], "upsampling_ratios": [8, 5, 4, 2, 3]}
        config = HiggsAudioV2TokenizerConfig(
            acoustic_model_config=acoustic, target_bandwidths=[0.5, 1, 1.5, 2]
        )
        with torch.device("meta"):
            model = HiggsAudioV2TokenizerModel(config)
        shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        with open(arguments[0], "w") as file:
            json.dump(shapes, file)
        return
    from safetensors.torch import load_file

    folder, clips, out = arguments
    with open(f"{folder}/config.json") as file:
        raw = json.load(file)["audio_encoder_config"]["codec_config"]
    prefix = "tied.embedding.modality_embeddings.0.model."
    weights = load_file(f"{folder}/model.safetensors")
    weights = {k[len(prefix) :]: v.float() for k, v in weights.items() if k.startswith(prefix)}
    model = HiggsAudioV2TokenizerModel(HiggsAudioV2TokenizerConfig(**raw)).eval()
    model.load_state_dict(weights)
    found = {}
    for dtype in (torch.float64, torch.float32):
        model.to(dtype)
        for name, clip in np.load(clips).items():
            wave = torch.from_numpy(clip).to(dtype)[None, None]
            with torch.inference_mode():
                codes = model.encode(wave).audio_codes[0].numpy()
            found[f"{name}-{dtype}".replace("torch.", "")] = codes.astype(np.int16)
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
