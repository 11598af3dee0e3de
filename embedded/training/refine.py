"""Refines the decoder against an adversary: two small networks that tell its speech from real.

Plain distances leave the decoder with the mean of what a code may stand for, which sounds dull.
The discriminators look at compressed complex spectra at two resolutions. They learn alone first,
and then gain weight slowly, at a tenth of the decoder's usual rate and by AdamW alone: with more
weight, or early, or at Muon's rate, they made the decoder worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedded.training.codec_training import LEAST_ALPHA, parts
from embedded.training.decoder_training import (
    Example,
    batch,
    bright,
    decode,
    decoder_error,
    losses,
)
from embedded.training.precision import autocast
from embedded.training.progress import Progress

_SIZES = (256, 1024)
#: Steps in which the discriminators learn alone, and then those until they have their weight.
_ALONE, _RAMP = 300, 1000
_RATE, _JUDGES_RATE = 1.5e-4, 3e-4
_WAVE, _MEL, _FOOL, _MATCH = 0.5, 1.5, 0.25, 1.0
_CLIP = 1.0
_TESTED = 16
_LEVEL, _COMPRESSED, _LOG = 8.0, -0.6, 0.3
_LEAST = 1e-4


class Discriminator(nn.Module):
    """Scores waveforms ``[B, n]`` by their spectrum, from 0 (made) to 1 (real)."""

    window: Tensor

    def __init__(self, size: int, width: int = 24) -> None:
        super().__init__()
        self.size = size
        shapes = (
            (3, width, (7, 3), (3, 1)),
            (width, width, (5, 3), (3, 1)),
            (width, 2 * width, (5, 3), (3, 2)),
            (2 * width, 2 * width, (3, 3), (1, 1)),
        )
        self.layers = nn.ModuleList(
            nn.Conv2d(i, o, kernel, stride, (kernel[0] // 2, kernel[1] // 2))
            for i, o, kernel, stride in shapes
        )
        self.last = nn.Conv2d(2 * width, 1, (3, 3), padding=1)
        self.register_buffer("window", torch.hann_window(size), persistent=False)

    def forward(self, samples: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(scores, each layer's features)."""
        x = bright(samples) * _LEVEL
        z = torch.stft(x, self.size, self.size // 4, window=self.window, return_complex=True)
        size = z.abs().clamp(min=_LEAST)
        gain = size**_COMPRESSED
        x = torch.stack([z.real * gain, z.imag * gain, size.log() * _LOG], 1)
        seen = []
        with autocast(samples.device.type):
            for layer in self.layers:
                x = F.leaky_relu(layer(x), 0.1)
                seen.append(x)
            scores: Tensor = self.last(x)
        return scores.float(), seen


def new_discriminators() -> nn.ModuleList:
    """Fresh ones, of fixed seed."""
    torch.manual_seed(2)
    return nn.ModuleList(Discriminator(size) for size in _SIZES)


def taught(model: Any, discriminators: nn.ModuleList) -> nn.ModuleDict:
    """What a run keeps: the decoder and its adversary."""
    return nn.ModuleDict({"decoder": parts(model)["decoder"], "adversary": discriminators})


def _telling(discriminators: nn.ModuleList, real: Tensor, made: Tensor) -> Tensor:
    """How badly they tell real speech from made."""
    lost = torch.zeros((), device=real.device)
    for one in discriminators:
        lost = lost + (one(real)[0] - 1).pow(2).mean() + one(made.detach())[0].pow(2).mean()
    return lost / len(discriminators)


def _likeness(discriminators: nn.ModuleList, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
    """(how surely made speech is told, how far its features are from the real one's)."""
    told = apart = torch.zeros((), device=real.device)
    for one in discriminators:
        scores, seen = one(made)
        with torch.no_grad():
            wanted = one(real)[1]
        told = told + (scores - 1).pow(2).mean()
        for a, b in zip(seen, wanted, strict=True):
            distance = (a.float() - b.float()).abs().mean() / b.float().abs().mean()
            apart = apart + distance / len(seen)
    return told / len(discriminators), apart / len(discriminators)


def train_refined(
    model: Any, pool: Sequence[Example], progress: Progress, *, size: int = 8, frames: int = 16
) -> None:
    """Teach ``acoustic_decoder`` and ``fc2`` of a trained decoder a little more."""
    discriminators = new_discriminators().to(model.device)
    both, part = taught(model, discriminators), parts(model)["decoder"]
    alphas = [p for name, p in part.named_parameters() if name.endswith("alpha")]
    ours = torch.optim.AdamW(part.parameters(), _RATE, betas=(0.8, 0.95), weight_decay=0.0)
    theirs = torch.optim.AdamW(
        discriminators.parameters(), _JUDGES_RATE, betas=(0.8, 0.95), weight_decay=0.0
    )
    progress.restore(both, ours, theirs)
    tested, usable = pool[:_TESTED], [e for e in pool[_TESTED:] if len(e.latents) >= frames]
    for step in progress:
        for optimiser, rate in ((ours, _RATE), (theirs, _JUDGES_RATE)):
            for group in optimiser.param_groups:
                group["lr"] = rate * progress.slope(50)
        latents, samples, low_hz, known = batch(
            usable, np.random.default_rng((4, step)), size, frames
        )
        wanted = samples.to(model.device)[:, known]
        with autocast(model.device.type):
            made = decode(model, latents.to(model.device))
        made = made.float()[:, known]
        telling = _telling(discriminators, wanted, made)
        telling.backward()
        theirs.step()
        theirs.zero_grad(set_to_none=True)
        progress.note(telling=telling.item())
        if step >= _ALONE:
            told, apart = _likeness(discriminators, wanted, made)
            found = losses(made, wanted, low_hz.to(model.device))
            weight = min(1.0, (step - _ALONE + 1) / _RAMP)
            total = _WAVE * found["wave"] + found["spectral"] + _MEL * found["mel"]
            (total + weight * (_FOOL * told + _MATCH * apart)).backward()
            nn.utils.clip_grad_norm_(part.parameters(), _CLIP)
            ours.step()
            ours.zero_grad(set_to_none=True)
            theirs.zero_grad(set_to_none=True)
            with torch.no_grad():
                for alpha in alphas:
                    alpha.clamp_(min=LEAST_ALPHA)
            progress.note(told=told.item(), apart=apart.item(), mel=found["mel"].item())
        if progress.due:
            found_now = decoder_error(model, tested)
            progress.say(", ".join(f"{name} {value:.3f}" for name, value in found_now.items()))
            progress.keep(both, ours, theirs)
