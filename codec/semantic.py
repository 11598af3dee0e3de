"""The encoder's semantic branch: resampling, HuBERT, and small convolutions after it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.encoder_config import EncoderConfig, HubertSizes

Weights = Mapping[str, Tensor]

#: torchaudio's defaults for ``resample``, with which the model was trained.
_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
#: Samples of silence that are put before and after a clip, at the semantic rate.
_EDGE_SAMPLES = 160


def semantic_features(config: EncoderConfig, weights: Weights, samples: Tensor) -> Tensor:
    """``[1, n]`` samples at the codec's rate to ``[1, hidden, frames]``."""
    x = resample(samples, config.codec.sample_rate, config.semantic_rate)
    states = _hubert(config.hubert, weights, F.pad(x, (_EDGE_SAMPLES, _EDGE_SAMPLES)))
    mean = states[0]
    for state in states[1:]:
        mean = mean + state
    mean = mean / len(states)
    return _blocks(config, weights, mean[:, :: config.semantic_stride].transpose(1, 2))


def resample(samples: Tensor, old_rate: int, new_rate: int) -> Tensor:
    """``[1, n]`` at ``old_rate`` to ``[1, ceil(n * new / old)]``, by a sinc under a Hann window.

    With the rates reduced to ``old`` and ``new``, output ``new * m + j`` is the inner product
    of input ``old * m - reach ..`` with the filter of phase ``j``. The filters are worked out
    in float64.
    """
    divisor = math.gcd(old_rate, new_rate)
    old, new = old_rate // divisor, new_rate // divisor
    if old == new:
        return samples
    cutoff = min(old, new) * _ROLLOFF
    reach = math.ceil(_ZERO_CROSSINGS * old / cutoff)
    inputs = torch.arange(-reach, reach + old, dtype=torch.float64) / old
    phases = torch.arange(new, dtype=torch.float64)[:, None] / new
    t = ((inputs - phases) * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(t * math.pi / _ZERO_CROSSINGS / 2) ** 2
    filters = (torch.sinc(t) * window * (cutoff / old)).to(samples)
    padded = F.pad(samples, (reach, reach + old))
    y = F.conv1d(padded[:, None], filters[:, None], stride=old)
    count = -(-samples.shape[1] * new // old)
    return y.transpose(1, 2).reshape(len(samples), -1)[:, :count]


def _hubert(sizes: HubertSizes, weights: Weights, samples: Tensor) -> list[Tensor]:
    """Every hidden state ``[1, n, hidden]``: before the first layer and after each."""
    x = _extract(sizes, weights, samples)
    model, eps = "semantic_model", sizes.norm_eps
    name = f"{model}.feature_projection"
    if sizes.projection_norm:
        x = _norm(weights, f"{name}.layer_norm", x, eps)
    x = _linear(weights, f"{name}.projection", x)
    name = f"{model}.encoder"
    x = _norm(weights, f"{name}.layer_norm", x + _positions(sizes, weights, x), eps)
    states = [x]
    for layer in range(sizes.layers):
        x = _layer(sizes, weights, f"{name}.layers.{layer}", x)
        states.append(x)
    return states


def _extract(sizes: HubertSizes, weights: Weights, samples: Tensor) -> Tensor:
    """Samples ``[1, n]`` to features ``[1, m, dim]``; the first layer is normed by channel."""
    x = samples[:, None]
    for index, stride in enumerate(sizes.conv_strides):
        name = f"semantic_model.feature_extractor.conv_layers.{index}"
        bias = weights[f"{name}.conv.bias"] if sizes.conv_bias else None
        x = F.conv1d(x, weights[f"{name}.conv.weight"], bias, stride=stride)
        if not index:
            scale, shift = weights[f"{name}.layer_norm.weight"], weights[f"{name}.layer_norm.bias"]
            x = F.group_norm(x, x.shape[1], scale, shift)
        x = F.gelu(x)
    return x.transpose(1, 2)


def _positions(sizes: HubertSizes, weights: Weights, x: Tensor) -> Tensor:
    """The convolution that tells positions; an even kernel gives one too many."""
    name = "semantic_model.encoder.pos_conv_embed.conv"
    y = F.conv1d(
        x.transpose(1, 2),
        weights[f"{name}.weight"],
        weights[f"{name}.bias"],
        padding=sizes.position_kernel // 2,
        groups=sizes.position_groups,
    )
    return F.gelu(y[:, :, : x.shape[1]]).transpose(1, 2)


def _layer(sizes: HubertSizes, weights: Weights, name: str, x: Tensor) -> Tensor:
    batch, length, hidden = x.shape

    def heads(part: str) -> Tensor:
        y = _linear(weights, f"{name}.attention.{part}", x)
        return y.reshape(batch, length, sizes.heads, -1).transpose(1, 2)

    y = F.scaled_dot_product_attention(heads("q_proj"), heads("k_proj"), heads("v_proj"))
    y = y.transpose(1, 2).reshape(batch, length, hidden)
    x = x + _linear(weights, f"{name}.attention.out_proj", y)
    x = _norm(weights, f"{name}.layer_norm", x, sizes.norm_eps)
    y = F.gelu(_linear(weights, f"{name}.feed_forward.intermediate_dense", x))
    x = x + _linear(weights, f"{name}.feed_forward.output_dense", y)
    return _norm(weights, f"{name}.final_layer_norm", x, sizes.norm_eps)


def _blocks(config: EncoderConfig, weights: Weights, x: Tensor) -> Tensor:
    """The refining convolutions, ``[1, hidden, n]`` to the same."""
    encoder = "encoder_semantic"
    x = F.conv1d(x, weights[f"{encoder}.conv.weight"], padding=config.kernel // 2)
    for block in range(len(config.strides)):
        name = f"{encoder}.conv_blocks.{block}"
        for unit, dilation in enumerate(config.dilations):
            padding = (config.unit_kernel - 1) // 2 * dilation
            weight = weights[f"{name}.res_units.{unit}.conv1.weight"]
            y = F.conv1d(F.elu(x), weight, padding=padding, dilation=dilation)
            x = x + F.conv1d(F.elu(y), weights[f"{name}.res_units.{unit}.conv2.weight"])
        x = F.conv1d(x, weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"], padding=1)
    return x


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps)
