"""Residual quantisation: vectors as sums of code vectors, one of each of several codebooks.

Taking the nearest vector of one codebook after the other is what the published codecs do, but not
the nearest sum. A beam search comes closer to it: it keeps several choices until the last codebook
(as for additive codebooks, https://proceedings.mlr.press/v32/martinez14.html).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Vectors that are searched at once; bounds the memory.
_CHUNK = 256


def _unchanged(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, slots=True)
class Codebook:
    """A codebook ``table`` ``[size, dim]``.

    ``project``: maps a residual ``[..., wide]`` to ``[..., dim]``, where distances are measured.
    ``vectors``: what the codes add to the sum, ``[size, wide]``.
    """

    table: Tensor
    vectors: Tensor
    project: Callable[[Tensor], Tensor] = _unchanged

    def distances(self, rest: Tensor) -> Tensor:
        """Return the squared distances of residuals ``[..., wide]``: ``[..., size]``."""
        x = self.project(rest)
        table = self.table
        return x.square().sum(-1, keepdim=True) - 2 * x @ table.T + table.square().sum(1)

    def lowest(self) -> Tensor:
        """Return for each code the lowest one with the same entry of ``table``: ``[size]``."""
        _, kinds = torch.unique(self.table, dim=0, return_inverse=True)
        numbers = torch.arange(len(kinds), device=kinds.device)
        first = torch.full_like(numbers, len(kinds))
        return first.scatter_reduce(0, kinds, numbers, "amin")[kinds]


@dataclass(frozen=True, slots=True)
class _Step:
    """A codebook in the search. ``lowest``: of each code. ``is_apart``: its vectors are orthogonal
    to those of all later codebooks, which thus cannot make up for its errors. So each choice goes
    on with the nearest code only.
    """

    book: Codebook
    lowest: Tensor
    is_apart: bool


class ResidualSearch:
    """Finds codes whose vectors add up to something near a given vector.

    Args:
        codebooks: in their order; each encodes what the ones before leave.
        beam: number of choices of the codes so far that are kept. With 1, the nearest code of each
            codebook is taken.
    """

    def __init__(self, codebooks: Sequence[Codebook], beam: int = 1) -> None:
        self._beam = beam
        self._steps = [
            _Step(book, book.lowest(), _is_apart(book, codebooks[number + 1 :]))
            for number, book in enumerate(codebooks)
        ]

    def encode(self, x: Tensor) -> Tensor:
        """Return the codes ``[K, n]`` of vectors ``[n, wide]``; of equal code vectors, the
        lowest code.
        """
        return torch.cat([self._encode(part) for part in torch.split(x, _CHUNK)], 1)

    def _encode(self, x: Tensor) -> Tensor:
        rest = x[:, None]  # [n, choices, wide]
        chosen: list[Tensor] = []  # of each codebook [n, choices]
        nearest = rest.new_zeros(rest.shape[:2])
        for step in self._steps:
            distances = step.book.distances(rest)
            size = distances.shape[-1]
            if step.is_apart:
                nearest, code = distances.min(-1)
            else:
                count = min(self._beam, distances.shape[1] * size)
                nearest, at = distances.flatten(1).topk(count, largest=False)
                earlier, code = at // size, at % size
                chosen = [codes.gather(1, earlier) for codes in chosen]
                rest = rest.gather(1, earlier[..., None].expand(-1, -1, rest.shape[-1]))
            code = step.lowest[code]
            chosen.append(code)
            rest = rest - step.book.vectors[code]
        best = nearest.argmin(1, keepdim=True)
        return torch.stack([codes.gather(1, best)[:, 0] for codes in chosen])


def _is_apart(book: Codebook, later: Sequence[Codebook]) -> bool:
    own = book.project(book.vectors)
    return not any((own @ book.project(other.vectors).T).any() for other in later)
