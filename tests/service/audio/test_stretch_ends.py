"""Stretched speech ends where the speech does."""

from __future__ import annotations

import numpy as np
import pytest

from service.audio.stretch import TimeStretch
from streaming.spec import Samples

RATE = 24_000
#: Not a whole piece.
TAIL = 239


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.5, 3.0])
def test_stretching_keeps_the_last_samples(speed: float) -> None:
    tone = np.sin(np.arange(RATE + TAIL) * 0.05).astype(np.float32)
    hushed = tone.copy()
    hushed[RATE:] = 0.0

    def end(samples: Samples) -> Samples:
        stretch = TimeStretch(RATE, speed)
        heard = np.concatenate([stretch.push(samples), stretch.finish()])
        return heard[-round(200 / speed) :]

    assert np.abs(end(tone) - end(hushed)).max() > 0.05
