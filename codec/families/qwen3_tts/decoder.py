"""The Qwen3-TTS codec's decoder: codes to samples, causal, in a stream with exact state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from codec.families.qwen3_tts.config import (
    PRE_KERNEL,
    DecoderSizes,
    Qwen3TTSCodecConfig,
    decoder_books,
)
from codec.families.qwen3_tts.transformer import decoder_transformer
from codec.layers import Conv
from codec.stream_decoder import (
    CACHE_BYTES,
    CodeVectors,
    Convolutions,
    StateTensors,
    StreamDecoder,
    build_stages,
)
from codec.window_transformer import BatchPositions

#: Codes said less often than this in training count as said so often.
MIN_USAGE = 1e-5
_MIN_BETA = 1e-9


class Qwen3TTSDecoder(StreamDecoder):
    """See StreamDecoder. ``tensors`` are those of ``config.decoder_shapes``."""

    def __init__(
        self,
        config: Qwen3TTSCodecConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        place = torch.device(device)
        sizes = config.decoder
        placed = {
            name: tensor.to(place, dtype) for name, tensor in _with_plain_snakes(tensors).items()
        }
        stages = build_stages(
            placed,
            (len(sizes.upsampling_ratios), len(sizes.upsample_rates)),
            upsample="decoder.upsample",
            decoder="decoder.decoder",
            unit=("act1", "conv1", "act2", "conv2"),
        )
        super().__init__(
            config.spec(),
            _Network(sizes, placed, [t.to(place, dtype) for t in _tables(sizes, tensors)]),
            Convolutions(sizes.conv_layers, stages, lambda x: x.clamp(-1, 1)),
            fingerprint=_fingerprint(tensors),
            device=place,
            cache_bytes=cache_bytes,
        )


class _Network:
    """Code vectors, a convolution and a transformer. Implements
    ``codec.stream_decoder.FrameNetwork``.
    """

    def __init__(
        self, sizes: DecoderSizes, weights: Mapping[str, Tensor], tables: Sequence[Tensor]
    ) -> None:
        self._vectors = CodeVectors(tables)
        self._no_inputs = tables[0].new_zeros(PRE_KERNEL - 1, sizes.codebook_dim)
        self.no_latents = tables[0].new_zeros(0, sizes.latent_dim)

        def pair(name: str) -> tuple[Tensor, Tensor]:
            return weights[f"decoder.{name}.weight"], weights[f"decoder.{name}.bias"]

        self._conv = Conv(*pair("pre_conv.conv"))
        self._project_in = pair("pre_transformer.input_proj")
        self._transformer = decoder_transformer(sizes, weights)
        self._project_out = pair("pre_transformer.output_proj")

    def begin(self) -> StateTensors:
        """See FrameNetwork: the last inputs of the convolution ``[n, dim]``, and the state of the
        transformer.
        """
        return self._no_inputs, self._transformer.begin()

    def run(
        self, codes: Tensor, states: StateTensors, at: BatchPositions
    ) -> tuple[Tensor, StateTensors]:
        """See FrameNetwork."""
        before, attention = states
        inputs = torch.cat([before, self._vectors(codes)], 1)
        x = F.linear(self._conv(inputs), *self._project_in)
        x, attention = self._transformer.run(x, attention, at)
        kept = at.last_of(inputs, 1, PRE_KERNEL - 1)
        return F.linear(x, *self._project_out), (kept, attention)


def code_vectors(sums: Tensor, usage: Tensor) -> Tensor:
    """Return a codebook's vectors ``[size, dim]`` in float64. They are stored as sums over their
    uses, ``[size, dim]``, and the numbers of these, ``[size]``.
    """
    return sums.double() / usage.double().clamp(min=MIN_USAGE)[:, None]


def _with_plain_snakes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace the parameters of Snakes, which are stored as logarithms."""
    plain = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(".alpha"):
            plain[name] = tensor.double().exp()
        elif name.endswith(".beta"):
            plain[name] = tensor.double().exp() + _MIN_BETA
    return plain


def _tables(sizes: DecoderSizes, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the codebooks' projected vectors, each ``[size, dim]``, computed in float64."""
    tables = []
    for index, name in enumerate(decoder_books(sizes)):
        group = "rvq_rest" if index else "rvq_first"
        project = tensors[f"decoder.quantizer.{group}.output_proj.weight"][:, :, 0].double()
        sums, usage = tensors[f"{name}.embedding_sum"], tensors[f"{name}.cluster_usage"]
        tables.append(code_vectors(sums, usage) @ project.T)
    return tables


def _fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of the tensors that give codes a meaning: codebooks and their projections."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        if name.startswith("decoder.quantizer."):
            digest.update(name.encode())
            digest.update(tensors[name].float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
