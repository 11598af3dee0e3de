"""Training of the talker: cross-entropy of the next row, and attention to the spoken letter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.precision import autocast, muon
from training.progress import Progress
from training.quantise import ACTIVE
from training.scripts import NOTHING, Script, Utterance, scripts_of
from training.talker import BOOKS, ROWS, TalkerNet

_BOOK_WEIGHTS = (2.0, 1.2, 0.7, 0.4)
_GUIDE, _SHARPNESS = 0.6, 1.2
_POOL = 96  # groups whose scripts are sorted by length together
_TESTED = 40  # groups
_RATE, _MUON_RATE = 1.5e-3, 2.2e-3


@dataclass(frozen=True, slots=True)
class Group:
    """One speaker's utterances; ``default`` if it is the voice that speaks without a reference."""

    utterances: tuple[Utterance, ...]
    default: bool


class Batches:
    """Endless batches of scripts, each at most ``tokens`` long, padding included.

    ``place`` (epoch, pool in the epoch, batch in the pool) is the current position. Another object
    with the same groups and seed continues from it with the same batches. Raises ValueError if no
    script of the groups is short enough.
    """

    def __init__(
        self, groups: Sequence[Group], seed: int, tokens: int, longest: int,
        place: tuple[int, int, int] = (0, 0, 0),
    ) -> None:  # fmt: skip
        self._groups, self._seed, self._tokens, self._longest = groups, seed, tokens, longest
        self.place = place

    def __iter__(self) -> Iterator[list[Script]]:
        found = self.place != (0, 0, 0)
        while True:
            epoch, pool, done = self.place
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self._groups))
            chosen = order[pool * _POOL : (pool + 1) * _POOL]
            if not len(chosen):
                if not found:
                    raise ValueError(f"no script is at most {self._longest} long")
                self.place = (epoch + 1, 0, 0)
                continue
            random = np.random.default_rng((self._seed, epoch, pool))
            scripts: list[Script] = []
            for i in chosen:
                group = self._groups[i]
                scripts += scripts_of(group.utterances, group.default, random, self._longest)
            for number, batch in enumerate(_packed(scripts, self._tokens, random)):
                found = True
                if number >= done:
                    self.place = (epoch, pool, number + 1)
                    yield batch
            self.place = (epoch, pool + 1, 0)


def _packed(pool: list[Script], tokens: int, random: np.random.Generator) -> Iterator[list[Script]]:
    found: list[list[Script]] = [[]]
    for script in sorted(pool, key=len):
        if found[-1] and len(script) * (len(found[-1]) + 1) > tokens:
            found.append([])
        found[-1].append(script)
    for i in random.permutation(len(found)):
        yield found[i]


