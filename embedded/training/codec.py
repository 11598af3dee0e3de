"""Trains the codec: the decoder on the waveforms that codes stand for, then the encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embedded.training.dataset import Item
from embedded.training.features import BANDS, ORDER, WIDTH
from embedded.training.progress import Progress
from embedded.training.quantise import COMPONENTS, PITCH, Quantiser, noise_of
from embedded.training.synthesis import HOP, NOISES, synthesise

_FFTS = (256, 512, 1024, 2048)
_LEVEL = 0.05  # a usual sample's size
#: The encoder hears speech softer and louder by these (natural log of the amplitude).
_LOUDER = (-0.7, 1.0)
_ENERGIES = (np.arange(WIDTH) % (ORDER + BANDS) == 0).astype(np.float32)
_LEAST_ALPHA = 0.05  # below it Snake's 1/alpha runs away
#: Convolutions of so many channels learn as matrices do, by Muon, at so many times AdamW's rate.
_MATRIX, _MUON = 8, 2.0


@dataclass(frozen=True, slots=True)
class Example:
    """An utterance's latents ``[T, LATENT]`` and samples ``[T * HOP]``, float16."""

    latents: Tensor
    samples: Tensor


def examples(items: Sequence[Item], quantiser: Quantiser) -> list[Example]:
    """What the decoder learns: items through the quantiser, then spoken by the vocoder."""
    made = []
    for item in items:
        codes = quantiser.encode(torch.from_numpy(item.envelopes), torch.from_numpy(item.pitch))
        latents = quantiser.latents(codes)
        heard = quantiser.envelopes(latents[:, : quantiser.basis.shape[1]]).numpy()
        samples = synthesise(heard, codes[:, 1].numpy(), noise_of(codes).numpy())
        made.append(Example(latents.half(), torch.from_numpy(samples).half()))
    return made


