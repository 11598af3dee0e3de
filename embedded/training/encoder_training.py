"""Teaches the codec's encoder: to find in a waveform the latents that codes stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import soxr
import torch
import torch.nn.functional as F
from torch import Tensor

from embedded.training.codec_training import Way, learn, parts
from embedded.training.dataset import Item
from embedded.training.features import BANDS, ORDER, PLAIN, WIDTH, Speaker
from embedded.training.flite import SAMPLE_RATE, Flite
from embedded.training.progress import Progress
from embedded.training.quantise import COMPONENTS, PITCH, Quantiser
from embedded.training.synthesis import HOP, NOISES, RATE, synthesise

#: The encoder hears speech softer and louder by these (natural log of the amplitude).
_LOUDER = (-0.7, 1.0)
_TESTED = 12
_SILENCE = 1e-4
_ENERGIES = (np.arange(WIDTH) % (ORDER + BANDS) == 0).astype(np.float32)


def analysis(model: Any, samples: Tensor) -> Tensor:
    """``[B, 1, n * HOP]`` -> latents ``[B, n, LATENT]``, as the class's ``encode`` before the
    quantiser.
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
    """What the encoder learns: samples ``[T * HOP]``, float16, and the latents ``[T, n]`` that
    are in them (components and pitch; the noise cannot be heard), nan where nobody knows.
    """

    samples: Tensor
    latents: Tensor


def recordings(items: Sequence[Item], quantiser: Quantiser, seed: int) -> list[Heard]:
    """Items spoken by the vocoder before any quantising, with a noise of their own each."""
    random = np.random.default_rng(seed)
    made = []
    for item in items:
        noise = random.integers(NOISES, size=len(item.pitch))
        louder = random.uniform(*_LOUDER)
        samples = synthesise(item.envelopes + np.float32(louder) * _ENERGIES, item.pitch, noise)
        latents = _latents(item, quantiser, louder)
        made.append(Heard(torch.from_numpy(samples).half(), latents.half()))
    return made


def originals(
    items: Sequence[Item], voices: Sequence[Speaker], quantiser: Quantiser, seed: int
) -> list[Heard]:
    """Items of flite's own voices (others are left out) as flite itself says them, which is not
    quite as the vocoder does. Where in a period its frames begin is not known.
    """
    random, flite = np.random.default_rng(seed), Flite()
    made = []
    for item in items:
        voice = voices[item.speaker]
        if voice != Speaker(voice.voice):
            continue
        length, louder = len(item.pitch) * HOP, random.uniform(*_LOUDER)
        own = soxr.resample(flite.speak(voice.voice, item.text).samples, SAMPLE_RATE, RATE)
        samples = np.pad(own, (0, max(0, length - len(own))))[:length]
        plain = synthesise(item.envelopes, item.pitch, np.zeros_like(item.pitch))
        samples *= np.exp(louder) * (plain.std() / max(samples.std(), _SILENCE))
        latents = _latents(item, quantiser, louder)
        latents[:, -PITCH + PLAIN :] = torch.nan
        made.append(Heard(torch.from_numpy(samples).half(), latents.half()))
    return made


def _latents(item: Item, quantiser: Quantiser, louder: float) -> Tensor:
    """``[T, COMPONENTS + PITCH]`` of an item that is ``louder`` (a log amplitude) than it was."""
    envelopes = item.envelopes + np.float32(louder) * _ENERGIES
    components = quantiser.components(torch.from_numpy(envelopes))
    pitch = quantiser.books[1][torch.from_numpy(item.pitch)][:, COMPONENTS : COMPONENTS + PITCH]
    return torch.cat([components, pitch], dim=1)


@torch.no_grad()
def encoder_error(model: Any, pool: Sequence[Heard]) -> tuple[float, float]:
    """Share of what is known that is missed: (components, pitch), over whole utterances."""
    found = []
    for heard in pool:
        made = analysis(model, heard.samples.float()[None, None].to(model.device))[0]
        wanted = heard.latents.float().to(model.device)
        n = min(len(made), len(wanted))
        wrong = (made[:n, : wanted.shape[1]] - wanted[:n]).pow(2)
        for part in (slice(0, COMPONENTS), slice(COMPONENTS, None)):
            found.append(wrong[:, part].nanmean() / wanted[:, part].pow(2).nanmean())
    table = torch.stack(found).view(-1, 2).mean(0)
    return float(table[0]), float(table[1])


def train_encoder(
    model: Any, pool: Sequence[Heard], own: Sequence[Heard], progress: Progress, *,
    size: int = 10, frames: int = 20, compiled: bool = False,
) -> None:  # fmt: skip
    """Teach ``acoustic_encoder``, ``encoder_semantic`` and ``fc``; HuBERT stays as it was made.
    It learns from the vocoder's ``pool`` and from flite's ``own`` (:func:`originals`).
    """
    device = model.device
    analysed = torch.compile(partial(analysis, model), disable=not compiled)
    usable = [h for h in (*pool[_TESTED:], *own[_TESTED:]) if len(h.latents) >= frames]

    def lose(random: np.random.Generator) -> dict[str, Tensor]:
        samples, wanted = (t.to(device) for t in _heard_batch(usable, random, size, frames))
        with torch.autocast(device.type, torch.bfloat16):
            made = analysed(samples[:, None]).float()
        heard, known = made[:, 1:-1, : wanted.shape[2]], wanted[:, 1:-1]
        wrong = torch.where(known.isnan(), 0.0, heard - known.nan_to_num()).pow(2)
        rest = 0.1 * made[..., wanted.shape[2] :].pow(2).mean()
        components, pitch = wrong[..., :COMPONENTS].mean(), wrong[..., COMPONENTS:].mean()
        return {"components": components, "pitch": pitch, "rest": rest}

    def test() -> str:
        said = "misses {:.3f} of spectra, {:.3f} of pitch"
        tried = (encoder_error(model, tested[:_TESTED]) for tested in (pool, own) if tested)
        return ", of flite's own ".join(said.format(*found) for found in tried)

    learn(parts(model)["encoder"], progress, Way(2, 2e-3, 0.9, 1.0), lose, test)


def _heard_batch(
    pool: Sequence[Heard], random: np.random.Generator, size: int, frames: int
) -> tuple[Tensor, Tensor]:
    samples, latents = [], []
    for i in random.integers(len(pool), size=size):
        start = int(random.integers(len(pool[i].latents) - frames + 1))
        heard = pool[i].samples[start * HOP : (start + frames) * HOP].float()
        hiss = 10 ** random.uniform(-5, -2.5)
        samples.append(
            heard + hiss * torch.from_numpy(random.standard_normal(len(heard)).astype(np.float32))
        )
        latents.append(pool[i].latents[start : start + frames].float())
    return torch.stack(samples), torch.stack(latents)
