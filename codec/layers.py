"""The decoder's layers on torch tensors ``[B, C, n]``, each run on the range that a plan gives.

On a CPU the convolutions go straight to oneDNN. ``F.conv1d`` picks between two kernels by
the input's size, and their sums differ in the last bit; one kernel throughout makes every
output bit depend on its own inputs alone, whatever slice or batch they came in (at one
thread). Elsewhere ``F.conv1d`` is used, and equality holds within rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.trim import DILATIONS, Step

#: transformers' Snake divides by ``alpha + 1e-9``.
_SNAKE_EPS = 1e-9


class Conv:
    """A convolution without padding: ``[B, in, n] -> [B, out, n - dilation * (kernel - 1)]``."""

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int = 1) -> None:
        self.weight, self.bias, self.dilation = weight.contiguous(), bias.contiguous(), dilation
        self._onednn = (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Convolve; the caller pads."""
        if self._onednn:
            return torch.mkldnn_convolution(x, self.weight, self.bias, [0], [1], [self.dilation], 1)
        return F.conv1d(x, self.weight, self.bias, dilation=self.dilation)


class Snake:
    """``x + sin(alpha x)^2 / alpha``, per channel, out of place."""

    def __init__(self, alpha: Tensor) -> None:
        self.alpha, self.inverse = alpha, (alpha + _SNAKE_EPS).reciprocal()

    def __call__(self, x: Tensor) -> Tensor:
        """Leave ``x`` as it is: the residual path needs it."""
        y = (x * self.alpha).sin_().square_()
        return y.mul_(self.inverse).add_(x)


class Edge:
    """The first and the last layer: an optional Snake, then a convolution of 7."""

    def __init__(self, conv: Conv, snake: Snake | None = None) -> None:
        self._conv, self._snake = conv, snake

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        if self._snake is not None:
            x = self._snake(x)
        return self._conv(_pad(x, step))


class Residual:
    """Snake, dilated convolution of 7, Snake, convolution of 1, plus the input."""

    def __init__(self, snake1: Snake, conv1: Conv, snake2: Snake, conv2: Conv) -> None:
        self._snake1, self._conv1, self._snake2, self._conv2 = snake1, conv1, snake2, conv2

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv1(_pad(self._snake1(x), step))
        y = self._conv2(self._snake2(y))
        return y.add_(x[..., step.skip : step.skip + step.length])


class Upsample:
    """Snake, then a transposed convolution of kernel ``2 s`` and stride ``s``.

    It runs as a convolution of 2 to ``s * out`` channels and a shuffle, which costs the same
    and shares oneDNN's independence of the input's length: output ``q * s + j`` (before the
    cut at the left) is ``w[j] x[q] + w[j + s] x[q - 1]``.
    """

    def __init__(self, snake: Snake, weight: Tensor, bias: Tensor) -> None:
        self._snake = snake
        self._stride = weight.shape[2] // 2
        # [in, out, 2 s] -> [out, s, in, 2 taps], the tap of x[q - 1] first
        taps = torch.stack([weight[:, :, self._stride :], weight[:, :, : self._stride]], -1)
        self._conv = Conv(
            taps.permute(1, 2, 0, 3).flatten(0, 1), bias.repeat_interleave(self._stride)
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv(_pad(self._snake(x), step))
        batch, _, length = y.shape
        y = y.view(batch, -1, self._stride, length).transpose(2, 3).flatten(2)
        return y[..., step.skip : step.skip + step.length].contiguous()


Stage = Edge | Residual | Upsample


def build_stages(tensors: Mapping[str, Tensor], blocks: int) -> list[Stage]:
    """The DAC decoder in order, one stage for each layer of ``trim.architecture``."""

    def conv(name: str, dilation: int = 1) -> Conv:
        return Conv(tensors[f"{name}.weight"], tensors[f"{name}.bias"], dilation)

    def snake(name: str) -> Snake:
        return Snake(tensors[f"{name}.alpha"])

    decoder = "acoustic_decoder"
    stages: list[Stage] = [Edge(conv(f"{decoder}.conv1"))]
    for index in range(blocks):
        name = f"{decoder}.block.{index}"
        weight, bias = tensors[f"{name}.conv_t1.weight"], tensors[f"{name}.conv_t1.bias"]
        stages.append(Upsample(snake(f"{name}.snake1"), weight, bias))
        for number, dilation in enumerate(DILATIONS, 1):
            unit = f"{name}.res_unit{number}"
            stages.append(
                Residual(
                    snake(f"{unit}.snake1"),
                    conv(f"{unit}.conv1", dilation),
                    snake(f"{unit}.snake2"),
                    conv(f"{unit}.conv2"),
                )
            )
    return [*stages, Edge(conv(f"{decoder}.conv2"), snake(f"{decoder}.snake1"))]


def _pad(x: Tensor, step: Step) -> Tensor:
    if step.pad_left or step.pad_right:
        return F.pad(x, (step.pad_left, step.pad_right))
    return x
