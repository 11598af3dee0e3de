"""Any encoder at another rate than the codec's."""

from __future__ import annotations

import numpy as np
import soxr

from service.audio.packet import AudioEncoder, Packet
from streaming.spec import Samples

_QUALITY = "HQ"


class Resampler:
    """One stream of samples to another rate: what comes out piecewise is what one call gives."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality=_QUALITY)

    def push(self, samples: Samples) -> Samples:
        """Take samples; return those of the new rate that are settled."""
        out: Samples = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32))
        return out

    def finish(self) -> Samples:
        """Return the tail and begin anew."""
        tail: Samples = self._stream.resample_chunk(np.empty(0, np.float32), last=True)
        self._stream.clear()
        return tail


class ResamplingEncoder:
    """Resamples in front of ``encoder``, whose ``sample_rate`` is the target."""

    def __init__(self, encoder: AudioEncoder, from_rate: int) -> None:
        self._encoder, self.inline = encoder, encoder.inline
        self.sample_rate, self.delay_samples = encoder.sample_rate, encoder.delay_samples
        self._resampler = Resampler(from_rate, encoder.sample_rate)

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder; ``samples`` are at the codec's rate."""
        return self._encoder.encode(self._resampler.push(samples)) if len(samples) else []

    def flush(self) -> list[Packet]:
        """See AudioEncoder."""
        packets = self._encoder.encode(self._resampler.finish())
        return packets + self._encoder.flush()
