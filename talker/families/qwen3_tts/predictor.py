"""Qwen3-TTS' code predictor: a fast AR with a table and a head for each codebook."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from talker.families.fast_ar import FastAR
from talker.families.qwen3_tts import Qwen3TTSShape
from talker.frames import RowEmbedding


class CodePredictor(FastAR):
    """See FastAR. ``tables`` are the slow AR's embeddings of all codebooks."""

    def __init__(
        self, shape: Qwen3TTSShape, tables: RowEmbedding, max_rows: int, dtype: torch.dtype
    ) -> None:
        part = shape.predictor
        super().__init__(
            part, shape.num_codebooks, max_rows, dtype, qk_norms=True, rounds_angles=False
        )
        self._tables = (tables,)  # in a tuple, so that it is not registered twice
        self._size = shape.codebook_size
        width = shape.backbone.hidden_size
        self.project: nn.Module = nn.Identity()
        if width != part.hidden_size:
            self.project = nn.Linear(width, part.hidden_size)
        heads = torch.empty(shape.num_codebooks - 1, shape.codebook_size, part.hidden_size)
        self.heads = nn.Parameter(heads, requires_grad=False)

    def embed(self, codes: Tensor, book: int) -> Tensor:
        """See FastAR."""
        return functional.embedding(codes + book * self._size, self._tables[0].weight)

    def narrow(self, x: Tensor) -> Tensor:
        """See FastAR."""
        narrow: Tensor = self.project(x)
        return narrow

    def logits(self, x: Tensor, book: int) -> Tensor:
        """See FastAR."""
        return functional.linear(x, self.heads[book - 1])
