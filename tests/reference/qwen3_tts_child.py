"""A child process: the Qwen3-TTS codec by its makers' code, with the transformers it asks for.

``python qwen3_tts_child.py INSTALLED CHECKPOINT INPUTS OUTPUTS``, with INSTALLED first in
PYTHONPATH. INPUTS is an npz file with ``codes`` ``[K, T]`` and any number of clips; OUTPUTS gets
``samples``, and codes ``[K, T]`` by each clip's name.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open


def add_packages(installed: Path, names: list[str]) -> None:
    """Register nested packages without running their ``__init__``, which imports the 25 Hz codec
    and all it needs.
    """
    name, folder = "", installed
    for part in names:
        name, folder = f"{name}.{part}".lstrip("."), folder / part
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = module_from_spec(spec)


def open_model(installed: Path, checkpoint: Path) -> Any:
    """Open the makers' model. Raises AssertionError unless the file has all its tensors, and no
    others.
    """
    add_packages(installed, ["qwen_tts", "core", "tokenizer_12hz"])
    from qwen_tts.core.tokenizer_12hz import (  # type: ignore[import-not-found]
        modeling_qwen3_tts_tokenizer_v2 as modeling,
    )

    model = modeling.Qwen3TTSTokenizerV2Model.from_pretrained(
        str(checkpoint), dtype=torch.float32, attn_implementation="eager"
    )
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        stored = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert stored == wanted, sorted(stored.keys() ^ wanted.keys())
    return model.eval()


@torch.inference_mode()
def main() -> None:
    installed, checkpoint, inputs, outputs = map(Path, sys.argv[1:])
    model = open_model(installed, checkpoint)
    given = dict(np.load(inputs))
    codes = torch.from_numpy(given.pop("codes").astype(np.int64))[None]
    answers = {"samples": model.decoder(codes)[0, 0].numpy()}
    model.double()  # rounding would decide between code vectors at nearly equal distance
    for name, clip in given.items():
        values = torch.from_numpy(clip).double()[None]
        mask = torch.ones(values.shape, dtype=torch.int64)
        (made,) = model.encode(values, mask, return_dict=True).audio_codes
        answers[name] = made.T.numpy()
    np.savez(outputs, **answers)


if __name__ == "__main__":
    main()
