"""Training that starts from a checkpoint: loaded weights, and codes that keep their meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from training import (
    codec_training,
    decoder_training,
    export,
    tokenizer_model,
    train,
    warm,
)
from training.decoder_training import decode, decoder_error, examples
from training.export import ANALYSIS
from training.pitch import HOP, PITCH_CODES
from training.progress import Progress
from training.quantise import COMPONENTS, LATENT, fit
from training.spectra import spectra
from training.speech import Spoken
from training.talker import ROWS, Shape, TalkerNet

SMALL = Shape(hidden=32, layers=2, heads=2, kv_heads=1, head=16, ffn=48, guided=(0, 1))


def said(count: int, frames: int = 20) -> list[Spoken]:
    """Return noise, loud and soft, with valid pitch codes."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        level = np.repeat(random.uniform(0.001, 0.1, 4 * frames), HOP // 4)
        samples = (level * random.standard_normal(frames * HOP)).astype(np.float32)
        codes = random.integers(0, PITCH_CODES, frames)
        made.append(Spoken("so.", "x", samples, codes, np.linspace(0, 3, frames, dtype=np.float32)))
    return made


SAID = said(60)


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Train small networks on noise."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "_ENCODER_HIDDEN", 4)
        patch.setattr(train, "Shape", lambda: SMALL)
        patch.setattr(train, "spoken", lambda _plan: iter(SAID))
        patch.setattr(train, "_clips", lambda *_: {})
        patch.setattr(decoder_training, "_TESTED", 2)
        yield


