"""Test signals, and measures of decoded audio."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from service.audio.encoder import AudioEncoder, Packet
from service.audio.filters import TimeStretch
from streaming.spec import Samples

RATE = 24_000


def voice(samples: int, rate: int = RATE) -> Samples:
    """Make a voice-like signal: a gliding harmonic tone in syllables, over faint noise."""
    time_s = np.arange(samples) / rate
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 1.3 * time_s)) / rate
    top = min(25, rate // 2 // 150)
    tone = sum((np.sin(k * phase) / k for k in range(1, top)), np.zeros(samples))
    tone *= 0.15 * (0.5 + 0.5 * np.sin(2 * np.pi * 3 * time_s)) ** 2
    noise = 0.001 * np.random.default_rng(1).standard_normal(samples)
    return (tone + noise).astype(np.float32)


def run(encoder: AudioEncoder, samples: Samples, pieces: Sequence[int] = ()) -> list[Packet]:
    """Encode ``samples`` in pieces of these lengths, then the rest, and flush."""
    packets = [p for piece in np.split(samples, np.cumsum(pieces)) for p in encoder.encode(piece)]
    return packets + encoder.flush()


def joined(packets: list[Packet]) -> bytes:
    return b"".join(packet.data for packet in packets)


def decoded_file(data: bytes) -> tuple[Samples, int]:
    """Decode a whole file with ffmpeg's own decoders; return its samples and their rate."""
    with av.open(io.BytesIO(data), "r") as file:
        frames = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
        rate = file.streams.audio[0].rate
    whole: npt.NDArray[Any] = np.concatenate(frames) if frames else np.empty(0, np.float32)
    scale = 32768 if whole.dtype == np.int16 else 1
    return (whole / np.float32(scale)).astype(np.float32), int(rate)


def snr_db(wanted: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    """Return the ratio of signal to difference in dB, aligned at the first samples."""
    count = min(len(wanted), len(got))
    wanted, got = wanted[:count].astype(np.float64), got[:count].astype(np.float64)
    return float(10 * np.log10((wanted**2).sum() / ((wanted - got) ** 2).sum()))


def lag(wanted: Samples, got: Samples) -> int:
    """Return by how many samples ``got`` is later, by cross-correlation."""
    size = len(wanted) + len(got)
    spectrum = np.fft.rfft(got, size) * np.fft.rfft(wanted, size).conj()
    peak = int(np.argmax(np.fft.irfft(spectrum, size)))
    return peak if peak < len(got) else peak - size


def upsampled(speech: Samples, scale: int) -> Samples:
    """Upsample by ``scale`` through the spectrum, without the service's resampler."""
    count = len(speech) * scale
    spectrum = np.zeros(count // 2 + 1, complex)
    short = np.fft.rfft(speech)
    spectrum[: len(short)] = short * scale
    return np.fft.irfft(spectrum, count).astype(np.float32)


def spectrum_error_db(wanted: Samples, got: Samples, rate: int, below_hz: float) -> float:
    """Return the relative error of magnitudes below a frequency, in dB; phase is ignored."""
    count = min(len(wanted), len(got))
    band = np.fft.rfftfreq(count, 1 / rate) < below_hz
    wanted, got = (np.abs(np.fft.rfft(one[:count]))[band] for one in (wanted, got))
    return float(20 * np.log10(np.linalg.norm(wanted - got) / np.linalg.norm(wanted)))


def stretched(samples: Samples, speed: float, rate: int = RATE) -> Samples:
    stretch = TimeStretch(rate, speed)
    return np.concatenate([stretch.push(samples), stretch.finish()])


def pitch_hz(samples: Samples) -> float:
    """Return the median fundamental of the voiced parts, by autocorrelation."""
    size, found = 2048, []
    for at in range(0, len(samples) - size, size // 4):
        part = samples[at : at + size] * np.hanning(size)
        if np.sqrt((part**2).mean()) > 0.02:
            likeness = np.fft.irfft(np.abs(np.fft.rfft(part, 4 * size)) ** 2)
            low, high = RATE // 400, RATE // 60
            found.append(RATE / (low + int(np.argmax(likeness[low:high]))))
    return float(np.median(found))
