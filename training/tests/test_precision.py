"""Training precision: Muon in float32, and the choice of bfloat16 by device."""

from __future__ import annotations

import pytest
import torch

from training import precision
from training.precision import Float32Muon, autocast, muon, orthogonalised


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (16, 16)])
def test_float32_muon_follows_pytorch_muon(shape: tuple[int, int]) -> None:
    """PyTorch's rounds to bfloat16, so they may differ by 2 % of the distance after some steps."""
    torch.manual_seed(1)
    start = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimisers = (
        Float32Muon([ours], 0.02, weight_decay=0.05),
        torch.optim.Muon([theirs], 0.02, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(5):
        gradient = torch.randn(shape)
        for parameter, optimiser in zip((ours, theirs), optimisers, strict=True):
            parameter.grad = gradient.clone()
            optimiser.step()
    way = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.02 * way
    names = [set(o.state_dict()["state"][0]) for o in optimisers]
    assert names[0] == names[1], "a run's kept state fits either"


def test_orthogonalised_matrix_has_singular_values_near_one() -> None:
    torch.manual_seed(2)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(24, 60)))
    assert 0.6 < values.min() <= values.max() < 1.3


def test_muon_and_autocast_use_bfloat16_only_if_device_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = torch.nn.Parameter(torch.ones(2, 3))
    for native, kind in ((False, Float32Muon), (True, torch.optim.Muon)):
        monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device, native=native: native)
        assert isinstance(muon([matrix], 0.1, 0.0), kind)
        with autocast("cpu"):
            made = torch.ones(2, 2) @ torch.ones(2, 2)
        assert made.dtype == (torch.bfloat16 if native else torch.float32)
