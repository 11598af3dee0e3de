"""Training precision: bfloat16 where the device multiplies in it, float32 elsewhere.

On a CPU without AVX512-BF16 PyTorch emulates bfloat16: a convolution then takes nine times as long
as in float32, a matrix product forty times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import sqrt
from typing import Any, overload

import torch
from torch import Tensor

#: The quintic iteration (Keller Jordan, https://kellerjordan.github.io/posts/muon), and
#: ``torch.optim.Muon``'s defaults.
_COEFFICIENTS, _ITERATIONS, _EPS, _MOMENTUM = (3.4445, -4.775, 2.0315), 5, 1e-7, 0.95
#: Scales an orthogonal update to AdamW's usual size ("match_rms_adamw").
_RMS = 0.2


def multiplies_bfloat16(device: str) -> bool:
    """Whether a device of this type ("cpu", "cuda") has instructions for bfloat16."""
    return device != "cpu" or bool(torch.cpu._is_avx512_bf16_supported())


def autocast(device: str) -> AbstractContextManager[Any]:
    """Compute the block in bfloat16 if that is faster."""
    return torch.autocast(device, torch.bfloat16, enabled=multiplies_bfloat16(device))


def muon(matrices: Sequence[Tensor], rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """PyTorch's Muon, which orthogonalises in bfloat16, or the same in float32."""
    if not matrices or multiplies_bfloat16(matrices[0].device.type):
        return torch.optim.Muon(
            matrices, rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
    return Float32Muon(matrices, rate, weight_decay)


class Float32Muon(torch.optim.Optimizer):
    """Muon in float32: the update is the orthogonalised momentum.

    Args:
        matrices: the parameters, two-dimensional.
        rate: as AdamW's, since updates are scaled to its size.
        weight_decay: decoupled from the gradient.
    """

    def __init__(self, matrices: Sequence[Tensor], rate: float, weight_decay: float = 0.0) -> None:
        super().__init__(matrices, {"lr": rate, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every matrix that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            rate, decay = group["lr"], group["weight_decay"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonalised(matrix.grad.lerp(momentum, _MOMENTUM))
                matrix.mul_(1 - rate * decay)
                matrix.add_(update, alpha=-rate * _RMS * sqrt(max(matrix.shape)))
        return loss


def orthogonalised(matrix: Tensor) -> Tensor:
    """Approximate the nearest matrix with orthonormal rows or columns: Newton-Schulz iterations
    bring its singular values to about 1 (.7 to 1.2).
    """
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=_EPS)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
