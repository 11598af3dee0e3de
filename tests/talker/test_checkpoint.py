"""``open_checkpoint``: settings read from a checkpoint, and errors that name the defect."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

from streaming.ports import Sampling
from talker.alignment import Alignment, AlignmentHead, cached_calibration, fingerprint
from talker.checkpoint import open_checkpoint, resolve_folder
from talker.families.delayed import DelayedShape
from talker.families.family import SamplingDefaults
from talker.families.higgs_v3 import HiggsV3
from talker.sampling import resolve_sampling
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from tests.talker import tiny
from text.turns import SentencePauses

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"
CODES = "tied.embedding.modality_embeddings.0.embedding.weight"


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def save(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_checkpoint(tmp_path)


def test_embedded_checkpoint_shape_and_defaults_are_read() -> None:
    checkpoint = open_checkpoint(str(EMBEDDED))
    shape = checkpoint.shape
    assert isinstance(shape, DelayedShape)
    assert (shape.num_codebooks, shape.codebook_size, shape.boc, shape.eoc) == (8, 1024, 1024, 1025)
    assert shape.stop_id == 32
    own = json.loads((EMBEDDED / "generation_config.json").read_text())
    assert checkpoint.defaults == SamplingDefaults(
        own["temperature"], own["top_p"], own["top_k"], own["max_new_tokens"]
    )


@pytest.mark.parametrize(
    ("card", "wanted"),
    [
        ("---\ntags: [speech]\nlicense: apache-2.0\nlanguage: en\n---\n# A voice\n", "apache-2.0"),
        ("---\nlicense: other\nlicense_name: boson\n---\n", HiggsV3.licence.name),
        ("---\nlanguage: en\n---\nlicense: mit\n", HiggsV3.licence.name),
        ("license: mit\n", HiggsV3.licence.name),
        (None, HiggsV3.licence.name),
    ],
)
def test_licence_comes_from_model_card_if_named(
    folder: Path, card: str | None, wanted: str
) -> None:
    if card is not None:
        (folder / "README.md").write_text(card)
    assert open_checkpoint(str(folder)).licence.name == wanted


def test_sharded_weights_are_read_and_missing_shard_is_named(tmp_path: Path) -> None:
    tiny.write_checkpoint(tmp_path, shards=3)
    assert open_checkpoint(str(tmp_path)).shape.num_codebooks == 8
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        open_checkpoint(str(tmp_path))


def test_weight_in_two_shards_is_refused(tmp_path: Path) -> None:
    tiny.write_checkpoint(tmp_path, shards=2)
    file = tmp_path / "model-00002-of-00002.safetensors"
    save_file({**load_file(file), CODES: tiny.weights()[CODES]}, file)
    with pytest.raises(CheckpointError, match=rf"{CODES} is both in \S+00001\S+ and in \S+00002"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "problem"), [("../other.safetensors", "same folder"), ("x" * 300, "is missing")]
)
def test_shard_outside_folder_or_unnameable_is_refused(
    tmp_path: Path, name: str, problem: str
) -> None:
    tiny.write_checkpoint(tmp_path, shards=2)
    file = tmp_path / "model.safetensors.index.json"
    content = json.loads(file.read_text())
    content["weight_map"][CODES] = name
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(str(tmp_path))


def test_generation_config_that_links_nowhere_is_refused(folder: Path) -> None:
    file = folder / "generation_config.json"
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        open_checkpoint(str(folder))


def test_family_defaults_apply_without_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    opened = open_checkpoint(str(folder))
    assert opened.defaults == SamplingDefaults(1.0, 0.95, 50, 2048)
    assert opened.alignment == Alignment()


def test_alignment_heads_are_read_from_generation_config(folder: Path) -> None:
    heads = tuple(AlignmentHead(*pair) for pair in tiny.HEADS_TO_WATCH)
    assert open_checkpoint(str(folder)).alignment == Alignment(heads)
    written = {"alignment_heads": [[1, 0], [0, 1, -2]], "alignment_near": 0}
    (folder / "generation_config.json").write_text(json.dumps(written))
    heads = (AlignmentHead(1, 0), AlignmentHead(0, 1, -2))
    assert open_checkpoint(str(folder)).alignment == Alignment(heads, 0)
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": None}))
    assert open_checkpoint(str(folder)).alignment == Alignment()


GOOD = {"heads": [[1, 0, 1]], "near": 1, "margin": 1.1, "off_ms": 30.0, "off_p90_ms": 91.0}


@pytest.mark.parametrize("place", ["folder", "cache"])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({}, None),
        ({"margin": 0.3}, "margin of 0.30"),
        ({"off_ms": 240.0}, "240 ms"),
        ({"off_p90_ms": 1260.0}, "1260"),
        ({"margin": float("nan")}, "margin of nan"),
    ],
)
def test_calibrated_heads_are_used_if_they_can_be_trusted(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    bad: dict[str, float],
    reason: str | None,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder / "generation_config.json").unlink()
    mark = fingerprint(folder)
    file = folder / "alignment.json" if place == "folder" else cached_calibration(mark)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**GOOD, **bad, "fingerprint": mark}).replace("NaN", "1e999"))
    if "nan" in str(reason):  # JSON has no such number
        with pytest.raises(CheckpointError, match="range"):
            open_checkpoint(str(folder))
        return
    opened = open_checkpoint(str(folder))
    if reason is None:
        assert opened.alignment == Alignment((AlignmentHead(1, 0, 1),), 1, 30.0)
        return
    assert opened.alignment.heads == ()
    assert any(reason in warning for warning in opened.warnings)


def test_calibration_of_other_weights_is_not_used(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    (folder / "alignment.json").write_text(json.dumps({**GOOD, "fingerprint": "0" * 32}))
    assert open_checkpoint(str(folder)).alignment == Alignment()
    weights = folder / "model.safetensors"
    before = fingerprint(folder)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    assert fingerprint(folder) != before


@pytest.mark.parametrize("near", [-1, 9, True, "2", 1.0])
def test_alignment_near_out_of_range_is_refused(folder: Path, near: Any) -> None:
    written = {"alignment_heads": [[1, 0]], "alignment_near": near}
    (folder / "generation_config.json").write_text(json.dumps(written))
    with pytest.raises(CheckpointError, match="alignment_near"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    "heads",
    [
        3,
        [1],
        [[1]],
        [[1, 2, 3, 4]],
        [[1, 0, 0.5]],
        [[tiny.LAYERS, 0]],
        [[0, tiny.HEADS]],
        [[0, -1]],
        [[0, True]],
    ],
)
def test_alignment_heads_invalid_or_out_of_range_are_refused(folder: Path, heads: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": heads}))
    with pytest.raises(CheckpointError, match="alignment_heads"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"temperature": 0.8}, SamplingDefaults(0.8, 0.95, 50, 2048)),
        ({"top_k": 0, "max_new_tokens": 100}, SamplingDefaults(1.0, 0.95, 1024, 100)),
        ({"top_k": -1}, SamplingDefaults(1.0, 0.95, 1024, 2048)),
        ({"temperature": 0.01}, SamplingDefaults(0.01, 0.95, 50, 2048)),
        ({"temperature": 2, "top_p": 1}, SamplingDefaults(2, 1, 50, 2048)),
    ],
)
def test_generation_config_overrides_individual_defaults(
    folder: Path, own: dict[str, Any], expected: SamplingDefaults
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(own))
    defaults = open_checkpoint(str(folder)).defaults
    assert defaults == expected
    assert resolve_sampling(Sampling(), defaults, 1024).temperature == expected.temperature


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"do_sample": False}, SamplingDefaults(1.0, 0.95, 50, 2048)),
        (
            {"do_sample": False, "temperature": 0.6, "top_p": 0.5, "max_new_tokens": 99},
            SamplingDefaults(1.0, 0.95, 50, 99),
        ),
        ({"temperature": 0}, SamplingDefaults(1.0, 0.95, 50, 2048)),
        ({"temperature": 1e-6, "top_p": 0.8}, SamplingDefaults(1.0, 0.8, 50, 2048)),
        ({"top_k": 1}, SamplingDefaults(1.0, 0.95, 50, 2048)),
    ],
)
def test_generation_config_greedy_values_are_ignored_with_warning(
    folder: Path, own: dict[str, Any], expected: SamplingDefaults
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(own))
    opened = open_checkpoint(str(folder))
    assert opened.defaults == expected
    (warning,) = opened.warnings
    assert next(iter(own)) in warning
    assert "temperature 1" in warning or "top_k 50" in warning


@pytest.mark.parametrize(
    "own",
    [
        {"temperature": 9},
        {"temperature": 2.5},
        {"temperature": 10**400},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": "x"},
        {"top_k": -2},
        {"max_new_tokens": 8},
    ],
)
def test_generation_config_invalid_defaults_are_refused(folder: Path, own: dict[str, Any]) -> None:
    (folder / "generation_config.json").write_text(json.dumps(own))
    ((name, value),) = own.items()
    with pytest.raises(
        CheckpointError, match=rf"/generation_config\.json: {name} must be .*{value}"
    ):
        open_checkpoint(str(folder))


def test_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        open_checkpoint(str(folder))


def test_missing_weight_is_named(folder: Path) -> None:
    weights = tiny.weights()
    del weights["body.layers.1.mlp.up_proj.weight"]
    save(folder, weights)
    with pytest.raises(CheckpointError, match=r"missing: body\.layers\.1\.mlp\.up_proj\.weight$"):
        open_checkpoint(str(folder))


def test_unexpected_weight_is_named_except_codec_and_heads(folder: Path) -> None:
    weights = tiny.weights() | {
        "body.layers.9.mlp.up_proj.weight": torch.zeros(2),
        "tied.head.text_head.weight": torch.zeros(2),
        "tied.head.modality_heads.0.weight": torch.zeros(2),
        "tied.embedding.modality_embeddings.0.model.quantizer.x": torch.zeros(2),
    }
    save(folder, weights)
    with pytest.raises(CheckpointError, match=r"unexpected: body\.layers\.9\.\S+$"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    "wrong", [torch.zeros(7, tiny.HIDDEN), torch.zeros(8208, 64).to(torch.int8)]
)
def test_misshapen_weight_is_named(folder: Path, wrong: torch.Tensor) -> None:
    save(folder, tiny.weights() | {CODES: wrong})
    with pytest.raises(CheckpointError, match=r"misshapen: tied\.embedding\.modality"):
        open_checkpoint(str(folder))


def test_many_wrong_weights_are_counted_not_listed(folder: Path) -> None:
    save(folder, {CODES: tiny.weights()[CODES]})
    with pytest.raises(CheckpointError, match=r"and \d+ more"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x05", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 2) + b"[]",
     struct.pack("<Q", 9) + b'{"a": {}}', struct.pack("<Q", 3) + b"\xff\xff\xff"],
)  # fmt: skip
def test_corrupt_weight_file_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_checkpoint(str(folder))


def test_truncated_weight_file_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="incomplete"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(model_type="qwen3"), "model_type"),
        (lambda c: c.update(architectures=["Other"]), "architectures"),
        (lambda c: c.pop("text_config"), "text_config"),
        (lambda c: c["text_config"].update(hidden_size=-1), "hidden_size"),
        (lambda c: c["text_config"].update(hidden_size=0), "hidden_size"),
        (lambda c: c["text_config"].update(num_hidden_layers=True), "num_hidden_layers"),
        (lambda c: c["text_config"].update(attention_bias=True), "attention_bias"),
        (lambda c: c["text_config"].update(model_type="llama"), "llama"),
        (lambda c: c["audio_encoder_config"].pop("num_codebooks"), "num_codebooks"),
        (lambda c: c["audio_encoder_config"].update(tie_word_embeddings=False), "tie_word"),
        (lambda c: c.update(audio_stream_bos_id=7), "special codes"),
        (lambda c: c.update(audio_stream_bos_id=[7]), "special codes"),
        (lambda c: c.update(architectures=7), "architectures"),
        (lambda c: c["text_config"].update(rope_theta="x"), "rope_theta"),
        (lambda c: c["text_config"].update(rope_parameters="x"), "rope_parameters"),
        (lambda c: c["text_config"].update(rope_parameters={"rope_theta": []}), "rope_theta"),
        (lambda c: c["text_config"].update(rope_scaling="x"), "rope_scaling must be an object"),
        (lambda c: c["text_config"].update(rms_norm_eps="x"), "text_config.rms_norm_eps"),
        (lambda c: c["text_config"].update(rms_norm_eps=True), "text_config.rms_norm_eps"),
        (lambda c: c["text_config"].update(rms_norm_eps=float("nan")), "text_config.rms_norm_eps"),
        (lambda c: c["text_config"].update(rope_theta=float("inf")), "rope_theta"),
        (lambda c: c["text_config"].update(rope_theta=10**400), "rope_theta"),
        (lambda c: c["text_config"].update(rope_parameters={"factor": float("nan")}), "factor"),
        (lambda c: c["text_config"].update(num_hidden_layers=10**30), "num_hidden_layers"),
        (lambda c: c["text_config"].update(num_hidden_layers=1025), "from 1 to 1024, not 1025"),
        (lambda c: c["text_config"].update(hidden_size=10**400), "hidden_size"),
        (lambda c: c["text_config"].update(hidden_size=float("inf")), "hidden_size"),
        (lambda c: c.update(eos_token_id=True), "eos_token_id must be a token id, not True"),
        (lambda c: c.update(eos_token_id="7"), "eos_token_id"),
        (lambda c: c.update(eos_token_id=[7.5]), "eos_token_id"),
    ],
)
def test_unsupported_or_invalid_config_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    edit_config(folder, change)
    with pytest.raises(CheckpointError, match=rf"/config\.json: .*{named}"):
        open_checkpoint(str(folder))


def test_config_missing_or_not_json_is_told_apart(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text('{"model_type":\n oops}')
    with pytest.raises(CheckpointError, match=r"config\.json: not JSON: .*line 2 column 2"):
        open_checkpoint(str(folder))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: .*No such file"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_too_deeply_nested_json_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(str(folder))


def test_stop_id_is_read_from_top_level_or_text_config() -> None:
    base = tiny.config(7)
    assert HiggsV3().read_shape(base).stop_id == 7
    assert HiggsV3().read_shape({**base, "eos_token_id": [5, 6]}).stop_id == 5
    assert HiggsV3().read_shape({**base, "eos_token_id": []}).stop_id is None
    nested = {**base, "eos_token_id": None}
    assert HiggsV3().read_shape(nested).stop_id is None
    nested["text_config"] = {**base["text_config"], "eos_token_id": 9}
    assert HiggsV3().read_shape(nested).stop_id == 9


def test_rope_theta_null_gets_default() -> None:
    assert HiggsV3().read_shape(tiny.config(7)).backbone.rope_theta == 1e6
    assert HiggsV3().read_shape(tiny.config(7, rope_theta=1e4)).backbone.rope_theta == 1e4
    nested = tiny.config(7, rope_parameters={"rope_theta": 5e5})
    assert HiggsV3().read_shape(nested).backbone.rope_theta == 5e5


def test_head_size_missing_is_that_of_backbone_config() -> None:
    config = tiny.config(7)
    del config["text_config"]["head_dim"]
    built = HiggsV3().backbone_config(config)
    assert "head_dim" not in built
    wanted = CONFIG_MAPPING[built.pop("model_type")](**built).head_dim
    assert HiggsV3().read_shape(config).backbone.head_dim == wanted


def test_norm_epsilon_null_gets_default() -> None:
    assert HiggsV3().read_shape(tiny.config(7, rms_norm_eps=None)).backbone.rms_norm_eps == 1e-6


@pytest.mark.parametrize(
    "model", ["", "./nowhere", "/nowhere/at/all", "nowhere", "a/b/c", "~nobody0/a", "n" * 5000]
)
def test_missing_folder_is_not_looked_up_on_hub(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(CheckpointError, match="no folder"):
        resolve_folder(model)


def test_hub_id_resolves_to_snapshot(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    asked = {}

    def download(repo: str, **more: Any) -> str:
        asked.update(more, repo=repo)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    checkpoint = open_checkpoint("someone/talker", "abc")
    assert (checkpoint.name, checkpoint.folder) == ("someone/talker", folder)
    assert asked == {
        "repo": "someone/talker", "revision": "abc",
        "allow_patterns": ["*.json", "*.safetensors", "merges.txt", "README.md"],
    }  # fmt: skip


@pytest.mark.parametrize("kind", [OSError, httpx.RemoteProtocolError])
def test_hub_download_error_becomes_checkpoint_error(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def download(repo: str, **_: Any) -> str:
        raise kind("secret details")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(CheckpointError, match="cannot get someone/talker") as error:
        open_checkpoint("someone/talker")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("written", "has_continuity"),
    [("{}", True), ('{"continuation": true}', True), ('{"continuation": false}', False)],
)
def test_continuity_is_on_unless_generation_config_disables(
    folder: Path, written: str, has_continuity: bool
) -> None:
    assert not open_checkpoint(str(folder)).has_continuity
    (folder / "generation_config.json").write_text(written)
    opened = open_checkpoint(str(folder))
    assert opened.has_continuity is has_continuity
    settings: dict[Literal["auto", "on", "off"], bool]
    settings = {"auto": has_continuity, "on": True, "off": False}
    for wanted, can in settings.items():
        assert TalkerSettings(continuity=wanted).has_continuity(opened.has_continuity) is can


@pytest.mark.parametrize("odd", ['"yes"', "1", "null"])
def test_continuation_must_be_boolean(folder: Path, odd: str) -> None:
    (folder / "generation_config.json").write_text(f'{{"continuation": {odd}}}')
    with pytest.raises(CheckpointError, match="continuation"):
        open_checkpoint(str(folder))


LENGTHS = ("continuation_positions", "segment_chars")
PAUSES = ("sentence_pause_ms", "paragraph_pause_ms")


@pytest.mark.parametrize("name", LENGTHS)
def test_training_lengths_are_read_from_generation_config(folder: Path, name: str) -> None:
    assert getattr(open_checkpoint(str(folder)), name) is None
    (folder / "generation_config.json").write_text(f'{{"{name}": 440}}')
    assert getattr(open_checkpoint(str(folder)), name) == 440


@pytest.mark.parametrize("odd", ["true", "0", "0.4", "2.1", '"0.9"', "NaN"])
def test_default_speed_invalid_value_is_refused(folder: Path, odd: str) -> None:
    (folder / "generation_config.json").write_text(f'{{"default_speed": {odd}}}')
    with pytest.raises(CheckpointError, match="default_speed"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("name", LENGTHS + PAUSES)
@pytest.mark.parametrize("odd", ["true", "0", "4.5", '"440"'])
def test_training_length_invalid_value_is_refused(folder: Path, name: str, odd: str) -> None:
    (folder / "generation_config.json").write_text(f'{{"{name}": {odd}}}')
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(str(folder))


def test_embedded_voice_speaks_short_pieces_with_pauses_between() -> None:
    opened = open_checkpoint(str(EMBEDDED))
    assert opened.segment_chars == 120
    assert opened.pauses == SentencePauses(sentence_s=0.22, paragraph_s=0.4)
    assert opened.default_speed == 0.9


def test_pauses_between_utterances_are_read_from_generation_config(folder: Path) -> None:
    assert open_checkpoint(str(folder)).pauses == SentencePauses()
    written = '{"sentence_pause_ms": 150, "paragraph_pause_ms": 300}'
    (folder / "generation_config.json").write_text(written)
    assert open_checkpoint(str(folder)).pauses == SentencePauses(0.15, 0.3)
