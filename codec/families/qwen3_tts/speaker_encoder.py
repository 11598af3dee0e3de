"""The speaker encoder of Qwen3-TTS Base: a clip as one vector, which the talker imitates.

A mel spectrogram, then ECAPA-TDNN (https://arxiv.org/abs/2005.07143): convolutions over time with
Res2Net blocks and squeeze-and-excitation, and pooling by mean and deviation with attention. Its
tensors are in the talker's own file, under ``speaker_encoder``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from codec.checkpoint import Shapes, biased
from codec.family import CheckpointError, ClipError, check_clip
from streaming.spec import Samples, SpeakerVector

#: Beginning of the tensors' names, and of the name of their configuration.
PREFIX = "speaker_encoder"
_RATE, _FFT, _HOP = 24_000, 1024, 256
#: The mel scale is linear up to the knee, with so many Hz a mel, and logarithmic above.
_KNEE_HZ, _MEL_HZ = 1000.0, 200 / 3
_LOG_STEP = np.log(6.4) / 27
#: Least power and least magnitude, before the root and the logarithm.
_LEAST_POWER, _LEAST_SIZE = 1e-9, 1e-5
_LEAST_VARIANCE = 1e-12
_MAX_SIZE = 1 << 14


@dataclass(frozen=True, slots=True)
class SpeakerSizes:
    """``speaker_encoder_config``; the defaults are the published values. The first and last items
    of the lists are of the convolutions before and after the Res2Net blocks.
    """

    #: Width of the vector, which is the talker's.
    enc_dim: int = 1024
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    #: Number of pieces into which a Res2Net block cuts its channels.
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = _RATE

    def __post_init__(self) -> None:
        channels = self.enc_channels
        lengths = {len(channels), len(self.enc_kernel_sizes), len(self.enc_dilations)}
        if lengths != {len(channels)} or len(channels) < 3:
            raise CheckpointError(
                f"{PREFIX}_config: enc_channels, enc_kernel_sizes and enc_dilations must be three "
                "or more each, as many of each"
            )
        inner = channels[:-1]
        if len({*inner}) > 1 or channels[-1] != sum(inner[1:]):
            raise CheckpointError(
                f"{PREFIX}_config.enc_channels must be equal but for the last, which is the sum of "
                f"the blocks', not {channels}"
            )
        if channels[0] % self.enc_res2net_scale or self.enc_res2net_scale < 2:
            raise CheckpointError(
                f"{PREFIX}_config.enc_res2net_scale {self.enc_res2net_scale} must be 2 or more, "
                f"and divide {channels[0]}"
            )
        if self.sample_rate != _RATE:
            raise CheckpointError(f"{PREFIX}_config.sample_rate must be {_RATE}")

    @property
    def blocks(self) -> range:
        """Indices of the Res2Net blocks."""
        return range(1, len(self.enc_channels) - 1)

    @property
    def reach(self) -> int:
        """Spectra that the widest convolution sees before or after one, of which there must be
        more, since the sides are padded with reflections.
        """
        pairs = zip(self.enc_kernel_sizes, self.enc_dilations, strict=True)
        return max(((kernel - 1) * dilation + 1) // 2 for kernel, dilation in pairs)


def parse_speaker_config(config: Mapping[str, Any]) -> SpeakerSizes:
    """Read ``speaker_encoder_config`` of a talker's config.json. Raises CheckpointError."""
    part = config.get(f"{PREFIX}_config")
    if not isinstance(part, Mapping):
        raise CheckpointError(f"{PREFIX}_config must be an object, not {part!r}")
    given: dict[str, Any] = {}
    for one in fields(SpeakerSizes):
        value = part.get(one.name, one.default)
        is_list = isinstance(one.default, tuple)
        values = tuple(value) if is_list and isinstance(value, list | tuple) else (value,)
        if not all(type(number) is int and 1 <= number <= _MAX_SIZE * 2 for number in values):
            raise CheckpointError(f"{PREFIX}_config.{one.name} is {value!r}, not sizes")
        given[one.name] = values if is_list else value
    return SpeakerSizes(**given)


def speaker_shapes(sizes: SpeakerSizes) -> Shapes:
    """Return the names and shapes of all tensors of the speaker encoder."""
    width, last = sizes.enc_channels[0], sizes.enc_channels[-1]
    kernels, pieces = sizes.enc_kernel_sizes, sizes.enc_res2net_scale
    piece, squeezed = width // pieces, sizes.enc_se_channels
    shapes = biased(f"{PREFIX}.blocks.0.conv", width, sizes.mel_dim, kernels[0])
    for block in sizes.blocks:
        at = f"{PREFIX}.blocks.{block}"
        for part in ("tdnn1", "tdnn2"):
            shapes |= biased(f"{at}.{part}.conv", width, width, 1)
        for index in range(pieces - 1):
            name = f"{at}.res2net_block.blocks.{index}.conv"
            shapes |= biased(name, piece, piece, kernels[block])
        shapes |= biased(f"{at}.se_block.conv1", squeezed, width, 1)
        shapes |= biased(f"{at}.se_block.conv2", width, squeezed, 1)
    attention = sizes.enc_attention_channels
    shapes |= biased(f"{PREFIX}.mfa.conv", last, last, kernels[-1])
    shapes |= biased(f"{PREFIX}.asp.tdnn.conv", attention, 3 * last, 1)
    shapes |= biased(f"{PREFIX}.asp.conv", last, attention, 1)
    return shapes | biased(f"{PREFIX}.fc", sizes.enc_dim, 2 * last, 1)


