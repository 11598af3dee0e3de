"""Training of the codec's decoder: from codes to the teacher's waveforms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.adversary import Adversary
from training.codec_training import Way, learn, parts
from training.pitch import HOP, RATE, Ints, periods_of
from training.precision import autocast
from training.progress import Progress
from training.quantise import COMPONENTS, Quantiser
from training.spectra import bright, mel_bands, spectra
from training.speech import Spoken

_FFTS = (256, 512, 1024, 2048)
_MELS = ((512, 40), (2048, 100))
#: Samples are compared up to this harmonic, scaled by their usual size; above it, only spectra.
_HARMONICS, _SLOPE_HZ, _LEVEL = 3.5, 100.0, 0.02
#: The usual size of samples after pre-emphasis.
_RAISED_LEVEL = 0.01
_USUAL_HZ = 150.0  # of a piece without pitch
_TESTED = 16
#: The largest value after each of the decoder's first two blocks is 4 to 4.6 in speech. Before a
#: burst it is 20 or more after one of them.
_HOTTEST = 5.5
#: Odd pieces per step, and the longest part of one utterance, in frames, in spliced ones.
_ODD, _SPLICED = 24, 8
#: Utterances of the talker that are searched at a time, and the share of them that is used, since
#: bursts are rare.
_LOOKED, _HOT_SHARE = 600, 0.1
#: Weight decay of matrices. Muon's updates have the same size in all directions, also in those that
#: speech does not use, in which bursts grow.
_DECAY = 0.2
#: Weights of the losses, by their names.
EVEN: Mapping[str, float] = {"wave": 1.0, "raised": 0.0, "spectral": 1.0, "mel": 1.0, "burst": 0.0}


@dataclass(frozen=True, slots=True)
class Example:
    """An utterance's latents ``[T, LATENT]`` and samples ``[T * HOP]``, both float16, the frequency
    up to which samples are compared, and the latents before they were quantised, if they are known.
    """

    latents: Tensor
    samples: Tensor
    low_hz: float = _HARMONICS * _USUAL_HZ
    exact: Tensor | None = None


def examples(said: Iterable[Spoken], quantiser: Quantiser) -> list[Example]:
    """Pair the teacher's speech with the latents of its codes."""
    made = []
    for one in said:
        heard, pitch = spectra(torch.from_numpy(one.samples)), torch.from_numpy(one.pitch)
        latents = quantiser.latents(quantiser.encode(heard, pitch)).half()
        exact = quantiser.exact(heard, pitch).half()
        samples = torch.from_numpy(one.samples).half()
        made.append(Example(latents, samples, _low_hz(one.pitch), exact))
    return made


def codes_of(one: Spoken, quantiser: Quantiser) -> Tensor:
    """Encode an utterance as codes ``[T, 8]``."""
    return quantiser.encode(spectra(torch.from_numpy(one.samples)), torch.from_numpy(one.pitch))


def _low_hz(pitch: Ints) -> float:
    """Frequency up to which samples with these pitch codes are compared."""
    periods, _ = periods_of(pitch)
    voiced = periods[periods > 0] * (RATE / HOP)
    return _HARMONICS * float(np.median(voiced) if len(voiced) else _USUAL_HZ)


