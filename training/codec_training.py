"""Shared code for training the codec's decoder and encoder: their parts, the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from training.adversary import Adversary
from training.precision import Optimisers
from training.progress import Progress

LEAST_ALPHA = 0.05  # below it Snake's 1/alpha diverges


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
    adversary: Adversary | None = None,
) -> None:  # fmt: skip
    """Minimise the sum of the losses that ``lose`` computes on a batch that it draws.

    The state of an ``adversary`` that ``lose`` trains is kept beside the part's.
    """
    alphas = [p for name, p in part.named_parameters() if name.endswith("alpha")]
    both = Optimisers(part, (way.beta, 0.95), way.decay)
    optimisers = [both.adam, both.orthogonal]
    if adversary:
        optimisers += [adversary.optimisers.adam, adversary.optimisers.orthogonal]
    more = progress.restore(part, *optimisers)
    if adversary:
        adversary.resume(more)
    for step in progress:
        found = lose(np.random.default_rng((way.seed, step)))
        sum(found.values(), torch.zeros(())).backward()
        nn.utils.clip_grad_norm_(part.parameters(), way.clip)
        both.step(way.rate * progress.slope(50))
        with torch.no_grad():
            for alpha in alphas:
                alpha.clamp_(min=LEAST_ALPHA)
        progress.note(**{name: loss.item() for name, loss in found.items()})
        if progress.due:
            progress.say(f"unseen speech: {test()}")
            progress.keep(part, *optimisers, more=adversary.state() if adversary else None)
