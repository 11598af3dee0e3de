"""Checkpoints in every layout they have had, and those that are none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from codec import checkpoint as module
from codec.checkpoint import (
    BUNDLED_PREFIX,
    decoder_shapes,
    find_codec,
    load_decoder_tensors,
    resolve_folder,
)
from codec.config import CodecConfig
from codec.decoder import HiggsDecoder
from codec.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
#: The tiny codec's configuration, as transformers would write it.
TINY_JSON = {
    "codebook_size": 16,
    "codebook_dim": 4,
    "acoustic_model_config": {
        "hidden_size": 6,
        "decoder_hidden_size": 16,
        "upsampling_ratios": [3, 2],
    },
    "semantic_model_config": {"hidden_size": 4},
}


@pytest.fixture
def tiny_tensors(tiny: CodecConfig, make_tensors: Callable) -> Tensors:
    return make_tensors(tiny)


def write(folder: Path, tensors: Tensors, config: dict, prefix: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    named = {prefix + name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    return folder


def bundled(folder: Path, tensors: Tensors) -> Path:
    config = {"audio_encoder_config": {"num_codebooks": 3, "codec_config": TINY_JSON}}
    return write(folder, tensors, config, BUNDLED_PREFIX)


def loaded(folder: Path) -> Tensors:
    return load_decoder_tensors(find_codec(folder))


def assert_equal(got: Tensors, expected: Tensors, tolerance: float = 0.0) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (got[name] - tensor).abs().max() <= tolerance, name


def descript(tensors: Tensors) -> Tensors:
    """Rename to the older layout: two blocks, so the last Snake is layer 3."""
    patterns = [
        (r"acoustic_decoder\.conv1\.", "acoustic_decoder.model.0."),
        (r"acoustic_decoder\.snake1\.", "acoustic_decoder.model.3."),
        (r"acoustic_decoder\.conv2\.", "acoustic_decoder.model.4."),
        (r"decoder\.block\.0\.", "decoder.model.1.block."),
        (r"decoder\.block\.1\.", "decoder.model.2.block."),
        (r"res_unit1\.", "2.block."),
        (r"res_unit2\.", "3.block."),
        (r"res_unit3\.", "4.block."),
        (r"conv_t1\.", "1."),
        (r"(block\.\d\.block\.)snake1\.", r"\g<1>0."),
        (r"(block\.\d\.block\.)conv1\.", r"\g<1>1."),
        (r"(block\.\d\.block\.)snake2\.", r"\g<1>2."),
        (r"(block\.\d\.block\.)conv2\.", r"\g<1>3."),
        (r"block\.snake1\.", "block.0."),
        (r"codebook\.embed", "codebook.weight"),
    ]
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, replacement in patterns:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def test_the_embedded_checkpoint(checkpoint: Path, tensors: Tensors, config: CodecConfig) -> None:
    assert {name: tuple(t.shape) for name, t in tensors.items()} == decoder_shapes(config)
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


def test_bundled_and_standalone(tmp_path: Path, tiny: CodecConfig, tiny_tensors: Tensors) -> None:
    assert_equal(loaded(bundled(tmp_path / "v3", tiny_tensors)), tiny_tensors)
    bits = 4 * 24_000 / 6
    config = {
        "model_type": "higgs_audio_v2_tokenizer",
        "target_bandwidths": [bits / 1000, 3 * bits / 1000],
        **TINY_JSON,
    }
    folder = write(tmp_path / "v2", tiny_tensors, config)
    assert find_codec(folder).config == tiny
    assert_equal(loaded(folder), tiny_tensors)


def test_a_v3_checkpoint_without_codec_config_is_full_size(
    tmp_path: Path, tiny_tensors: Tensors
) -> None:
    config = {"audio_encoder_config": {"num_codebooks": 8, "vocab_size": 1026}}
    folder = write(tmp_path / "v3", tiny_tensors, config, BUNDLED_PREFIX)
    assert find_codec(folder).config == CodecConfig()


def test_the_older_layout(tmp_path: Path, tiny_tensors: Tensors) -> None:
    renamed = descript(tiny_tensors)
    assert "acoustic_decoder.model.1.block.2.block.3.weight" in renamed
    assert not any(".conv" in name or "embed" in name for name in renamed)
    assert_equal(loaded(bundled(tmp_path / "old", renamed)), tiny_tensors)


@pytest.mark.parametrize(
    "names",
    [
        ("weight_g", "weight_v"),
        ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ],
)
@pytest.mark.parametrize("layout", ["new", "old"])
def test_weight_norm_is_undone(
    tmp_path: Path, tiny_tensors: Tensors, names: tuple[str, str], layout: str
) -> None:
    normed = {}
    for name, tensor in (descript(tiny_tensors) if layout == "old" else tiny_tensors).items():
        if name.endswith(".weight") and tensor.ndim == 3:
            stem, norms = name.removesuffix("weight"), tensor.flatten(1).norm(dim=1)
            normed[stem + names[0]] = norms[:, None, None]
            normed[stem + names[1]] = tensor * 3.0
        else:
            normed[name] = tensor
    assert_equal(loaded(bundled(tmp_path / "normed", normed)), tiny_tensors, 1e-6)


def test_shards(tmp_path: Path, tiny_tensors: Tensors) -> None:
    folder = bundled(tmp_path / "shards", tiny_tensors)
    (folder / "model.safetensors").unlink()
    index: dict[str, str] = {}
    names = sorted(tiny_tensors)
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"part-{number}.safetensors"
        save_file({BUNDLED_PREFIX + n: tiny_tensors[n].contiguous() for n in part}, folder / file)
        index |= {BUNDLED_PREFIX + name: file for name in part}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    assert_equal(loaded(folder), tiny_tensors)
    index[BUNDLED_PREFIX + "fc2.bias"] = "../elsewhere.safetensors"
    path.write_text(json.dumps({"weight_map": index}))
    with pytest.raises(CheckpointError, match="of its folder"):
        find_codec(folder)
    index[BUNDLED_PREFIX + "fc2.bias"] = "part-9.safetensors"
    path.write_text(json.dumps({"weight_map": index}))
    with pytest.raises(CheckpointError, match="part-9"):
        loaded(folder)


def test_only_what_decoding_needs_is_read(
    tmp_path: Path, tiny_tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {**tiny_tensors, "semantic_model.weight": torch.zeros(9), "fc1.bias": torch.ones(1)}
    folder = bundled(tmp_path / "more", more)
    read: list[str] = []
    original = module._opened

    class Spy:
        def __init__(self, path: Path) -> None:
            self.file = original(path)

        def __enter__(self) -> Spy:
            self.handle = self.file.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self.file.__exit__(*error)

        def keys(self) -> list[str]:
            return self.handle.keys()

        def get_tensor(self, name: str) -> torch.Tensor:
            read.append(name.removeprefix(BUNDLED_PREFIX))
            return self.handle.get_tensor(name)

    monkeypatch.setattr(module, "_opened", Spy)
    loaded(folder)
    assert sorted(read) == sorted(tiny_tensors)


def test_missing_keys_are_named(tmp_path: Path, tiny_tensors: Tensors) -> None:
    del tiny_tensors["fc2.bias"], tiny_tensors["acoustic_decoder.block.1.conv_t1.weight"]
    with pytest.raises(CheckpointError, match=r"fc2\.bias, .*block\.1\.conv_t1\.weight"):
        loaded(bundled(tmp_path / "partial", tiny_tensors))


def test_many_missing_keys_are_counted(tmp_path: Path, tiny_tensors: Tensors) -> None:
    only = {"fc2.bias": tiny_tensors["fc2.bias"]}
    with pytest.raises(CheckpointError, match=r"quantizers\.0.* and \d+ more$"):
        loaded(bundled(tmp_path / "partial", only))


def test_misshapen_keys_are_named(tmp_path: Path, tiny_tensors: Tensors) -> None:
    tiny_tensors["fc2.bias"] = torch.zeros(7)
    with pytest.raises(CheckpointError, match=r"fc2\.bias \(7,\) instead of \(6,\)"):
        loaded(bundled(tmp_path / "wrong", tiny_tensors))


def test_values_that_are_not_finite_are_refused(tmp_path: Path, tiny_tensors: Tensors) -> None:
    tiny_tensors["fc2.bias"][2] = float("nan")
    with pytest.raises(CheckpointError, match=r"not finite in fc2\.bias"):
        loaded(bundled(tmp_path / "nan", tiny_tensors))


def test_folders_without_a_codec(tmp_path: Path, tiny_tensors: Tensors) -> None:
    folder = tmp_path / "none"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        find_codec(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="JSON"):
        find_codec(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="no JSON object"):
        find_codec(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="safetensors"):
        find_codec(folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(CheckpointError, match="not a readable safetensors"):
        find_codec(folder)
    write(folder, tiny_tensors, {"model_type": "llama"})
    with pytest.raises(CheckpointError, match="neither"):
        find_codec(folder)


def test_a_loaded_checkpoint_decodes(
    tmp_path: Path, tiny: CodecConfig, tiny_tensors: Tensors, random_codes: Callable
) -> None:
    decoder = HiggsDecoder.load(str(bundled(tmp_path / "v3", tiny_tensors)))
    codes = random_codes(9, 3, 16)
    expected = HiggsDecoder(tiny, tiny_tensors).decode([codes])[0]
    assert len(expected) == 9 * 6
    assert np.array_equal(decoder.decode([codes])[0], expected)


def test_resolve_a_folder(tmp_path: Path) -> None:
    assert resolve_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["", "name", "/no/such/folder", "../x", "a/b/c", "org/ name"])
def test_resolve_nonsense(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="neither a folder nor"):
        resolve_folder(model)


def test_resolve_a_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(model: str, allow_patterns: list[str]) -> str:
        asked.append((model, allow_patterns))
        if model == "org/gone":
            raise OSError("no such repository")
        if model == "org/broken-off":
            raise httpx.RemoteProtocolError("peer closed connection")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_folder("org/name-2.b") == tmp_path
    assert asked == [("org/name-2.b", ["*.safetensors", "*.json"])]
    for model in ("org/gone", "org/broken-off"):
        with pytest.raises(CheckpointError, match="cannot be downloaded"):
            resolve_folder(model)
