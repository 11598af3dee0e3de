"""Critics that tell the decoder's waveforms from the teacher's: the decoder's last training.

A decoder trained with distances outputs the mean of all sounds that its codes may stand for, and
means are smooth. A critic rejects them, since the teacher never sounds so. There are two kinds, as
in neural vocoders: one looks at every n-th sample (HiFi-GAN, https://arxiv.org/abs/2010.05646), the
other at complex spectra as images (EnCodec, https://arxiv.org/abs/2210.13438). Spectra are shown
beside those that the codes represent, so speech must also say what its codes say.

Distances are measured from the speech of the decoder as it was before, not from the teacher's: they
keep its sharpened formants, which distances from the teacher would smooth again long before the
critics are heard. That speech is made from latents that were not quantised, since it sounds better.
The critics' gradient is balanced: at the waveform, it is always the same multiple of the
distances'. Otherwise its size would depend on how sure the critics are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.pitch import RATE
from training.precision import Optimisers, autocast
from training.quantise import COMPONENTS, Quantiser
from training.spectra import CEPSTRA, SUBFRAMES, bright, curves_at, interpolated

_PERIODS, _SIZES = (2, 3, 5, 7, 11), (512, 1024, 2048)
#: Share of the decoder's usual learning rate; pieces per step, and frames in each; weights of its
#: losses.
RATE_SHARE, SIZE, FRAMES = 0.3, 16, 20
WEIGHTS = {"wave": 0.3, "raised": 0.0, "spectral": 1.0, "mel": 2.0, "burst": 3.0}
#: Steps between two saved states: on a CPU, one takes many seconds.
EVERY = 100
_RATE, _BETAS = 2e-3, (0.8, 0.99)
#: Steps in which new critics learn alone, at this share of their rate, which rises first.
ALONE, _FIRST, _WARM = 250, 0.4, 30
#: Steps between two reports of these.
_REPORT = 50
#: The critics' gradient at the waveform, as a multiple of the distances', and the steps in which it
#: rises to that.
_SHARE, _RISE = 1.0, 100
#: Weight of the distance between the critics' features, relative to their opinion's.
_FEATURES = 2.0
#: Smoothing of the usual size of a gradient, and the least size by which one is divided.
_SMOOTHING, _LEAST = 0.98, 1e-12
#: Noise added to the target: at first it is what the decoder says, and the root of a distance of 0
#: has no gradient.
_NOISE = 1e-4
#: Spectra are shown as their 0.3rd power. Magnitudes below this, for a transform of 512, are not
#: raised further: critics that see down to 1e-4 learn nothing but to tell noise in silence from
#: silence.
_POWER, _SILENT = 0.3, 0.01
#: Factor that makes samples about as large as 1, and divisor that makes log amplitudes so.
_LOUDER, _SCALE = 5.0, 3.0
_SLOPE = 0.1


class PeriodCritic(nn.Module):
    """Looks at every ``period``-th sample of waveforms ``[B, n]``."""

    def __init__(self, period: int, channels: int = 32) -> None:
        super().__init__()
        self._period = period
        widths = [1, channels, 2 * channels, 4 * channels, 8 * channels]
        self.layers = nn.ModuleList(
            [
                *(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in pairwise(widths)),
                nn.Conv2d(widths[-1], widths[-1], (5, 1), 1, (2, 0)),
                nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0)),
            ]
        )

    def forward(self, samples: Tensor) -> list[Tensor]:
        """Return what each layer finds. The last is the opinion: 1 is the teacher, 0 is not."""
        whole = samples.shape[-1] // self._period * self._period
        x = _LOUDER * samples[:, None, :whole].unflatten(-1, (-1, self._period))
        return _through(self.layers, x)


class SpectrumCritic(nn.Module):
    """Looks at spectra of waveforms ``[B, T * HOP]``, made with transforms of ``size``."""

    window: Tensor

    def __init__(self, size: int, channels: int = 32) -> None:
        super().__init__()
        self._size, self._step = size, size // 4
        ways = [*([((3, 9), (1, 2))] * 4), ((3, 3), (1, 1))]
        inner = nn.ModuleList(
            nn.Conv2d(channels if n else 4, channels, kernel, step, _around(kernel))
            for n, (kernel, step) in enumerate(ways)
        )
        self.layers = inner.append(nn.Conv2d(channels, 1, 3, 1, 1))
        self.register_buffer("window", torch.hann_window(size), persistent=False)

    def forward(self, samples: Tensor, coded: Tensor) -> list[Tensor]:
        """Return the same; ``coded``: the spectra of the codes, ``[B, T * SUBFRAMES, CEPSTRA]``."""
        found = torch.stft(
            bright(samples), self._size, self._step, window=self.window, return_complex=True
        )
        floor = (_SILENT * self._size / 512) ** 2
        image = torch.view_as_real(found).permute(0, 3, 2, 1)
        image = image * (found.abs().square() + floor).pow((_POWER - 1) / 2).mT[:, None]
        times = torch.arange(image.shape[2], device=samples.device) * self._step
        wanted = interpolated(coded, times) @ _curves(self._size, samples.device) / _SCALE
        height = torch.linspace(-1, 1, image.shape[3], device=samples.device).expand_as(wanted)
        return _through(self.layers, torch.cat([image, torch.stack([wanted, height], 1)], 1))


def _around(kernel: tuple[int, int]) -> tuple[int, int]:
    return (kernel[0] // 2, kernel[1] // 2)


@cache
def _curves(size: int, device: torch.device) -> Tensor:
    """``[CEPSTRA, size // 2 + 1]``: cepstra times this matrix are log amplitudes at the bins."""
    return curves_at(np.fft.rfftfreq(size, 1 / RATE)).to(device)


def _through(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    found = list[Tensor]()
    for layer in layers:
        x = layer(F.leaky_relu(x, _SLOPE) if found else x)
        found.append(x)
    return found


class Critics(nn.Module):
    """All critics together."""

    def __init__(self) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodCritic(period) for period in _PERIODS)
        self.spectra = nn.ModuleList(SpectrumCritic(size) for size in _SIZES)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, _SLOPE)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, samples: Tensor, coded: Tensor) -> Iterator[list[Tensor]]:
        """Yield what each critic's layers find in waveforms with codes of these spectra."""
        with autocast(samples.device.type):
            for critic in self.periods:
                yield critic(samples)
            for critic in self.spectra:
                yield critic(samples, coded)


