"""The codec's eight codebooks, worked out rather than trained.

A frame's latent is ``[LATENT]``: its envelopes' principal components, the numbers of its pitch
code, and which noise it plays. Codebook 0 holds a first guess of the components and its noise,
codebook 1 pitch and phase, codebooks 2 and 3 what is left of the components (residual k-means),
and 4 to 7 nothing: they are all zero, because a talker of a few million parameters cannot learn
them. With identities for ``project_in`` and ``project_out`` this is exactly what
HiggsAudioV2TokenizerModel's residual quantizer computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embedded.training.features import BANDS, ORDER, PITCH_CODES, SUBFRAMES, pitch_table
from embedded.training.synthesis import NOISES

COMPONENTS, PITCH, NOISE = 40, 24, NOISES
LATENT = COMPONENTS + PITCH + NOISE
CODES, BOOKS = 1024, 8
#: Codebooks that the talker has to say.
ACTIVE = 4
_SPECTRAL = (0, 2, 3)
_ENERGY, _VOICING, _PITCH, _NOISE = 1.0, 1.2, 0.8, 0.5
_CHUNK = 16384


def _weights() -> Tensor:
    """How much each number of an envelope is heard: by its part in the log spectrum."""
    row = [_ENERGY] + [0.5**0.5] * (ORDER - 1) + [_VOICING] * BANDS
    return torch.tensor(row * SUBFRAMES)


@dataclass(frozen=True, slots=True)
class Quantiser:
    """``mean`` ``[WIDTH]``, ``basis`` ``[WIDTH, COMPONENTS]``, ``books`` ``[8, 1024, LATENT]``."""

    mean: Tensor
    basis: Tensor
    scale: Tensor
    books: Tensor

    def components(self, envelopes: Tensor) -> Tensor:
        """``[n, WIDTH]`` -> ``[n, COMPONENTS]``."""
        return ((envelopes - self.mean) * _weights() @ self.basis) / self.scale

    def envelopes(self, components: Tensor) -> Tensor:
        """The other way."""
        return (components * self.scale) @ self.basis.T / _weights() + self.mean

    def encode(self, envelopes: Tensor, pitch: Tensor) -> Tensor:
        """Codes ``[n, 8]`` of envelopes ``[n, WIDTH]`` and pitch codes ``[n]``."""
        rest = self.components(envelopes)
        codes = torch.zeros(len(rest), BOOKS, dtype=torch.long)
        codes[:, 1] = pitch
        for book in _SPECTRAL:
            centres = self.books[book, :, :COMPONENTS]
            codes[:, book] = nearest(rest, centres)
            rest = rest - centres[codes[:, book]]
        return codes

    def latents(self, codes: Tensor) -> Tensor:
        """``[n, 8]`` -> ``[n, LATENT]``."""
        return sum((self.books[i][codes[:, i]] for i in range(ACTIVE)), torch.zeros(()))

    def analysis(self) -> dict[str, Tensor]:
        """All of it but the codebooks, which a checkpoint has anyway."""
        return {
            "mean": self.mean.contiguous(),
            "basis": self.basis.contiguous(),
            "scale": self.scale.contiguous(),
        }

    def save(self, file: Path) -> None:
        """Write it as safetensors."""
        save_file(self.analysis() | {"books": self.books.contiguous()}, file)

    @classmethod
    def load(cls, file: Path) -> Quantiser:
        """Read what ``save`` wrote."""
        return cls(**load_file(file))


def noise_of(codes: Tensor) -> Tensor:
    """Which noise ``[n]`` the frames of ``codes`` ``[n, 8]`` play."""
    return codes[:, 0] % NOISES


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Index of the centre nearest to each point."""
    squares = centres.pow(2).sum(1)
    found = [(squares - 2 * part @ centres.T).argmin(1) for part in points.split(_CHUNK)]
    return torch.cat(found)


def _means(points: Tensor, rounds: int, generator: torch.Generator) -> Tensor:
    """``CODES`` centres by Lloyd's rule; those that nobody is near begin anew elsewhere."""
    centres = points[torch.randperm(len(points), generator=generator)[:CODES]].clone()
    for turn in range(rounds):
        chosen = nearest(points, centres)
        count = torch.bincount(chosen, minlength=CODES)
        total = torch.zeros_like(centres).index_add_(0, chosen, points)
        centres = torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], centres)
        lonely = (count < 5).nonzero()[:, 0]
        if len(lonely) and turn < rounds - 2:
            fresh = torch.randint(len(points), (len(lonely),), generator=generator)
            centres[lonely] = points[fresh]
    return centres


def fit(envelopes: np.ndarray, seed: int, rounds: int = 12) -> Quantiser:
    """A quantiser for such ``envelopes`` ``[n, WIDTH]``."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.from_numpy(envelopes)
    mean = points.mean(0)
    weighted = (points - mean) * _weights()
    _, vectors = torch.linalg.eigh(weighted.T @ weighted / len(weighted))
    basis = vectors.flip(1)[:, :COMPONENTS].contiguous()
    rest = weighted @ basis
    scale = rest.pow(2).mean().sqrt()
    rest = rest / scale
    books = torch.zeros(BOOKS, CODES, LATENT)
    total = rest.pow(2).mean()
    for book in _SPECTRAL:
        centres = _means(rest, rounds, generator)
        books[book, :, :COMPONENTS] = centres
        rest = rest - centres[nearest(rest, centres)]
        print(
            f"codebook {book}: {float(rest.pow(2).mean() / total):.3f} of the variance left",
            flush=True,
        )
    books[0, torch.arange(CODES), COMPONENTS + PITCH + torch.arange(CODES) % NOISES] = _NOISE
    table = torch.from_numpy(pitch_table()) * _PITCH
    books[1, :PITCH_CODES, COMPONENTS : COMPONENTS + PITCH] = table
    # codes that no pitch has are left at zero: they sound like code 0, and are never the nearest
    return Quantiser(mean, basis, scale.reshape(()), books)
