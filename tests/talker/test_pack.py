"""Pre-quantised checkpoints, and ``talker.pack``, which writes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from benchmarks.quantisation import FakeQuantTalker, Scheme, StoredTalker, fake_int4, unpack
from benchmarks.quantisation import main as compare
from talker import vllm_setup
from talker.checkpoint import open_checkpoint
from talker.pack import GROUP, main, pack, pack_checkpoint
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from talker.vllm_setup import make_plan
from talker.weights import weight_files
from tests.talker import tiny
from tests.talker.harness import GREEDY, hear, running, text, warm
from tests.talker.quantised import CONFIGS, quantise_checkpoint

HEAD = "tied.embedding.modality_embeddings.0.embedding.weight"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def packed(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("packed") / "model"
    return pack_checkpoint(open_checkpoint(str(tiny_checkpoint)), target)


def test_pack_equals_compressed_tensors() -> None:
    from compressed_tensors.compressors import pack_to_int32

    weight = torch.randn(6, 4 * GROUP, generator=torch.Generator().manual_seed(1))
    codes, scale = pack(weight)
    wanted = (weight.view(6, 4, GROUP) / scale[..., None]).round().clamp(-8, 7).to(torch.int8)
    assert torch.equal(codes, pack_to_int32(wanted.view(6, -1), 4))
    back = wanted * scale[..., None]
    assert torch.equal(unpack(codes, scale), back.view(6, -1))
    assert (back - weight.view(6, 4, GROUP)).abs().max() <= scale.max() / 2 + 1e-6


def test_packed_checkpoint_keeps_embeddings_and_heads(tiny_checkpoint: Path, packed: Path) -> None:
    opened = open_checkpoint(str(packed))
    assert opened.quantisation is not None
    assert opened.quantisation.method == "compressed-tensors"
    before = load_file(tiny_checkpoint / "model.safetensors")
    after = load_file(packed / "model.safetensors")
    layers = [name for name in before if name.endswith("_proj.weight")]
    assert layers
    assert not set(layers) & set(after)
    for name in set(before) - set(layers):
        assert torch.equal(before[name], after[name])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda weights: weights.update({HEAD: weights[HEAD].to(torch.int8)}),
        lambda weights: weights.pop("body.layers.0.mlp.up_proj.weight_packed"),
        lambda weights: weights.update({"body.norm.weight_scale": torch.ones(1)}),
    ],
    ids=["head", "missing", "norm"],
)
def test_open_checkpoint_refuses_inconsistent_quantisation(
    packed: Path, tmp_path: Path, spoil: object
) -> None:
    for file in packed.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    spoil(weights)  # type: ignore[operator]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="weights in"):
        open_checkpoint(str(tmp_path))


def test_fp8_weights_need_quantization_config(tmp_path: Path) -> None:
    tiny.write_checkpoint(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [n for n in weights if n.endswith("_proj.weight")]:
        weights[name] = weights[name].to(torch.float8_e4m3fn)
        weights[f"{name}_scale"] = torch.ones(1)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="weights in"):
        open_checkpoint(str(tmp_path))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    file.write_text(json.dumps(config))
    quantisation = open_checkpoint(str(tmp_path)).quantisation
    assert quantisation is not None
    assert quantisation.method == "fp8"


def test_packed_shards_equal_packed_file(packed: Path, tmp_path: Path) -> None:
    tiny.write_checkpoint(tmp_path, shards=2)
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    target = pack_checkpoint(open_checkpoint(str(tmp_path)), tmp_path / "packed")
    files = weight_files(target)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o644}, "as readable as before"
    assert len(files) == 2
    assert open_checkpoint(str(target)).quantisation is not None
    index = json.loads((target / "model.safetensors.index.json").read_text())["weight_map"]
    whole, parts = load_file(packed / "model.safetensors"), {f.name: load_file(f) for f in files}
    assert index.keys() == whole.keys()
    for name, weight in whole.items():
        assert torch.equal(parts[index[name]][name], weight)


def test_matrix_of_odd_width_is_not_packed(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny.write_checkpoint(tmp_path)))
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = "body.layers.0.mlp.down_proj.weight"
    weights[name] = weights[name][:, :-16].contiguous()
    save_file(weights, file)
    with pytest.raises(CheckpointError, match=f"{name}: .* is no multiple of {GROUP}"):
        pack_checkpoint(checkpoint, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_packed_checkpoint_keeps_licence_of_model_card(tmp_path: Path) -> None:
    (tiny.write_checkpoint(tmp_path) / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    target = pack_checkpoint(open_checkpoint(str(tmp_path)), tmp_path / "packed")
    assert open_checkpoint(str(target)).licence.name == "cc-by-4.0"


def test_make_plan_refuses_to_quantise_twice(packed: Path) -> None:
    opened = open_checkpoint(str(packed))
    with pytest.raises(ValueError, match="quantised already"):
        make_plan(TalkerSettings(quantization="int8"), opened)


def test_main_reports_unpackable_checkpoint(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(packed), str(tmp_path / "again")]) == 1
    assert "cannot be packed" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_main_leaves_no_folder_if_disk_is_full(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(made: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"part")
        raise SafetensorError("no space left on device")

    target = tmp_path / "model"
    monkeypatch.setattr("talker.pack.save_file", fail)
    assert main([str(tiny_checkpoint), str(target)]) == 1
    assert "no space left" in capsys.readouterr().err
    assert not target.exists()
    target.mkdir()
    assert main([str(tiny_checkpoint), str(target)]) == 1
    assert "exists" in capsys.readouterr().err
    assert target.exists(), "what was there before is not removed"


def test_make_plan_refuses_packed_weights_without_kernel(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_setup, "PACKED_KERNEL", "there_is_no_such_kernel")
    with pytest.raises(ValueError, match=r"packed 4-bit weights.*AVX512"):
        make_plan(TalkerSettings(), open_checkpoint(str(packed)))


@pytest.fixture(scope="module", params=list(CONFIGS))
def quantised(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A checkpoint in a published format, in a folder named after the format."""
    target = tmp_path_factory.mktemp("quantised") / request.param
    return quantise_checkpoint(tiny_checkpoint, target, request.param)


