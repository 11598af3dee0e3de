"""Small pre-quantised checkpoints, in the formats in which they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_FP8_MOST, _INT8_MOST = 448.0, 127.0
_PER_TOKEN = {"strategy": "token", "dynamic": True, "symmetric": True, "num_bits": 8}
_PER_CHANNEL = {"strategy": "channel", "dynamic": False, "symmetric": True, "num_bits": 8}


def _compressed(kind: str, format_: str) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {**_PER_CHANNEL, "type": kind},
        "input_activations": {**_PER_TOKEN, "type": kind},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


#: ``quantization_config`` by format: one scale per matrix as AutoFP8 writes it, and one per output
#: channel as llm-compressor does. Inputs are scaled dynamically.
CONFIGS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "compressed-fp8": _compressed("float", "float-quantized"),
    "compressed-int8": _compressed("int", "int-quantized"),
}


def quantise_checkpoint(source: Path, target: Path, format_: str) -> Path:
    """Write ``source`` to ``target`` with the matrices of its layers quantised to ``format_``.

    Embeddings, audio head and norms are unchanged.
    """
    target.mkdir()
    weights: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            weights[name] = weight
            continue
        codes, scale = quantise(weight, format_)
        weights[name], weights[f"{name}_scale"] = codes, scale
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    for file in source.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = CONFIGS[format_]
    (target / "config.json").write_text(json.dumps(config))
    return target


def quantise(weight: Tensor, format_: str) -> tuple[Tensor, Tensor]:
    """The codes ``[out, in]`` of a matrix, and their scale: ``[out, 1]``, or one for ``fp8``."""
    size = weight.float().abs()
    most = _INT8_MOST if format_ == "compressed-int8" else _FP8_MOST
    scale = (size.max() if format_ == "fp8" else size.amax(1, keepdim=True)) / most
    codes = weight.float() / scale
    if format_ == "compressed-int8":
        return codes.round().clamp(-most, most).to(torch.int8), scale
    return codes.to(torch.float8_e4m3fn), scale
