"""Teaches the codec's decoder: the waveforms that codes stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embedded.training.codec_training import Way, learn, parts
from embedded.training.dataset import Item
from embedded.training.features import Ints, pitch_of
from embedded.training.progress import Progress
from embedded.training.quantise import Quantiser, noise_of
from embedded.training.synthesis import HOP, synthesise

_FFTS = (256, 512, 1024, 2048)
#: Speech has 30 dB less at 6 kHz than at 300 Hz, and is understood by both: samples are compared
#: after a filter that raises the highs (each less so much of the one before), whose output is
#: usually of this size.
_EMPHASIS, _LEVEL = 0.9, 0.01
_USUAL_PERIODS = 5.0  # in a frame of 40 ms


@dataclass(frozen=True, slots=True)
class Example:
    """An utterance's latents ``[T, LATENT]`` and samples ``[T * HOP]``, float16; ``weight``: how
    often it is drawn, against others.
    """

    latents: Tensor
    samples: Tensor
    weight: float = 1.0


def _weight(pitch: Ints) -> float:
    """The square of the mean period: a deep voice's every second has more to learn (as many
    harmonics more as its period is longer), and was last to be learned when drawn as others.
    """
    periods, _ = pitch_of(pitch)
    voiced = periods[periods > 0]
    return float((_USUAL_PERIODS / voiced.mean()) ** 2) if len(voiced) else 1.0


def examples(items: Sequence[Item], quantiser: Quantiser) -> list[Example]:
    """What the decoder learns: items through the quantiser, then spoken by the vocoder."""
    made = []
    for item in items:
        codes = quantiser.encode(torch.from_numpy(item.envelopes), torch.from_numpy(item.pitch))
        latents = quantiser.latents(codes)
        heard = quantiser.envelopes(latents[:, : quantiser.basis.shape[1]]).numpy()
        samples = synthesise(heard, codes[:, 1].numpy(), noise_of(codes).numpy())
        weight = _weight(item.pitch)
        made.append(Example(latents.half(), torch.from_numpy(samples).half(), weight))
    return made


def _spectrum(samples: Tensor, size: int) -> Tensor:
    window = torch.hann_window(size, device=samples.device)
    return torch.stft(samples, size, size // 4, window=window, return_complex=True).abs()


def _bright(samples: Tensor) -> Tensor:
    return samples[..., 1:] - _EMPHASIS * samples[..., :-1]


def losses(made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(mean error of samples, error of spectra at four resolutions), both about 1 at first. Highs
    are raised but for the spectra's logarithms, which know no loud and soft.
    """
    bright, right = _bright(made), _bright(wanted)
    wave = (bright - right).abs().mean() / _LEVEL
    spectral = torch.zeros((), device=made.device)
    for size in _FFTS:
        a, b = _spectrum(bright, size), _spectrum(right, size)
        distance = ((a - b).pow(2).sum() / b.pow(2).sum().clamp(min=1e-3)).sqrt()
        a, b = _spectrum(made, size), _spectrum(wanted, size)
        floor = 1e-2 * size / 512
        spectral = spectral + 0.5 * distance + ((a + floor).log() - (b + floor).log()).abs().mean()
    return wave, spectral / len(_FFTS)


def decode(model: Any, latents: Tensor) -> Tensor:
    """``[B, T, LATENT]`` -> ``[B, T * HOP]``, as the class's ``decode`` does after the lookup."""
    made: Tensor = model.acoustic_decoder(model.fc2(latents).transpose(1, 2))
    return made[:, 0]


def _batch(
    pool: Sequence[Example], random: np.random.Generator, size: int, frames: int
) -> tuple[Tensor, Tensor, slice]:
    """(latents, samples, those samples that can be known): pieces from anywhere, but for the frame
    at each end that nothing is known before or after; or from the beginnings or the ends of
    utterances, where silence must be silent. Half of those from anywhere keep their last frame:
    the best that can be done without lookahead is learned too.
    """
    latents, samples, place = [], [], int(random.integers(4))
    weights = np.array([example.weight for example in pool])
    for i in random.choice(len(pool), size, p=weights / weights.sum()):
        last = len(pool[i].latents) - frames
        start = (0, last)[place] if place < 2 else int(random.integers(last + 1))
        latents.append(pool[i].latents[start : start + frames])
        samples.append(pool[i].samples[start * HOP : (start + frames) * HOP])
    known = (slice(0, -HOP), slice(HOP, None), slice(HOP, None), slice(HOP, -HOP))[place]
    return torch.stack(latents).float(), torch.stack(samples).float(), known


@torch.no_grad()
def decoder_error(model: Any, pool: Sequence[Example]) -> tuple[float, float, float]:
    """(wave loss, spectral loss, SNR in dB), mean over whole utterances."""
    found = []
    for example in pool:
        wanted = example.samples.float()[None].to(model.device)
        made = decode(model, example.latents.float()[None].to(model.device))
        wave, spectral = losses(made, wanted)
        ratio = wanted.pow(2).mean() / (made - wanted).pow(2).mean()
        found.append((wave.item(), spectral.item(), 10 * math.log10(ratio.item())))
    wave_mean, spectral_mean, snr = np.mean(found, axis=0)
    return float(wave_mean), float(spectral_mean), float(snr)


def train_decoder(
    model: Any, pool: Sequence[Example], progress: Progress, *, size: int = 8, frames: int = 16,
    compiled: bool = False,
) -> None:  # fmt: skip
    """Teach ``acoustic_decoder`` and ``fc2``; ``progress`` says how many steps and keeps them."""
    part, device = parts(model)["decoder"], model.device
    spoken = torch.compile(partial(decode, model), disable=not compiled)
    tested = list(pool[:16])
    usable = [e for e in pool[16:] if len(e.latents) >= frames]

    def lose(random: np.random.Generator) -> dict[str, Tensor]:
        latents, samples, known = _batch(usable, random, size, frames)
        with torch.autocast(device.type, torch.bfloat16):
            made = spoken(latents.to(device))
        wave, spectral = losses(made.float()[:, known], samples.to(device)[:, known])
        return {"wave": wave, "spectral": spectral}

    def test() -> str:
        found = decoder_error(model, tested)
        return "wave {:.3f}, spectral {:.3f}, {:.1f} dB".format(*found)

    learn(part, progress, Way(1, 1.5e-3, 0.8, 3.0), lose, test)
