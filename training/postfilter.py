"""A learned postfilter: it makes the envelopes of the decoder's speech like the teacher's.

A decoder trained with distances outputs the mean of all sounds that its codes may stand for. What
makes such speech unclear is its spectral envelope: with the teacher's envelopes, it is understood
as well as the teacher. This network predicts how to change them, from the codes and from the
decoder's own speech. Half of its training is adversarial, since means are smooth: a critic compares
envelopes as images, beside the spectra that their codes represent (a generative postfilter, Kaneko
and others, https://doi.org/10.1109/ICASSP.2017.7953090). Images are small, so this takes minutes.
Only targets for the decoder are filtered (``sharpen.py``); the network is not part of the voice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.decoder_training import codes_of, decode
from training.pitch import HOP, RATE
from training.progress import Progress, restore_weights
from training.quantise import LATENT, Quantiser
from training.spectra import CEPSTRA, SUBFRAMES, curves_at, interpolated, mel_spaced
from training.speech import Spoken

_SIZE, _STEP = 512, 120
#: Envelopes per frame of the codec.
ENVELOPES = HOP // _STEP
#: An envelope is the cepstrum up to this quefrency, in samples; the last ``_TAPER`` fade out.
ORDER, _TAPER = 56, 8
#: Spectral magnitude that counts as silence, and the maximum change of a bin (nepers).
_SILENT, _MOST = 0.01, 3.0
#: Frequencies, equally spaced in mel, at which envelopes are compared, and their range.
_POINTS, _LOWEST_HZ, _HIGHEST_HZ = 64, 60.0, 11_500.0
#: Magnitudes (log) between which errors count more and more; louder ones count all the same.
_QUIET, _LOUD, _LEAST_WEIGHT = -3.5, 0.1, 0.1
#: Weight of errors above 5 kHz.
_HIGH_HZ, _HIGH_WEIGHT = 5000.0, 0.6
_WIDTH, _DILATIONS, _DROPPED = 320, (1, 2, 4, 1, 2), 0.1
#: Frames in a piece, and its first ones that are not compared, since what precedes is unknown.
_LENGTH, _UNKNOWN, _BATCH = 32, 8, 16
_RATE, _UNSEEN = 1e-3, 40
#: Steps before the critic takes part. The rates of both networks from then on.
ALONE, _RATE_TAUGHT, _RATE_CRITIC = 800, 2e-4, 4e-4
#: Weights of the critic's opinion and of the distance between its features. Noise on its inputs.
_OPINION, _FEATURES, _NOISE = 0.1, 0.2, 0.03
#: The critic's inputs are logarithms divided by this. Cepstra count as equally strong only down to
#: this share of the weakest of the first half, and where the level is at most so far below usual.
_SCALE, _LEAST_SPREAD, _AUDIBLE = 1.5, 0.7, 0.5


@cache
def _window() -> Tensor:
    return torch.hann_window(_SIZE)


def _transformed(samples: Tensor) -> Tensor:
    return torch.stft(samples, _SIZE, _STEP, window=_window(), return_complex=True)


@cache
def _taper() -> Tensor:
    fading: Tensor = ((ORDER - torch.arange(ORDER)) / _TAPER).clamp(max=1)
    return fading


def envelopes(samples: Tensor) -> Tensor:
    """Compute spectral envelopes.

    Args:
        samples: ``[T * HOP]`` at 24 kHz.

    Returns:
        ``[T * ENVELOPES, ORDER]``: every 5 ms, the first coefficients of the real cepstrum.
    """
    log = 0.5 * (_transformed(samples).abs().square() + _SILENT**2).log()
    cepstra: Tensor = torch.fft.irfft(log, n=_SIZE, dim=0)[:ORDER] * _taper()[:, None]
    return cepstra[:, : len(samples) // _STEP].T.contiguous()


def filtered(samples: Tensor, change: Tensor) -> Tensor:
    """Change the envelopes of speech ``[T * HOP]`` by ``[T * ENVELOPES, ORDER]``, added to them."""
    found = _transformed(samples)
    cepstra = torch.cat([change, change[-1:]]).T
    whole = torch.zeros(_SIZE, cepstra.shape[1])
    whole[:ORDER], whole[1 - ORDER :] = cepstra, cepstra[1:].flip(0)
    factors = torch.fft.rfft(whole, dim=0).real.clamp(-_MOST, _MOST).exp()
    return torch.istft(found * factors, _SIZE, _STEP, window=_window(), length=len(samples))


@cache
def _points() -> np.ndarray[Any, np.dtype[np.float64]]:
    """The compared frequencies in Hz, ``[_POINTS]``."""
    return mel_spaced(_POINTS, _LOWEST_HZ, _HIGHEST_HZ)


@cache
def _cosines() -> Tensor:
    """``[ORDER, _POINTS]``: cepstra times this matrix are log magnitudes."""
    at = 2 * np.pi * np.outer(np.arange(ORDER), _points()) / RATE
    rows = np.cos(at) * np.where(np.arange(ORDER) > 0, 2, 1)[:, None]
    return torch.from_numpy(rows.astype(np.float32))


@cache
def _curves() -> Tensor:
    """``[CEPSTRA, _POINTS]``: the same for the spectra of codes."""
    return curves_at(_points())


@cache
def _importance() -> Tensor:
    heavy = np.where(_points() < _HIGH_HZ, 1.0, _HIGH_WEIGHT)
    return torch.from_numpy(heavy.astype(np.float32))


def _coded(spectra: Tensor) -> Tensor:
    """Interpolate the spectra of codes ``[B, T, WIDTH]`` in time and frequency, to
    ``[B, T * ENVELOPES, _POINTS]``.
    """
    rows = spectra.unflatten(-1, (SUBFRAMES, CEPSTRA)).flatten(1, 2) @ _curves()
    return interpolated(rows, torch.arange(spectra.shape[1] * ENVELOPES) * _STEP)


@dataclass(frozen=True, slots=True)
class Pair:
    """An utterance: ``latents`` ``[T, LATENT]`` and ``spectra`` ``[T, WIDTH]`` of its codes, and
    ``envelopes`` of the decoder's ``own`` speech and of the ``teacher``. All float16.
    """

    latents: Tensor
    spectra: Tensor
    own: Tensor
    teacher: Tensor


@torch.no_grad()
def pairs(model: Any, said: Iterable[Spoken], quantiser: Quantiser) -> list[Pair]:
    """Make the training data; ``model`` is as ``decoder`` left it."""
    made = []
    for one in said:
        codes = codes_of(one, quantiser)
        latents, heard = quantiser.latents(codes), torch.from_numpy(one.samples)
        own = decode(model, latents[None].to(model.device))[0].cpu()
        both = (envelopes(own).half(), envelopes(heard).half())
        made.append(Pair(latents.half(), quantiser.spectra(codes).half(), *both))
    return made


class Postfilter(nn.Module):
    """Predicts changes of envelopes. It is causal, as the decoder that has to learn its effect."""

    centres: Tensor
    spreads: Tensor

    def __init__(self) -> None:
        super().__init__()
        inputs = LATENT + ENVELOPES * ORDER
        self.first = nn.Linear(inputs, _WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in _DILATIONS)
        self.layers = nn.ModuleList(nn.Conv1d(_WIDTH, _WIDTH, 3, dilation=d) for d in _DILATIONS)
        self.mix = nn.ModuleList(nn.Conv1d(_WIDTH, _WIDTH, 1) for _ in _DILATIONS)
        self.last = nn.Linear(_WIDTH, ENVELOPES * ORDER)
        self.drop = nn.Dropout(_DROPPED)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.register_buffer("centres", torch.zeros(inputs))
        self.register_buffer("spreads", torch.ones(inputs))

    def forward(self, latents: Tensor, own: Tensor) -> Tensor:
        """Return the changes ``[B, T * ENVELOPES, ORDER]`` of the envelopes ``own`` of speech
        whose latents are ``[B, T, LATENT]``.
        """
        x = torch.cat([latents, own.reshape(*latents.shape[:2], -1)], -1)
        x = self.first((x - self.centres) / self.spreads)
        layers = zip(_DILATIONS, self.norms, self.layers, self.mix, strict=True)
        for dilation, norm, layer, mix in layers:
            past = F.pad(norm(x).transpose(1, 2), (2 * dilation, 0))
            x = x + self.drop(mix(F.gelu(layer(past))).transpose(1, 2))
        change: Tensor = self.last(x)
        return change.reshape(own.shape)

    @torch.no_grad()
    def apply_to(self, samples: Tensor, latents: Tensor) -> Tensor:
        """Filter the decoder's speech ``[T * HOP]`` for latents ``[T, LATENT]``."""
        change = self(latents[None], envelopes(samples)[None])[0]
        return filtered(samples, change)


