"""Decoder layers on torch tensors ``[B, n, C]``, each computed on the range that a plan gives.

On a CPU the convolutions are oneDNN's, with weights packed once for each layout. ``F.conv1d`` picks
between kernels by the input's size, and their sums differ in the last bit. Here every output bit
depends on its own inputs alone, whatever slice or batch they came in (with one thread). Channels
are last because oneDNN's fast kernels need it, which also makes slices of time and the shuffle of
an upsampling free. On other devices torch's convolutions are used, and results are equal within
rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.layer_ranges import Step
from codec.snake import Snake, pad

#: oneDNN sums over input channels in blocks whose size depends on the input's length, if there are
#: many channels and the convolution reaches far. With up to so many it does not: tried with
#: AVX2 and AVX-512.
_SLICE_INPUTS = 128
#: Reach in samples above which slices have ``_FAR_SLICE_INPUTS`` channels.
_FAR_REACH = 18
_FAR_SLICE_INPUTS = 96
#: Sizes of inputs whose layouts of weights are remembered, for all convolutions: those of some
#: hundred shapes of windows.
_SIZES = 1 << 14
#: Operations of torch that packed convolutions need. They are not public.
_ONEDNN_OPS = ("_reorder_convolution_weight", "_convolution_pointwise", "data_ptr", "_nbytes")
_LAYER_NORM_EPS = 1e-6


class Conv:
    """A convolution without padding: ``[B, n, in] -> [B, n - dilation * (kernel - 1), out]``.

    ``weight`` is ``[out, in, kernel]`` as in torch. Inputs must be contiguous.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int = 1) -> None:
        self._bias = bias
        self._dilation = dilation
        self._packed: _Packed | None = None
        if _has_onednn(weight):
            self._packed = _Packed(weight, bias, dilation)
            return
        # Laid out with channels last once, since torch would do it at every call. A convolution of
        # size 1 is a matrix product.
        self._weight = (
            weight[:, :, 0].contiguous()
            if weight.shape[2] == 1
            else weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Convolve; the caller pads."""
        return self._convolve(x) if self._packed is None else self._packed(x)

    def _convolve(self, x: Tensor) -> Tensor:
        """Convolve without oneDNN, as on a GPU."""
        if self._weight.dim() == 2:
            return F.linear(x, self._weight, self._bias)
        plane = x.transpose(1, 2).unsqueeze(2)  # [B, C, 1, n] with channels last in memory
        y = F.conv2d(plane, self._weight, self._bias, dilation=(1, self._dilation))
        return y.squeeze(2).transpose(1, 2).contiguous()


class _Packed:
    """A oneDNN convolution with packed weights, summed over slices of input channels.

    oneDNN's kernels want the weights in one of a few layouts: blocks of 16 to 64 outputs, by the
    input's size and the processor's instructions. Weights in another layout are reordered at every
    call, which can take a hundred times as long as the convolution. So they are packed once for
    each layout, when an input's size first wants it, and kept beside the plain ones.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int) -> None:
        self._bias = bias.contiguous()
        self._dilation = dilation
        reach = (weight.shape[2] - 1) * dilation
        #: Input channels of a slice.
        self._inputs = _SLICE_INPUTS if reach <= _FAR_REACH else _FAR_SLICE_INPUTS
        self._plain = [
            part.unsqueeze(2).contiguous() for part in torch.split(weight, self._inputs, 1)
        ]
        #: For each slice its packed weights by layout.
        self._packed: list[dict[int, Tensor]] = [{} for _ in self._plain]

    def __call__(self, x: Tensor) -> Tensor:
        if len(self._plain) == 1:
            return self._convolve(x, 0, self._bias)
        first, *others = torch.split(x, self._inputs, 2)
        y = self._convolve(first.contiguous(), 0, self._bias)
        for index, part in enumerate(others, 1):
            y += self._convolve(part.contiguous(), index, None)
        return y

    def _convolve(self, x: Tensor, index: int, bias: Tensor | None) -> Tensor:
        plain = self._plain[index]
        packed = self._packed[index]
        layout = _layout(plain.shape, self._dilation, x.shape[0], x.shape[1])
        if (weight := packed.get(layout)) is None:
            weight = packed[layout] = _pack(plain, self._dilation, x.shape[0], x.shape[1])
        plane = x.transpose(1, 2).unsqueeze(2)  # [B, C, 1, n] with channels last in memory
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(
            plane, weight, bias, [0, 0], [1, 1], [1, self._dilation], 1, "none", [], ""
        )
        return y.squeeze(2).transpose(1, 2)


@lru_cache(_SIZES)
def _layout(shape: torch.Size, dilation: int, batch: int, length: int) -> int:
    """Return which layout oneDNN wants for weights of this shape and inputs of this size, as a
    number that is equal for equal layouts of one shape.

    torch does not tell, so numbers are packed in place of weights, and where they come to lie is
    compared.
    """
    numbers = torch.arange(shape.numel(), dtype=torch.float32).view(shape)
    packed = _pack(numbers, dilation, batch, length)
    known = _layouts.setdefault(shape, [])
    for layout, other in enumerate(known):
        if _is_same(packed, other):
            return layout
    known.append(packed)
    return len(known) - 1


#: The packed numbers of each layout seen, by the weights' shape.
_layouts: dict[torch.Size, list[Tensor]] = {}
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _is_same(packed1: Tensor, packed2: Tensor) -> bool:
    """Whether packed weights are the same bytes. torch reads them only by reordering them."""
    mkldnn = torch.ops.mkldnn
    size: int = mkldnn._nbytes(packed1)
    if size != mkldnn._nbytes(packed2):
        return False
    return not _memcmp(mkldnn.data_ptr(packed1), mkldnn.data_ptr(packed2), size)


def _pack(weight: Tensor, dilation: int, batch: int, length: int) -> Tensor:
    """Pack weights ``[out, in, 1, kernel]`` for inputs of this size."""
    packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight, [0, 0], [1, 1], [1, dilation], 1, [batch, weight.shape[1], 1, length]
    )
    return packed


