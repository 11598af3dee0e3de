"""The Higgs codec's encoder: samples to codes. What a voice is cloned from.

Written for clarity rather than speed: a clip is encoded once, and then its codes are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from codec.checkpoint import CodecCheckpoint, find_codec, load_tensors, resolve_folder
from codec.encoder_config import EncoderConfig
from codec.encoder_shapes import encoder_shapes
from codec.errors import ClipError
from codec.semantic import semantic_features
from codec.trim import DILATIONS, KERNEL
from streaming.spec import Codes, Samples

_LEAST_ALPHA = 1e-9


class HiggsEncoder:
    """Turns a clip into codes. Stateless, so thread-safe.

    ``tensors`` are those of ``encoder_shapes``. ``dtype`` float64 is for tests: the nearest
    code vector is found by comparing, and rounding can decide between two.
    """

    def __init__(
        self,
        config: EncoderConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._config, self._dtype = config, dtype
        self._device = torch.device(device)
        self._weights = {name: t.to(self._device, dtype) for name, t in tensors.items()}

    @classmethod
    def load(cls, model: str, *, device: str = "cpu") -> HiggsEncoder:
        """Load from a folder or a hub id. Raises CheckpointError."""
        checkpoint = find_codec(resolve_folder(model))
        config = checkpoint.encoder_config()
        return cls(config, load_tensors(checkpoint, encoder_shapes(config)), device=device)

    @torch.inference_mode()
    def encode(self, samples: Samples) -> Codes:
        """Encode ``[n]`` samples at the codec's rate to ``[K, T]``, ``T = ceil(n / hop)``.

        The last frame is filled up with silence. Raises ClipError for samples that are not
        one channel of finite numbers.
        """
        if samples.ndim != 1 or not len(samples) or not np.isfinite(samples).all():
            raise ClipError("a clip is one channel of finite samples")
        hop = self._config.codec.hop_length
        whole = np.pad(samples, (0, -len(samples) % hop))
        x = torch.from_numpy(whole).to(self._device, self._dtype)[None]
        acoustic = self._acoustic(x[:, None])
        semantic = semantic_features(self._config, self._weights, x)
        joined = torch.cat([acoustic, semantic], 1).transpose(1, 2)
        joined = F.linear(joined, self._weights["fc.weight"], self._weights["fc.bias"])
        codes: Codes = self._quantise(joined[0]).cpu().numpy().astype(np.int16)
        return codes

    def _acoustic(self, x: Tensor) -> Tensor:
        """DAC's encoder: ``[1, 1, n]`` to ``[1, latent, n / hop]``."""
        encoder = "acoustic_encoder"
        x = self._conv(f"{encoder}.conv1", x, padding=KERNEL // 2)
        for index, ratio in enumerate(self._config.ratios):
            name = f"{encoder}.block.{index}"
            for unit, dilation in enumerate(DILATIONS, 1):
                x = self._residual(f"{name}.res_unit{unit}", x, dilation)
            x = self._snake(f"{name}.snake1", x)
            x = self._conv(f"{name}.conv1", x, stride=ratio, padding=math.ceil(ratio / 2))
        return self._conv(f"{encoder}.conv2", self._snake(f"{encoder}.snake1", x), padding=1)

    def _residual(self, name: str, x: Tensor, dilation: int) -> Tensor:
        padding = KERNEL // 2 * dilation
        y = self._snake(f"{name}.snake1", x)
        y = self._conv(f"{name}.conv1", y, padding=padding, dilation=dilation)
        return x + self._conv(f"{name}.conv2", self._snake(f"{name}.snake2", y))

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha = self._weights[f"{name}.alpha"]
        return x + (alpha * x).sin().square() / (alpha + _LEAST_ALPHA)

    def _conv(
        self, name: str, x: Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1
    ) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.conv1d(x, weight, bias, stride, padding, dilation)

    def _quantise(self, rest: Tensor) -> Tensor:
        """``[T, wide]`` to codes ``[K, T]``: each codebook takes what is left by those before."""
        codes = []
        for index in range(self._config.codec.num_codebooks):
            name = f"quantizer.quantizers.{index}"
            table = self._weights[f"{name}.codebook.embed"]
            x = self._project(f"{name}.project_in", rest)
            far = x.square().sum(1, keepdim=True) - 2 * x @ table.T + table.square().sum(1)
            codes.append((-far).max(1).indices)
            rest = rest - self._project(f"{name}.project_out", table[codes[-1]])
        return torch.stack(codes)

    def _project(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])


def can_encode(checkpoint: CodecCheckpoint) -> bool:
    """Whether the checkpoint holds all that encoding needs, without reading it."""
    config = checkpoint.encoder_config()
    return all(checkpoint.has(name) for name in encoder_shapes(config))
