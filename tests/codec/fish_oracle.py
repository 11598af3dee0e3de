"""The Fish codec by its definition: slow, for whole sequences only, and easy to check.

It is the oracle of ``codec.families.fish``. It takes the tensors of the published checkpoint as
they are, with weight norm. Nothing is folded, streamed, cut or cached. Attention is a softmax over
a full matrix, rotations are products of complex numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class FishOracle:
    """Encoder and decoder. ``state`` is that of a ``codec.pth``, which lacks the other sizes."""

    def __init__(
        self,
        state: Mapping[str, Tensor],
        *,
        window: int,
        head_dim: int,
        encoder_window: int,
        encoder_head_dim: int,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        floats = {n: t.to(dtype) for n, t in state.items() if t.is_floating_point()}
        self._state, self._dtype = floats, dtype
        self._window, self._head_dim = window, head_dim
        self._encoder_window, self._encoder_head_dim = encoder_window, encoder_head_dim

    @torch.inference_mode()
    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Decode codes ``[K, T]`` to samples ``[T * hop]``."""
        z = torch.zeros((), dtype=self._dtype)
        for book, row in enumerate(torch.from_numpy(codes.astype(np.int64))):
            vectors = self._state[f"{self._book(book)}.codebook.weight"][row]  # [T, 8]
            z = z + self._conv(f"{self._book(book)}.out_proj", vectors.T[None])
        z = self._transformer("quantizer.post_module", z, self._window, self._head_dim)
        index = 0
        while f"quantizer.upsample.{index}.0.conv.weight" in self._state:
            z = self._transposed(f"quantizer.upsample.{index}.0.conv", z)
            z = self._convnext(f"quantizer.upsample.{index}.1", z)
            index += 1
        x, index = self._conv("decoder.model.0.conv", z), 1
        while f"decoder.model.{index}.block.0.alpha" in self._state:
            at = f"decoder.model.{index}.block"
            x = self._transposed(f"{at}.1.conv", self._snake(f"{at}.0", x))
            for unit, dilation in ((2, 1), (3, 3), (4, 9)):
                x = self._residual(f"{at}.{unit}", x, dilation)
            index += 1
        x = self._conv(f"decoder.model.{index + 1}.conv", self._snake(f"decoder.model.{index}", x))
        return torch.tanh(x)[0, 0].numpy()

    @torch.inference_mode()
    def encode(self, samples: np.ndarray, hop: int) -> np.ndarray:
        """Encode samples ``[n]`` to codes ``[K, ceil(n / hop)]``."""
        x = torch.from_numpy(np.pad(samples, (0, -len(samples) % hop))).to(self._dtype)[None, None]
        x, index = self._conv("encoder.block.0.conv", x), 1
        while f"encoder.block.{index}.block.3.alpha" in self._state:
            at = f"encoder.block.{index}.block"
            for unit, dilation in ((0, 1), (1, 3), (2, 9)):
                x = self._residual(f"{at}.{unit}", x, dilation)
            x = self._snake(f"{at}.3", x)
            x = self._conv(f"{at}.4.conv", x, stride=self._weight(f"{at}.4.conv").shape[2] // 2)
            if f"{at}.5.norm.weight" in self._state:
                x = self._transformer(f"{at}.5", x, self._encoder_window, self._encoder_head_dim)
            index += 1
        z = self._conv(f"encoder.block.{index + 1}.conv", self._snake(f"encoder.block.{index}", x))
        index = 0
        while f"quantizer.downsample.{index}.0.conv.weight" in self._state:
            at = f"quantizer.downsample.{index}"
            z = self._conv(f"{at}.0.conv", z, stride=self._weight(f"{at}.0.conv").shape[2])
            z = self._convnext(f"{at}.1", z)
            index += 1
        z = self._transformer("quantizer.pre_module", z, self._window, self._head_dim)
        codes, book = [], 0
        while f"{self._book(book)}.codebook.weight" in self._state:
            table = self._state[f"{self._book(book)}.codebook.weight"]
            x = self._conv(f"{self._book(book)}.in_proj", z)[0].T
            x, unit = (t / t.norm(dim=1, keepdim=True).clamp(min=1e-12) for t in (x, table))
            far = ((x[:, None] - unit[None]) ** 2).sum(2)
            codes.append(far.argmin(1))
            z = z - self._conv(f"{self._book(book)}.out_proj", table[codes[-1]].T[None])
            book += 1
        return torch.stack(codes).numpy().astype(np.int16)

    def _book(self, book: int) -> str:
        if not book:
            return "quantizer.semantic_quantizer.quantizers.0"
        return f"quantizer.quantizer.quantizers.{book - 1}"

    def _weight(self, name: str) -> Tensor:
        for scale, direction in (
            ("weight_g", "weight_v"),
            ("parametrizations.weight.original0", "parametrizations.weight.original1"),
        ):
            if f"{name}.{scale}" in self._state:
                v = self._state[f"{name}.{direction}"]
                norms = torch.stack([row.norm() for row in v]).reshape(-1, 1, 1)
                return self._state[f"{name}.{scale}"] * v / norms
        return self._state[f"{name}.weight"]

    def _conv(self, name: str, x: Tensor, stride: int = 1, dilation: int = 1) -> Tensor:
        weight = self._weight(name)
        left = (weight.shape[2] - 1) * dilation - (stride - 1)
        groups = x.shape[1] // weight.shape[1]
        x = torch.cat([x.new_zeros(1, x.shape[1], left), x], 2)
        return F.conv1d(x, weight, self._state[f"{name}.bias"], stride, 0, dilation, groups)

    def _transposed(self, name: str, x: Tensor) -> Tensor:
        """Upsample by s with a kernel of s or 2 s. Surplus outputs at the end are cut off."""
        weight, bias = self._weight(name), self._state[f"{name}.bias"]
        stride = weight.shape[2] if name.startswith("quantizer") else weight.shape[2] // 2
        return F.conv_transpose1d(x, weight, bias, stride)[:, :, : x.shape[2] * stride]

    def _residual(self, at: str, x: Tensor, dilation: int) -> Tensor:
        y = self._conv(f"{at}.block.1.conv", self._snake(f"{at}.block.0", x), dilation=dilation)
        return x + self._conv(f"{at}.block.3.conv", self._snake(f"{at}.block.2", y))

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha = self._state[f"{name}.alpha"]
        return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)

    def _convnext(self, at: str, x: Tensor) -> Tensor:
        s = self._state
        y = self._conv(f"{at}.dwconv.conv", x)[0].T
        y = (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=False) + 1e-6).sqrt()
        y = y * s[f"{at}.norm.weight"] + s[f"{at}.norm.bias"]
        y = y @ s[f"{at}.pwconv1.weight"].T + s[f"{at}.pwconv1.bias"]
        y = 0.5 * y * (1 + torch.erf(y / 2**0.5))
        y = y @ s[f"{at}.pwconv2.weight"].T + s[f"{at}.pwconv2.bias"]
        return x + (s[f"{at}.gamma"] * y).T[None]

    def _transformer(self, at: str, x: Tensor, window: int, head_dim: int) -> Tensor:
        x, s, layer = x[0].T, self._state, 0
        while f"{at}.layers.{layer}.attention.wo.weight" in s:
            name = f"{at}.layers.{layer}"
            y = self._norm(f"{name}.attention_norm", x)
            y = self._attention(name, y, window, head_dim) @ s[f"{name}.attention.wo.weight"].T
            x = x + s[f"{name}.attention_layer_scale.gamma"] * y
            y = self._norm(f"{name}.ffn_norm", x)
            gate, up = (y @ s[f"{name}.feed_forward.w{n}.weight"].T for n in (1, 3))
            y = (gate * torch.sigmoid(gate) * up) @ s[f"{name}.feed_forward.w2.weight"].T
            x = x + s[f"{name}.ffn_layer_scale.gamma"] * y
            layer += 1
        return self._norm(f"{at}.norm", x).T[None]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return x / ((x**2).mean(1, keepdim=True) + 1e-5).sqrt() * self._state[f"{name}.weight"]

    def _attention(self, name: str, x: Tensor, window: int, head_dim: int) -> Tensor:
        total, dim = x.shape
        made = x @ self._state[f"{name}.attention.wqkv.weight"].T
        positions = torch.arange(total)
        near = (positions[:, None] - positions >= 0) & (positions[:, None] - positions < window)
        speeds = 10_000.0 ** -(torch.arange(0, head_dim, 2).float() / head_dim)
        angles = positions.float()[:, None] * speeds
        # The model was trained with tables rounded to bfloat16.
        turn = torch.complex(
            angles.cos().bfloat16().to(self._dtype), angles.sin().bfloat16().to(self._dtype)
        )
        heads = []
        for first in range(0, dim, head_dim):
            q, k, v = (made[:, at + first : at + first + head_dim] for at in (0, dim, 2 * dim))
            q, k = (
                torch.view_as_real(torch.view_as_complex(t.reshape(total, -1, 2)) * turn).flatten(1)
                for t in (q.contiguous(), k.contiguous())
            )
            scores = (q @ k.T / head_dim**0.5).masked_fill(~near, -torch.inf)
            heads.append(torch.softmax(scores, 1) @ v)
        return torch.cat(heads, 1)