class Adversary:
    """The critics in training beside the decoder.

    Args:
        table: the codebooks.
        device: where the decoder is.
        before: the decoder as it was before: from latents ``[B, T, LATENT]`` to ``[B, T * HOP]``.
    """

    def __init__(
        self, table: Quantiser, device: torch.device, before: Callable[[Tensor], Tensor]
    ) -> None:
        self._before = before
        torch.manual_seed(4)
        self.critics = Critics().to(device)
        self.optimisers = Optimisers(self.critics, _BETAS)
        self._mean, self._spread = table.mean.to(device), (table.scale * table.basis.T).to(device)
        self._usual, self._steps = torch.zeros((), device=device), 0

    @torch.no_grad()
    def target(self, latents: Tensor, random: np.random.Generator) -> Tensor:
        """Return the waveforms ``[B, T * HOP]`` from which distances are measured: what the decoder
        said before of these ``latents``.
        """
        with autocast(latents.device.type):
            said = self._before(latents).float()
        noise = random.standard_normal(said.shape, np.float32)
        return said + _NOISE * torch.from_numpy(noise).to(said.device)

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed run needs but the optimisers' moments."""
        kept = {name: value.detach().cpu() for name, value in self.critics.state_dict().items()}
        return kept | {"usual": self._usual.cpu(), "steps": torch.tensor(self._steps)}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a ``state``; from the beginning if it is empty."""
        if state:
            weights = {k: v for k, v in state.items() if k not in ("usual", "steps")}
            self.critics.load_state_dict(weights)
            self._usual.copy_(state["usual"])
            self._steps = int(state["steps"])

    def measured(self, made: Tensor) -> Tensor:
        """Return the decoder's waveforms ``made``, which need a gradient, for the distances: the
        size of that gradient is added to its mean.
        """
        changed = made.view_as(made)
        changed.register_hook(self._measure)
        return changed

    def _measure(self, grad: Tensor) -> None:
        size = grad.norm()
        known = torch.where(self._usual > 0, self._usual, size)
        self._usual.copy_(torch.lerp(size, known, _SMOOTHING))

    def losses(
        self, made: Tensor, wanted: Tensor, latents: Tensor, slope: float
    ) -> dict[str, Tensor]:
        """Teach the critics, and let them judge.

        Args:
            made: waveforms of the decoder ``[B, T * HOP]``, which need a gradient.
            wanted: those of the teacher.
            latents: their codes' ``[B, T, LATENT]``.
            slope: factor of the critics' learning rate.

        Returns:
            ``opinion``: how far the critics are from taking ``made`` for the teacher's;
            ``features``: the distance of what they find in both; and ``critics``: their own error,
            .5 if they cannot tell both apart, without a gradient.
        """
        coded = self._coded(latents)
        error = self._teach(made.detach(), wanted, coded, slope)
        size = _SHARE * min(1.0, (self._steps - ALONE) / _RISE) * self._usual.clone()
        self._steps += 1
        judged = made.view_as(made)
        judged.register_hook(lambda grad: grad * (size / grad.norm().clamp(min=_LEAST)))
        self.critics.requires_grad_(False)
        with torch.no_grad():
            known = list(self.critics(wanted, coded))
        opinion = features = torch.zeros((), device=made.device)
        for found, right in zip(self.critics(judged, coded), known, strict=True):
            opinion = opinion + (found[-1].float() - 1).square().mean()
            for a, b in zip(found[:-1], right[:-1], strict=True):
                features = features + (a - b).float().abs().mean() / b.float().abs().mean()
        self.critics.requires_grad_(True)
        count = len(known)
        layers = sum(len(found) - 1 for found in known)
        return {
            "opinion": opinion / count,
            "features": _FEATURES * features / layers,
            "critics": error / count,
        }

    def prepare(
        self, draw: Callable[[], tuple[Tensor, Tensor, Tensor]], say: Callable[[str], None]
    ) -> None:
        """Teach new critics alone for ``ALONE`` steps, since a critic that knows nothing only
        spoils the decoder.

        Args:
            draw: returns the waveforms and latents of a step, as in :meth:`losses`.
            say: is told now and then how far this is.
        """
        while self._steps < ALONE:
            if self._steps % _REPORT == 0:
                say(f"critics alone, step {self._steps} of {ALONE}")
            made, wanted, latents = draw()
            slope = _FIRST * min(1.0, (self._steps + 1) / _WARM)
            self._teach(made, wanted, self._coded(latents), slope)
            self._steps += 1

    def _coded(self, latents: Tensor) -> Tensor:
        rows = latents[..., :COMPONENTS] @ self._spread + self._mean
        coded: Tensor = rows.unflatten(-1, (SUBFRAMES, CEPSTRA)).flatten(1, 2)
        return coded

    def _teach(self, made: Tensor, wanted: Tensor, coded: Tensor, slope: float) -> Tensor:
        error = torch.zeros((), device=made.device)
        both = torch.cat([wanted, made]), torch.cat([coded, coded])
        for found in self.critics(*both):
            right, wrong = found[-1].float().chunk(2)
            error = error + (right - 1).square().mean() + wrong.square().mean()
        error.backward()
        self.optimisers.step(_RATE * slope)
        return error.detach()
