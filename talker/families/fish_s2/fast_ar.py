"""S2 Pro's fast AR: ``audio_decoder`` of the checkpoint without its ``codebook_embeddings``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from talker.families.fast_ar import FastAR
from talker.families.fish_s2 import FishS2Shape


class FishFastAR(FastAR):
    """See FastAR. All codebooks share a table and a head, of which the residual ones use the first
    rows.
    """

    def __init__(self, shape: FishS2Shape, max_rows: int, dtype: torch.dtype) -> None:
        part = shape.fast
        super().__init__(
            part, shape.num_codebooks, max_rows, dtype, qk_norms=False, rounds_angles=True
        )
        self._residual_size = shape.residual_size
        self.embeddings = nn.Embedding(shape.codebook_size, part.hidden_size)
        self.output = nn.Linear(part.hidden_size, shape.codebook_size, bias=False)

    def embed(self, codes: Tensor, book: int) -> Tensor:
        """See FastAR."""
        embedded: Tensor = self.embeddings(codes)
        return embedded

    def logits(self, x: Tensor, book: int) -> Tensor:
        """See FastAR."""
        return self.output(x)[:, : self._residual_size]  # type: ignore[no-any-return]  # nn.Module
