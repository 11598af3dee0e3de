"""S2 Pro's sampling step: a semantic code, or the end, and the fast AR's codes after it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from talker.families.fish_s2 import FishS2Shape
from talker.families.fish_s2.fast_ar import FastAR
from talker.families.fish_s2.frame_graphs import FrameGraphs, drawing
from talker.frames import FrameTable, LookBack
from talker.sampler import Draw, Drawn, RowSampler

#: Upstream's parameters for drawing a recently repeated semantic code again.
_AGAIN_TEMPERATURE, _AGAIN_TOP_P = 1.0, 0.9


class FishS2RowSampler(RowSampler):
    """See RowSampler. ``logits`` are ``[B, V + 1 + D]``: those of the semantic codes, that of the
    end, and the slow AR's hidden states. Repetition-aware sampling applies to the semantic codes
    only, and greedy rows are not drawn again. ``most_rows``: on a GPU the fast AR runs as CUDA
    graphs for up to that many rows; 0: never. ``usual_top_k``: see ``FrameGraphs``.
    """

    def __init__(
        self,
        n_slots: int,
        shape: FishS2Shape,
        fast: FastAR,
        look_back: int,
        most_rows: int = 0,
        usual_top_k: int = 1,
    ) -> None:
        assert shape.stop_id is not None
        table = FrameTable(n_slots, shape.num_codebooks, num_states=0, look_back=look_back)
        super().__init__(table, shape.codebook_rows, shape.stop_id)
        self._fast = (fast,)  # in a tuple, so that it is not registered twice
        self._size, self._most_rows = shape.codebook_size, most_rows
        self._usual_top_k = usual_top_k
        self._graphs: FrameGraphs | None = None

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
        # each codebook has its own noise, and so has the second semantic draw
        stride = self.num_codebooks + 1

        choose = drawing(positions, draw, stride)
        semantic = choose(scores.clone(), 0)
        if before is not None and draw.repetition is not None and draw.widest > 1:
            calmer = replace(
                draw,
                temperature=torch.full_like(draw.temperature, _AGAIN_TEMPERATURE),
                top_p=torch.full_like(draw.top_p, _AGAIN_TOP_P),
            )
            repeats = draw.repetition.repeats(before.codes[..., :1], semantic[:, None])[:, 0]
            repeats &= draw.top_k > 1
            again = drawing(positions, calmer, stride)(scores, self.num_codebooks)
            semantic = torch.where(repeats, again, semantic)
        is_over = semantic == self._size
        begun = semantic.clamp(max=self._size - 1)
        if self._most_rows and hidden.is_cuda:
            if self._graphs is None:
                most, usual = self._most_rows, self._usual_top_k
                self._graphs = FrameGraphs(self._fast[0], most, hidden, stride, usual)
            codes = self._graphs(hidden, begun, positions, draw)
        else:
            codes = self._fast[0](hidden, begun, choose)
        return Drawn(codes, states, is_over)
