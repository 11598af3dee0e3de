"""Higgs checkpoints in every supported layout, and folders that are refused."""

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
from codec.checkpoint import resolve_folder
from codec.families import find_codec, open_codec, spoken_codebooks
from codec.families.higgs.checkpoint import BUNDLED_PREFIX, open_higgs
from codec.families.higgs.config import CodecConfig
from codec.families.higgs.decoder import HiggsDecoder
from codec.families.higgs.tensors import decoder_shapes
from codec.family import CheckpointError
from tests.codec.higgs_checkpoint import write_standalone_codec

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
    return open_higgs(str(folder)).decoder_tensors()


def assert_equal(got: Tensors, expected: Tensors, tolerance: float = 0.0) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (got[name] - tensor).abs().max() <= tolerance, name


def descript(tensors: Tensors) -> Tensors:
    """Rename to the older layout. There are two blocks, so the last Snake is layer 3."""
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


def test_embedded_checkpoint_has_decoder_shapes_in_float32(
    checkpoint: Path, tensors: Tensors, config: CodecConfig
) -> None:
    assert {name: tuple(t.shape) for name, t in tensors.items()} == decoder_shapes(config)
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())


def test_checkpoint_is_read_bundled_and_standalone(
    tmp_path: Path, tiny: CodecConfig, tiny_tensors: Tensors
) -> None:
    assert_equal(loaded(bundled(tmp_path / "v3", tiny_tensors)), tiny_tensors)
    bits = 4 * 24_000 / 6
    config = {
        "model_type": "higgs_audio_v2_tokenizer",
        "target_bandwidths": [bits / 1000, 3 * bits / 1000],
        **TINY_JSON,
    }
    folder = write(tmp_path / "v2", tiny_tensors, config)
    assert open_higgs(str(folder)).config == tiny
    assert_equal(loaded(folder), tiny_tensors)


def test_v3_checkpoint_without_codec_config_is_full_size(
    tmp_path: Path, tiny_tensors: Tensors
) -> None:
    config = {"audio_encoder_config": {"num_codebooks": 8, "vocab_size": 1026}}
    folder = write(tmp_path / "v3", tiny_tensors, config, BUNDLED_PREFIX)
    assert open_higgs(str(folder)).config == CodecConfig()


def test_checkpoint_in_older_layout_is_read(tmp_path: Path, tiny_tensors: Tensors) -> None:
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
@pytest.mark.parametrize("layout", ["new", "old", "flat"])
def test_weight_norm_is_undone(
    tmp_path: Path, tiny_tensors: Tensors, names: tuple[str, str], layout: str
) -> None:
    normed = {}
    for name, tensor in (descript(tiny_tensors) if layout == "old" else tiny_tensors).items():
        if name.endswith(".weight") and tensor.ndim == 3:
            stem, norms = name.removesuffix("weight"), tensor.flatten(1).norm(dim=1)
            normed[stem + names[0]] = norms if layout == "flat" else norms[:, None, None]
            normed[stem + names[1]] = tensor * 3.0
        else:
            normed[name] = tensor
    assert_equal(loaded(bundled(tmp_path / "normed", normed)), tiny_tensors, 1e-6)


def test_checkpoint_in_shards_is_read(tmp_path: Path, tiny_tensors: Tensors) -> None:
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
    index[BUNDLED_PREFIX + "fc2.bias"] = f"part-{1 - names.index('fc2.bias') % 2}.safetensors"
    path.write_text(json.dumps({"weight_map": index}))
    with pytest.raises(CheckpointError, match=r"part-\d.safetensors lacks .*fc2.bias"):
        loaded(folder)


