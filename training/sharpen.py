"""Sharpening of the decoder: exact spectra and clear formants.

Trained with plain distances, the decoder outputs the mean of all sounds that its codes may stand
for, and means are smooth. It renders the smoothed spectra less exactly than the codes represent
them, and the teacher's spectra rise and fall 1.3 to 1.8 times as far between formants. Speech
codecs and statistical synthesis therefore filter the decoder's output. Here the decoder itself
learns the output of such filters, so they cost no time when it speaks. Codes, and thus talker and
encoder, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.decoder_training import Example, codes_of, decode
from training.pitch import HOP, RATE, Ints
from training.postfilter import Postfilter
from training.quantise import Quantiser
from training.spectra import CEPSTRA, curves, interpolated, spectra
from training.speech import Spoken

_SIZE, _STEP = 1024, 256
#: Lowest amplitude or power that differs from silence; maximum change of a bin (nepers).
_FLOOR, _MOST = 1e-4, 6.0
#: (quefrency in samples, factor of the cepstrum there), linear in between on a logarithmic scale:
#: formants are at 8 to 44, harmonics of the highest voice from 56 on.
_GAINS = (
    (1, 1.0), (2, 0.95), (4, 1.04), (8, 1.2), (12, 1.5), (16, 1.75), (22, 1.9), (28, 1.75),
    (36, 1.4), (44, 1.15), (56, 1.0),
)  # fmt: skip
#: Added brightness: nepers per standard deviation of the bins' log frequencies. That is 1.25 dB an
#: octave. Frequencies below ``_LOWEST_HZ`` count as that.
_BRIGHTER, _LOWEST_HZ = 0.2, 100.0
#: Maximum change of a bin towards the spectra of the codes (nepers).
_MOST_CODED = 3.0
#: Weights of the decoder's losses: spectra have to change most. Filters preserve the decoder's
#: phases, so samples can be compared at all frequencies. Without ``burst`` five of five hundred
#: utterances of the talker exceeded full scale, one of them sevenfold.
WEIGHTS = {"wave": 0.3, "raised": 0.3, "spectral": 1.0, "mel": 2.0, "burst": 3.0}
#: Share of the decoder's usual learning rate, since it is already trained.
RATE_SHARE = 0.2
#: Voices that sounded least natural before; each of their utterances counts twice.
_TWICE = ("am_michael", "am_fenrir", "bm_george")


def _gains() -> Tensor:
    """Factors by quefrency ``[_SIZE]``; the second half mirrors the first."""
    quefrency, gain = zip(*_GAINS, strict=True)
    at = np.arange(_SIZE)
    at = np.log2(np.maximum(np.minimum(at, _SIZE - at), 1))
    return torch.from_numpy(np.interp(at, np.log2(quefrency), gain).astype(np.float32))


def _brightness() -> Tensor:
    """Nepers by frequency, ``[_SIZE // 2 + 1]``."""
    log = (torch.arange(_SIZE // 2 + 1) * RATE / _SIZE).clamp(min=_LOWEST_HZ).log()
    return _BRIGHTER * (log - log.mean()) / log.std()


def sharpened(samples: Tensor, pitch: Ints) -> Tensor:
    """Sharpen the formants of voiced frames, and keep the loudness.

    Args:
        samples: ``[T * HOP]`` at 24 kHz.
        pitch: pitch codes ``[T]``; frames of code 0 are unvoiced, and stay as they are.

    Returns:
        ``[T * HOP]``.
    """
    window = torch.hann_window(_SIZE)
    found = torch.stft(samples, _SIZE, _STEP, window=window, return_complex=True)
    log = (found.abs() + _FLOOR).log()
    cepstrum = torch.fft.irfft(log, n=_SIZE, dim=0)
    more = torch.fft.rfft((_gains() - 1)[:, None] * cepstrum, dim=0).real
    more = (more + _brightness()[:, None]).clamp(-_MOST, _MOST)
    voiced = _voiced(pitch, found.shape[1])
    power = found.abs().square().sum(0) @ voiced
    louder = (found.abs() * more.exp()).square().sum(0) @ voiced
    level = 0.5 * (power.clamp(min=_FLOOR) / louder.clamp(min=_FLOOR)).log()
    found = found * (voiced * (more + level)).exp()
    return torch.istft(found, _SIZE, _STEP, window=window, length=len(samples))


def as_coded(samples: Tensor, wanted: Tensor) -> Tensor:
    """Filter speech so that it has the spectra that its codes represent.

    Args:
        samples: ``[T * HOP]`` at 24 kHz.
        wanted: ``[T, WIDTH]``, in the format of :func:`spectra`.

    Returns:
        ``[T * HOP]``.
    """
    window = torch.hann_window(_SIZE)
    found = torch.stft(samples, _SIZE, _STEP, window=window, return_complex=True)
    lacking = (wanted - spectra(samples)).reshape(-1, CEPSTRA)
    there = interpolated(lacking, torch.arange(found.shape[1]) * _STEP)
    change = (there @ curves(_SIZE)).clamp(-_MOST_CODED, _MOST_CODED)
    return torch.istft(found * change.T.exp(), _SIZE, _STEP, window=window, length=len(samples))


def _voiced(pitch: Ints, count: int) -> Tensor:
    """Weights ``[count]`` of the spectra: 1 in the middle of voiced frames, 0 of unvoiced ones."""
    at = np.arange(count) * _STEP / HOP - 0.5
    share = np.interp(at, np.arange(len(pitch)), pitch > 0)
    return torch.from_numpy(share.astype(np.float32))


@torch.no_grad()
def examples(
    model: Any, said: Iterable[Spoken], quantiser: Quantiser, postfilter: Postfilter | None
) -> list[Example]:
    """Make the training data: the latents of the teacher's speech, and the decoder's own output for
    them, filtered: by the ``postfilter``, to the spectra of the codes, and sharpened. ``model`` is
    as ``decoder`` left it.
    """
    made = []
    for one in said:
        codes = codes_of(one, quantiser)
        latents = quantiser.latents(codes).half()
        own = decode(model, latents.float()[None].to(model.device))[0].cpu()
        if postfilter is not None:
            own = postfilter.apply_to(own, latents.float())
        wanted = sharpened(as_coded(own, quantiser.spectra(codes)), one.pitch).half()
        made += [Example(latents, wanted, RATE / 2)] * (2 if one.voice in _TWICE else 1)
    return made
