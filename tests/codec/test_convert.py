"""Conversion of pickled codecs to safetensors, and pickles that are refused."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from codec import convert as module
from codec import convert_child
from codec.checkpoint import read_config
from codec.convert import convert
from codec.convert_child import convert_file
from codec.families import fish, higgs, open_codec
from codec.families.fish.config import decoder_shapes, encoder_shapes
from codec.families.higgs.config import CodecConfig
from codec.families.higgs.tensors import decoder_shapes as higgs_shapes
from codec.family import CheckpointError, CodecFamily
from tests.codec.fish_checkpoint import TINY, published_state, write_codec_pth
from tests.codec.fish_oracle import FishOracle

#: The attention windows cannot be derived from a pickle, so those of the published codec are used.
PUBLISHED_WINDOWS = replace(TINY, window=128, encoder_window=512)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fish")
    write_codec_pth(folder)
    convert(folder)
    return folder


def test_converted_codec_decodes_like_pickle(converted: Path) -> None:
    found = open_codec(str(converted))
    decoder = found.load_decoder()
    assert decoder.spec == PUBLISHED_WINDOWS.spec()
    codes = np.stack(
        [np.random.default_rng(size).integers(0, size, 40) for size in decoder.spec.codebook_sizes]
    ).astype(np.int16)
    oracle = FishOracle(
        published_state(), window=128, head_dim=8, encoder_window=512, encoder_head_dim=16
    )
    assert np.abs(decoder.decode([codes])[0] - oracle.decode(codes)).max() < 1e-5
    samples = np.random.default_rng(1).normal(size=20 * 64).astype(np.float32)
    assert found.load_encoder().encode(samples).shape == (10, 20)


def test_convert_writes_only_expected_tensors(converted: Path) -> None:
    shapes = decoder_shapes(PUBLISHED_WINDOWS) | encoder_shapes(PUBLISHED_WINDOWS)
    tensors = load_file(converted / "codec.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    with safe_open(converted / "codec.safetensors", "pt") as file:
        sizes = json.loads(file.metadata()["talkwire.fish_codec"])
    assert (sizes["decoder_rates"], sizes["head_dim"]) == ([4, 2, 2], 8)
    assert sorted(path.name for path in converted.iterdir()) == ["codec.pth", "codec.safetensors"]


def convert_here(folder: Path, family: CodecFamily = fish.FAMILY) -> dict:
    """Convert in this process, since a child takes seconds to start."""
    conversion = family.conversion
    assert conversion is not None
    target = folder / conversion.target
    return convert_file(conversion, folder / conversion.source, target, read_config(folder))


def test_convert_writes_into_another_folder(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "deep" / "out"
    write_codec_pth(source)
    (source / "config.json").write_text('{"model_type": "fish_qwen3_omni"}')
    (source / "codec.pth").chmod(0o644)
    done = convert(source, out)
    assert done.file == out / "codec.safetensors"
    assert done.file.stat().st_mode & 0o777 == 0o644, "the service's user can read it too"
    assert (done.family.name, done.left_out) == ("fish_s2", 6)
    assert done.tensors == len(decoder_shapes(TINY) | encoder_shapes(TINY))
    assert open_codec(str(out)).family.name == "fish_s2"
    with pytest.raises(CheckpointError, match="exists already"):
        convert(source, out)


@pytest.mark.parametrize("wrap", ["state_dict", "generator."])
def test_convert_file_unwraps_training_checkpoints(tmp_path: Path, wrap: str) -> None:
    state = published_state()
    if wrap == "state_dict":
        torch.save({"state_dict": state, "epoch": 3}, tmp_path / "codec.pth")
    else:
        named = {wrap + name: tensor for name, tensor in state.items()}
        torch.save(named | {"discriminator.weight": torch.zeros(3)}, tmp_path / "codec.pth")
    assert convert_here(tmp_path)["left_out"] == 6
    assert open_codec(str(tmp_path)).can_encode()


def test_convert_file_converts_higgs_codec(tmp_path: Path) -> None:
    """It has the original names, and no HuBERT: it decodes, but cannot encode."""
    sizes = CodecConfig(
        num_codebooks=2, codebook_size=16, codebook_dim=4, ratios=(3, 2), decoder_dim=1024
    )
    dice = torch.Generator().manual_seed(0)
    shapes = higgs_shapes(sizes)
    state = {name: 0.1 * torch.randn(shape, generator=dice) for name, shape in shapes.items()}
    original = {
        name.replace("quantizer.quantizers.", "quantizer.vq.layers.")
        .replace(".codebook.", "._codebook.")
        .replace("fc2.", "fc_post2."): tensor
        for name, tensor in state.items()
    }
    torch.save(original | {"fc_post1.bias": torch.zeros(3)}, tmp_path / "model.pth")
    config = {"n_filters": 32, "D": 6, "codebook_dim": 4, "ratios": [3, 2], "bins": 16, "n_q": 2,
              "sample_rate": 24_000, "target_bandwidths": [99]}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert convert_here(tmp_path, higgs.FAMILY)["left_out"] == 1
    found = open_codec(str(tmp_path))
    assert found.load_decoder().spec.num_codebooks == 2
    with pytest.raises(CheckpointError):  # no semantic model fits such rates
        found.can_encode()


class Trap:
    """A pickled object that runs a command when it is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self._file}",)