class Critic(nn.Module):
    """Tells the teacher's envelopes from others, in pieces of a quarter of a second.

    It sees images of three kinds, ``[B, n, _POINTS]``: the envelopes, the same with all cepstra
    equally strong (or else the fine structure would be invisible), and the spectra of the codes.
    """

    factors: Tensor

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        wide = 2 * channels
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(4, channels, 5, (2, 1), 2),
                nn.Conv2d(channels, wide, 5, 2, 2),
                nn.Conv2d(wide, wide, (3, 5), 2, (1, 2)),
                nn.Conv2d(wide, wide, 3, 1, 1),
                nn.Conv2d(wide, 1, 3, 1, 1),
            ]
        )
        self.register_buffer("factors", torch.ones(ORDER))

    def forward(self, cepstra: Tensor, coded: Tensor) -> list[Tensor]:
        """Return what each layer finds in envelopes ``[B, n, ORDER]`` with codes whose spectra are
        ``[B, n, _POINTS]``. The last is the opinion: 1 is the teacher, 0 is not.
        """
        plain, even = cepstra @ _cosines() / _SCALE, (cepstra * self.factors) @ _cosines()
        plain, even = (x + _NOISE * torch.randn_like(x) for x in (plain, even))
        height = torch.linspace(-1, 1, _POINTS).expand_as(plain)
        x, found = torch.stack([plain, coded / _SCALE, even, height], 1), list[Tensor]()
        for layer in self.layers:
            x = layer(F.leaky_relu(x, 0.1) if found else x)
            found.append(x)
        return found


