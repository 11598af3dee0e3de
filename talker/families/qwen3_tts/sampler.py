"""Qwen3-TTS' sampling step: a first code, or the end, and the predictor's codes after it.

The repetition penalty applies to each first code of the stream so far, once. Which codes these are
is part of a row's state in the frame table, a bit for each, so that preempted and paused requests
find it there: with 2,048 codes 256 bytes a row. So is the text id that goes into the model with the
frame. If the text is not in the prompt, the end cannot be drawn before all of it has been fed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from talker.families.fast_ar import FastAR
from talker.families.frame_graphs import FrameDrawer, drawing
from talker.families.qwen3_tts import Qwen3TTSShape
from talker.frames import FrameTable, LookBack
from talker.sampler import Draw, Drawn, RowSampler

#: Frames before which the end cannot be drawn, as upstream.
MIN_FRAMES = 2
#: Maximum number of first frames that leave out codes; more are not counted.
MAX_MASKED = 16
#: Bits of a number in the frame table.
_WORD = 16
#: Bits of a text id in its first number; the second has the others.
_TEXT_BITS = 15


def text_of(states: Tensor) -> Tensor:
    """Return the text ids ``[N]`` that go with frames, from the states ``[N, S]`` after them."""
    low, high = states[:, -2:].long().unbind(1)
    return high << _TEXT_BITS | low


class Qwen3TTSRowSampler(RowSampler):
    """See RowSampler. ``logits`` are ``[B, V + 1 + D]``: those of the first codes, that of the end,
    and the slow AR's hidden states. ``rules`` as in ``Family.sampler_rules``; ``max_rows``: see
    ``FrameDrawer``.
    """

    words: Tensor
    bits: Tensor

    def __init__(
        self, n_slots: int, shape: Qwen3TTSShape, fast: FastAR, rules: dict[str, Any], max_rows: int
    ) -> None:
        assert shape.stop_id is not None
        words = -(-shape.codebook_size // _WORD)
        super().__init__(
            FrameTable(n_slots, shape.num_codebooks, num_states=1 + words + 2),
            shape.codebook_rows,
            shape.stop_id,
        )
        self._size = shape.codebook_size
        self._tts_pad = shape.track.tts_pad
        self._rules = rules
        self._draw_frames = FrameDrawer(
            fast,
            self.num_codebooks,
            rules["sub_top_k"],
            max_rows,
            uses_kernels=bool(rules.get("kernels")),
        )
        self.register_buffer("words", torch.arange(words), persistent=False)
        self.register_buffer("bits", torch.arange(_WORD), persistent=False)

    def draw_rows(
        self,
        logits: Tensor,
        states: Tensor,
        before: LookBack | None,
        positions: Tensor,
        draw: Draw,
    ) -> Drawn:
        """See RowSampler. A state is the number of frames, up to MAX_MASKED, the bits, and the text
        id.
        """
        hidden = logits[:, self._size + 1 :]
        scores = logits[:, : self._size + 1].float()
        made, said = states[:, :1], states[:, 1:-2]
        penalty = self._rules["penalty"]
        codes = scores[:, : self._size]
        is_said = (said[..., None] >> self.bits & 1).flatten(1)[:, : self._size].bool()
        scores[:, : self._size] = torch.where(
            is_said, torch.where(codes < 0, codes * penalty, codes / penalty), codes
        )
        if draw.mask is not None:
            marks = draw.mask.marks(made[:, 0], self._size)
            scores[:, : self._size].masked_fill_(marks, float("-inf"))
        must_go_on = made < MIN_FRAMES
        text = torch.full_like(positions, self._tts_pad)
        if draw.track is not None:
            text, has_ended = draw.track.at(positions, self._tts_pad)
            must_go_on |= ~has_ended[:, None]
        scores[:, self._size :].masked_fill_(must_go_on, float("-inf"))
        choose = drawing(positions, draw, self.num_codebooks)
        drawn = choose(scores, 0)
        first = drawn.clamp(max=self._size - 1)
        bit = torch.ones_like(first) << first % _WORD
        new = torch.where(self.words == (first // _WORD)[:, None], bit[:, None], 0)
        low = text & (1 << _TEXT_BITS) - 1
        fed = torch.stack([low, text >> _TEXT_BITS], 1)
        after = torch.cat([(made + 1).clamp(max=MAX_MASKED), said | new, fed], 1)
        return Drawn(self._rest(hidden, first, positions, draw), after, drawn == self._size)

    def _rest(self, hidden: Tensor, first: Tensor, positions: Tensor, draw: Draw) -> Tensor:
        """Return all codes ``[B, K]``. Rows whose first code is not drawn at random are greedy."""
        rules = self._rules
        width = rules["sub_top_k"]
        own = Draw(
            torch.full_like(draw.temperature, rules["sub_temperature"]),
            torch.where(draw.top_k == 1, 1, width),
            torch.full_like(draw.top_p, rules["sub_top_p"]),
            draw.seed,
            widest=min(draw.widest, width) if draw.widest == 1 else width,
            same_width=False,
        )
        return self._draw_frames(hidden, first, positions, own)
