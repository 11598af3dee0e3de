"""What decoder and encoder learn from: how often, how loud, and what is known of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embedded.training import warm
from embedded.training.dataset import Item, make
from embedded.training.decoder_training import Example, _batch, examples
from embedded.training.encoder_training import (
    Heard,
    encoder_error,
    originals,
    recordings,
    train_encoder,
)
from embedded.training.features import PLAIN, WIDTH, Speaker, pitch_codes
from embedded.training.flite import Flite
from embedded.training.progress import Progress
from embedded.training.quantise import COMPONENTS, PITCH, Quantiser
from embedded.training.synthesis import HOP
from embedded.training.tokenizer_model import new_model

SHIPPED = Path(__file__).parents[2] / "embedded" / "checkpoint"


@pytest.fixture(scope="module")
def table() -> Quantiser:
    torch.set_num_threads(1)
    return warm.quantiser_of(SHIPPED)


@pytest.fixture(scope="module")
def flite() -> Flite:
    try:
        return Flite()
    except OSError:
        pytest.skip("flite is not installed")


def item(f0_hz: float, frames: int = 20) -> Item:
    random = np.random.default_rng(0)
    return Item(
        "so it is.",
        0,
        random.standard_normal((frames, WIDTH)).astype(np.float32) / 4,
        pitch_codes(np.full(frames, f0_hz, np.float32)),
        np.zeros(frames, np.float32),
    )


def test_a_voice_an_octave_lower_is_drawn_four_times_as_often(table: Quantiser) -> None:
    high, low, silent = (e.weight for e in examples([item(200), item(100), item(0)], table))
    assert low / high == pytest.approx(4, rel=0.05)
    assert silent == 1
    mark = [torch.full((30, 1), float(i)) for i in range(2)]
    pool = [Example(m, torch.zeros(30 * HOP), w) for m, w in zip(mark, (high, low), strict=True)]
    random = np.random.default_rng(0)
    drawn = torch.cat([_batch(pool, random, 50, 4)[0][:, 0, 0] for _ in range(40)])
    assert float(drawn.mean()) == pytest.approx(0.8, abs=0.03)


def test_flites_own_speech_is_as_loud_as_what_is_said_of_it(table: Quantiser, flite: Flite) -> None:
    voices = [Speaker("awb"), Speaker("awb", 1.2), Speaker("slt")]
    text = "the garden is behind the house."
    items = [make(text, n, voice, flite) for n, voice in enumerate(voices)]
    own, theirs = (
        originals(items, voices, table, seed=5),
        recordings([items[0], items[2]], table, seed=6),
    )
    assert len(own) == 2, "only flite's own voices have an own speech"
    for one, other in zip(own, theirs, strict=True):
        assert one.samples.shape == other.samples.shape
        assert one.latents.shape == other.latents.shape
        known = ~one.latents.isnan()
        assert known[:, : COMPONENTS + PLAIN].all()
        assert not known[:, COMPONENTS + PLAIN :].any()
        plain = slice(COMPONENTS, COMPONENTS + PLAIN)
        assert torch.equal(one.latents[:, plain], other.latents[:, plain])
        louder = one.samples.float().std() / other.samples.float().std()
        # The first component is not the energy alone, but all that a louder frame changes is
        # what the energies' own change of the envelope makes of the components.
        change = (one.latents - other.latents)[:, :COMPONENTS].float()
        unit = table.components(torch.ones(1, WIDTH) * _energies()) - table.components(
            torch.zeros(1, WIDTH)
        )
        said = (change @ unit.T / unit.pow(2).sum()).mean()
        assert float(louder.log()) == pytest.approx(float(said), abs=0.05)


def _energies() -> torch.Tensor:
    from embedded.training.encoder_training import _ENERGIES

    return torch.from_numpy(_ENERGIES)


def test_what_is_not_known_is_not_learned(tmp_path: Path, table: Quantiser) -> None:
    torch.manual_seed(0)
    model = new_model(decoder_hidden=32, encoder_hidden=4)
    heard = recordings([item(150, 24)], table, seed=1)[0]
    latents = heard.latents.clone()
    latents[:, -PITCH + PLAIN :] = torch.nan
    own = Heard(heard.samples, latents)
    assert encoder_error(model, [own])[0] == pytest.approx(encoder_error(model, [heard])[0])
    wrong = replace(own, latents=own.latents.nan_to_num(9.0))
    made = []
    for known in (own, own, wrong):
        torch.manual_seed(0)
        model = new_model(decoder_hidden=32, encoder_hidden=4)
        folder = tmp_path / str(len(made))
        folder.mkdir()
        pool = [heard] * 13
        train_encoder(model, pool, [known] * 13, Progress("e", folder, 4), size=2, frames=8)
        made.append(torch.cat([p.flatten() for p in model.fc.parameters()]))
    assert made[0].isfinite().all()
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
