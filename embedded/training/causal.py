"""Keeps the codec's decoder from looking further ahead than a stream waits.

Its convolutions reach ten frames ahead. A stream decodes a chunk when two frames after it are
known; a decoder that was taught with all ten there then says something else than it would have
with the whole utterance in hand, above all another phase where none is right, and chunks do not
fit together. So the taps that look further ahead than two frames are zero from the first step on,
and stay so. The format knows nothing of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: The convolutions whose kernels have taps that are zero, by the beginning of their names, and how
#: many taps ahead they keep. One frame ahead at the frame rate, half of one in the first
#: upsampling, and a third of one in all behind the second.
_KEPT = (
    ("conv1.", 1),
    ("block.0.res_unit", 0),
    ("block.1.res_unit", 0),
    ("block.2.res_unit3", 0),
)


@dataclass(frozen=True, slots=True)
class Mask:
    """``kernel`` ``[out, in, taps]`` is nothing but zero where ``kept`` ``[taps]`` is."""

    kernel: nn.Parameter
    kept: Tensor

    @torch.no_grad()
    def apply(self) -> None:
        """To the weights, and to their gradient where there is one."""
        self.kernel.mul_(self.kept)
        if self.kernel.grad is not None:
            self.kernel.grad.mul_(self.kept)


def masks_of(decoder: nn.Module) -> list[Mask]:
    """The masks of a decoder (``acoustic_decoder``)."""
    found = []
    for name, kernel in decoder.named_parameters():
        taps = kernel.shape[-1]
        for beginning, ahead in _KEPT:
            if name.startswith(beginning) and kernel.dim() == 3 and taps > 1:
                kept = torch.ones(taps, device=kernel.device)
                kept[taps // 2 + 1 + ahead :] = 0
                found.append(Mask(kernel, kept))
    return found


def apply(masks: Sequence[Mask]) -> None:
    """All of them: before an optimiser's step to the gradients, after it to the weights."""
    for mask in masks:
        mask.apply()