def test_checkpoint_reads_only_decoder_tensors(
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

        def metadata(self) -> dict[str, str]:
            return self.handle.metadata()

        def get_tensor(self, name: str) -> torch.Tensor:
            read.append(name.removeprefix(BUNDLED_PREFIX))
            return self.handle.get_tensor(name)

    monkeypatch.setattr(module, "_opened", Spy)
    loaded(folder)
    assert sorted(read) == sorted(tiny_tensors)


def test_checkpoint_error_names_missing_keys(tmp_path: Path, tiny_tensors: Tensors) -> None:
    del tiny_tensors["fc2.bias"], tiny_tensors["acoustic_decoder.block.1.conv_t1.weight"]
    with pytest.raises(CheckpointError, match=r"fc2\.bias, .*block\.1\.conv_t1\.weight"):
        loaded(bundled(tmp_path / "partial", tiny_tensors))


def test_checkpoint_error_counts_many_missing_keys(tmp_path: Path, tiny_tensors: Tensors) -> None:
    only = {"fc2.bias": tiny_tensors["fc2.bias"]}
    with pytest.raises(CheckpointError, match=r"quantizers\.0.* and \d+ more$"):
        loaded(bundled(tmp_path / "partial", only))


def test_checkpoint_error_names_keys_of_wrong_shape(tmp_path: Path, tiny_tensors: Tensors) -> None:
    tiny_tensors["fc2.bias"] = torch.zeros(7)
    with pytest.raises(CheckpointError, match=r"fc2\.bias \(7,\) instead of \(6,\)"):
        loaded(bundled(tmp_path / "wrong", tiny_tensors))


def test_checkpoint_with_non_finite_values_is_refused(
    tmp_path: Path, tiny_tensors: Tensors
) -> None:
    tiny_tensors["fc2.bias"][2] = float("nan")
    with pytest.raises(CheckpointError, match=r"not finite in fc2\.bias"):
        loaded(bundled(tmp_path / "nan", tiny_tensors))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_codec_is_refused(
    tmp_path: Path, tiny_tensors: Tensors, dtype: torch.dtype
) -> None:
    tiny_tensors["fc2.weight"] = tiny_tensors["fc2.weight"].to(dtype)
    with pytest.raises(CheckpointError, match=r"fc2\.weight in model\.safetensors is torch\."):
        loaded(bundled(tmp_path, tiny_tensors))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_codec_in_any_float_type_is_read(
    tmp_path: Path, tiny_tensors: Tensors, dtype: torch.dtype
) -> None:
    kept = {name: tensor.to(dtype) for name, tensor in tiny_tensors.items()}
    read = loaded(bundled(tmp_path, kept))
    assert_equal(read, {name: tensor.float() for name, tensor in kept.items()})
    assert {tensor.dtype for tensor in read.values()} == {torch.float32}


def test_find_codec_refuses_folders_without_codec(tmp_path: Path, tiny_tensors: Tensors) -> None:
    folder = tmp_path / "none"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        find_codec(folder)
    for broken in ("{", '{"a":' * 100_000):
        (folder / "config.json").write_text(broken)
        with pytest.raises(CheckpointError, match="JSON"):
            find_codec(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="no JSON object"):
        find_codec(folder)
    (folder / "config.json").write_text('{"audio_encoder_config": {"num_codebooks": 3}}')
    with pytest.raises(CheckpointError, match="safetensors"):
        find_codec(folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(CheckpointError, match="not a readable safetensors"):
        find_codec(folder)
    write(folder, tiny_tensors, {"model_type": "llama"})
    named = r"'llama'.*config\.json, model\.safetensors.*Higgs Audio v2 and v3.*codec_model"
    with pytest.raises(CheckpointError, match=named):
        find_codec(folder)


def test_find_codec_refuses_v2_talker(tmp_path: Path, tiny_tensors: Tensors) -> None:
    """Its ``audio_encoder_config`` describes a Whisper encoder, which is not a codec."""
    config = {"model_type": "higgs_audio", "audio_encoder_config": {"model_type": "whisper"}}
    folder = write(tmp_path / "v2", tiny_tensors, config | {"audio_num_codebooks": 8})
    with pytest.raises(CheckpointError, match="codec_model"):
        find_codec(folder)
    assert spoken_codebooks(folder) == 8


ORIGINAL_JSON = {
    "n_filters": 32, "D": 6, "codebook_dim": 4, "ratios": [3, 2], "sample_rate": 24_000,
    "bins": 16, "n_q": 3, "target_bandwidths": [16, 64, 128],
}  # fmt: skip


def original(tensors: Tensors) -> Tensors:
    """Rename to the original form, from before transformers had the class."""
    names = {
        "acoustic_decoder.": "decoder_2.", "quantizer.quantizers.": "quantizer.vq.layers.",
        "fc2.": "fc_post2.",
    }  # fmt: skip
    renamed = {}
    for name, tensor in descript(tensors).items():
        for new, old in names.items():
            name = old + name.removeprefix(new) if name.startswith(new) else name
        renamed[name.replace(".codebook.weight", "._codebook.embed")] = tensor
    return renamed


def test_higgs_checkpoint_in_original_form_is_read(
    tmp_path: Path, make_tensors: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bandwidths imply eight quantizers, but only three are stored."""
    full = CodecConfig(
        num_codebooks=3, codebook_size=16, codebook_dim=4, ratios=(3, 2), decoder_dim=1024
    )
    tensors = make_tensors(full)
    renamed = original(tensors)
    assert "quantizer.vq.layers.2._codebook.embed" in renamed
    assert "decoder_2.model.1.block.2.block.3.weight" in renamed
    folder = write(tmp_path / "original", renamed, ORIGINAL_JSON)
    found = open_higgs(str(folder))
    assert found.config == full
    assert_equal(found.decoder_tensors(), tensors)


def test_higgs_checkpoint_in_original_form_with_bad_ratios_is_refused(
    tmp_path: Path, tiny_tensors: Tensors
) -> None:
    folder = write(tmp_path / "original", original(tiny_tensors), {**ORIGINAL_JSON, "ratios": 8})
    with pytest.raises(CheckpointError, match="configuration cannot be read"):
        find_codec(folder)


def test_higgs_codec_uses_as_many_quantizers_as_talker(
    tmp_path: Path, tiny: CodecConfig, tiny_tensors: Tensors
) -> None:
    talker = tmp_path / "talker"
    talker.mkdir()
    (talker / "config.json").write_text('{"model_type": "higgs_audio_v2", "num_codebooks": 2}')
    config = {"model_type": "higgs_audio_v2_tokenizer", **TINY_JSON, "target_bandwidths": [999]}
    folder = write(tmp_path / "codec", tiny_tensors, config)
    assert open_higgs(str(folder)).config == tiny, "as many as are stored"
    found = open_codec(str(folder), str(talker))
    assert found.load_decoder().spec.num_codebooks == 2


def test_find_codec_of_higgs_pickle_names_convert_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ORIGINAL_JSON))
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors.*talkwire convert"):
        find_codec(tmp_path)
    (tmp_path / "model.pth").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickle alone.*talkwire convert"):
        find_codec(tmp_path)


def test_find_codec_refuses_higgs_folder_with_talker_weights(tmp_path: Path) -> None:
    config = {"model_type": "higgs_audio_v2_tokenizer"}
    folder = write(tmp_path / "codec", {"embed_tokens.weight": torch.zeros(2, 2)}, config)
    with pytest.raises(CheckpointError, match="no quantizer"):
        find_codec(folder)


def test_checkpoint_decoder_equals_decoder_of_same_tensors(
    tmp_path: Path, tiny: CodecConfig, tiny_tensors: Tensors, random_codes: Callable
) -> None:
    decoder = open_higgs(str(bundled(tmp_path / "v3", tiny_tensors))).load_decoder()
    codes = random_codes(9, 3, 16)
    expected = HiggsDecoder(tiny, tiny_tensors).decode([codes])[0]
    assert len(expected) == 9 * 6
    assert np.array_equal(decoder.decode([codes])[0], expected)


def test_resolve_folder_returns_existing_folder(tmp_path: Path) -> None:
    assert resolve_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "model", ["", "name", "/no/such/folder", "../x", "a/b/c", "~nobody0/a", "org/ name", "n" * 5000]
)
def test_resolve_folder_refuses_invalid_model(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="neither a folder nor"):
        resolve_folder(model)


def test_resolve_folder_downloads_hub_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_standalone_codec_decodes_same_bits_as_bundled(
    tmp_path: Path, decoder: HiggsDecoder, random_codes: Callable
) -> None:
    talker = tmp_path / "talker"
    talker.mkdir()
    (talker / "config.json").write_text('{"model_type": "higgs_audio", "audio_num_codebooks": 8}')
    found = open_codec(str(write_standalone_codec(tmp_path / "codec")), str(talker))
    assert found.can_encode()
    alone, codes = found.load_decoder(), random_codes(12)
    assert alone.spec == decoder.spec
    assert alone.fingerprint == decoder.fingerprint
    assert np.array_equal(alone.decode([codes])[0], decoder.decode([codes])[0])
