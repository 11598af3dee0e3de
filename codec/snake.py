"""Snake, the activation of DAC decoders: ``x + sin(alpha x)^2 / beta`` per channel.

``beta`` is ``alpha`` unless it is learned. With ``u = alpha x`` it is
``(u + alpha / beta * sin(u)^2) / alpha``; the layers fold the outer factors into the weights of
neighbouring convolutions, if there are any.

The PyTorch form here is the definition, and runs on CPUs. On a GPU a Triton kernel is used, once
it has given the same results there (``use_kernel``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.layer_ranges import Step

log = logging.getLogger(__name__)
#: For small alpha Snake approaches the identity; this avoids a division by 0.
_MIN_ALPHA = 1e-6
#: Largest difference between kernel and PyTorch form, absolute and relative: some roundings.
_TOLERANCE = 2e-6
#: Batch, length, channels, and padding on either side of the layers that are compared.
_COMPARED = ((2, 37, 96, 0, 0), (3, 5, 7, 18, 0), (1, 64, 192, 3, 54))


class SnakeKernel(Protocol):
    """``codec.snake_kernel``."""

    def fits(self, x: Tensor) -> bool:
        """Whether the kernel can compute this layer."""

    def snake(
        self,
        x: Tensor,
        alpha: Tensor | None,
        ratio: Tensor | None,
        pad_left: int = 0,
        pad_right: int = 0,
    ) -> Tensor:
        """Compute a Snake; without ``alpha`` in place."""


#: The kernel in use; None: the PyTorch form.
_kernel: SnakeKernel | None = None


class Snake:
    """A Snake of ``[C]`` channels, whose neighbours divide by ``alpha``."""

    def __init__(self, alpha: Tensor, beta: Tensor | None = None) -> None:
        smallest = torch.full_like(alpha, _MIN_ALPHA)
        self.alpha = torch.where(alpha.abs() < _MIN_ALPHA, smallest, alpha)
        self._ratio = None if beta is None else self.alpha / beta

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute ``u + alpha / beta * sin(u)^2`` for ``u = alpha * x`` ``[B, n, C]``, padded with
        zeros as the step says.
        """
        left, right = step.pad_left, step.pad_right
        if _kernel is not None and _kernel.fits(x):
            return _kernel.snake(x, self.alpha, self._ratio, left, right)
        return pad(self._bend(x * self.alpha), left, right)

    def bend(self, u: Tensor) -> Tensor:
        """Compute ``u + alpha / beta * sin(u)^2`` in place."""
        if _kernel is not None and _kernel.fits(u):
            return _kernel.snake(u, None, self._ratio)
        return self._bend(u)

    def _bend(self, u: Tensor) -> Tensor:
        sine = u.sin()
        return u.addcmul_(sine, sine if self._ratio is None else sine * self._ratio)


def pad(x: Tensor, left: int, right: int) -> Tensor:
    """Pad ``[B, n, C]`` with zeros in time."""
    return F.pad(x, (0, 0, left, right)) if left or right else x


def use_kernel(device: str, load: Callable[[], SnakeKernel] | None = None) -> bool:
    """Use the kernel for all Snakes of this process, if ``device`` is a GPU and the kernel has the
    PyTorch form's results there. Otherwise log a warning. Returns whether it is used.

    ``load`` imports the kernel, and fails where there is no Triton.
    """
    global _kernel
    _kernel = None
    if torch.device(device).type == "cpu" and load is None:
        return False
    try:
        kernel = (load or _load)()
        worst = _difference(kernel, device)
    except Exception as error:  # of Triton, its compiler, the machine's C compiler or the device
        log.warning("Snakes run in PyTorch, slower, since their kernel fails: %s", error)
        return False
    if not worst <= _TOLERANCE:
        log.warning("Snakes run in PyTorch, slower, since their kernel is off by %.1e", worst)
        return False
    _kernel = kernel
    return True


def _load() -> SnakeKernel:
    from codec import snake_kernel

    return snake_kernel


def _difference(kernel: SnakeKernel, device: str) -> float:
    """Return the largest difference between kernel and PyTorch form, over the size of their terms,
    if that is above 1.
    """
    dice = torch.Generator().manual_seed(0)
    worst = 0.0
    for batch, length, channels, left, right in _COMPARED:
        x = 8 * torch.randn(batch, length, channels, generator=dice).to(device)
        alpha, beta = (0.1 + 3 * torch.rand(2, channels, generator=dice)).to(device)
        for snake in (Snake(alpha), Snake(alpha, beta)):
            exact = snake(x, Step(left, right, 0, length))
            ours = kernel.snake(x, snake.alpha, snake._ratio, left, right)
            bent = kernel.snake(x.clone(), None, snake._ratio)
            size = torch.ones_like(alpha) if snake._ratio is None else snake._ratio.abs()
            for one, other in ((ours, exact), (bent, snake.bend(x.clone()))):
                # what is subtracted may be much larger than the result
                error = (one - other).abs() / other.abs().maximum(size).clamp(min=1)
                worst = max(worst, float(error.max().nan_to_num(torch.inf)))
    return worst