@cache
def _tables(device: torch.device) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Windows and mel bands, each by transform size."""
    windows = {size: torch.hann_window(size, device=device) for size in _FFTS}
    return windows, {size: mel_bands(count, size).to(device) for size, count in _MELS}


def _spectrum(samples: Tensor, size: int) -> Tensor:
    window = _tables(samples.device)[0][size]
    return torch.stft(samples, size, size // 4, window=window, return_complex=True).abs()


def _low(samples: Tensor, hz: Tensor) -> Tensor:
    """Low-pass each waveform at ``hz`` ``[B]``."""
    at = torch.fft.rfftfreq(samples.shape[-1], 1 / RATE, device=samples.device)
    gain = ((hz[:, None] + _SLOPE_HZ - at) / _SLOPE_HZ).clamp(0, 1)
    below: Tensor = torch.fft.irfft(torch.fft.rfft(samples) * gain, samples.shape[-1])
    return below


def losses(made: Tensor, wanted: Tensor, low_hz: Tensor) -> dict[str, Tensor]:
    """Distances between waveforms ``[B, n]``, each about 1 at the start of training.

    ``wave``: between samples below ``low_hz`` ``[B]``. The teacher's first three harmonics follow
    the phase of its source, and thus the codes; higher ones hardly do. Comparing samples there
    would only teach the decoder to be quiet. ``raised``: between samples after pre-emphasis, at all
    frequencies; for targets whose phases all follow from the codes. ``spectral``: between
    magnitudes at four resolutions. ``mel``: between mel spectra.
    """
    raised, right = bright(made), bright(wanted)
    bands = _tables(made.device)[1]
    spectral = mel = torch.zeros((), device=made.device)
    for size in _FFTS:
        a, b = _spectrum(raised, size), _spectrum(right, size)
        spectral = spectral + 0.5 * ((a - b).pow(2).sum() / b.pow(2).sum().clamp(min=1e-3)).sqrt()
        a, b = _spectrum(made, size), _spectrum(wanted, size)
        floor = 1e-2 * size / 512
        spectral = spectral + ((a + floor).log() - (b + floor).log()).abs().mean()
        if size in bands:
            a, b = bands[size] @ a, bands[size] @ b
            mel = mel + ((a + floor).log() - (b + floor).log()).abs().mean()
    wave = (_low(made, low_hz) - _low(wanted, low_hz)).abs().mean() / _LEVEL
    return {
        "wave": wave,
        "raised": (raised - right).abs().mean() / _RAISED_LEVEL,
        "spectral": spectral / len(_FFTS),
        "mel": mel / len(_MELS),
    }


def decode(model: Any, latents: Tensor) -> Tensor:
    """Decode latents ``[B, T, LATENT]`` to ``[B, T * HOP]``, like the class's ``decode`` after its
    look-up.
    """
    made: Tensor = model.acoustic_decoder(model.fc2(latents).transpose(1, 2))
    return made[:, 0]


def batch(
    pool: Sequence[Example], random: np.random.Generator, size: int, frames: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, slice]:
    """Draw pieces of utterances: all from the beginnings, all from the ends, where silence must
    stay silent, or all from anywhere.

    Returns:
        Latents, samples, ``low_hz``, the exact latents (the latents where these are unknown), and
        the slice of samples to compare. It excludes the first frame of pieces that begin within an
        utterance, since the frames before are unknown.
    """
    latents, samples, low_hz, exact = [], [], [], []
    place = int(random.integers(4))
    lengths = np.array([len(example.latents) for example in pool], float)
    for i in random.choice(len(pool), size, p=lengths / lengths.sum()):
        last = len(pool[i].latents) - frames
        start = (0, last)[place] if place < 2 else int(random.integers(last + 1))
        one, piece = pool[i], slice(start, start + frames)
        latents.append(one.latents[piece])
        samples.append(one.samples[start * HOP : (start + frames) * HOP])
        low_hz.append(one.low_hz)
        exact.append((one.latents if one.exact is None else one.exact)[piece])
    known = slice(HOP if place else 0, None)
    said, heard, meant = (torch.stack(x).float() for x in (latents, samples, exact))
    return said, heard, torch.tensor(low_hz), meant, known


def _frames(samples: slice) -> slice:
    """Return the frames that these samples of a batch belong to."""
    return slice((samples.start or 0) // HOP, None)


def odd_pieces(
    pool: Sequence[Example], random: np.random.Generator, size: int, frames: int,
    said: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """Draw latents ``[size, frames, LATENT]`` that the teacher never produces, but a talker might.

    A third each: parts of several utterances, spliced; spectra of one utterance with the pitch of
    another; and spectra with one constant pitch code, whose phase does not advance. If there are
    utterances that a talker ``said`` ``[T, LATENT]``, half of all pieces are parts of these.
    """

    taught = [one.latents for one in pool]

    def piece(length: int, of: Sequence[Tensor] = taught) -> Tensor:
        latents = of[int(random.integers(len(of)))]
        start = int(random.integers(len(latents) - length + 1))
        return latents[start : start + length].float()

    made = [piece(frames, said) for _ in range(size // 2 if said else 0)]
    for number in range(size - len(made)):
        if number % 3:
            spectral, pitch = piece(frames), piece(frames)
            if number % 3 == 1:
                pitch = pitch[frames // 2].expand_as(pitch)
            made.append(torch.cat([spectral[:, :COMPONENTS], pitch[:, COMPONENTS:]], 1))
            continue
        parts: list[Tensor] = []
        while sum(map(len, parts)) < frames:
            parts.append(piece(int(random.integers(1, _SPLICED + 1))))
        made.append(torch.cat(parts)[:frames])
    return torch.stack(made)


def heat(model: Any, latents: Tensor) -> Tensor:
    """Largest value after each of the decoder's first two blocks in each frame: ``[B, 2, T]`` for
    latents ``[B, T, LATENT]``.
    """
    decoder = model.acoustic_decoder
    first: Tensor = decoder.block[0](decoder.conv1(model.fc2(latents).transpose(1, 2)))
    second: Tensor = decoder.block[1](first)
    count = latents.shape[1]
    return torch.stack(
        [after.abs().amax(1).unflatten(-1, (count, -1)).amax(-1) for after in (first, second)], 1
    )


@torch.no_grad()
def hottest(
    model: Any, said: Sequence[Tensor], frames: int, random: np.random.Generator
) -> list[Tensor]:
    """Search a ``random`` part of utterances ``[T, LATENT]`` for those closest to a burst.

    Returns:
        The frames around the hottest frame of each of the hottest utterances. Any ``frames``
        consecutive ones of these have the hottest frame in their second half.
    """
    around = frames + frames // 2
    long = [one for one in said if len(one) >= around]
    found = []
    for i in random.permutation(len(long))[:_LOOKED]:
        hot = heat(model, long[i].float()[None].to(model.device))[0].amax(0)
        start = min(max(0, int(hot.argmax()) - frames + 1), len(hot) - around)
        found.append((float(hot.max()), long[i][start : start + around]))
    found.sort(key=lambda one: -one[0])
    return [piece for _, piece in found[: math.ceil(_HOT_SHARE * len(found))]]


@torch.no_grad()
def decoder_error(model: Any, pool: Sequence[Example]) -> dict[str, float]:
    """Compute the losses and the SNR below ``low_hz`` in dB, as means over whole utterances."""
    found = []
    for example in pool:
        wanted = example.samples.float()[None].to(model.device)
        made = decode(model, example.latents.float()[None].to(model.device))
        hz = torch.tensor([example.low_hz], device=model.device)
        right = _low(wanted, hz)
        ratio = right.pow(2).mean() / (_low(made, hz) - right).pow(2).mean()
        row = {name: float(loss) for name, loss in losses(made, wanted, hz).items()}
        found.append(row | {"low_snr_db": 10 * math.log10(float(ratio))})
    return {name: float(np.mean([row[name] for row in found])) for name in found[0]}


def train_decoder(
    model: Any, pool: Sequence[Example], progress: Progress, *, size: int = 8, frames: int = 16,
    weights: Mapping[str, float] = EVEN, compiled: bool = False, said: Sequence[Tensor] = (),
    adversary: Adversary | None = None,
) -> None:  # fmt: skip
    """Train ``acoustic_decoder`` and ``fc2``; ``progress`` counts the steps and keeps the state.

    ``weights``: weights of the ``losses``, and of ``burst``: how much larger than in speech the
    values in the decoder are for :func:`odd_pieces`. ``said``: utterances of a talker
    ``[T, LATENT]``, if there is one. ``adversary``: critics that compare its speech with the
    ``pool``'s; distances are then measured from the adversary's target instead.
    """
    part, device = parts(model)["decoder"], model.device
    hot: list[Tensor] | None = None  # searched again and again, since the decoder changes
    spoken = torch.compile(partial(decode, model), disable=not compiled)
    tested = list(pool[:_TESTED])
    usable = [e for e in pool[_TESTED:] if len(e.latents) >= frames]

    def drawn(random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, slice]:
        *found, known = batch(usable, random, size, frames)
        latents, samples, low_hz, exact = (x.to(device) for x in found)
        return latents, samples, low_hz, exact, known

    def say(latents: Tensor) -> Tensor:
        with autocast(device.type):
            return spoken(latents).float()

    @torch.no_grad()
    def heard(random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        latents, samples, _, _, known = drawn(random)
        return say(latents)[:, known], samples[:, known], latents[:, _frames(known)]

    def lose(random: np.random.Generator) -> dict[str, Tensor]:
        nonlocal hot
        if adversary is not None:
            adversary.prepare(partial(heard, random), progress.say)
        latents, samples, low_hz, exact, known = drawn(random)
        made, wanted, judged = say(latents)[:, known], samples[:, known], dict[str, Tensor]()
        if adversary is None:
            apart = losses(made, wanted, low_hz)
        else:
            target = adversary.target(exact, random)[:, known]
            apart = losses(adversary.measured(made), target, low_hz)
            judged = adversary.losses(made, wanted, latents[:, _frames(known)], progress.slope(50))
        if weights["burst"]:
            if hot is None:
                hot = hottest(model, said, frames, random)
            odd = odd_pieces(usable, random, _ODD, frames, hot).to(device)
            apart["burst"] = (heat(model, odd).amax(-1) / _HOTTEST).log().clamp(min=0).mean()
        return {name: weights[name] * loss for name, loss in apart.items()} | judged

    def test() -> str:
        nonlocal hot
        hot = None  # at a kept state, so that a resumed run finds the same ones
        found = decoder_error(model, tested)
        return ", ".join(f"{name} {value:.3f}" for name, value in found.items())

    learn(part, progress, Way(1, 1.5e-3, 0.8, 3.0, _DECAY), lose, test, adversary)
