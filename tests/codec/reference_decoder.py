"""The Higgs decoder by its definition: slow, for whole sequences only, and easy to check.

It is the oracle of ``codec.families.higgs.decoder``. Nothing is folded, trimmed, packed or batched
here; every line is one line of the published architecture.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from codec.families.higgs.config import CodecConfig
from codec.layer_ranges import DILATIONS
from streaming.spec import Codes, Samples


@torch.inference_mode()
def reference_decode(
    config: CodecConfig,
    tensors: Mapping[str, Tensor],
    codes: Codes,
    dtype: torch.dtype = torch.float64,
) -> Samples:
    """Decode ``[K, T]`` codes to ``[T * hop]`` samples, computed in ``dtype``."""
    weights = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    x = _quantizer(config, weights, torch.from_numpy(codes.astype(np.int64)))
    x = F.linear(x, weights["fc2.weight"], weights["fc2.bias"])  # [T, latent]
    samples: Samples = _dac_decoder(config, weights, x.T[None])[0, 0].float().numpy()
    return samples


def _quantizer(config: CodecConfig, weights: Mapping[str, Tensor], codes: Tensor) -> Tensor:
    """Sum of ``project_out(codebook[code])``: codes ``[K, T]`` to ``[T, quantizer_dim]``."""
    total = torch.zeros(codes.shape[1], config.quantizer_dim, dtype=weights["fc2.weight"].dtype)
    for index in range(config.num_codebooks):
        name = f"quantizer.quantizers.{index}"
        vectors = weights[f"{name}.codebook.embed"][codes[index]]
        total = total + F.linear(
            vectors, weights[f"{name}.project_out.weight"], weights[f"{name}.project_out.bias"]
        )
    return total


def _dac_decoder(config: CodecConfig, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Map ``[1, latent, T]`` to ``[1, 1, T * hop]``, without the final tanh of the original."""
    name = "acoustic_decoder"
    x = _conv(weights, f"{name}.conv1", x, padding=3)
    for index, ratio in enumerate(config.ratios):
        block = f"{name}.block.{index}"
        x = _snake(weights, f"{block}.snake1", x)
        x = F.conv_transpose1d(
            x,
            weights[f"{block}.conv_t1.weight"],
            weights[f"{block}.conv_t1.bias"],
            stride=ratio,
            padding=(ratio + 1) // 2,
            output_padding=ratio % 2,
        )
        for number, dilation in enumerate(DILATIONS, 1):
            unit = f"{block}.res_unit{number}"
            y = _snake(weights, f"{unit}.snake1", x)
            y = _conv(weights, f"{unit}.conv1", y, padding=3 * dilation, dilation=dilation)
            y = _snake(weights, f"{unit}.snake2", y)
            x = x + _conv(weights, f"{unit}.conv2", y)
    x = _snake(weights, f"{name}.snake1", x)
    return _conv(weights, f"{name}.conv2", x, padding=3)


def _conv(
    weights: Mapping[str, Tensor], name: str, x: Tensor, padding: int = 0, dilation: int = 1
) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return F.conv1d(x, weight, bias, padding=padding, dilation=dilation)


def _snake(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    alpha = weights[f"{name}.alpha"]
    return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)