def collated(batch: Sequence[Script]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return ids, rows, is_row, targets and look, padded at the end."""
    length = max(len(script) for script in batch)
    count = len(batch)
    ids, is_row = (
        torch.zeros(count, length, dtype=torch.long),
        torch.zeros(count, length, dtype=torch.bool),
    )
    rows = torch.zeros(count, length, BOOKS, dtype=torch.long)
    targets = torch.full((count, length, ACTIVE), NOTHING)
    look = torch.full((count, length), -1.0)
    for i, script in enumerate(batch):
        n = len(script)
        ids[i, :n], rows[i, :n] = torch.from_numpy(script.ids), torch.from_numpy(script.rows)
        is_row[i, :n], look[i, :n] = torch.from_numpy(script.is_row), torch.from_numpy(script.look)
        targets[i, :n] = torch.from_numpy(script.targets)
    return ids, rows, is_row, targets, look


def losses(net: TalkerNet, batch: Sequence[Script]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cross-entropy of each codebook ``[ACTIVE]``, the guide's loss, and the rows
    counted.
    """
    device = net.audio.device
    ids, rows, is_row, targets, look = (t.to(device) for t in collated(batch))
    with autocast(device.type):
        hidden, seen = net(net.embed(ids, rows, is_row, ACTIVE), guide=True)
        counts = (targets != NOTHING).any(-1)
        logits = net.logits(hidden[counts], ACTIVE)
    wanted = targets[counts]
    entropy = F.cross_entropy(
        logits.float().reshape(-1, ROWS), wanted.reshape(-1), reduction="none", ignore_index=NOTHING
    ).view(-1, ACTIVE)
    valid = (wanted != NOTHING).float()
    books = entropy.sum(0) / valid.sum(0).clamp(min=1)
    guide = torch.stack([_looking(scores, look) for scores in seen]).mean()
    return books, guide, counts.sum()


def _looking(scores: Tensor, look: Tensor) -> Tensor:
    """Cross-entropy of the attention against a narrow Gaussian around the letter being spoken."""
    batch, now = (look >= 0).nonzero(as_tuple=True)
    keys = torch.arange(scores.shape[-1], device=scores.device)
    seen = scores[batch, now].masked_fill(keys > now[:, None], float("-inf")).log_softmax(-1)
    hill = torch.exp(-0.5 * ((keys - look[batch, now][:, None]) / _SHARPNESS) ** 2)
    hill = hill * (keys < now[:, None])
    hill = hill / hill.sum(-1, keepdim=True)
    return -(hill * seen.masked_fill(hill == 0, 0.0)).sum(-1).mean()


@torch.no_grad()
def evaluate(net: TalkerNet, held: Sequence[Script]) -> str:
    """Report the losses on held-out scripts."""
    found = [
        torch.cat([b, g[None]])
        for b, g, _ in (losses(net, held[i : i + 6]) for i in range(0, len(held), 6))
    ]
    *books, guide = torch.stack(found).mean(0).tolist()
    return "unseen " + " ".join(f"{value:.3f}" for value in books) + f" guide {guide:.3f}"


def train(
    net: TalkerNet,
    groups: Sequence[Group],
    progress: Progress,
    *,
    tokens: int = 2048,
    longest: int = 1100,
    compiled: bool = False,
) -> None:
    """Train ``net``; the first groups are held out for testing."""
    for layer in net.layers:
        layer.compile(dynamic=True, disable=not compiled)
    kept_apart, seen = groups[:_TESTED], groups[_TESTED:]
    tested = zip(Batches(kept_apart, 9, tokens, longest), range(6), strict=False)
    held = [script for batch, _ in tested for script in batch]
    matrices = [p for n, p in net.named_parameters() if p.dim() == 2 and n.startswith("layers")]
    tables = [p for n, p in net.named_parameters() if p.dim() == 2 and not n.startswith("layers")]
    gains = [p for p in net.parameters() if p.dim() < 2]
    orthogonal = muon(matrices, _MUON_RATE, weight_decay=0.05)
    adam = torch.optim.AdamW(
        [{"params": tables, "weight_decay": 0.05}, {"params": gains, "weight_decay": 0.0}],
        lr=_RATE, betas=(0.9, 0.95),
    )  # fmt: skip
    weights = torch.tensor(_BOOK_WEIGHTS, device=net.audio.device)
    weights /= weights.sum()
    kept = progress.restore(net, adam, orthogonal).get("place", torch.zeros(3, dtype=torch.long))
    first, second, third = kept.tolist()
    source = Batches(seen, 1, tokens, longest, (first, second, third))
    stream = iter(source)
    for _ in progress:
        for optimiser, rate in ((adam, _RATE), (orthogonal, _MUON_RATE)):
            for part in optimiser.param_groups:
                part["lr"] = rate * progress.slope(80)
        books, guide, _count = losses(net, next(stream))
        (books @ weights + _GUIDE * guide).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        orthogonal.step()
        net.zero_grad(set_to_none=True)
        values = books.detach().tolist()
        progress.note(**{f"cb{i}": v for i, v in enumerate(values)}, guide=guide.item())
        if progress.due:
            progress.say(evaluate(net, held))
            progress.keep(net, adam, orthogonal, more={"place": torch.tensor(source.place)})
