"""S2 Pro's sampling step: a semantic code, or the end, and the fast AR's codes after it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from talker.families.fish_s2 import FishS2Shape
from talker.families.fish_s2.fast_ar import FastAR
from talker.frames import FrameTable, LookBack
from talker.sampler import Draw, Drawn, RowSampler, choose_codes

#: Upstream draws a semantic code that was among the last ones again like this.
_AGAIN_TEMPERATURE, _AGAIN_TOP_P = 1.0, 0.9


class FishS2RowSampler(RowSampler):
    """See RowSampler. ``logits`` are ``[B, V + 1 + D]``: those of the semantic codes, that of the
    end, and the slow AR's hidden states. Repetition is the semantic codes' alone, and greedy rows
    are not drawn again.
    """

    def __init__(self, n_slots: int, shape: FishS2Shape, fast: FastAR, look_back: int) -> None:
        assert shape.stop_id is not None
        table = FrameTable(n_slots, shape.num_codebooks, num_states=0, look_back=look_back)
        super().__init__(table, shape.codebook_rows, shape.stop_id)
        self._fast = (fast,)  # the model's own module, not registered a second time
        self._size = shape.codebook_size

    def draw_rows(
        self,
        logits: Tensor,
        states: Tensor,
        before: LookBack | None,
        positions: Tensor,
        draw: Draw,
    ) -> Drawn:
        """See RowSampler."""
        hidden = logits[:, self._size + 1 :]
        scores = logits[:, : self._size + 1].float()
        # each codebook has noise of its own, and the second semantic draw too
        stride = self.num_codebooks + 1

        def choose(values: Tensor, book: int, how: Draw = draw) -> Tensor:
            books = torch.full((1,), book + 1, device=values.device)
            return choose_codes(values[:, None], positions, books, how, stride)[:, 0]

        semantic = choose(scores.clone(), 0)
        if before is not None and draw.repetition is not None and draw.widest > 1:
            calmer = replace(
                draw,
                temperature=torch.full_like(draw.temperature, _AGAIN_TEMPERATURE),
                top_p=torch.full_like(draw.top_p, _AGAIN_TOP_P),
            )
            repeats = draw.repetition.repeats(before.codes[..., :1], semantic[:, None])[:, 0]
            repeats &= draw.top_k > 1
            semantic = torch.where(repeats, choose(scores, self.num_codebooks, calmer), semantic)
        is_over = semantic == self._size
        codes = self._fast[0](hidden, semantic.clamp(max=self._size - 1), choose)
        return Drawn(codes, states, is_over)
