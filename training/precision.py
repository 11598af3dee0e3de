"""Precision and optimisers of training: bfloat16 where the device multiplies in it, else float32.

On a CPU without AVX512-BF16 PyTorch emulates bfloat16: a convolution then takes nine times as long
as in float32, a matrix product forty times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import sqrt
from typing import Any, overload

import torch
from torch import Tensor, nn

#: The quintic iteration (Keller Jordan, https://kellerjordan.github.io/posts/muon), and
#: ``torch.optim.Muon``'s defaults.
_COEFFICIENTS, _ITERATIONS, _EPS, _MOMENTUM = (3.4445, -4.775, 2.0315), 5, 1e-7, 0.95
#: Scales an orthogonal update to AdamW's usual size ("match_rms_adamw").
_RMS = 0.2


#: Convolutions with at least this many channels are trained as matrices by Muon, at this multiple
#: of AdamW's rate.
_MATRIX, _MUON = 8, 2.0


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


class Optimisers:
    """AdamW, and Muon for the convolutions and matrices of a network.

    Args:
        network: what is trained.
        betas: AdamW's.
        decay: weight decay of matrices.
    """

    def __init__(self, network: nn.Module, betas: tuple[float, float], decay: float = 0.0) -> None:
        deep = [p for p in network.parameters() if p.dim() > 1]
        self._network = network
        self._kernels = [p for p in deep if min(p.flatten(1).shape) >= _MATRIX]
        taken = {id(p) for p in self._kernels}
        rest = [p for p in network.parameters() if id(p) not in taken]
        # the same memory
        self._matrices = [nn.Parameter(p.data.flatten(1)) for p in self._kernels]
        self.adam = torch.optim.AdamW(rest, betas=betas, weight_decay=0.0)
        self.orthogonal = muon(self._matrices, 1e-3, weight_decay=decay)

    def step(self, rate: float) -> None:
        """Update the network at AdamW's ``rate``, and clear its gradients."""
        for optimiser, share in ((self.adam, 1.0), (self.orthogonal, _MUON)):
            for group in optimiser.param_groups:
                group["lr"] = share * rate
        for matrix, kernel in zip(self._matrices, self._kernels, strict=True):
            matrix.grad = None if kernel.grad is None else kernel.grad.flatten(1)
        self.adam.step()
        self.orthogonal.step()
        self._network.zero_grad(set_to_none=True)
