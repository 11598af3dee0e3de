"""Resampling: samples at another rate than the codec's."""

from __future__ import annotations

import numpy as np
import soxr

from streaming.spec import Samples

_QUALITY = "HQ"
#: By how many output samples soxr's variable-rate filter is late where the rate goes down
#: (measured: 1.6 to 1.7), and zeros, in seconds, that push its tail out.
_LATE_SAMPLES, _TAIL_S = 2, 0.002


class Resampler:
    """One stream of samples to another rate: what comes out piecewise is what one call gives,
    ``ceil(samples * to_rate / from_rate)`` in all.

    soxr's variable-rate engine is used, at a fixed rate, for its delay: a constant 10 ms, or
    25 ms to 8 kHz. The fixed-rate engine works in blocks and holds back up to 38 or 73 ms,
    now more and now less, which a listener would hear as a gap after the first chunk.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream = soxr.ResampleStream(
            from_rate, to_rate, 1, dtype="float32", quality=_QUALITY, vr=True
        )
        self._from_rate, self._to_rate = from_rate, to_rate
        self._tail = np.zeros(round(from_rate * _TAIL_S), np.float32)
        self._begin()

    def _begin(self) -> None:
        self._late = _LATE_SAMPLES if self._to_rate < self._from_rate else 0
        self._taken = self._given = 0

    def push(self, samples: Samples) -> Samples:
        """Take samples; return those of the new rate that are settled."""
        self._taken += len(samples)
        return self._give(self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32)))

    def finish(self) -> Samples:
        """Return the tail and begin anew."""
        missing = -(-self._taken * self._to_rate // self._from_rate) - self._given
        tail = self._give(self._stream.resample_chunk(self._tail, last=True))[:missing]
        self._stream.clear()
        self._begin()
        return tail

    def _give(self, samples: Samples) -> Samples:
        late = min(self._late, len(samples))
        self._late -= late
        self._given += len(samples) - late
        return samples[late:]