class Edge:
    """The first or the last layer: a Snake if there is one, then a convolution of size 7."""

    def __init__(self, weight: Tensor, bias: Tensor, snake: Snake | None = None) -> None:
        self._snake = snake
        if snake is not None:
            weight = weight / snake.alpha[:, None]
        self._conv = Conv(weight, bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        if self._snake is not None:
            return self._conv(self._snake(x, step))
        return self._conv(pad(x, step.pad_left, step.pad_right))


class Residual:
    """Snake, dilated convolution of size 7, Snake, convolution of size 1, plus the input."""

    def __init__(
        self, snake1: Snake, conv1: ConvWeights, dilation: int, snake2: Snake, conv2: ConvWeights
    ) -> None:
        self._snake1 = snake1
        self._snake2 = snake2
        inner = snake2.alpha
        weight = conv1[0] / snake1.alpha[:, None] * inner[:, None, None]
        self._conv1 = Conv(weight, conv1[1] * inner, dilation)
        self._conv2 = Conv(conv2[0] / inner[:, None], conv2[1])

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv1(self._snake1(x, step))
        y = self._conv2(self._snake2.bend(y))
        return y.add_(x[:, step.skip : step.skip + step.length])


class Upsample:
    """Snake, then a transposed convolution ``[in, out, 2 s]`` of stride ``s``.

    It runs as a convolution of size 2 to ``s * out`` channels, at the same cost: output
    ``q * s + j`` (before the cut at the left) is ``w[j] x[q] + w[j + s] x[q - 1]``.
    """

    def __init__(self, snake: Snake, weight: Tensor, bias: Tensor) -> None:
        self._snake = snake
        self._stride = weight.shape[2] // 2
        weight = weight / snake.alpha[:, None, None]
        # [in, out, 2 s] -> [s, out, in, 2 taps], the tap of x[q - 1] first
        taps = torch.stack([weight[:, :, self._stride :], weight[:, :, : self._stride]], -1)
        self._conv = Conv(taps.permute(2, 1, 0, 3).flatten(0, 1), bias.repeat(self._stride))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv(self._snake(x, step))
        batch, length, channels = y.shape
        y = y.reshape(batch, length * self._stride, channels // self._stride)
        return y[:, step.skip : step.skip + step.length].contiguous()


class FrameUpsample:
    """A transposed convolution with kernel and stride equal: each position becomes ``stride``."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        # [in, out, stride] -> [stride * out, in, 1]
        self._stride = weight.shape[2]
        self._conv = Conv(
            weight.permute(2, 1, 0).flatten(0, 1)[:, :, None], bias.repeat(self._stride)
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv(x)
        y = y.reshape(len(y), y.shape[1] * self._stride, -1)
        return y[:, step.skip : step.skip + step.length].contiguous()


class ConvNeXt:
    """Depthwise convolution, LayerNorm, a wide GELU layer, plus the input."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        self._depthwise = tensors[f"{name}.dwconv.conv.weight"][:, 0].T.contiguous()  # [taps, dim]
        self._depthwise_bias = tensors[f"{name}.dwconv.conv.bias"]
        self._norm = tensors[f"{name}.norm.weight"], tensors[f"{name}.norm.bias"]
        self._wide = tensors[f"{name}.pwconv1.weight"], tensors[f"{name}.pwconv1.bias"]
        gamma = tensors[f"{name}.gamma"]
        self._narrow = (
            tensors[f"{name}.pwconv2.weight"] * gamma[:, None],
            tensors[f"{name}.pwconv2.bias"] * gamma,
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range of ``[B, n, dim]``."""
        padded = F.pad(x, (0, 0, step.pad_left, step.pad_right))
        y = self._depthwise_bias.expand(len(x), step.length, -1)
        for tap, weight in enumerate(self._depthwise):
            y = y + padded[:, tap : tap + step.length] * weight
        y = F.layer_norm(y, y.shape[-1:], *self._norm, _LAYER_NORM_EPS)
        y = F.linear(F.gelu(F.linear(y, *self._wide)), *self._narrow)
        return x[:, step.skip : step.skip + step.length] + y


ConvWeights = tuple[Tensor, Tensor]


class NamedWeights:
    """A checkpoint's tensors in the layers' form. ``suffix`` follows a convolution's name."""

    def __init__(self, tensors: Mapping[str, Tensor], suffix: str = "") -> None:
        self._tensors = tensors
        self._suffix = suffix

    def conv(self, name: str) -> ConvWeights:
        """A convolution's weight and bias."""
        at = f"{name}{self._suffix}"
        return self._tensors[f"{at}.weight"], self._tensors[f"{at}.bias"]

    def snake(self, name: str) -> Snake:
        """A Snake, with its own beta if it is stored."""
        beta = self._tensors.get(f"{name}.beta")
        alpha = self._tensors[f"{name}.alpha"].flatten()
        return Snake(alpha, None if beta is None else beta.flatten())

    def residual(self, parts: Sequence[str], dilation: int) -> Residual:
        """Build a residual unit of Snake, convolution, Snake, convolution from their names."""
        snake1, conv1, snake2, conv2 = parts
        return Residual(
            self.snake(snake1), self.conv(conv1), dilation, self.snake(snake2), self.conv(conv2)
        )


def convolve_pieces(
    convolve: Callable[[Tensor], Tensor],
    samples: Tensor,
    *,
    piece: int,
    context: int,
    rate: int,
) -> Tensor:
    """Run a causal encoder's convolutions piece by piece, since at the sample rate a long clip
    would need gigabytes.

    Args:
        convolve: from ``[1, 1, n]`` to ``[1, dim, ceil(n / rate)]``.
        samples: of the clip, ``[n]``.
        piece: samples of a piece, a multiple of ``rate``.
        context: earlier samples on which a piece depends, a multiple of ``rate``.
        rate: samples of one output.
    """
    pieces = []
    for first in range(0, len(samples), piece):
        begin = max(0, first - context)
        y = convolve(samples[None, None, begin : first + piece])
        pieces.append(y[:, :, (first - begin) // rate :])
    return torch.cat(pieces, 2)


def _has_onednn(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and all(hasattr(torch.ops.mkldnn, name) for name in _ONEDNN_OPS)
    )


def set_tf32(is_on: bool) -> None:
    """Set whether a GPU multiplies float32 tensors in TF32, cuDNN's default, which keeps three
    digits. Its error differs from kernel to kernel, so that seams have errors of -60 dB.
    """
    torch.backends.cudnn.allow_tf32 = is_on
    torch.backends.cuda.matmul.allow_tf32 = is_on