@pytest.fixture(scope="module")
def old(_small: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of untrained networks to start from."""
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("old")
    heard = torch.cat([spectra(torch.from_numpy(one.samples)) for one in SAID])
    table, _ = fit(heard, seed=0, rounds=1)
    codec = tokenizer_model.new_model(32, 4)
    tokenizer_model.set_books(codec, table)
    export.write(folder, TalkerNet(SMALL), codec, table, {}, {})
    return folder


@pytest.fixture
def plan(old: Path, tmp_path: Path) -> train.Plan:
    """A plan that starts from this checkpoint."""
    (tmp_path / "work").mkdir()
    options = ["all", "--from", str(old), "--work", str(tmp_path / "work"), "--hidden", "32",
               "--out", str(tmp_path / "new"), "--decoder-steps", "3"]  # fmt: skip
    return train.plan_of(options)[1]


def test_decoder_training_keeps_other_weights_bit_for_bit(plan: train.Plan, old: Path) -> None:
    train.decoder(plan)
    train.write(plan)
    before, after = (load_file(folder / "model.safetensors") for folder in (old, plan.out))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trained = tuple(f"{export.CODEC}{part}." for part in ("acoustic_decoder", "fc2"))
    assert changed
    assert all(name.startswith(trained) for name in changed)
    for name, tensor in load_file(old / ANALYSIS).items():
        assert torch.equal(tensor, load_file(plan.out / ANALYSIS)[name])


def test_refit_fits_codebooks_of_checkpoint_further(plan: train.Plan, old: Path) -> None:
    """Its weights are kept, as the latents mean the same. Code vectors are written with few bits,
    which the codec then has too.
    """
    train.write(replace(plan, refit=True))
    before, after = warm.quantiser_of(old), warm.quantiser_of(plan.out)
    assert not torch.equal(before.books, after.books)
    for name in ("mean", "basis", "scale", "metric"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (old, plan.out))
    changed = {name for name in theirs if not torch.equal(theirs[name], ours[name])}
    assert all(name.startswith(f"{export.CODEC}quantizer.quantizers.") for name in changed)
    fresh = train.quantiser(plan).books
    assert float((fresh - after.books).abs().max()) < 0.01 * float(fresh.abs().max())
    with pytest.raises(SystemExit):
        train.plan_of(["quantiser", "--refit"])


def test_blend_is_mean_of_trained_talker_and_checkpoint(plan: train.Plan, old: Path) -> None:
    """A rehearsed talker began there, so it is not blended again."""
    torch.manual_seed(8)
    trained, rehearsed = TalkerNet(SMALL), TalkerNet(SMALL)
    blended = replace(plan, blend=0.25)

    def written(of: train.Plan) -> torch.Tensor:
        train.write(of)
        return layers(of.out)

    before = layers(old)
    assert torch.equal(written(blended), before), "nothing was trained"
    Progress("talker", plan.work, 1).keep(trained)
    mean = 0.75 * before + 0.25 * joined(trained)
    assert torch.allclose(written(blended), mean, rtol=0.01, atol=1e-4)
    assert torch.allclose(written(plan), joined(trained), rtol=0.01, atol=1e-4)
    Progress("rehearse", plan.work, 1).keep(rehearsed)
    assert torch.allclose(written(blended), joined(rehearsed), rtol=0.01, atol=1e-4)


def layers(folder: Path) -> torch.Tensor:
    """Return all weights of a checkpoint's talker's layers."""
    net = TalkerNet(SMALL)
    warm.fill_talker(net, folder)
    return joined(net)


def joined(net: TalkerNet) -> torch.Tensor:
    """Return all weights of its layers."""
    return torch.cat([weight.detach().flatten() for weight in net.layers.parameters()])


def test_decoder_blend_is_mean_of_trained_decoder_and_checkpoint(plan: train.Plan) -> None:
    """Other parts of the codec are not affected."""
    before = codec_training.parts(train.new_codec(plan))
    torch.manual_seed(9)
    trained = codec_training.parts(tokenizer_model.new_model(32, 4))
    for name in ("decoder", "encoder"):
        Progress(name, plan.work, 1).keep(trained[name])
    mixed = codec_training.parts(train._learned_codec(replace(plan, decoder_blend=0.25)))
    for name, weight in mixed["decoder"].state_dict().items():
        old, new = (part["decoder"].state_dict()[name] for part in (before, trained))
        assert torch.allclose(weight, 0.75 * old + 0.25 * new, atol=1e-6), name
    for name, weight in mixed["encoder"].state_dict().items():
        assert torch.equal(weight, trained["encoder"].state_dict()[name]), name


@pytest.mark.parametrize("option", ["--blend", "--decoder-blend"])
@pytest.mark.parametrize("share", ["1.5", "-1", "nan"])
def test_blend_is_a_share_of_trained_and_checkpoint(
    option: str, share: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train.plan_of(["talker", "--from", str(old), option, share])
    assert f"{option} {float(share)}: a share from 0 to 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train.plan_of(["talker", option, ".5"])
    assert f"{option} needs --from" in capsys.readouterr().err


def test_decoder_from_other_folder_replaces_decoder_of_checkpoint(
    plan: train.Plan, tmp_path: Path
) -> None:
    """The folder needs no talker."""
    train.decoder(plan)
    train.write(plan)
    tensors = load_file(plan.out / "model.safetensors")
    codec = {name: t for name, t in tensors.items() if name.startswith(export.CODEC)}
    save_file(codec, plan.out / "model.safetensors")
    (tmp_path / "other").mkdir()
    both = replace(plan, work=tmp_path / "other", decoder_from=plan.out)
    theirs, ours, mixed = (
        train.new_codec(p).state_dict()
        for p in (replace(both, start=plan.out), replace(both, decoder_from=None), both)
    )
    for name, tensor in mixed.items():
        decoder = name.startswith(("acoustic_decoder.", "fc2."))
        wanted = (theirs if decoder else ours)[name]
        assert torch.allclose(tensor, wanted, atol=1e-4), name
    assert any(not torch.allclose(mixed[name], ours[name], atol=1e-4) for name in mixed)


def test_training_starts_with_error_of_checkpoint(plan: train.Plan) -> None:
    """A step at rate zero leaves the error of the checkpoint; a new codec has another."""
    pool = examples(SAID[:2], train.quantiser(plan))
    began = decoder_error(train.new_codec(plan), pool)
    train.decoder(replace(plan, rate=0.0, decoder_steps=1))
    train.write(plan)
    ended = decoder_error(train.new_codec(replace(plan, start=plan.out)), pool)
    assert ended == pytest.approx(began, rel=1e-5)
    fresh = decoder_error(train.new_codec(replace(plan, start=None)), pool)
    assert fresh["spectral"] != pytest.approx(began["spectral"], rel=1e-3)


def test_codec_and_quantiser_have_equal_latents(plan: train.Plan) -> None:
    table = train.quantiser(plan)
    heard = spectra(torch.from_numpy(SAID[0].samples))
    codes = table.encode(heard, torch.from_numpy(SAID[0].pitch))
    theirs = train.new_codec(plan).quantizer.decode(codes.T[:, None]).mT[0]
    assert torch.allclose(table.latents(codes), theirs, atol=1e-5)


def test_warm_start_keeps_parts_missing_in_checkpoint(old: Path, tmp_path: Path) -> None:
    """A checkpoint may have only a decoder and its codebooks."""
    kept = ("acoustic_decoder", "fc2", "quantizer")
    names = tuple(f"{export.CODEC}{part}." for part in kept)
    found = load_file(old / "model.safetensors")
    some = {name: tensor for name, tensor in found.items() if name.startswith(names)}
    save_file(some, tmp_path / "model.safetensors")
    model = tokenizer_model.new_model(32, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    warm.fill_codec(model, tmp_path)
    for name, tensor in model.state_dict().items():
        decoder = name.startswith(("acoustic_decoder.", "fc2."))
        wanted = found[export.CODEC + name].float() if decoder else before[name]
        assert torch.equal(tensor, wanted), name
    net = TalkerNet(SMALL)
    untouched = net.audio.detach().clone()
    warm.fill_talker(net, tmp_path)
    assert torch.equal(net.audio, untouched)


def test_fill_decoder_adapts_decoder_to_other_codebooks(old: Path) -> None:
    """Rotated, scaled and shifted components represent the same spectra, and give equal samples."""
    known = warm.quantiser_of(old)
    torch.manual_seed(7)
    turn, _ = torch.linalg.qr(torch.randn(COMPONENTS, COMPONENTS))
    moved = known.mean + known.basis @ torch.randn(COMPONENTS)
    table = replace(known, mean=moved, basis=known.basis @ turn, scale=known.scale * 3)
    theirs, ours = (tokenizer_model.new_model(32, 4) for _ in range(2))
    warm.fill_codec(theirs, old)
    warm.fill_decoder(ours, old, table)
    heard = spectra(torch.from_numpy(SAID[0].samples))
    pitch = torch.from_numpy(SAID[0].pitch)
    with torch.no_grad():
        before = decode(theirs, known.exact(heard, pitch)[None])
        assert torch.allclose(decode(ours, table.exact(heard, pitch)[None]), before, atol=1e-4)
        assert not torch.allclose(
            decode(theirs, table.exact(heard, pitch)[None]), before, atol=1e-3
        )


def test_fill_encoder_loads_only_parts_independent_of_codebooks(old: Path) -> None:
    theirs, ours = (tokenizer_model.new_model(32, 4) for _ in range(2))
    fresh = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    warm.fill_codec(theirs, old)
    warm.fill_encoder(ours, old)
    known, parts = theirs.state_dict(), ("acoustic_encoder.", "encoder_semantic.")
    for name, tensor in ours.state_dict().items():
        if name.startswith(parts):
            assert torch.equal(tensor, known[name])
        elif not name.startswith("semantic_model."):
            assert torch.equal(tensor, fresh[name])
    with pytest.raises(warm.NotOurs, match="other networks"):
        warm.fill_encoder(tokenizer_model.new_model(32, 2), old)


def test_fill_reader_loads_layers_and_pitch_codes_only(old: Path) -> None:
    torch.manual_seed(6)
    net = TalkerNet(SMALL)
    fresh, theirs = net.audio.detach().clone(), load_file(old / "model.safetensors")
    warm.fill_reader(net, old)
    audio = theirs["tied.embedding.modality_embeddings.0.embedding.weight"].float()
    pitch = torch.zeros(len(audio), dtype=torch.bool)
    pitch[ROWS : ROWS + PITCH_CODES] = True
    assert torch.equal(net.audio[pitch], audio[pitch])
    assert torch.equal(net.audio[~pitch], fresh[~pitch])
    for name, tensor in net.state_dict().items():
        if name.startswith("layers."):
            assert torch.equal(tensor, theirs[f"body.{name}"].float())
    with pytest.raises(warm.NotOurs, match="other networks"):
        warm.fill_reader(TalkerNet(Shape(layers=2)), old)


def test_wider_codec_computes_the_same_at_first(old: Path) -> None:
    """Its additional channels are not heard yet, but they learn at once, as they listen."""
    narrow, wide = tokenizer_model.new_model(32, 4), tokenizer_model.new_model(64, 8)
    for model in (narrow, wide):
        warm.fill_codec(model, old)
    latents = torch.randn(2, 6, LATENT)
    before, after = (decode(model, latents) for model in (narrow, wide))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-4)
    heard = torch.randn(1, 1, 4 * HOP)
    found = [model.acoustic_encoder(heard) for model in (narrow, wide)]
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)
    after.square().sum().backward()
    gradient = wide.acoustic_decoder.block[1].conv_t1.weight.grad
    assert float(gradient[16:, :8].abs().max()) > 0, "of additional inputs of known outputs"
    assert float(gradient[:, 8:].abs().max()) == 0, "of additional outputs, heard by nobody yet"


def test_wider_decoder_and_encoder_take_known_ones(old: Path) -> None:
    ours, wide = tokenizer_model.new_model(32, 4), tokenizer_model.new_model(64, 8)
    table = warm.quantiser_of(old)
    for model in (ours, wide):
        warm.fill_decoder(model, old, table)
        warm.fill_encoder(model, old)
    latents, heard = torch.randn(1, 6, LATENT), torch.randn(1, 1, 4 * HOP)
    torch.testing.assert_close(decode(wide, latents), decode(ours, latents), atol=1e-5, rtol=1e-4)
    found = [model.acoustic_encoder(heard) for model in (ours, wide)]
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_warm_start_refuses_incompatible_checkpoint(old: Path, tmp_path: Path) -> None:
    with pytest.raises(warm.NotOurs, match="other networks"):
        warm.fill_codec(tokenizer_model.new_model(32, 2), old)
    with pytest.raises(warm.NotOurs, match="other networks"):
        warm.fill_talker(TalkerNet(Shape(layers=2)), old)
    found = load_file(old / "model.safetensors")
    del found[f"{export.CODEC}fc2.bias"]
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(warm.NotOurs, match=r"fc2\.bias"):
        warm.fill_codec(tokenizer_model.new_model(32, 4), tmp_path)
    with pytest.raises(warm.NotOurs, match="analysis"):
        warm.quantiser_of(tmp_path)


def test_shipped_voice_is_valid_warm_start() -> None:
    """Its networks have the shapes of this recipe, and only the talker's codebooks are not zero."""
    folder = Path(__file__).parents[2] / "embedded" / "checkpoint"
    table = warm.quantiser_of(folder)
    assert table.books.shape == (8, 1024, LATENT)
    assert not table.books[4:].any()
    warm.fill_codec(tokenizer_model.new_model(384, 24), folder)
    net = TalkerNet(Shape())
    warm.fill_talker(net, folder)
    assert all(tensor.isfinite().all() for tensor in net.state_dict().values())
    assert json.loads((folder / "generation_config.json").read_text()) == train.GENERATION
