"""The codebooks: one for pitch and phase, three for spectra, four inert ones.

Spectra become ``COMPONENTS`` principal components, which three codebooks approximate one after the
other (residual k-means). A code vector is those components, or 24 numbers for pitch and phase; a
frame's latent is the sum of its codes' vectors. With identities for ``project_in`` and
``project_out`` this is exactly what HiggsAudioV2TokenizerModel's residual quantizer computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embedded.training.pitch import PITCH, PITCH_CODES, pitch_table
from embedded.training.spectra import BANDS, CEPSTRA, SUBFRAMES, WIDTH

COMPONENTS = 56
LATENT = COMPONENTS + PITCH
CODES, BOOKS = 1024, 8
#: Codebooks that the talker generates.
ACTIVE = 4
#: The codebook of pitch and phase among them, and those of spectra in order.
PITCH_BOOK, SPECTRAL = 1, (0, 2, 3)
_PITCH_WEIGHT = 0.8
_CHUNK = 16384
_LONELY = 5
_UNSEEN = 0.05


@dataclass(frozen=True, slots=True)
class Quantiser:
    """``mean`` ``[WIDTH]``, ``basis`` ``[WIDTH, COMPONENTS]``, ``books`` ``[8, 1024, LATENT]``."""

    mean: Tensor
    basis: Tensor
    scale: Tensor
    books: Tensor

    def components(self, spectra: Tensor) -> Tensor:
        """Map ``[n, WIDTH]`` to ``[n, COMPONENTS]``."""
        return (spectra - self.mean) @ self.basis / self.scale

    def encode(self, spectra: Tensor, pitch: Tensor) -> Tensor:
        """Return the codes ``[n, 8]`` of spectra ``[n, WIDTH]`` and pitch codes ``[n]``."""
        rest = self.components(spectra)
        codes = torch.zeros(len(rest), BOOKS, dtype=torch.long)
        codes[:, PITCH_BOOK] = pitch
        for book in SPECTRAL:
            centres = self.books[book, :, :COMPONENTS]
            codes[:, book] = nearest(rest, centres)
            rest = rest - centres[codes[:, book]]
        return codes

    def latents(self, codes: Tensor) -> Tensor:
        """Map codes ``[n, 8]`` to latents ``[n, LATENT]``."""
        return sum((self.books[i][codes[:, i]] for i in range(ACTIVE)), torch.zeros(()))

    def spectra(self, codes: Tensor) -> Tensor:
        """Return the spectra ``[n, WIDTH]`` of codes ``[n, 8]``."""
        said: Tensor = self.latents(codes)[:, :COMPONENTS] * self.scale @ self.basis.T
        return said + self.mean

    def levels(self, codes: Tensor) -> Tensor:
        """Return the loudness of each quarter of the frames of codes ``[n, 8]``:
        ``[n, SUBFRAMES]``, the mean of its mel bands' log amplitudes.
        """
        cepstra = self.spectra(codes).reshape(len(codes), SUBFRAMES, CEPSTRA)
        levels: Tensor = cepstra[..., 0] / BANDS**0.5
        return levels

    def exact(self, spectra: Tensor, pitch: Tensor) -> Tensor:
        """Return the latents ``[n, LATENT]`` of spectra that are not quantised."""
        said = self.books[PITCH_BOOK][pitch]
        return torch.cat([self.components(spectra), said[:, COMPONENTS:]], 1)

    def analysis(self) -> dict[str, Tensor]:
        """Return all tensors but the codebooks, which are in a checkpoint anyway."""
        return {
            "mean": self.mean.contiguous(),
            "basis": self.basis.contiguous(),
            "scale": self.scale.contiguous(),
        }

    def save(self, file: Path) -> None:
        """Write it as safetensors, atomically."""
        partial = file.with_suffix(".partial")
        save_file(self.analysis() | {"books": self.books.contiguous()}, partial)
        partial.rename(file)

    @classmethod
    def load(cls, file: Path) -> Quantiser:
        """Read a file written by ``save``."""
        return cls(**load_file(file))


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the centre nearest to each point."""
    squares = centres.pow(2).sum(1)
    found = [(squares - 2 * part @ centres.T).argmin(1) for part in points.split(_CHUNK)]
    return torch.cat(found)


def _means(points: Tensor, rounds: int, generator: torch.Generator) -> Tensor:
    """Find ``CODES`` centres by Lloyd's algorithm; those with few points restart elsewhere."""
    centres = points[torch.randperm(len(points), generator=generator)[:CODES]].clone()
    for turn in range(rounds):
        chosen = nearest(points, centres)
        count = torch.bincount(chosen, minlength=CODES)
        total = torch.zeros_like(centres).index_add_(0, chosen, points)
        centres = torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], centres)
        lonely = (count < _LONELY).nonzero()[:, 0]
        if len(lonely) and turn < rounds - 2:
            fresh = torch.randint(len(points), (len(lonely),), generator=generator)
            centres[lonely] = points[fresh]
    return centres


def fit(spectra: Tensor, seed: int, rounds: int = 12) -> tuple[Quantiser, list[float]]:
    """Fit the codebooks.

    Args:
        spectra: ``[n, WIDTH]``; the last twentieth is held out.

    Returns:
        The quantiser, and the share of the held-out variance that is left after one, two and three
        codebooks.

    Raises:
        ValueError: too few frames for ``CODES`` centres.
    """
    kept = int(len(spectra) * (1 - _UNSEEN))
    if kept < CODES:
        raise ValueError(f"{len(spectra)} frames; {CODES} centres need more")
    generator = torch.Generator().manual_seed(seed)
    mean = spectra[:kept].mean(0)
    centred = spectra - mean
    covariance = centred[:kept].T @ centred[:kept] / kept
    basis = torch.linalg.eigh(covariance)[1].flip(1)[:, :COMPONENTS].contiguous()
    rest = centred @ basis
    scale = rest[:kept].pow(2).mean().sqrt()
    rest, other = (rest / scale).split([kept, len(rest) - kept])
    books, left, total = torch.zeros(BOOKS, CODES, LATENT), [], other.pow(2).mean()
    for book in SPECTRAL:
        centres = _means(rest, rounds, generator)
        books[book, :, :COMPONENTS] = centres
        rest = rest - centres[nearest(rest, centres)]
        other = other - centres[nearest(other, centres)]
        left.append(float(other.pow(2).mean() / total))
    table = torch.from_numpy(pitch_table()) * _PITCH_WEIGHT
    books[PITCH_BOOK, :PITCH_CODES, COMPONENTS:] = table
    # unused pitch codes stay zero: they sound like code 0 and are never the nearest
    return Quantiser(mean, basis, scale.reshape(()), books), left


assert PITCH_CODES <= CODES
assert WIDTH >= COMPONENTS
