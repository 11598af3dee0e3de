"""Prediction of the spectra of the teacher's speech without its vocoder, which is 97 % of its work.

The talker needs tens of hours of codes, but no waveforms. From the speech made for the codec, a
small convolutional network learns the vocoder's output for the front's text features, F0, energy
and style.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from training.kokoro import UNIT, VOCODER_STYLE, Features
from training.pitch import F0_STEP, Floats
from training.progress import Progress
from training.spectra import CEPSTRA, STEP, SUBFRAMES

_TEXT = 512
INPUTS = _TEXT + 3
_RATE, _SIZE, _LENGTH = 2e-3, 16, 96
#: Starts are drawn from up to this far outside an utterance, then moved to its begin or end. The
#: front's features there are unlike all others, and a network that rarely saw them makes bursts.
_BEYOND = 48
_USUAL_HZ, _LOWEST_HZ, _VOICED_HZ, _ENERGY = 200.0, 50.0, 30.0, 4.0
_UNSEEN = 16


def inputs(features: Features, frames: int) -> Floats:
    """Return ``[frames * SUBFRAMES, INPUTS]``: the front's features for each 10 ms of the kept
    span.
    """
    at = features.span()[0] + (np.arange(frames * SUBFRAMES) + 0.5) * STEP
    place = np.clip(at / UNIT - 0.5, 0, features.text.shape[1] - 1)
    low, rows = place.astype(int), features.text.T
    share = (place - low)[:, None]
    mixed = rows[low] * (1 - share) + rows[np.minimum(low + 1, len(rows) - 1)] * share
    fine, known = at / F0_STEP - 0.5, np.arange(len(features.f0))
    pitch = np.interp(fine, known, features.f0)
    loud = np.interp(fine, known, features.energy) / _ENERGY
    height = np.log(np.maximum(pitch, _LOWEST_HZ) / _USUAL_HZ)
    more = np.stack([height, pitch > _VOICED_HZ, loud], 1)
    return np.concatenate([mixed, more], 1).astype(np.float32)


class SpectrumGuess(nn.Module):
    """Maps ``[B, n, INPUTS]``, every 10 ms, and styles ``[B, 128]`` to ``[B, n, CEPSTRA]``."""

    mean: Tensor
    spread: Tensor
    centre: Tensor

    def __init__(self, width: int = 224, layers: int = 5) -> None:
        super().__init__()
        self.first = nn.Conv1d(INPUTS, width, 1)
        self.style = nn.Linear(VOCODER_STYLE, 2 * width)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * 2**i, dilation=2**i) for i in range(layers)
        )
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.last = nn.Conv1d(width, CEPSTRA, 1)
        self.register_buffer("mean", torch.zeros(INPUTS))
        self.register_buffer("spread", torch.ones(INPUTS))
        self.register_buffer("centre", torch.zeros(CEPSTRA))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """See the class."""
        x = self.first(((x - self.mean) / self.spread).transpose(1, 2))
        gain, bias = self.style(style)[..., None].chunk(2, 1)
        x = x * (1 + gain) + bias
        for layer, mix in zip(self.layers, self.mix, strict=True):
            x = x + mix(F.gelu(layer(x)))
        made: Tensor = self.last(x)
        return made.transpose(1, 2) + self.centre

    @torch.no_grad()
    def spectra(self, features: Features, frames: int) -> Tensor:
        """Predict the spectra ``[frames, SUBFRAMES * CEPSTRA]``."""
        style = torch.from_numpy(features.style[:VOCODER_STYLE])[None]
        made: Tensor = self(torch.from_numpy(inputs(features, frames))[None], style)[0]
        return made.reshape(frames, SUBFRAMES * CEPSTRA)


@dataclass(frozen=True, slots=True)
class Pair:
    """An utterance: ``x`` ``[n, INPUTS]`` float16, ``style`` ``[128]``, ``y`` ``[n, CEPSTRA]``."""

    x: Tensor
    style: Tensor
    y: Tensor


def pair(features: Features, wanted: Tensor) -> Pair:
    """Pair the front's features with the spectra ``[T, SUBFRAMES * CEPSTRA]`` of the spoken audio.

    Silence that was cut from a recording's end is replaced by copies of its last frame. The network
    has to see it, since codes go on to the end of the span.
    """
    frames = max(len(wanted), features.span()[1])
    wanted = torch.cat([wanted, wanted[-1:].expand(frames - len(wanted), -1)])
    x = torch.from_numpy(inputs(features, frames)).half()
    style = torch.from_numpy(features.style[:VOCODER_STYLE].copy())
    return Pair(x, style, wanted.reshape(-1, CEPSTRA))


def train(pairs: Iterable[Pair], progress: Progress) -> SpectrumGuess:
    """Train the network; the first utterances are held out for testing."""
    known = list(pairs)
    tested, seen = known[:_UNSEEN], [p for p in known[_UNSEEN:] if len(p.y) >= _LENGTH]
    torch.manual_seed(1)
    net = SpectrumGuess()
    x = torch.cat([p.x for p in seen[::5]]).float()
    net.mean.copy_(x.mean(0))
    net.spread.copy_(x.std(0) + 1e-3)
    net.centre.copy_(torch.cat([p.y for p in seen]).mean(0))
    adam = torch.optim.AdamW(net.parameters(), _RATE, betas=(0.9, 0.98), weight_decay=0.05)
    progress.restore(net, adam)
    for step in progress:
        for group in adam.param_groups:
            group["lr"] = _RATE * progress.slope(50)
        loss = (net(*(batch := _batch(seen, step))[:2]) - batch[2]).abs().mean()
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        progress.note(loss=loss.item())
        if progress.due:
            whole, ends = missed(net, tested)
            progress.say(f"misses {whole:.4f} of unseen spectra, {ends:.4f} of their ends'")
            progress.keep(net, adam)
    return net


def _batch(seen: Sequence[Pair], step: int) -> tuple[Tensor, Tensor, Tensor]:
    random = np.random.default_rng((3, step))
    chosen = [seen[i] for i in random.choice(len(seen), _SIZE)]
    last = [len(p.y) - _LENGTH for p in chosen]
    starts = [int(np.clip(random.integers(-_BEYOND, n + _BEYOND + 1), 0, n)) for n in last]
    cut = [slice(start, start + _LENGTH) for start in starts]
    x = torch.stack([p.x[c] for p, c in zip(chosen, cut, strict=True)]).float()
    y = torch.stack([p.y[c] for p, c in zip(chosen, cut, strict=True)])
    return x, torch.stack([p.style for p in chosen]), y


@torch.no_grad()
def missed(net: SpectrumGuess, tested: Sequence[Pair]) -> tuple[float, float]:
    """Return the share of the spectra's variance not predicted, and that of the last 80 ms."""
    right = torch.cat([p.y for p in tested])
    spread = (right - right.mean(0)).pow(2).sum(1).mean()
    wrong = [(net(p.x.float()[None], p.style[None])[0] - p.y).pow(2).sum(1) for p in tested]
    ends = torch.cat([each[-2 * SUBFRAMES :] for each in wrong])
    return float(torch.cat(wrong).mean() / spread), float(ends.mean() / spread)


def load(file: Path) -> SpectrumGuess:
    """Load the network from the state's file of ``train``."""
    tensors = load_file(file)
    net = SpectrumGuess()
    net.load_state_dict(
        {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    )
    return net.eval()
