"""Checkpoints of the embedded codec: in its own folder (Higgs Audio v2) or in a v3 talker."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from codec.families.higgs.checkpoint import BUNDLED_PREFIX

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"


def write_standalone_codec(folder: Path, bundled: Path = EMBEDDED) -> Path:
    """Write ``config.json`` and ``model.safetensors`` into ``folder``; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    own = json.loads((bundled / "config.json").read_text())["audio_encoder_config"]["codec_config"]
    config = own | {"model_type": "higgs_audio_v2_tokenizer"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_codec_tensors(bundled), folder / "model.safetensors")
    return folder


def bundle_codec(talker: Path, bundled: Path = EMBEDDED) -> None:
    """Put the embedded codec into a v3 talker's ``config.json`` and ``model.safetensors``."""
    config = json.loads((talker / "config.json").read_text())
    own = json.loads((bundled / "config.json").read_text())["audio_encoder_config"]
    config["audio_encoder_config"]["codec_config"] = own["codec_config"]
    (talker / "config.json").write_text(json.dumps(config))
    file = talker / "model.safetensors"
    codec = {BUNDLED_PREFIX + name: tensor for name, tensor in _codec_tensors(bundled).items()}
    save_file(load_file(file) | codec, file, metadata={"format": "pt"})


def _codec_tensors(bundled: Path) -> dict[str, Tensor]:
    with safe_open(bundled / "model.safetensors", "pt") as file:
        return {
            key.removeprefix(BUNDLED_PREFIX): file.get_tensor(key)
            for key in file.keys()  # noqa: SIM118
            if key.startswith(BUNDLED_PREFIX)
        }
