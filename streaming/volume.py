"""The volume of samples."""

from __future__ import annotations

import numpy as np

from streaming.spec import Samples

#: Level above which louder samples are limited, so that they stay within [-1, 1] and do not click.
_KNEE = 0.7


def at_volume(samples: Samples, factor: float) -> Samples:
    """Return samples at ``factor`` times their amplitude, softly limited if they become louder.
    Each sample's result depends on it alone, so it does not matter how the audio is divided.
    """
    if factor == 1.0:
        return samples
    louder = samples * np.float32(factor)
    if factor < 1.0:
        return louder
    level = np.abs(louder)
    room = np.float32(1.0 - _KNEE)
    limited = _KNEE + room * np.tanh((level - _KNEE) / room)
    return np.where(level > _KNEE, np.copysign(limited, louder), louder).astype(np.float32)