def _distance(made: Tensor, wanted: Tensor) -> Tensor:
    """Compare envelopes; loud and low frequencies count most."""
    right = wanted @ _cosines()
    loud = ((right - _QUIET) / (_LOUD - _QUIET)).clamp(_LEAST_WEIGHT, 1)
    return (_importance() * loud * (made @ _cosines() - right).abs()).mean()


def _batch(seen: Sequence[Pair], random: np.random.Generator) -> tuple[Tensor, ...]:
    """Draw pieces: latents, the decoder's envelopes, the teacher's, and the codes' spectra."""
    lengths = np.array([len(one.latents) for one in seen], float)
    rows: list[tuple[Tensor, ...]] = []
    for i in random.choice(len(seen), _BATCH, p=lengths / lengths.sum()):
        one = seen[i]
        start = int(random.integers(len(one.latents) - _LENGTH + 1))
        coarse = slice(start, start + _LENGTH)
        fine = slice(start * ENVELOPES, (start + _LENGTH) * ENVELOPES)
        rows.append((one.latents[coarse], one.own[fine], one.teacher[fine], one.spectra[coarse]))
    latents, own, teacher, spectra = (torch.stack(x).float() for x in zip(*rows, strict=True))
    return latents, own, teacher, _coded(spectra)


@torch.no_grad()
def distance(net: Postfilter | None, tested: Sequence[Pair]) -> float:
    """Return the mean distance of envelopes from the teacher's, unfiltered if there is no net."""
    found = []
    for one in tested:
        own = one.own.float()[None]
        change = 0 if net is None else net(one.latents.float()[None], own)
        found.append(float(_distance(own + change, one.teacher.float()[None])))
    return float(np.mean(found))


