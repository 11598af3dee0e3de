"""Training of the codec's encoder: from a waveform to the latents of its codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.codec_training import Way, learn, parts
from training.pitch import HOP, RATE
from training.precision import autocast
from training.progress import Progress
from training.quantise import COMPONENTS, Quantiser
from training.spectra import spectra
from training.speech import Spoken

#: Range of loudness changes in the encoder's training (natural log of the amplitude).
_LOUDER = (-0.9, 0.6)
_TESTED = 12
#: Random equalisation of a piece: bands, and their standard deviation (natural log of the
#: amplitude; 3 dB).
_EQ_BANDS, _EQ_SPREAD = 8, 0.35
#: Weight decay of matrices. Without it, one piece of speech in 300 made Snake's outputs explode:
#: the latents of a frame were off by up to 460 times their size.
_DECAY = 0.2
#: Mean squared error of a frame from which on only its logarithm counts.
_BAD = 0.25


def analysis(model: Any, samples: Tensor) -> Tensor:
    """Map ``[B, 1, n * HOP]`` to latents ``[B, n, LATENT]``, as the class's ``encode`` does before
    its quantiser.
    """
    semantic = model._extract_semantic_features(samples)
    semantic = model.encoder_semantic(semantic.transpose(1, 2))
    length = model._get_conv1d_output_lengths(samples.shape[2], model.acoustic_encoder)
    if length != semantic.shape[2]:
        samples = F.pad(samples, (model.pad, model.pad))
    acoustic = model.acoustic_encoder(samples)
    latents: Tensor = model.fc(torch.cat([acoustic, semantic], dim=1).transpose(1, 2))
    return latents


@dataclass(frozen=True, slots=True)
class Heard:
    """The encoder's training data: samples ``[T * HOP]``, float16, and their pitch codes
    ``[T]``.
    """

    samples: Tensor
    pitch: Tensor


def recordings(said: Iterable[Spoken], seed: int) -> list[Heard]:
    """Return the teacher's utterances, each at its own loudness, before any quantisation. None
    exceeds full scale, as no file does: Snake may turn such samples into numbers a hundred times as
    large, and training would diverge.
    """
    random, made = np.random.default_rng(seed), []
    for one in said:
        loudest = float(np.abs(one.samples).max(initial=1e-6))
        factor = min(float(np.exp(random.uniform(*_LOUDER))), 1 / loudest)
        samples = torch.from_numpy(one.samples) * factor
        made.append(Heard(samples.half(), torch.from_numpy(one.pitch)))
    return made


@torch.no_grad()
def encoder_error(model: Any, pool: Sequence[Heard], table: Quantiser) -> tuple[float, float]:
    """Return the share of variance missed in spectra and in pitch, over whole utterances."""
    found = []
    for heard in pool:
        samples = heard.samples.float()
        made = analysis(model, samples[None, None].to(model.device))[0]
        wanted = table.exact(spectra(samples), heard.pitch).to(model.device)
        n = min(len(made), len(wanted))
        wrong = (made[:n] - wanted[:n]).pow(2)
        for part in (slice(0, COMPONENTS), slice(COMPONENTS, None)):
            found.append(wrong[:, part].mean() / wanted[:, part].pow(2).mean())
    means = torch.stack(found).view(-1, 2).mean(0)
    return float(means[0]), float(means[1])


def train_encoder(
    model: Any, pool: Sequence[Heard], table: Quantiser, progress: Progress, *, size: int = 10,
    frames: int = 20, compiled: bool = False,
) -> None:  # fmt: skip
    """Train ``acoustic_encoder``, ``encoder_semantic`` and ``fc``; HuBERT is not trained."""
    device = model.device
    analysed = torch.compile(partial(analysis, model), disable=not compiled)
    tested = list(pool[:_TESTED])
    usable = [h for h in pool[_TESTED:] if len(h.pitch) >= frames]

    def lose(random: np.random.Generator) -> dict[str, Tensor]:
        samples, wanted = (t.to(device) for t in _batch(usable, table, random, size, frames))
        with autocast(device.type):
            made = analysed(samples[:, None]).float()
        wrong = (made[:, 1:-1] - wanted[:, 1:-1]).pow(2)
        return {
            "components": _robust(wrong[..., :COMPONENTS].mean(-1)).mean(),
            "pitch": _robust(wrong[..., COMPONENTS:].mean(-1)).mean(),
        }

    def test() -> str:
        missed = encoder_error(model, tested, table)
        return "misses {:.3f} of spectra, {:.3f} of pitch".format(*missed)

    learn(parts(model)["encoder"], progress, Way(2, 2e-3, 0.9, 1.0, _DECAY), lose, test)


def _robust(wrong: Tensor) -> Tensor:
    """Leave squared errors of frames as they are, nearly, up to ``_BAD``. Beyond it they grow by
    their logarithm only, so one exploding frame does not spoil the weights.
    """
    return _BAD * (wrong / _BAD).log1p()


def _batch(
    pool: Sequence[Heard], table: Quantiser, random: np.random.Generator, size: int, frames: int
) -> tuple[Tensor, Tensor]:
    """Draw pieces, equalised at random, with hiss of -50 to -100 dB. The first and the last frame's
    latents are not exact.
    """
    samples, latents = [], []
    for i in random.integers(len(pool), size=size):
        start = int(random.integers(len(pool[i].pitch) - frames + 1))
        heard = pool[i].samples[start * HOP : (start + frames) * HOP].float()
        heard = equalised(heard, random)
        latents.append(table.exact(spectra(heard), pool[i].pitch[start : start + frames]))
        hiss = 10 ** random.uniform(-5, -2.5)
        noise = torch.from_numpy(random.standard_normal(len(heard)).astype(np.float32))
        samples.append(heard + hiss * noise)
    return torch.stack(samples), torch.stack(latents)


def equalised(samples: Tensor, random: np.random.Generator) -> Tensor:
    """Filter ``[n]`` by a random smooth response, without changing phases; full scale at most. The
    teacher's voices are few, and the encoder shall also hear others, from other microphones.
    """
    whole = torch.fft.rfft(samples)
    edges = np.linspace(0, np.log1p(RATE / 2 / 700), _EQ_BANDS)
    at = np.log1p(np.fft.rfftfreq(len(samples), 1 / RATE) / 700)
    curve = np.interp(at, edges, random.normal(0, _EQ_SPREAD, _EQ_BANDS))
    filtered = torch.fft.irfft(whole * torch.from_numpy(np.exp(curve)).float(), n=len(samples))
    limited: Tensor = filtered / filtered.abs().max().clamp(min=1.0)
    return limited
