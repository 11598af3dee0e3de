"""The Fish codec's encoder: samples to codes, for voice cloning."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from codec.families.fish.config import FishConfig, codebooks
from codec.families.fish.transformer import build_transformer
from codec.family import padded_clip
from codec.layer_ranges import DILATIONS, KERNEL, Step
from codec.layers import ConvNeXt, convolve_pieces
from codec.window_transformer import WindowTransformer
from streaming.spec import Codes, Samples

_MIN_ALPHA = 1e-9
#: Frames whose convolutions are computed at once: about three seconds.
_PIECE_FRAMES = 64


class FishEncoder:
    """Implements ``codec.family.ClipEncoder``. Stateless, so thread-safe.

    ``tensors`` are those of ``config.encoder_shapes``. ``dtype`` float64 is for tests: the nearest
    code vector is found by comparing, and rounding can decide between two.
    """

    def __init__(
        self,
        config: FishConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._device = torch.device(device)
        self._weights = {name: t.to(self._device, dtype) for name, t in tensors.items()}
        last = len(config.encoder_rates)
        self._last = f"encoder.block.{last + 2}.conv", f"encoder.block.{last + 1}"
        self._encoder_transformer = build_transformer(
            config.encoder_transformer, self._weights, f"encoder.block.{last}.block.5"
        )
        self._transformer = build_transformer(
            config.transformer, self._weights, "quantizer.pre_module"
        )
        self._convnexts = [
            ConvNeXt(self._weights, f"quantizer.downsample.{index}.1")
            for index in range(len(config.upsample))
        ]

    @torch.inference_mode()
    def encode(self, samples: Samples) -> Codes:
        """See ClipEncoder; the last frame is padded with silence."""
        whole = padded_clip(samples, self._config.hop_length)
        x = torch.from_numpy(whole).to(self._device, self._dtype)
        hop = self._config.hop_length
        x = convolve_pieces(
            self._convolve,
            x,
            piece=_PIECE_FRAMES * hop,
            context=-(-_left_samples(self._config) // hop) * hop,
            rate=math.prod(self._config.encoder_rates),
        )
        x = self._run(self._encoder_transformer, x)
        name, snake = self._last
        x = self._conv(name, self._snake(snake, x))
        for index, stride in enumerate(self._config.upsample):
            x = self._conv(f"quantizer.downsample.{index}.0.conv", x, stride=stride)
            x = self._convnext(index, x)
        x = self._run(self._transformer, x)
        codes: Codes = self._quantise(x[0].T).cpu().numpy().astype(np.int16)
        return codes

    def _convolve(self, x: Tensor) -> Tensor:
        x = self._conv("encoder.block.0.conv", x)
        for index, rate in enumerate(self._config.encoder_rates, 1):
            name = f"encoder.block.{index}.block"
            for unit, dilation in enumerate(DILATIONS):
                x = self._residual(f"{name}.{unit}.block", x, dilation)
            x = self._conv(f"{name}.4.conv", self._snake(f"{name}.3", x), stride=rate)
        return x

    def _residual(self, name: str, x: Tensor, dilation: int) -> Tensor:
        y = self._conv(f"{name}.1.conv", self._snake(f"{name}.0", x), dilation=dilation)
        return x + self._conv(f"{name}.3.conv", self._snake(f"{name}.2", y))

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha = self._weights[f"{name}.alpha"]
        return x + (alpha * x).sin().square() / (alpha + _MIN_ALPHA)

    def _conv(self, name: str, x: Tensor, *, stride: int = 1, dilation: int = 1) -> Tensor:
        """A causal convolution: zeros are padded before the input, none after it."""
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        before = (weight.shape[2] - 1) * dilation + 1 - stride
        return F.conv1d(F.pad(x, (before, 0)), weight, bias, stride=stride, dilation=dilation)

    def _convnext(self, index: int, x: Tensor) -> Tensor:
        step = Step(KERNEL - 1, 0, 0, x.shape[2])
        return self._convnexts[index](x.transpose(1, 2), step).transpose(1, 2)

    def _run(self, transformer: WindowTransformer, x: Tensor) -> Tensor:
        return transformer.run_whole(x.transpose(1, 2)).transpose(1, 2)

    def _quantise(self, rest: Tensor) -> Tensor:
        """Quantise ``[T, dim]`` to codes ``[K, T]``: each codebook encodes what the last ones left.

        The nearest vector is that of the smallest angle; the vector itself is subtracted.
        """
        codes = []
        for name in codebooks(self._config):
            table = self._weights[f"{name}.codebook.weight"]
            x = self._project(f"{name}.in_proj", rest)
            codes.append((F.normalize(x) @ F.normalize(table).T).argmax(1))
            rest = rest - self._project(f"{name}.out_proj", table[codes[-1]])
        return torch.stack(codes)

    def _project(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"][:, :, 0], self._weights[f"{name}.bias"])


def _left_samples(config: FishConfig) -> int:
    """Number of earlier samples on which one output of the encoder's blocks depends."""
    reach = KERNEL - 1
    rate = 1
    for stride in config.encoder_rates:
        reach += rate * ((KERNEL - 1) * sum(DILATIONS) + 2 * stride - 1)
        rate *= stride
    return reach
