"""The Higgs codec's encoder: samples to codes, for voice cloning.

Written for clarity rather than speed, since a clip is encoded once and its codes are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from codec.families.higgs.config import EncoderConfig, HubertSizes
from codec.family import padded_clip
from codec.layer_ranges import DILATIONS, KERNEL
from codec.residual_codes import Codebook, ResidualSearch
from streaming.spec import Codes, Samples

_MIN_ALPHA = 1e-9


class HiggsEncoder:
    """Encodes clips to codes. Stateless, so thread-safe.

    ``tensors`` are those of ``tensors.encoder_shapes``. ``dtype`` float64 is for tests: the nearest
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
        self._config = config
        self._dtype = dtype
        self._device = torch.device(device)
        self._weights = {name: t.to(self._device, dtype) for name, t in tensors.items()}
        codebooks = [self._codebook(index) for index in range(config.codec.num_codebooks)]
        self._search = ResidualSearch(codebooks, config.beam)

    @torch.inference_mode()
    def encode(self, samples: Samples) -> Codes:
        """Encode ``[n]`` samples at the codec's rate to ``[K, T]``, ``T = ceil(n / hop)``.

        The last frame is padded with silence. Raises ClipError for samples that are not one channel
        of finite numbers.
        """
        whole = padded_clip(samples, self._config.codec.hop_length)
        x = torch.from_numpy(whole).to(self._device, self._dtype)[None]
        acoustic = self._acoustic(x[:, None])
        semantic = semantic_features(self._config, self._weights, x)
        joined = torch.cat([acoustic, semantic], 1).transpose(1, 2)
        joined = F.linear(joined, self._weights["fc.weight"], self._weights["fc.bias"])
        codes: Codes = self._search.encode(joined[0]).cpu().numpy().astype(np.int16)
        return codes

    def _acoustic(self, x: Tensor) -> Tensor:
        """Run DAC's encoder: ``[1, 1, n]`` to ``[1, latent, n / hop]``."""
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
        return x + (alpha * x).sin().square() / (alpha + _MIN_ALPHA)

    def _conv(
        self, name: str, x: Tensor, *, stride: int = 1, padding: int = 0, dilation: int = 1
    ) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.conv1d(x, weight, bias, stride, padding, dilation)

    def _codebook(self, index: int) -> Codebook:
        name = f"quantizer.quantizers.{index}"
        table = self._weights[f"{name}.codebook.embed"]
        vectors = self._project(f"{name}.project_out", table)
        return Codebook(table, vectors, partial(self._project, f"{name}.project_in"))

    def _project(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])


# -- the semantic branch: resampling, HuBERT, and small convolutions after it

Weights = Mapping[str, Tensor]

#: torchaudio's defaults for ``resample``, with which the model was trained.
_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
#: Samples of silence before and after a clip, at the semantic rate.
_EDGE_SAMPLES = 160


def semantic_features(config: EncoderConfig, weights: Weights, samples: Tensor) -> Tensor:
    """Compute features ``[1, hidden, frames]`` of ``[1, n]`` samples at the codec's rate."""
    x = resample(samples, config.codec.sample_rate, config.semantic_rate)
    states = _hubert(config.hubert, weights, F.pad(x, (_EDGE_SAMPLES, _EDGE_SAMPLES)))
    mean = states[0]
    for state in states[1:]:
        mean = mean + state
    mean = mean / len(states)
    return _blocks(config, weights, mean[:, :: config.semantic_stride].transpose(1, 2))


def resample(samples: Tensor, old_rate: int, new_rate: int) -> Tensor:
    """Resample ``[1, n]`` at ``old_rate`` to ``[1, ceil(n * new / old)]``, by a Hann-windowed sinc.

    With the rates reduced to ``old`` and ``new``, output ``new * m + j`` is the inner product of
    input ``old * m - reach ..`` with the filter of phase ``j``. The filters are computed in
    float64.
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
    """Return every hidden state ``[1, n, hidden]``: before the first layer and after each."""
    x = _extract(sizes, weights, samples)
    model = "semantic_model"
    eps = sizes.norm_eps
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
    """Convert samples ``[1, n]`` to features ``[1, m, dim]``. The first layer has a channel
    norm.
    """
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
    """Compute the positional convolution; an even kernel gives one output too many."""
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
    """Apply the refining convolutions, ``[1, hidden, n]`` to the same."""
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
