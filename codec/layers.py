"""Decoder layers on torch tensors ``[B, n, C]``, each computed on the range that a plan gives.

On a CPU the convolutions are oneDNN's, with weights packed once. ``F.conv1d`` picks between kernels
by the input's size, and their sums differ in the last bit. Here every output bit depends on its own
inputs alone, whatever slice or batch they came in (with one thread). Channels are last because
oneDNN's fast kernels need it, which also makes slices of time and the shuffle of an upsampling
free. On other devices torch's convolutions are used, and results are equal within rounding.

Snake, ``x + sin(alpha x)^2 / alpha`` per channel, is split up: with ``u = alpha x`` it is
``(u + sin(u)^2) / alpha``. Both factors are folded into the weights of the neighbouring
convolutions, if there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.layer_ranges import Step

#: oneDNN sums over input channels in blocks whose size depends on the input's length, if there are
#: many channels and dilation is large. With up to this many channels it does not.
_SLICE_INPUTS = 128
#: oneDNN packs weights for a length. With some numbers of outputs, another length needs another
#: packing, which is then made at each call and takes three to thirty times as long as the
#: convolution. Powers of two do not need it, for kernels of size 1 up to this number.
_POINTWISE_OUTPUTS = 256
#: Nor do numbers up to this one.
_FEW_OUTPUTS = 32
#: The length by which the packing is chosen.
_TYPICAL_OUTPUTS = 64
#: For small alpha Snake approaches the identity; this avoids a division by 0.
_LEAST_ALPHA = 1e-6


class Conv:
    """A convolution without padding: ``[B, n, in] -> [B, n - dilation * (kernel - 1), out]``.

    ``weight`` is ``[out, in, kernel]`` as in torch. Inputs must be contiguous.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int = 1) -> None:
        self._bias, self._dilation = bias, dilation
        outputs, _, kernel = weight.shape
        self._parts: list[_Packed] = []
        if _has_onednn(weight):
            counts = _output_parts(outputs, _POINTWISE_OUTPUTS if kernel == 1 else outputs)
            parts = zip(torch.split(weight, counts), torch.split(bias, counts), strict=True)
            self._parts = [_Packed(*part, dilation) for part in parts]
            return
        # Laid out with channels last once, since torch would do it at every call. A convolution of
        # size 1 is a matrix product.
        self._weight = (
            weight[:, :, 0].contiguous()
            if kernel == 1
            else weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Convolve; the caller pads."""
        if not self._parts:
            return self._convolve(x)
        if len(self._parts) == 1:
            return self._parts[0](x)
        return torch.cat([part(x) for part in self._parts], 2)

    def _convolve(self, x: Tensor) -> Tensor:
        """Convolve without oneDNN, as on a GPU."""
        if self._weight.dim() == 2:
            return F.linear(x, self._weight, self._bias)
        plane = x.transpose(1, 2).unsqueeze(2)  # [B, C, 1, n] with channels last in memory
        y = F.conv2d(plane, self._weight, self._bias, dilation=(1, self._dilation))
        return y.squeeze(2).transpose(1, 2).contiguous()


class _Packed:
    """A oneDNN convolution with packed weights, summed over slices of input channels."""

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int) -> None:
        self._bias, self._dilation = bias.contiguous(), dilation
        self._weights = [
            torch.ops.mkldnn._reorder_convolution_weight(
                part.unsqueeze(2).contiguous(),
                [0, 0],
                [1, 1],
                [1, dilation],
                1,
                [1, part.shape[1], 1, (part.shape[2] - 1) * dilation + _TYPICAL_OUTPUTS],
            )
            for part in torch.split(weight, _SLICE_INPUTS, 1)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        if len(self._weights) == 1:
            return self._convolve(x, self._weights[0], self._bias)
        parts = torch.split(x, _SLICE_INPUTS, 2)
        y = self._convolve(parts[0].contiguous(), self._weights[0], self._bias)
        for part, weight in zip(parts[1:], self._weights[1:], strict=True):
            y += self._convolve(part.contiguous(), weight, None)
        return y

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plane = x.transpose(1, 2).unsqueeze(2)  # [B, C, 1, n] with channels last in memory
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(
            plane, weight, bias, [0, 0], [1, 1], [1, self._dilation], 1, "none", [], ""
        )
        return y.squeeze(2).transpose(1, 2)


class Edge:
    """The first or the last layer: a Snake if ``alpha`` is given, then a convolution of size 7."""

    def __init__(self, weight: Tensor, bias: Tensor, alpha: Tensor | None = None) -> None:
        self._alpha = None if alpha is None else _safe(alpha)
        if self._alpha is not None:
            weight = weight / self._alpha[:, None]
        self._conv = Conv(weight, bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        if self._alpha is not None:
            x = _wave(x * self._alpha)
        return self._conv(_pad(x, step))


class Residual:
    """Snake, dilated convolution of size 7, Snake, convolution of size 1, plus the input."""

    def __init__(
        self, alpha1: Tensor, conv1: ConvWeights, dilation: int, alpha2: Tensor, conv2: ConvWeights
    ) -> None:
        self._alpha, inner = _safe(alpha1), _safe(alpha2)
        weight = conv1[0] / self._alpha[:, None] * inner[:, None, None]
        self._conv1 = Conv(weight, conv1[1] * inner, dilation)
        self._conv2 = Conv(conv2[0] / inner[:, None], conv2[1])

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv1(_pad(_wave(x * self._alpha), step))
        y = self._conv2(_wave(y))
        return y.add_(x[:, step.skip : step.skip + step.length])


class Upsample:
    """Snake, then a transposed convolution ``[in, out, 2 s]`` of stride ``s``.

    It runs as a convolution of size 2 to ``s * out`` channels, at the same cost: output
    ``q * s + j`` (before the cut at the left) is ``w[j] x[q] + w[j + s] x[q - 1]``.
    """

    def __init__(self, alpha: Tensor, weight: Tensor, bias: Tensor) -> None:
        self._alpha, self._stride = _safe(alpha), weight.shape[2] // 2
        weight = weight / self._alpha[:, None, None]
        # [in, out, 2 s] -> [s, out, in, 2 taps], the tap of x[q - 1] first
        taps = torch.stack([weight[:, :, self._stride :], weight[:, :, : self._stride]], -1)
        self._conv = Conv(taps.permute(2, 1, 0, 3).flatten(0, 1), bias.repeat(self._stride))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv(_pad(_wave(x * self._alpha), step))
        batch, length, channels = y.shape
        y = y.reshape(batch, length * self._stride, channels // self._stride)
        return y[:, step.skip : step.skip + step.length].contiguous()


ConvWeights = tuple[Tensor, Tensor]


class NamedWeights:
    """A checkpoint's tensors in the layers' form. ``suffix`` follows a convolution's name."""

    def __init__(self, tensors: Mapping[str, Tensor], suffix: str = "") -> None:
        self._tensors, self._suffix = tensors, suffix

    def conv(self, name: str) -> ConvWeights:
        """A convolution's weight and bias."""
        at = f"{name}{self._suffix}"
        return self._tensors[f"{at}.weight"], self._tensors[f"{at}.bias"]

    def alpha(self, name: str) -> Tensor:
        """A Snake's alpha, ``[C]``."""
        return self._tensors[f"{name}.alpha"].flatten()

    def residual(self, parts: Sequence[str], dilation: int) -> Residual:
        """Build a residual unit of Snake, convolution, Snake, convolution from their names."""
        snake1, conv1, snake2, conv2 = parts
        return Residual(
            self.alpha(snake1), self.conv(conv1), dilation, self.alpha(snake2), self.conv(conv2)
        )


def _wave(u: Tensor) -> Tensor:
    """``u + sin(u)^2`` in place."""
    sine = u.sin()
    return u.addcmul_(sine, sine)


def _safe(alpha: Tensor) -> Tensor:
    least = torch.full_like(alpha, _LEAST_ALPHA)
    return torch.where(alpha.abs() < _LEAST_ALPHA, least, alpha)


def _pad(x: Tensor, step: Step) -> Tensor:
    if step.pad_left or step.pad_right:
        return F.pad(x, (0, 0, step.pad_left, step.pad_right))
    return x


def _output_parts(outputs: int, most: int) -> list[int]:
    """Split ``outputs`` into powers of two, each at most ``most``, and a rest of at most
    ``_FEW_OUTPUTS``.
    """
    parts = []
    while outputs > _FEW_OUTPUTS:
        parts.append(min(most, 1 << (outputs.bit_length() - 1)))
        outputs -= parts[-1]
    return [*parts, outputs] if outputs else parts


def _has_onednn(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_convolution_weight")
    )


def set_precision(precision: str = "float32") -> None:
    """Set how a GPU multiplies float32 tensors: in ``float32`` or in ``tf32``. TF32, cuDNN's
    default, keeps three digits. Its error differs from kernel to kernel, so that seams have errors
    of -60 dB.
    """
    uses_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = uses_tf32
    torch.backends.cuda.matmul.allow_tf32 = uses_tf32
