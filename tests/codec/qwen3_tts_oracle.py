"""The Qwen3-TTS codec by its definition: slow, for whole sequences only, and easy to check.

It is the oracle of ``codec.families.qwen3_tts``. It takes the published tensors as they are.
Nothing is folded, streamed, cut or cached; attention is a softmax over a full matrix.
``tests/reference`` compares the codec with the makers' code too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from codec.families.qwen3_tts.config import Qwen3TTSCodecConfig

_DILATIONS = (1, 3, 9)


class Qwen3TTSCodecOracle:
    """Encoder and decoder, in float64."""

    def __init__(self, config: Qwen3TTSCodecConfig, tensors: Mapping[str, Tensor]) -> None:
        self._config = config
        self._t = {name: tensor.double() for name, tensor in tensors.items()}

    @torch.inference_mode()
    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Decode codes ``[K, T]`` to samples ``[T * hop]``."""
        sizes, groups = self._config.decoder, {"rvq_first": codes[:1], "rvq_rest": codes[1:]}
        x = torch.zeros(1, sizes.codebook_dim, codes.shape[1], dtype=torch.float64)
        for group, rows in groups.items():
            at = f"decoder.quantizer.{group}"
            total = sum(
                self._vectors(f"{at}.vq.layers.{layer}._codebook", "embedding_sum")[row]
                for layer, row in enumerate(torch.from_numpy(rows.astype(np.int64)))
            )
            assert isinstance(total, Tensor)
            x = x + F.conv1d(total.T[None], self._t[f"{at}.output_proj.weight"])
        x = self._causal("decoder.pre_conv", x)
        x = self._transformer_of_decoder(x[0].T).T[None]
        for index, stride in enumerate(sizes.upsampling_ratios):
            x = self._transposed(f"decoder.upsample.{index}.0", x, stride)
            x = self._convnext(f"decoder.upsample.{index}.1", x)
        x = self._causal("decoder.decoder.0", x)
        for index, rate in enumerate(sizes.upsample_rates, 1):
            at = f"decoder.decoder.{index}.block"
            x = self._transposed(f"{at}.1", self._snake(f"{at}.0", x), rate)
            for unit, dilation in enumerate(_DILATIONS, 2):
                y = self._snake(f"{at}.{unit}.act1", x)
                y = self._causal(f"{at}.{unit}.conv1", y, dilation=dilation)
                y = self._causal(f"{at}.{unit}.conv2", self._snake(f"{at}.{unit}.act2", y))
                x = x + y
        last = len(sizes.upsample_rates) + 1
        x = self._causal(f"decoder.decoder.{last + 1}", self._snake(f"decoder.decoder.{last}", x))
        return x[0, 0].clamp(-1, 1).numpy()

    @torch.inference_mode()
    def encode(self, samples: np.ndarray) -> np.ndarray:
        """Encode samples ``[n]`` to codes ``[K, ceil(n / hop)]``."""
        sizes = self._config.encoder
        x = torch.from_numpy(samples).double()[None, None]
        at, layer = "encoder.encoder.layers", 1
        x = self._causal(f"{at}.0", x)
        for stride in reversed(sizes.upsampling_ratios):
            y = self._causal(f"{at}.{layer}.block.1", F.elu(x))
            x = x + self._causal(f"{at}.{layer}.block.3", F.elu(y))
            x = self._causal(f"{at}.{layer + 2}", F.elu(x), stride=stride)
            layer += 3
        x = self._causal(f"{at}.{layer + 1}", F.elu(x))
        x = self._transformer_of_encoder(x[0].T).T[None]
        x = self._causal("encoder.downsample", x, stride=2, padding="replicate")
        books = self._config.decoder.num_quantizers
        codes: list[Tensor] = []
        for group, count in (("semantic", 1), ("acoustic", books - 1)):
            name = f"encoder.quantizer.{group}_residual_vector_quantizer"
            rest = F.conv1d(x, self._t[f"{name}.input_proj.weight"])[0].T
            for book in range(count):
                table = self._vectors(f"{name}.layers.{book}.codebook", "embed_sum")
                codes.append(((rest[:, None] - table) ** 2).sum(2).argmin(1))
                rest = rest - table[codes[-1]]
        return torch.stack(codes).numpy().astype(np.int16)

    def _vectors(self, name: str, sums: str) -> Tensor:
        usage = torch.maximum(self._t[f"{name}.cluster_usage"], torch.tensor(1e-5).double())
        return self._t[f"{name}.{sums}"] / usage[:, None]

    def _causal(
        self, name: str, x: Tensor, *, stride: int = 1, dilation: int = 1, padding: str = "constant"
    ) -> Tensor:
        weight, bias = self._t[f"{name}.conv.weight"], self._t.get(f"{name}.conv.bias")
        left = (weight.shape[2] - 1) * dilation + 1 - stride
        x = F.pad(x, (left, -x.shape[2] % stride), padding)
        return F.conv1d(x, weight, bias, stride, 0, dilation, x.shape[1] // weight.shape[1])

    def _transposed(self, name: str, x: Tensor, stride: int) -> Tensor:
        weight, bias = self._t[f"{name}.conv.weight"], self._t[f"{name}.conv.bias"]
        return F.conv_transpose1d(x, weight, bias, stride)[:, :, : x.shape[2] * stride]

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha, beta = (self._t[f"{name}.{part}"].exp()[:, None] for part in ("alpha", "beta"))
        return x + torch.sin(alpha * x) ** 2 / (beta + 1e-9)

    def _convnext(self, at: str, x: Tensor) -> Tensor:
        t = self._t
        y = self._causal(f"{at}.dwconv", x)[0].T
        y = (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=False) + 1e-6).sqrt()
        y = y * t[f"{at}.norm.weight"] + t[f"{at}.norm.bias"]
        y = y @ t[f"{at}.pwconv1.weight"].T + t[f"{at}.pwconv1.bias"]
        y = 0.5 * y * (1 + torch.erf(y / 2**0.5))
        y = y @ t[f"{at}.pwconv2.weight"].T + t[f"{at}.pwconv2.bias"]
        return x + (t[f"{at}.gamma"] * y).T[None]

    def _transformer_of_decoder(self, x: Tensor) -> Tensor:
        t, sizes, at = self._t, self._config.decoder, "decoder.pre_transformer"

        def norm(name: str, x: Tensor) -> Tensor:
            mean = (x**2).mean(1, keepdim=True)
            return x / (mean + sizes.rms_norm_eps).sqrt() * t[f"{name}.weight"]

        x = x @ t[f"{at}.input_proj.weight"].T + t[f"{at}.input_proj.bias"]
        for layer in range(sizes.num_hidden_layers):
            name = f"{at}.layers.{layer}"
            y = self._attention(
                name, norm(f"{name}.input_layernorm", x), sizes.head_dim, sizes.sliding_window
            )
            x = x + t[f"{name}.self_attn_layer_scale.scale"] * y
            y = norm(f"{name}.post_attention_layernorm", x)
            gate, up = (y @ t[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            y = (gate * torch.sigmoid(gate) * up) @ t[f"{name}.mlp.down_proj.weight"].T
            x = x + t[f"{name}.mlp_layer_scale.scale"] * y
        x = norm(f"{at}.norm", x)
        return x @ t[f"{at}.output_proj.weight"].T + t[f"{at}.output_proj.bias"]

    def _transformer_of_encoder(self, x: Tensor) -> Tensor:
        t, sizes = self._t, self._config.encoder

        def norm(name: str, x: Tensor) -> Tensor:
            spread = (x.var(1, keepdim=True, unbiased=False) + sizes.norm_eps).sqrt()
            normed = (x - x.mean(1, keepdim=True)) / spread
            return normed * t[f"{name}.weight"] + t[f"{name}.bias"]

        for layer in range(sizes.num_hidden_layers):
            name = f"encoder.encoder_transformer.layers.{layer}"
            y = self._attention(
                name, norm(f"{name}.input_layernorm", x), sizes.head_dim, sizes.sliding_window
            )
            x = x + t[f"{name}.self_attn_layer_scale.scale"] * y
            y = norm(f"{name}.post_attention_layernorm", x) @ t[f"{name}.mlp.fc1.weight"].T
            y = 0.5 * y * (1 + torch.erf(y / 2**0.5))
            x = x + t[f"{name}.mlp_layer_scale.scale"] * (y @ t[f"{name}.mlp.fc2.weight"].T)
        return x

    def _attention(self, name: str, x: Tensor, head_dim: int, window: int) -> Tensor:
        t, total, half = self._t, len(x), head_dim // 2
        positions = torch.arange(total)
        near = (positions[:, None] - positions >= 0) & (positions[:, None] - positions < window)
        speeds = 10_000.0 ** -(torch.arange(half).float() / half)
        angles = positions.float()[:, None] * speeds  # in float32, as in training
        turn = torch.complex(angles.cos().double(), angles.sin().double())
        q, k, v = (x @ t[f"{name}.self_attn.{part}_proj.weight"].T for part in "qkv")
        heads = []
        for first in range(0, q.shape[1], head_dim):
            low, high = slice(first, first + half), slice(first + half, first + head_dim)
            # a value and the one half a head later are a complex number
            q1, k1 = (torch.complex(part[:, low], part[:, high]) * turn for part in (q, k))
            scores = ((q1 @ k1.conj().T).real / head_dim**0.5).masked_fill(~near, -torch.inf)
            heads.append(torch.softmax(scores, 1) @ v[:, first : first + head_dim])
        return torch.cat(heads, 1) @ t[f"{name}.self_attn.o_proj.weight"].T
