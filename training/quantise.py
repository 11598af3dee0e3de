"""The codebooks: one for pitch and phase, three for spectra, four inert ones.

Spectra become ``COMPONENTS`` principal components, which three codebooks approximate together. A
code vector is those components, or 24 numbers for pitch and phase; a frame's latent is the sum of
its codes' vectors. Errors are measured as they are heard: those of high frequencies count less. The
codec's class (HiggsAudioV2TokenizerModel) measures them likewise, with the ``metric`` as
``project_in`` and its inverse as ``project_out``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from codec.residual_codes import Codebook, ResidualSearch
from training.pitch import PITCH, PITCH_CODES, pitch_table
from training.spectra import BANDS, CEPSTRA, SUBFRAMES, WIDTH, bands_of, mel_spaced

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
#: Choices of codes that are kept until the last codebook. With 16 instead of 1, of the same
#: codebooks, .044 of the variance of unseen frames is left instead of .048.
BEAM = 16
#: Rounds in which codes and codebooks are fitted to each other, the beam meanwhile, and the weight
#: of the vectors as they were, in frames.
_ROUNDS, _FITTING_BEAM, _KEPT = 8, 8, 2.0
#: Weights of errors from these frequencies on (Hz).
_HEARD = ((0, 1.0), (4000, 0.5), (8000, 0.25))
#: Frames count fully until they are so far below the loud ones (nepers), then less and less, until
#: so far, and finally this much.
_LOUD, _QUIET, _LEAST = 1.0, 4.6, 0.1
#: The loudness that this share of the frames does not reach is that of the loud ones.
_LOUD_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Quantiser:
    """``mean`` ``[WIDTH]``, ``basis`` ``[WIDTH, COMPONENTS]``, ``books`` ``[8, 1024, LATENT]``.

    ``metric`` ``[COMPONENTS, COMPONENTS]``: an error ``[COMPONENTS]`` is as large as its product
    with this matrix. Identity in checkpoints that have none.
    """

    mean: Tensor
    basis: Tensor
    scale: Tensor
    books: Tensor
    metric: Tensor = field(default_factory=lambda: torch.eye(COMPONENTS))

    def components(self, spectra: Tensor) -> Tensor:
        """Map ``[n, WIDTH]`` to ``[n, COMPONENTS]``."""
        return (spectra - self.mean) @ self.basis / self.scale

    def encode(self, spectra: Tensor, pitch: Tensor) -> Tensor:
        """Return the codes ``[n, 8]`` of spectra ``[n, WIDTH]`` and pitch codes ``[n]``."""
        codes = torch.zeros(len(spectra), BOOKS, dtype=torch.long)
        codes[:, PITCH_BOOK] = pitch
        books = [self.books[book, :, :COMPONENTS] for book in SPECTRAL]
        codes[:, list(SPECTRAL)] = _codes(self.components(spectra), books, self.metric, BEAM)
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
            "metric": self.metric.contiguous(),
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


def _codes(x: Tensor, books: Sequence[Tensor], metric: Tensor, beam: int) -> Tensor:
    """Return the codes ``[n, 3]`` of components ``[n, COMPONENTS]``."""
    heard = [Codebook(book @ metric, book @ metric) for book in books]
    return ResidualSearch(heard, beam).encode(x @ metric).T


def _metric(basis: Tensor, scale: Tensor) -> Tensor:
    """Return the ``metric``: components times it are as long as the log amplitudes of the bands,
    weighted, but for a factor. Its inverse, with which the codec multiplies code vectors, is exact
    in bfloat16.
    """
    limits, weights = zip(*_HEARD, strict=True)
    hz = mel_spaced(BANDS + 2)[1:-1]
    by_band = torch.tensor(weights)[np.searchsorted(limits, hz, side="right") - 1]
    bands = bands_of((scale * basis.T).unflatten(1, (SUBFRAMES, CEPSTRA))) * by_band
    square = bands.flatten(1) @ bands.flatten(1).T
    back = torch.linalg.inv(torch.linalg.cholesky(square / square.diagonal().mean()))
    metric: Tensor = torch.linalg.inv(back.bfloat16().float())
    return metric


def _audible(spectra: Tensor) -> Tensor:
    """Return the weights of frames ``[n]``: quiet ones count less."""
    levels = spectra.unflatten(1, (SUBFRAMES, CEPSTRA))[..., 0].mean(1) / BANDS**0.5
    below = levels.quantile(_LOUD_SHARE) - levels
    weights: Tensor = ((_QUIET - below) / (_QUIET - _LOUD)).clamp(_LEAST, 1)
    return weights


def _fitted(
    x: Tensor, books: Sequence[Tensor], metric: Tensor, weights: Tensor
) -> tuple[Tensor, ...]:
    """Fit codebooks ``[1024, COMPONENTS]`` to frames together: in turn, the codes of each frame,
    and the vectors with the least squared error for these codes.
    """
    for _ in range(_ROUNDS):
        codes = _codes(x, books, metric, _FITTING_BEAM)
        books = _best(x, codes, torch.stack(tuple(books)), weights)
    return tuple(books)


def _best(x: Tensor, codes: Tensor, books: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """Solve the normal equations for the vectors. Rare ones stay near ``books``, as they were."""
    count, size = books.shape[:2]
    places = codes + size * torch.arange(count)
    square, wanted = torch.zeros(count * size, count * size), _KEPT * books.flatten(0, 1)
    for one in places.T:
        wanted.index_add_(0, one, weights[:, None] * x)
        for other in places.T:
            square.view(-1).index_add_(0, one * len(square) + other, weights)
    square.diagonal().add_(_KEPT)
    solved: Tensor = torch.linalg.solve(square.double(), wanted.double())
    return torch.split(solved.float(), size)


def fit(spectra: Tensor, seed: int, rounds: int = 12) -> tuple[Quantiser, float]:
    """Fit the codebooks.

    Args:
        spectra: ``[n, WIDTH]``; the last twentieth is held out.
        seed: of the first centres.
        rounds: of k-means, before the codebooks are fitted together.

    Returns:
        The quantiser, and the share of the held-out variance that it leaves, as it is heard.

    Raises:
        ValueError: too few frames for ``CODES`` centres.
    """
    kept = int(len(spectra) * (1 - _UNSEEN))
    if kept < CODES:
        raise ValueError(f"{len(spectra)} frames; {CODES} centres need more")
    generator = torch.Generator().manual_seed(seed)
    mean = spectra[:kept].mean(0)
    centred = spectra[:kept] - mean
    covariance = centred.T @ centred / kept
    basis = torch.linalg.eigh(covariance)[1].flip(1)[:, :COMPONENTS].contiguous()
    scale = (centred @ basis).pow(2).mean().sqrt()
    metric = _metric(basis, scale)
    books = torch.zeros(BOOKS, CODES, LATENT)
    rest = centred @ basis / scale @ metric
    for book in SPECTRAL:
        centres = _means(rest, rounds, generator)
        books[book, :, :COMPONENTS] = torch.linalg.solve(metric, centres, left=False)
        rest = rest - centres[nearest(rest, centres)]
    table = torch.from_numpy(pitch_table()) * _PITCH_WEIGHT
    books[PITCH_BOOK, :PITCH_CODES, COMPONENTS:] = table
    # unused pitch codes stay zero: they sound like code 0 and are never the nearest
    return refit(spectra, Quantiser(mean, basis, scale.reshape(()), books, metric))


def refit(spectra: Tensor, known: Quantiser) -> tuple[Quantiser, float]:
    """Fit known codebooks further. Codes roughly keep their meaning.

    Args:
        spectra: ``[n, WIDTH]``; the last twentieth is held out.
        known: the codebooks, and the analysis, which is kept.

    Returns:
        As :func:`fit`.
    """
    kept, metric = int(len(spectra) * (1 - _UNSEEN)), _metric(known.basis, known.scale)
    x, other = known.components(spectra).split([kept, len(spectra) - kept])
    before = [known.books[book, :, :COMPONENTS] for book in SPECTRAL]
    after = _fitted(x, before, metric, _audible(spectra[:kept]))
    codes, books = _codes(other, after, metric, BEAM), known.books.clone()
    books[list(SPECTRAL), :, :COMPONENTS] = torch.stack(after)
    lost = sum((book[codes[:, n]] for n, book in enumerate(after)), torch.zeros(())) - other
    left = (lost @ metric).pow(2).sum() / ((other - other.mean(0)) @ metric).pow(2).sum()
    return replace(known, books=books, metric=metric), float(left)


assert PITCH_CODES <= CODES
assert WIDTH >= COMPONENTS
