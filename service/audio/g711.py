"""G.711: 16-bit samples to one byte each, by look-up in a table of all 65536.

The decision values are those of the recommendation: a sample takes the nearest output level,
and the louder one where it lies half-way. Negative samples mirror positive ones but for the
truncation to 14 bits, which comes first, as in other implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from service.audio.pcm import to_s16
from streaming.spec import Samples

_Ints = npt.NDArray[np.int64]
_SIGN, _MU_MASK, _A_MASK = 0x80, 0xFF, 0xD5
_MU_BIAS = 0x84


def _mu_levels(codes: _Ints) -> _Ints:
    """Output levels of the mu-law magnitudes 0..127, as 16-bit samples."""
    exponent, mantissa = codes >> 4, codes & 15
    return (((mantissa << 3) + _MU_BIAS) << exponent) - _MU_BIAS


def _a_levels(codes: _Ints) -> _Ints:
    """Output levels of the A-law magnitudes 0..127, as 16-bit samples."""
    exponent, mantissa = codes >> 4, codes & 15
    linear = (mantissa << 4) + 8
    return np.where(exponent == 0, linear, (linear + 0x100) << np.maximum(exponent - 1, 0))


def _table(levels: Callable[[_Ints], _Ints], mask: int) -> npt.NDArray[np.uint8]:
    """[65536] bytes, indexed by a sample as u16. A positive sample's code is its magnitude
    XOR ``mask``; a negative one's has the sign bit turned as well.
    """
    outputs = levels(np.arange(128))
    decisions = (outputs[:-1] + outputs[1:] + 4) >> 3  # 14-bit magnitudes
    linear = np.arange(65536).astype(np.uint16).view(np.int16).astype(np.int64) >> 2
    magnitude = np.searchsorted(decisions, np.abs(linear), side="right")
    signed = np.where(linear < 0, magnitude | _SIGN, magnitude)
    table: npt.NDArray[np.uint8] = (signed ^ mask).astype(np.uint8)
    return table


@cache
def mulaw_table() -> npt.NDArray[np.uint8]:
    """[65536] mu-law bytes, indexed by the sample as u16."""
    return _table(_mu_levels, _MU_MASK)


@cache
def alaw_table() -> npt.NDArray[np.uint8]:
    """[65536] A-law bytes, indexed by the sample as u16."""
    return _table(_a_levels, _A_MASK)


def pack_mulaw(samples: Samples) -> bytes:
    """One mu-law byte per sample."""
    return mulaw_table()[to_s16(samples).view(np.uint16)].tobytes()


def pack_alaw(samples: Samples) -> bytes:
    """One A-law byte per sample."""
    return alaw_table()[to_s16(samples).view(np.uint16)].tobytes()
