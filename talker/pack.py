"""Pack a talker's layers into 4 bits, once: ``python -m talker.pack MODEL FOLDER``.

Writes a checkpoint in the compressed-tensors format (``pack-quantized``, symmetric, a scale for
each group of 32 inputs), which vLLM runs on CPUs and GPUs with 16-bit activations. Embeddings,
audio heads and norms stay as they are, since drift in those is audible. Weights are read one at a
time.

Weights are rounded to the nearest value, without calibration data. Expect the speech to differ, and
listen to it (``python -m benchmarks.quantisation`` compares log-odds).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from talker.checkpoint import CARD, Checkpoint, open_checkpoint
from talker.shape import CheckpointError
from talker.weights import layer_matrices, weight_files

GROUP, BITS = 32, 4
_LARGEST = 2 ** (BITS - 1) - 1
_LEAST_SCALE = 1e-9


def pack_checkpoint(checkpoint: Checkpoint, target: Path) -> Path:
    """Write ``checkpoint`` packed into ``target``, which must not exist yet.

    Raises CheckpointError if it is quantised already, its family loads no quantised checkpoints, or
    a matrix's width is no multiple of the group; OSError or SafetensorError if it cannot be
    written. Then no ``target`` is left.
    """
    family = checkpoint.family
    source = checkpoint.folder
    if checkpoint.quantisation is not None or not family.loads_quantised:
        raise CheckpointError(f"{source}: cannot be packed")
    target.mkdir(parents=True)
    try:
        _write(checkpoint, target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _write(checkpoint: Checkpoint, target: Path) -> None:
    family = checkpoint.family
    source = checkpoint.folder
    layers = layer_matrices(family.expected_weights(checkpoint.shape))
    weight_map: dict[str, str] = {}
    files = weight_files(source)
    for file in files:
        tensors: dict[str, Tensor] = {}
        with safe_open(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118 (no mapping)
                weight = content.get_tensor(name)
                if family.canonical_name(name) in layers:
                    tensors |= _packed(name.removesuffix("weight"), weight)
                else:
                    tensors[name] = weight
        save_file(tensors, target / file.name, metadata={"format": "pt"})
        shutil.copymode(file, target / file.name)  # safetensors' own is 0600
        weight_map |= dict.fromkeys(tensors, file.name)
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (target / "model.safetensors.index.json").write_text(json.dumps(index))
    for other in (*source.glob("*.json"), *source.glob(CARD)):
        if not other.name.endswith(".index.json"):
            shutil.copyfile(other, target / other.name)
    if (source / "voices").is_dir():
        shutil.copytree(source / "voices", target / "voices")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = _settings()
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Pack ``[out, in]`` floats into ``[out, in / 8]`` int32, eight codes each, lowest bits first,
    and ``[out, in / 32]`` scales of the weight's own type.
    """
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // GROUP, GROUP)
    scale = (groups.abs().amax(-1) / _LARGEST).clamp_min(_LEAST_SCALE).to(weight.dtype)
    codes = (groups / scale.float()[..., None]).round_().clamp_(-_LARGEST - 1, _LARGEST)
    # the eight nibbles fill an int32, its sign bit included
    nibbles = (codes + _LARGEST + 1).to(torch.int64).view(rows, columns // 8, 8)
    packed = (nibbles << torch.arange(0, 32, BITS)).sum(-1)
    return torch.where(packed < 1 << 31, packed, packed - (1 << 32)).to(torch.int32), scale


def _packed(stem: str, weight: Tensor) -> dict[str, Tensor]:
    if weight.shape[1] % GROUP:
        raise CheckpointError(f"{stem}weight: {weight.shape[1]} is no multiple of {GROUP}")
    packed, scale = pack(weight)
    return {
        f"{stem}weight_packed": packed,
        f"{stem}weight_scale": scale,
        f"{stem}weight_shape": torch.tensor(weight.shape),
    }


def _settings() -> dict[str, object]:
    weights = {
        "num_bits": BITS,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": GROUP,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": [],
        "config_groups": {"group_0": group},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Pack a checkpoint; returns the exit status."""
    parser = argparse.ArgumentParser(prog="talker.pack", description=__doc__)
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("target", type=Path, help="a folder that does not exist yet")
    options = parser.parse_args(argv)
    try:
        print(pack_checkpoint(open_checkpoint(options.model), options.target))
    except (CheckpointError, OSError, SafetensorError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
