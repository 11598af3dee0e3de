"""The critics: what they can tell apart, and how strongly the decoder hears them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from training import adversary
from training.adversary import Adversary
from training.pitch import HOP
from training.quantise import BOOKS, CODES, COMPONENTS, LATENT, Quantiser
from training.spectra import BANDS, CEPSTRA, WIDTH

FRAMES = 6
Piece = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def table() -> Quantiser:
    """A quantiser whose components are the first of the spectra."""
    basis = torch.eye(WIDTH)[:, :COMPONENTS].contiguous()
    books = torch.zeros(BOOKS, CODES, LATENT)
    return Quantiser(torch.zeros(WIDTH), basis, torch.ones(()), books)


def new() -> Adversary:
    """An adversary of a decoder that was silent before."""
    return Adversary(table(), torch.device("cpu"), lambda x: torch.zeros(len(x), x.shape[1] * HOP))


def noise(seed: int, smooth: bool = False) -> Tensor:
    """Four waveforms; the spectra of smooth ones have no fine structure."""
    random = torch.Generator().manual_seed(seed)
    found = 0.1 * torch.randn(4, FRAMES * HOP, generator=random)
    if smooth:
        pulses = torch.zeros_like(found)
        pulses[:, ::160] = 0.1 * 160**0.5
        return pulses
    return found


def latents(level: float = 0.0) -> Tensor:
    """Latents of four utterances with a constant level in the first quarter of each frame."""
    found = torch.zeros(4, FRAMES, LATENT)
    found[..., 0] = level
    return found


def error(critics: Adversary, piece: Piece) -> float:
    """The critics' mean error, .5 for those that guess."""
    made, wanted, codes = piece
    return float(critics.losses(made.clone().requires_grad_(), wanted, codes, 0.0)["critics"])


def taught(piece: Piece, steps: int) -> Adversary:
    critics = new()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adversary, "ALONE", steps)
        critics.prepare(lambda: piece, lambda _: None)
    return critics


def test_critics_tell_how_long_they_learn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adversary, "ALONE", 5)
    monkeypatch.setattr(adversary, "_REPORT", 2)
    said: list[str] = []
    new().prepare(lambda: (noise(1), noise(2), latents()), said.append)
    assert said == [f"critics alone, step {step} of 5" for step in (0, 2, 4)]


def test_critics_learn_texture() -> None:
    """Pulses and noise have the same smooth spectrum, but not the same fine structure."""
    critics = taught((noise(1, smooth=True), noise(2), latents()), 30)
    assert error(critics, (noise(1, smooth=True), noise(3), latents())) < 0.25
    assert error(critics, (noise(3), noise(3), latents())) > 0.45, "equal waveforms"


def test_critics_see_what_codes_say() -> None:
    """The same waveforms are right with one code and wrong with another."""
    critics = new()
    loud, quiet = latents(8.0), latents(-8.0)
    right = critics._coded(loud), critics._coded(quiet)
    waves = noise(1)
    for _ in range(30):
        errors = torch.zeros(())
        for coded, opinion in zip(right, (1.0, 0.0), strict=True):
            for critic in critics.critics.spectra:
                errors = errors + (critic(waves, coded)[-1].float() - opinion).square().mean()
        errors.backward()
        critics.optimisers.step(1e-3)
    found = [
        [critic(noise(2), coded)[-1].float().mean().item() for critic in critics.critics.spectra]
        for coded in right
    ]
    assert min(found[0]) > 0.7
    assert max(found[1]) < 0.3


def test_gradient_of_critics_is_multiple_of_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    """However sure they are, and however the distances are scaled."""
    monkeypatch.setattr(adversary, "_SHARE", 0.5)
    critics = new()
    critics._steps = adversary.ALONE + 10 * adversary._RISE
    for scale in (1.0, 100.0):
        critics._usual.zero_()
        made = noise(1, smooth=True).requires_grad_()
        (scale * critics.measured(made).abs().sum()).backward()
        assert made.grad is not None
        distance = float(made.grad.norm())
        assert distance == pytest.approx(scale * (made.numel() / 160) ** 0.5, rel=0.01)
        made.grad.zero_()
        found = critics.losses(made, noise(2), latents(), 1.0)
        (found["opinion"] + found["features"]).backward()
        assert float(made.grad.norm()) == pytest.approx(0.5 * distance, rel=0.01)


def test_new_critics_are_not_heard_at_once() -> None:
    critics = taught((noise(1, smooth=True), noise(2), latents()), 2)
    critics._steps = adversary.ALONE
    sizes = []
    for _ in range(3):
        made = noise(1, smooth=True).requires_grad_()
        critics._usual.fill_(1.0)
        critics.losses(made, noise(2), latents(), 0.0)["opinion"].backward()
        assert made.grad is not None
        sizes.append(float(made.grad.norm()))
    assert sizes == pytest.approx([0.0, 1 / adversary._RISE, 2 / adversary._RISE], rel=0.01)


def test_decoder_does_not_train_critics() -> None:
    critics = new()
    made = noise(1).requires_grad_()
    found = critics.losses(made, noise(2), latents(), 1.0)
    (found["opinion"] + found["features"]).backward()
    assert all(p.grad is None for p in critics.critics.parameters())
    assert all(p.requires_grad for p in critics.critics.parameters())
    assert not found["critics"].requires_grad


def test_target_is_what_the_decoder_said_before() -> None:
    said = new().target(latents(), np.random.default_rng(0))
    assert said.shape == (4, FRAMES * HOP)
    assert 0 < float(said.abs().max()) < 1e-3, "silence, but for a little noise"


def test_adversary_goes_on_from_its_state() -> None:
    piece = (noise(1, smooth=True), noise(2), latents())
    critics = taught(piece, 5)
    critics._usual.fill_(2.5)
    other = new()
    other.resume(critics.state())
    assert other._steps == 5
    assert float(other._usual) == 2.5
    assert error(other, piece) == error(critics, piece)
    fresh = new()
    fresh.resume({})
    assert fresh._steps == 0


def test_curve_of_first_cepstrum_is_flat() -> None:
    found = adversary._curves(512, torch.device("cpu"))
    assert found.shape == (CEPSTRA, 257)
    assert torch.allclose(found[0], torch.tensor(BANDS**-0.5))