def _spectrum(samples: Tensor, size: int) -> Tensor:
    window = torch.hann_window(size, device=samples.device)
    return torch.stft(samples, size, size // 4, window=window, return_complex=True).abs()


def losses(made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(mean error of samples, error of spectra at four resolutions), both about 1 at first."""
    wave = (made - wanted).abs().mean() / _LEVEL
    spectral = torch.zeros((), device=made.device)
    for size in _FFTS:
        a, b = _spectrum(made, size), _spectrum(wanted, size)
        distance = ((a - b).pow(2).sum() / b.pow(2).sum().clamp(min=1e-3)).sqrt()
        floor = 1e-2 * size / 512
        spectral = spectral + 0.5 * distance + ((a + floor).log() - (b + floor).log()).abs().mean()
    return wave, spectral / len(_FFTS)


def parts(model: Any) -> dict[str, nn.ModuleDict]:
    """What is trained of the codec: its decoder, and its encoder (HuBERT stays as it was made)."""
    acoustic, semantic = model.acoustic_encoder, model.encoder_semantic
    return {
        "decoder": nn.ModuleDict({"decoder": model.acoustic_decoder, "fc2": model.fc2}),
        "encoder": nn.ModuleDict({"acoustic": acoustic, "semantic": semantic, "fc": model.fc}),
    }


def decode(model: Any, latents: Tensor) -> Tensor:
    """``[B, T, LATENT]`` -> ``[B, T * HOP]``, as the class's ``decode`` does after the lookup."""
    made: Tensor = model.acoustic_decoder(model.fc2(latents).transpose(1, 2))
    return made[:, 0]


def _batch(
    pool: Sequence[Example], random: np.random.Generator, size: int, frames: int
) -> tuple[Tensor, Tensor, slice]:
    """(latents, samples, those samples that can be known): pieces from anywhere, but for a frame
    at each end, or from the beginnings or the ends of utterances, where silence must be silent.
    """
    latents, samples, place = [], [], int(random.integers(4))
    for i in random.integers(len(pool), size=size):
        last = len(pool[i].latents) - frames
        start = (0, last)[place] if place < 2 else int(random.integers(last + 1))
        latents.append(pool[i].latents[start : start + frames])
        samples.append(pool[i].samples[start * HOP : (start + frames) * HOP])
    known = (slice(0, -HOP), slice(HOP, None))[place] if place < 2 else slice(HOP, -HOP)
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


@dataclass(frozen=True, slots=True)
class _Way:
    """How a part is taught: ``seed`` of its batches, rate, AdamW's first beta, longest gradient."""

    seed: int
    rate: float
    beta: float
    clip: float


def _learn(
    part: nn.ModuleDict, progress: Progress, way: _Way,
    lose: Callable[[np.random.Generator], dict[str, Tensor]], test: Callable[[], str],
) -> None:  # fmt: skip
    """Descend on the sum of the losses that ``lose`` finds on a batch of its own drawing."""
    alphas = [p for name, p in part.named_parameters() if name.endswith("alpha")]
    deep = [p for p in part.parameters() if p.dim() > 1]
    kernels = [p for p in deep if min(p.flatten(1).shape) >= _MATRIX]
    taken = {id(p) for p in kernels}
    rest = [p for p in part.parameters() if id(p) not in taken]
    matrices = [nn.Parameter(p.data.flatten(1)) for p in kernels]  # the same memory
    adam = torch.optim.AdamW(rest, way.rate, betas=(way.beta, 0.95), weight_decay=0.0)
    muon = torch.optim.Muon(
        matrices, _MUON * way.rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    progress.restore(part, adam, muon)
    for step in progress:
        for optimiser, rate in ((adam, way.rate), (muon, _MUON * way.rate)):
            for group in optimiser.param_groups:
                group["lr"] = rate * progress.slope(50)
        found = lose(np.random.default_rng((way.seed, step)))
        sum(found.values(), torch.zeros(())).backward()
        nn.utils.clip_grad_norm_(part.parameters(), way.clip)
        for matrix, kernel in zip(matrices, kernels, strict=True):
            matrix.grad = None if kernel.grad is None else kernel.grad.flatten(1)
        adam.step()
        muon.step()
        part.zero_grad(set_to_none=True)
        with torch.no_grad():
            for alpha in alphas:
                alpha.clamp_(min=_LEAST_ALPHA)
        progress.note(**{name: loss.item() for name, loss in found.items()})
        if progress.due:
            progress.say(f"unseen speech: {test()}")
            progress.keep(part, adam, muon)


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

    _learn(part, progress, _Way(1, 1.5e-3, 0.8, 3.0), lose, test)


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
    are in them (components and pitch; the noise cannot be heard).
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
        envelopes = item.envelopes + np.float32(louder) * _ENERGIES
        samples = synthesise(envelopes, item.pitch, noise)
        components = quantiser.components(torch.from_numpy(envelopes))
        pitch = quantiser.books[1][torch.from_numpy(item.pitch)][:, COMPONENTS : COMPONENTS + PITCH]
        latents = torch.cat([components, pitch], dim=1)
        made.append(Heard(torch.from_numpy(samples).half(), latents.half()))
    return made


@torch.no_grad()
def encoder_error(model: Any, pool: Sequence[Heard]) -> tuple[float, float]:
    """Share of the variance missed: (components, pitch), over whole utterances."""
    found = []
    for heard in pool:
        made = analysis(model, heard.samples.float()[None, None].to(model.device))[0]
        wanted = heard.latents.float().to(model.device)
        n = min(len(made), len(wanted))
        wrong = (made[:n, : wanted.shape[1]] - wanted[:n]).pow(2)
        for part in (slice(0, COMPONENTS), slice(COMPONENTS, None)):
            found.append(wrong[:, part].mean() / wanted[:, part].pow(2).mean())
    table = torch.stack(found).view(-1, 2).mean(0)
    return float(table[0]), float(table[1])


def train_encoder(
    model: Any, pool: Sequence[Heard], progress: Progress, *, size: int = 10, frames: int = 20,
    compiled: bool = False,
) -> None:  # fmt: skip
    """Teach ``acoustic_encoder``, ``encoder_semantic`` and ``fc``; HuBERT stays as it was made."""
    device = model.device
    analysed = torch.compile(partial(analysis, model), disable=not compiled)
    usable = [heard for heard in pool[12:] if len(heard.latents) >= frames]

    def lose(random: np.random.Generator) -> dict[str, Tensor]:
        samples, wanted = (t.to(device) for t in _heard_batch(usable, random, size, frames))
        with torch.autocast(device.type, torch.bfloat16):
            made = analysed(samples[:, None]).float()
        wrong = (made[:, 1:-1, : wanted.shape[2]] - wanted[:, 1:-1]).pow(2)
        rest = 0.1 * made[..., wanted.shape[2] :].pow(2).mean()
        components, pitch = wrong[..., :COMPONENTS].mean(), wrong[..., COMPONENTS:].mean()
        return {"components": components, "pitch": pitch, "rest": rest}

    def test() -> str:
        found = encoder_error(model, pool[:12])
        return "misses {:.3f} of spectra, {:.3f} of pitch".format(*found)

    _learn(parts(model)["encoder"], progress, _Way(2, 2e-3, 0.9, 1.0), lose, test)


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