def test_convert_refuses_pickle_that_runs_code(tmp_path: Path) -> None:
    torch.save(published_state() | {"extra": Trap(tmp_path / "sprung")}, tmp_path / "codec.pth")
    with pytest.raises(CheckpointError, match="more than tensors"):
        convert(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["codec.pth"]


def broken(what: str) -> object:
    state: dict = published_state()
    if what == "missing":
        del state["decoder.model.2.block.1.conv.bias"]
    elif what == "shape":
        state["quantizer.post_module.norm.weight"] = torch.zeros(31)
    elif what == "finite":
        state["decoder.model.0.conv.bias"][3] = torch.inf
    elif what == "whole":
        state["decoder.model.0.conv.bias"] = torch.zeros(48, dtype=torch.int64)
    elif what == "other":
        state = {"linear.weight": torch.zeros(2, 2)}
    else:
        return [1, 2, 3]
    return state


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("missing", r"lacks decoder\.model\.2\.block\.1\.conv\.bias"),
        ("shape", r"instead of|lacks|wrong shapes"),
        ("finite", r"not finite in decoder\.model\.0\.conv\.bias"),
        ("whole", "no floating-point numbers"),
        ("other", r"lacks .*codebook\.weight"),
        ("list", "no tensors by name"),
    ],
)
def test_convert_file_refuses_unexpected_tensors(tmp_path: Path, what: str, told: str) -> None:
    torch.save(broken(what), tmp_path / "codec.pth")
    with pytest.raises(CheckpointError, match=told):
        convert_here(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["codec.pth"]


@pytest.mark.parametrize("data", [b"", b"\x80\x02}q\x00.", b"PK\x03\x04" + bytes(200)])
def test_convert_file_refuses_invalid_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "codec.pth").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"no checkpoint|more than tensors"):
        convert_here(tmp_path)


def test_convert_file_tells_why_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError("No space left on device")

    write_codec_pth(tmp_path)
    monkeypatch.setattr(convert_child, "save_file", fail)
    with pytest.raises(CheckpointError, match="cannot be written: No space left"):
        convert_here(tmp_path)


def test_convert_leaves_no_part_of_configuration_if_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(family: CodecFamily, source: Path, made: Path, config: dict) -> dict:
        assert family.conversion is not None
        return convert_file(family.conversion, source, made, config)

    def fail(file: Path, text: str, **_: object) -> None:
        file.write_bytes(text.encode()[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_codec_pth(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "fish_qwen3_omni"}')
    monkeypatch.setattr(module, "_run_child", run)
    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        convert(tmp_path, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_convert_refuses_folder_without_pickle(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.pth, codec\.pth"):
        convert(tmp_path)
    with pytest.raises(CheckpointError, match="is no folder"):
        convert(tmp_path / "nowhere")


def test_convert_reports_reader_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_codec_pth(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CheckpointError, match=r"its reader ended: exit status 1"):
        convert(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["codec.pth"]