def _networks() -> nn.ModuleDict:
    return nn.ModuleDict({"filter": Postfilter(), "critic": Critic()})


def _fit_scales(net: Postfilter, critic: Critic, seen: Sequence[Pair]) -> None:
    """Make the inputs of both networks about equally large."""
    inputs = [torch.cat([x.latents, x.own.reshape(len(x.latents), -1)], 1).float() for x in seen]
    net.centres.copy_(torch.cat(inputs).mean(0))
    net.spreads.copy_(torch.cat(inputs).std(0) + 1e-3)
    heard = torch.cat([x.teacher for x in seen]).float()
    spreads = heard[heard[:, 0] > heard[:, 0].median() - _AUDIBLE].std(0)
    critic.factors.copy_(
        1 / spreads.clamp(min=float(spreads[5 : ORDER // 2].min()) * _LEAST_SPREAD)
    )
    critic.factors.div_(((heard[::10] * critic.factors) @ _cosines()).std())


def train(known: Sequence[Pair], progress: Progress) -> Postfilter:
    """Train the postfilter, from step ``ALONE`` on with a critic. The first utterances are held
    out for testing.
    """
    long = [one for one in known if len(one.latents) >= _LENGTH]
    tested, seen = long[:_UNSEEN], long[_UNSEEN:]
    torch.manual_seed(1)
    both = _networks()
    net, critic = both["filter"], both["critic"]
    assert isinstance(net, Postfilter)
    assert isinstance(critic, Critic)
    _fit_scales(net, critic, seen)
    optimisers = [
        torch.optim.AdamW(net.parameters(), betas=(0.9, 0.98), weight_decay=0.05),
        torch.optim.AdamW(critic.parameters(), betas=(0.8, 0.98), weight_decay=0.01),
    ]
    progress.restore(both, *optimisers)
    for step in progress:
        torch.manual_seed(step)  # for dropout and noise
        alone = step < ALONE
        rates = (_RATE if alone else _RATE_TAUGHT, _RATE_CRITIC)
        for optimiser, rate in zip(optimisers, rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * progress.slope(50)
        latents, own, teacher, coded = _batch(seen, np.random.default_rng((3, step)))
        compared = slice(_UNKNOWN * ENVELOPES, None)
        made = (own + net(latents, own))[:, compared]
        wanted, coded = teacher[:, compared], coded[:, compared]
        losses = {"distance": _distance(made, wanted)}
        if not alone:
            right, wrong = critic(wanted, coded)[-1], critic(made.detach(), coded)[-1]
            error = (right - 1).square().mean() + wrong.square().mean()
            error.backward()
            optimisers[1].step()
            opinions = [critic(x, coded) for x in (made, wanted)]
            losses["opinion"] = _OPINION * (opinions[0][-1] - 1).square().mean()
            layers = zip(*(found[:-1] for found in opinions), strict=True)
            losses["features"] = _FEATURES * sum(
                ((a - b.detach()).abs().mean() for a, b in layers), torch.zeros(())
            )
            progress.note(critic=error.item())
        sum(losses.values(), torch.zeros(())).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimisers[0].step()
        both.zero_grad(set_to_none=True)
        progress.note(**{name: loss.item() for name, loss in losses.items()})
        if progress.due:
            found = distance(net.eval(), tested)
            net.train()
            before = distance(None, tested)
            progress.say(f"unseen speech: distance {found:.4f}, {before:.4f} before")
            progress.keep(both, *optimisers)
    return net.eval()


def load(folder: Path) -> Postfilter:
    """Load the network that ``train`` has kept in ``folder``. LookupError if there is none."""
    both = _networks()
    if not restore_weights("postfilter", folder, both):
        raise LookupError(f"stage `postfilter` has kept no state in {folder}")
    net = both["filter"]
    assert isinstance(net, Postfilter)
    return net.eval()
