"""The Fish codec's decoder: codes to samples, causal, in a stream with exact state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from codec.families.fish.config import FishConfig, codebooks
from codec.families.fish.transformer import build_transformer
from codec.stream_decoder import (
    CACHE_BYTES,
    CodeVectors,
    Convolutions,
    StateTensors,
    StreamDecoder,
    build_stages,
)
from codec.window_transformer import BatchPositions, WindowTransformer


class FishDecoder(StreamDecoder):
    """See StreamDecoder. ``tensors`` are those of ``config.decoder_shapes``."""

    def __init__(
        self,
        config: FishConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        place = torch.device(device)
        placed = {name: tensor.to(place, dtype) for name, tensor in tensors.items()}
        tables = [_table(tensors, name).to(place, dtype) for name in codebooks(config)]
        transformer = build_transformer(config.transformer, placed, "quantizer.post_module")
        stages = build_stages(
            placed,
            (len(config.upsample), len(config.decoder_rates)),
            upsample="quantizer.upsample",
            decoder="decoder.model",
            unit=[f"block.{part}" for part in range(4)],
        )
        super().__init__(
            config.spec(),
            _Network(tables, transformer),
            Convolutions(config.conv_layers, stages, torch.tanh),
            fingerprint=_fingerprint(config, tensors),
            device=place,
            cache_bytes=cache_bytes,
        )


class _Network:
    """Code vectors and a transformer. Implements ``codec.stream_decoder.FrameNetwork``."""

    def __init__(self, tables: Sequence[Tensor], transformer: WindowTransformer) -> None:
        self._vectors = CodeVectors(tables)
        self.no_latents = tables[0].new_zeros(0, tables[0].shape[1])
        self._transformer = transformer

    def begin(self) -> StateTensors:
        """See FrameNetwork."""
        return (self._transformer.begin(),)

    def run(
        self, codes: Tensor, states: StateTensors, at: BatchPositions
    ) -> tuple[Tensor, StateTensors]:
        """See FrameNetwork."""
        (attention,) = states
        latents, attention = self._transformer.run(self._vectors(codes), attention, at)
        return latents, (attention,)


def _table(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a codebook's projected vectors, ``[size, dim]``, computed in float64."""
    project = tensors[f"{name}.out_proj.weight"][:, :, 0].double()
    vectors = tensors[f"{name}.codebook.weight"].double()
    return vectors @ project.T + tensors[f"{name}.out_proj.bias"].double()


def _fingerprint(config: FishConfig, tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of the tensors that give codes a meaning: codebooks and their projections."""
    digest = hashlib.sha256()
    for name in codebooks(config):
        for part in ("codebook.weight", "out_proj.weight", "out_proj.bias"):
            digest.update(tensors[f"{name}.{part}"].float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