class Qwen3TTSSpeakerEncoder:
    """Implements ``codec.family.SpeakerEncoder``, in float32. Stateless, so thread-safe.
    ``tensors`` are those of ``speaker_shapes``.
    """

    def __init__(
        self, sizes: SpeakerSizes, tensors: Mapping[str, Tensor], *, device: str = "cpu"
    ) -> None:
        self._sizes = sizes
        self._device = torch.device(device)
        self._weights = {name: t.to(self._device, torch.float32) for name, t in tensors.items()}
        self._filters = mel_filters(sizes.mel_dim).to(self._device)
        self._window = torch.hann_window(_FFT, device=self._device)
        digest = hashlib.sha256()
        for name in sorted(tensors):
            digest.update(name.encode())
            digest.update(tensors[name].float().contiguous().numpy().tobytes())
        self.fingerprint = digest.hexdigest()[:32]

    @torch.inference_mode()
    def encode(self, samples: Samples) -> SpeakerVector:
        """See ``codec.family.SpeakerEncoder``; clips are at 24 kHz."""
        check_clip(samples)
        least = _HOP * (self._sizes.reach + 1)
        if len(samples) < max(least, _FFT):
            raise ClipError("the clip is too short to tell a speaker")
        spectra = self.spectra(torch.from_numpy(samples).to(self._device, torch.float32))
        vector: SpeakerVector = self.vector(spectra).cpu().numpy()
        return vector

    def spectra(self, samples: Tensor) -> Tensor:
        """``[n]`` -> ``[1, mels, T]``: natural logarithms of magnitudes, a spectrum every 256
        samples, of the 1,024 around these.
        """
        pad = (_FFT - _HOP) // 2
        padded = F.pad(samples[None], (pad, pad), mode="reflect")
        spectrum = torch.stft(
            padded, _FFT, _HOP, window=self._window, center=False, return_complex=True
        )
        power = torch.view_as_real(spectrum).square().sum(-1)
        return (self._filters @ (power + _LEAST_POWER).sqrt()).clamp(min=_LEAST_SIZE).log()

    def vector(self, x: Tensor) -> Tensor:
        """``[1, mels, T]`` -> ``[D]``."""
        x = F.relu(self._conv("blocks.0.conv", x))
        outputs = []
        for block in self._sizes.blocks:
            x = self._block(f"blocks.{block}", x, self._sizes.enc_dilations[block])
            outputs.append(x)
        x = F.relu(self._conv("mfa.conv", torch.cat(outputs, 1), self._sizes.enc_dilations[-1]))
        evenly = torch.full_like(x, 1 / x.shape[2])
        whole = [moment.expand_as(x) for moment in _moments(x, evenly)]
        # the rectified layer is followed by a tanh too, as in the published implementation
        scores = torch.tanh(F.relu(self._conv("asp.tdnn.conv", torch.cat([x, *whole], 1))))
        weights = self._conv("asp.conv", scores).softmax(2)
        pooled = torch.cat(_moments(x, weights), 1)
        return self._conv("fc", pooled)[0, :, 0]

    def _block(self, at: str, x: Tensor, dilation: int) -> Tensor:
        """A Res2Net block: each piece of the channels but the first two also takes the one before,
        and the first is left as it is.
        """
        y = F.relu(self._conv(f"{at}.tdnn1.conv", x))
        pieces = list(y.chunk(self._sizes.enc_res2net_scale, 1))
        for index in range(1, len(pieces)):
            piece = pieces[index] + pieces[index - 1] if index > 1 else pieces[index]
            name = f"{at}.res2net_block.blocks.{index - 1}.conv"
            pieces[index] = F.relu(self._conv(name, piece, dilation))
        y = F.relu(self._conv(f"{at}.tdnn2.conv", torch.cat(pieces, 1)))
        gate = F.relu(self._conv(f"{at}.se_block.conv1", y.mean(2, keepdim=True)))
        return x + y * torch.sigmoid(self._conv(f"{at}.se_block.conv2", gate))

    def _conv(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        """A convolution that keeps the length, with reflections at both sides."""
        weight = self._weights[f"{PREFIX}.{name}.weight"]
        reach = (weight.shape[2] - 1) * dilation
        if reach:
            x = F.pad(x, (reach // 2, reach - reach // 2), mode="reflect")
        return F.conv1d(x, weight, self._weights[f"{PREFIX}.{name}.bias"], dilation=dilation)


def mel_filters(mels: int) -> Tensor:
    """Return triangles ``[mels, bins]`` on Slaney's mel scale up to half the sample rate, each of
    unit area in Hz.
    """
    bins = np.linspace(0, _RATE / 2, _FFT // 2 + 1)
    knee = _KNEE_HZ / _MEL_HZ
    top = knee + np.log(_RATE / 2 / _KNEE_HZ) / _LOG_STEP
    marks = np.linspace(0, top, mels + 2)
    hertz = np.where(marks < knee, marks * _MEL_HZ, _KNEE_HZ * np.exp(_LOG_STEP * (marks - knee)))
    low, middle, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    rise, fall = (bins - low) / (middle - low), (high - bins) / (high - middle)
    triangles = np.maximum(0, np.minimum(rise, fall)) * 2 / (high - low)
    return torch.from_numpy(triangles.astype(np.float32))


def _moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and deviation over time, ``[1, C, 1]`` each."""
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(2, keepdim=True)
    return mean, variance.clamp(min=_LEAST_VARIANCE).sqrt()
