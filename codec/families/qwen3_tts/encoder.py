"""The Qwen3-TTS codec's encoder, Mimi's: samples to codes, for voice cloning."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.families.qwen3_tts.config import (
    ACOUSTIC,
    DOWNSAMPLE,
    SEMANTIC,
    EncoderSizes,
    Qwen3TTSCodecConfig,
    encoder_books,
)
from codec.families.qwen3_tts.decoder import code_vectors
from codec.families.qwen3_tts.transformer import encoder_transformer
from codec.family import check_clip
from codec.layers import convolve_pieces
from codec.residual_codes import Codebook, ResidualSearch
from streaming.spec import Codes, Samples

#: Frames whose convolutions are computed at once: about five seconds.
_PIECE_FRAMES = 64
_CONVOLUTIONS = "encoder.encoder.layers"


class Qwen3TTSEncoder:
    """Implements ``codec.family.ClipEncoder``. Stateless, so thread-safe.

    ``tensors`` are those of ``config.encoder_shapes``. ``dtype`` float64 is for tests: the nearest
    code vector is found by comparing, and rounding can decide between two.
    """

    def __init__(
        self,
        config: Qwen3TTSCodecConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._sizes = config.encoder
        self._hop_length = config.hop_length
        self._device = torch.device(device)
        self._dtype = dtype
        self._weights = {name: t.to(self._device, dtype) for name, t in tensors.items()}
        self._transformer = encoder_transformer(config.encoder, self._weights)
        tables = [
            code_vectors(tensors[f"{name}.embed_sum"], tensors[f"{name}.cluster_usage"])
            for name in encoder_books(config.decoder)
        ]
        books = [Codebook(table, table) for table in (t.to(self._device, dtype) for t in tables)]
        #: Both see the same latents, through projections of their own.
        self._searches = {
            SEMANTIC: ResidualSearch(books[:1]),
            ACOUSTIC: ResidualSearch(books[1:]),
        }

    @torch.inference_mode()
    def encode(self, samples: Samples) -> Codes:
        """See ClipEncoder. Each layer pads its own input to whole strides, as in training."""
        check_clip(samples)
        x = convolve_pieces(
            self._convolve,
            torch.from_numpy(samples).to(self._device, self._dtype),
            piece=_PIECE_FRAMES * self._hop_length,
            context=-(-_left_samples(self._sizes) // self._hop_length) * self._hop_length,
            rate=math.prod(self._sizes.strides),
        )
        last = f"{_CONVOLUTIONS}.{3 * len(self._sizes.strides) + 2}"
        x = self._conv(last, F.elu(x)).transpose(1, 2)
        x = self._transformer.run_whole(x)
        x = self._conv("encoder.downsample", x.transpose(1, 2), DOWNSAMPLE, "replicate")
        codes: Codes = (
            torch.cat(
                [
                    search.encode(
                        F.linear(x[0].T, self._weights[f"{name}.input_proj.weight"][:, :, 0])
                    )
                    for name, search in self._searches.items()
                ]
            )
            .to("cpu", torch.int16)
            .numpy()
        )
        return codes

    def _convolve(self, x: Tensor) -> Tensor:
        """Run the convolutions except for the last, which has no stride: samples ``[1, 1, n]`` to
        ``[1, C, n / product of strides]``.
        """
        x = self._conv(f"{_CONVOLUTIONS}.0", x)
        for index, stride in enumerate(self._sizes.strides):
            unit = 3 * index + 1
            y = self._conv(f"{_CONVOLUTIONS}.{unit}.block.1", F.elu(x))
            x = x + self._conv(f"{_CONVOLUTIONS}.{unit}.block.3", F.elu(y))
            x = self._conv(f"{_CONVOLUTIONS}.{unit + 2}", F.elu(x), stride)
        return x

    def _conv(self, name: str, x: Tensor, stride: int = 1, padding: str = "constant") -> Tensor:
        """A causal convolution, ``[1, in, n] -> [1, out, ceil(n / stride)]``, padded before its
        input, and after it to a whole stride.
        """
        weight = self._weights[f"{name}.conv.weight"]
        x = F.pad(x, (weight.shape[2] - stride, -x.shape[2] % stride), padding)
        return F.conv1d(x, weight, self._weights.get(f"{name}.conv.bias"), stride)


def _left_samples(sizes: EncoderSizes) -> int:
    """Number of earlier samples on which one output of the strided convolutions depends."""
    reach = sizes.kernel_size - 1
    rate = 1
    for stride in sizes.strides:
        reach += rate * (sizes.residual_kernel_size - 1 + 2 * stride - 1)
        rate *= stride
    return reach
