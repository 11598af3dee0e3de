"""Shared code for training the codec's decoder and encoder: their parts, the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedded.training.precision import muon
from embedded.training.progress import Progress

LEAST_ALPHA = 0.05  # below it Snake's 1/alpha diverges
#: Convolutions with at least this many channels are trained as matrices by Muon, at this multiple
#: of AdamW's rate.
_MATRIX, _MUON = 8, 2.0


def parts(model: Any) -> dict[str, nn.ModuleDict]:
    """Return the trained parts of the codec: decoder, and encoder without HuBERT."""
    acoustic, semantic = model.acoustic_encoder, model.encoder_semantic
    return {
        "decoder": nn.ModuleDict({"decoder": model.acoustic_decoder, "fc2": model.fc2}),
        "encoder": nn.ModuleDict({"acoustic": acoustic, "semantic": semantic, "fc": model.fc}),
    }


@dataclass(frozen=True, slots=True)
class Way:
    """Training parameters of a part: ``seed`` of its batches, rate, AdamW's first beta, gradient
    limit, and the weight decay of matrices.
    """

    seed: int
    rate: float
    beta: float
    clip: float
    decay: float = 0.0


def learn(
    part: nn.ModuleDict, progress: Progress, way: Way,
    lose: Callable[[np.random.Generator], dict[str, Tensor]], test: Callable[[], str],
) -> None:  # fmt: skip
    """Minimise the sum of the losses that ``lose`` computes on a batch that it draws."""
    alphas = [p for name, p in part.named_parameters() if name.endswith("alpha")]
    deep = [p for p in part.parameters() if p.dim() > 1]
    kernels = [p for p in deep if min(p.flatten(1).shape) >= _MATRIX]
    taken = {id(p) for p in kernels}
    rest = [p for p in part.parameters() if id(p) not in taken]
    matrices = [nn.Parameter(p.data.flatten(1)) for p in kernels]  # the same memory
    adam = torch.optim.AdamW(rest, way.rate, betas=(way.beta, 0.95), weight_decay=0.0)
    orthogonal = muon(matrices, _MUON * way.rate, weight_decay=way.decay)
    progress.restore(part, adam, orthogonal)
    for step in progress:
        for optimiser, rate in ((adam, way.rate), (orthogonal, _MUON * way.rate)):
            for group in optimiser.param_groups:
                group["lr"] = rate * progress.slope(50)
        found = lose(np.random.default_rng((way.seed, step)))
        sum(found.values(), torch.zeros(())).backward()
        nn.utils.clip_grad_norm_(part.parameters(), way.clip)
        for matrix, kernel in zip(matrices, kernels, strict=True):
            matrix.grad = None if kernel.grad is None else kernel.grad.flatten(1)
        adam.step()
        orthogonal.step()
        part.zero_grad(set_to_none=True)
        with torch.no_grad():
            for alpha in alphas:
                alpha.clamp_(min=LEAST_ALPHA)
        progress.note(**{name: loss.item() for name, loss in found.items()})
        if progress.due:
            progress.say(f"unseen speech: {test()}")
            progress.keep(part, adam, orthogonal)
