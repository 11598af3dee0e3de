"""S2 Pro's sampling step: a semantic code, or the end, and the fast AR's codes after it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from talker.families.fish_s2 import FishS2Shape
from talker.families.fish_s2.fast_ar import FishFastAR
from talker.families.frame_graphs import FrameDrawer, drawing, narrowed
from talker.frames import FrameTable, LookBack
from talker.sampler import Draw, Drawn, RowSampler

#: Upstream's temperature for drawing a recently repeated semantic code again.
_AGAIN_TEMPERATURE = 1.0
#: Greatest top_k of the residual codes, unless the checkpoint's own is greater. With upstream's
#: top_p of 0.8 few are ever candidates.
_RESIDUAL_TOP_K = 64
#: Upstream's top_p for that.
_AGAIN_TOP_P = 0.9


class FishS2RowSampler(RowSampler):
    """See RowSampler. ``logits`` are ``[B, V + 1 + D]``: those of the semantic codes, that of the
    end, and the slow AR's hidden states. Repetition-aware sampling applies to the semantic codes
    only, and greedy rows are not drawn again. ``max_rows``, ``uses_kernels``: see ``FrameDrawer``.
    ``usual_top_k``: the checkpoint's own.
    """

    def __init__(
        self,
        n_slots: int,
        shape: FishS2Shape,
        fast: FishFastAR,
        look_back: int,
        max_rows: int = 0,
        usual_top_k: int = 1,
        *,
        uses_kernels: bool = False,
    ) -> None:
        assert shape.stop_id is not None
        table = FrameTable(n_slots, shape.num_codebooks, num_states=0, look_back=look_back)
        super().__init__(table, shape.codebook_rows, shape.stop_id)
        self._size = shape.codebook_size
        self._width = max(usual_top_k, _RESIDUAL_TOP_K)
        # each codebook has its own noise, and so has the second semantic draw
        self._stride = shape.num_codebooks + 1
        self._draw_frames = FrameDrawer(
            fast, self._stride, self._width, max_rows, uses_kernels=uses_kernels
        )

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
        choose = drawing(positions, draw, self._stride)
        semantic = choose(scores.clone(), 0)
        if before is not None and draw.repetition is not None and draw.widest > 1:
            calmer = replace(
                draw,
                temperature=torch.full_like(draw.temperature, _AGAIN_TEMPERATURE),
                top_p=torch.full_like(draw.top_p, _AGAIN_TOP_P),
            )
            repeats = draw.repetition.repeats(before.codes[..., :1], semantic[:, None])[:, 0]
            repeats &= draw.top_k > 1
            again = drawing(positions, calmer, self._stride)(scores, self.num_codebooks)
            semantic = torch.where(repeats, again, semantic)
        is_over = semantic == self._size
        begun = semantic.clamp(max=self._size - 1)
        codes = self._draw_frames(hidden, begun, positions, narrowed(draw, self._width))
        return Drawn(codes, states, is_over)
