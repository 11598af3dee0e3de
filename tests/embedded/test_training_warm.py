"""Training that goes on from a checkpoint: codes keep their meaning, weights are where it left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embedded.training import export, tokenizer_model, train, warm
from embedded.training.dataset import Item
from embedded.training.decoder_training import Example, decoder_error, examples
from embedded.training.export import ANALYSIS
from embedded.training.features import PITCH_CODES, WIDTH
from embedded.training.quantise import COMPONENTS, fit, noise_of
from embedded.training.synthesis import synthesise
from embedded.training.talker import Shape, TalkerNet

SHIPPED = Path(__file__).parents[2] / "embedded" / "checkpoint"
SMALL = Shape(hidden=32, layers=2, heads=2, kv_heads=1, head=16, ffn=48, guided=(0, 1))


def items(count: int, frames: int = 20) -> list[Item]:
    """Made-up speech, but with envelopes and pitch of the right kind."""
    random = np.random.default_rng(0)
    mixing = random.standard_normal((60, WIDTH)).astype(np.float32) / 30
    return [
        Item(
            "so it is said.",
            0,
            random.standard_normal((frames, 60)).astype(np.float32) @ mixing,
            random.integers(0, PITCH_CODES, frames),
            np.linspace(0, 14, frames, dtype=np.float32),
        )
        for _ in range(count)
    ]


SAID = items(60)


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """The recipe with small networks, on made-up speech."""
    torch.set_num_threads(1)
    small = {"_DECODER_HIDDEN": 32, "_ENCODER_HIDDEN": 4, "_DECODER_ON": 20, "_ENCODER_ON": 20}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small.items():
            patch.setattr(train, name, value)
        patch.setattr(train, "Shape", lambda: SMALL)
        patch.setattr(train, "load", lambda _folder: iter(SAID))
        patch.setattr(export, "write_voices", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def old(_small: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint to begin with, of untrained networks."""
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("old")
    table = fit(np.concatenate([item.envelopes for item in SAID]), seed=0, rounds=1)
    codec = tokenizer_model.new_model(32, 4)
    tokenizer_model.set_books(codec, table)
    export.write(folder, TalkerNet(SMALL), codec, table, {})
    return folder


@pytest.fixture
def plan(old: Path, tmp_path: Path) -> train.Plan:
    """Go on from it."""
    (tmp_path / "work").mkdir()
    options = ["all", "--from", str(old), "--work", str(tmp_path / "work"),
               "--out", str(tmp_path / "new"), "--decoder-steps", "3"]  # fmt: skip
    return train.plan_of(options)[1]


def test_one_part_is_trained_and_all_else_stays_bit_for_bit(plan: train.Plan, old: Path) -> None:
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


def test_it_begins_where_the_checkpoint_ended(plan: train.Plan) -> None:
    """A step of no length leaves the checkpoint's own error; a new codec has another."""
    pool = examples(SAID[:2], train.quantiser(plan))
    began = decoder_error(train.new_codec(plan), pool)
    train.decoder(replace(plan, rate=0.0, decoder_steps=1))
    train.write(plan)
    ended = decoder_error(train.new_codec(replace(plan, start=plan.out)), pool)
    assert ended == pytest.approx(began, rel=1e-5)
    assert decoder_error(train.new_codec(replace(plan, start=None)), pool)[0] != pytest.approx(
        began[0], rel=1e-3
    )


def test_the_codec_reads_the_codes_that_are_learned(plan: train.Plan) -> None:
    table = train.quantiser(plan)
    codes = table.encode(torch.from_numpy(SAID[0].envelopes), torch.from_numpy(SAID[0].pitch))
    theirs = train.new_codec(plan).quantizer.decode(codes.T[:, None]).mT[0]
    assert torch.allclose(table.latents(codes), theirs, atol=1e-5)


def test_the_shipped_voice_can_be_trained_further() -> None:
    """Its weights fit the recipe's networks, and what its analysis makes of the codes of a
    reference clip is what its decoder has learned to make of them.
    """
    table, codec = warm.quantiser_of(SHIPPED), tokenizer_model.new_model(256, 12)
    warm.fill_codec(codec, SHIPPED)
    warm.fill_talker(TalkerNet(Shape()), SHIPPED)
    codes = load_file(SHIPPED / "voices" / "sally.safetensors")["codes"].T.long()
    latents = table.latents(codes)
    heard = table.envelopes(latents[:, :COMPONENTS]).numpy()
    samples = synthesise(heard, codes[:, 1].numpy(), noise_of(codes).numpy())
    *_, snr_db = decoder_error(codec, [Example(latents, torch.from_numpy(samples))])
    assert snr_db > 15


def test_what_cannot_be_gone_on_from_says_why(old: Path, tmp_path: Path) -> None:
    with pytest.raises(warm.NotOurs, match="other networks"):
        warm.fill_codec(tokenizer_model.new_model(64, 4), old)
    with pytest.raises(warm.NotOurs, match="other networks"):
        warm.fill_talker(TalkerNet(Shape(layers=2)), old)
    save_file(load_file(old / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(warm.NotOurs, match="analysis"):
        warm.quantiser_of(tmp_path)
