"""Which range of which layer a chunk's samples depend on: pure integer arithmetic.

Decoding a whole window to keep its middle wastes most of the work, since only the first
layers see as far as the contexts reach. Every layer's output is therefore computed on a
range ``[lo, hi)`` only. Ranges are found from the end: the samples wanted, then for each
layer the inputs that those outputs read, clipped to the window::

    frames   |<---- left ---->|== new ==|<- lookahead ->|      rate 1
    conv7        [...........................]                 rate 1
    up x8                [...............]                     rate 8
    ...                        [....]                          rate 960, about the chunk

Positions count from the window's first frame, at each layer's own rate (positions per
frame). Where a range is clipped the layer pads its input with zeros, just as it does at the
edge of a whole sequence. So a plan is a function of three numbers, and decoding by it equals
decoding the window and trimming.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

#: The DAC decoder: kernels of 7, residual units with these dilations after each upsampling.
KERNEL = 7
DILATIONS = (1, 3, 9)


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution in time. ``rate`` is input positions per frame.

    With ``stride`` 1, output ``o`` reads inputs ``o - reach .. o + reach``. Else it is a
    transposed convolution of kernel ``2 * stride`` whose first ``reach`` outputs are cut
    off: output ``o`` reads inputs ``q - 1`` and ``q`` for ``q = (o + reach) // stride``.
    """

    rate: int
    reach: int
    stride: int = 1

    def reads(self, lo: int, hi: int) -> tuple[int, int]:
        """The range of inputs that outputs ``[lo, hi)`` read, edges ignored."""
        if self.stride == 1:
            return lo - self.reach, hi + self.reach
        return (lo + self.reach) // self.stride - 1, (hi - 1 + self.reach) // self.stride + 1


@dataclass(frozen=True, slots=True)
class Step:
    """How one layer runs: pad its input with zeros, convolve, keep ``length`` outputs.

    ``skip`` counts from the start of the *unpadded* input for a convolution (where the
    residual path begins), and of the raw output for an upsampling (what is cut off).
    """

    pad_left: int
    pad_right: int
    skip: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Frames ``[first_frame, end_frame)`` of the window go in, the chunk's samples come out.

    ``firsts`` are the positions, one for each step, where its input begins.
    """

    first_frame: int
    end_frame: int
    steps: tuple[Step, ...]
    firsts: tuple[int, ...]


def architecture(ratios: tuple[int, ...]) -> tuple[Layer, ...]:
    """The DAC decoder's layers in order; a residual unit counts as its dilated convolution.

    Upsampling by ``s`` cuts ``ceil(s / 2)`` outputs at the left, so that T positions become
    exactly ``T * s``.
    """
    layers = [Layer(1, KERNEL // 2)]
    rate = 1
    for ratio in ratios:
        layers.append(Layer(rate, (ratio + 1) // 2, ratio))
        rate *= ratio
        layers.extend(Layer(rate, KERNEL // 2 * dilation) for dilation in DILATIONS)
    layers.append(Layer(rate, KERNEL // 2))
    return tuple(layers)


def receptive_field(layers: tuple[Layer, ...]) -> int:
    """How many whole frames on either side of a frame can change its samples."""
    lo, hi = 0, layers[-1].rate * layers[-1].stride
    for layer in reversed(layers):
        lo, hi = layer.reads(lo, hi)
    return max(-lo, hi - 1)


@lru_cache(maxsize=4096)
def plan(layers: tuple[Layer, ...], left: int, new: int, lookahead: int) -> Plan:
    """Plan the decoding of ``new`` frames between two contexts, all counted in frames."""
    frames = left + new + lookahead
    hop = layers[-1].rate * layers[-1].stride
    lo, hi = left * hop, (left + new) * hop
    steps, firsts = [], []
    for layer in reversed(layers):
        want_lo, want_hi = layer.reads(lo, hi)
        have_lo, have_hi = max(0, want_lo), min(want_hi, frames * layer.rate)
        skip = lo - have_lo
        if layer.stride > 1:
            skip = lo + layer.reach - (want_lo + 1) * layer.stride
        steps.append(Step(have_lo - want_lo, want_hi - have_hi, skip, hi - lo))
        lo, hi = have_lo, have_hi
        firsts.append(lo)
    return Plan(lo, hi, tuple(reversed(steps)), tuple(reversed(firsts)))