def test_quantised_checkpoint_keeps_head_in_every_format(
    tiny_checkpoint: Path, quantised: Path
) -> None:
    opened = open_checkpoint(str(quantised))
    assert opened.quantisation is not None
    assert opened.quantisation.method == CONFIGS[quantised.name]["quant_method"]
    before, after = (load_file(f / "model.safetensors") for f in (tiny_checkpoint, quantised))
    changed = {name for name in before if after[name].dtype != before[name].dtype}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    assert torch.equal(before[HEAD], after[HEAD])


def test_quantisation_benchmark_compares_stored_weights(
    tiny_checkpoint: Path, quantised: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    asked = ["--model", str(tiny_checkpoint), "--quantised", str(quantised), "--sentences", "1"]
    compare([*asked, "--json", str(report)])
    figures = {f["scheme"]: f for f in json.loads(report.read_text())["figures"]}
    simulated = {"fp8": "fp8, one scale per tensor", "compressed-fp8": "fp8"}
    own, alike = (
        figures[f"stored in {quantised.name}"],
        figures[simulated.get(quantised.name, "int8")],
    )
    assert own["kl_mean"] > 0
    assert own["kl_mean"] == pytest.approx(alike["kl_mean"], rel=1e-3)


def test_quantisation_benchmark_reads_packed_weights(tiny_checkpoint: Path, packed: Path) -> None:
    stored, ids = StoredTalker(packed), (1, 5, 9)
    simulated = FakeQuantTalker(tiny_checkpoint, Scheme("int4", fake_int4, None))
    rows = simulated.speak(ids, 12).rows
    assert torch.allclose(stored.logits(ids, rows), simulated.logits(ids, rows), atol=1e-4)


def test_make_plan_refuses_per_matrix_scale_without_gpu(quantised: Path) -> None:
    opened = open_checkpoint(str(quantised))
    if quantised.name != "fp8":
        assert make_plan(TalkerSettings(), opened).dtype == "bfloat16"
        return
    with pytest.raises(ValueError, match=r"one scale for each matrix.*GPU"):
        make_plan(TalkerSettings(), opened)


@pytest.mark.slow
@pytest.mark.parametrize(
    "format_", ["compressed-fp8", pytest.param("compressed-int8", marks=pytest.mark.long)]
)
async def test_quantised_engine_mostly_picks_best_codes_of_plain_loop(
    tiny_checkpoint: Path, tmp_path: Path, format_: str
) -> None:
    """In bfloat16, over 90 % of the engine's codes are the plain loop's best on these weights."""
    folder = quantise_checkpoint(tiny_checkpoint, tmp_path / format_, format_)
    async with running(folder, engine="inprocess", dtype="auto") as engine:
        assert engine.info is not None
        assert engine.info.dtype == "bfloat16"
        heard = await hear(engine, text(1), GREEDY, rows=60)
    ids = open_checkpoint(str(folder)).prompt_builder(1024).build(text(1)).ids
    logits = StoredTalker(folder).logits(ids, heard.rows)[..., :1024]
    is_code = torch.from_numpy(heard.rows < 1024)
    best = logits.argmax(-1) == torch.from_numpy(heard.rows)
    assert is_code.sum() > 100
    assert best[is_code].float().mean() > 0.9


def has_packed_kernel() -> bool:
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    return hasattr(torch.ops._C, vllm_setup.PACKED_KERNEL)


@pytest.mark.slow
async def test_packed_checkpoint_speaks_reproducibly(packed: Path) -> None:
    if not has_packed_kernel():
        pytest.skip("vLLM has no kernel for packed weights on a CPU without AVX512")
    async with running(packed, engine="inprocess", dtype="auto") as engine:
        assert engine.info is not None
        assert engine.info.dtype == "bfloat16"
        heard = await hear(engine, text(1), warm(1), rows=30)
        again = await hear(engine, text(1), warm(1), rows=30)
    assert heard.rows.shape[1] == 8
    assert heard.rows.tobytes() == again.rows.tobytes()
