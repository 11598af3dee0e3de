"""Ranges of each layer that a chunk's samples depend on: pure integer arithmetic.

Decoding a whole window to keep its middle wastes most of the work, since only the first layers see
as far as the contexts reach. So every layer's output is computed only on a range ``[lo, hi)``.
Ranges are found from the end: first the wanted samples, then for each layer the inputs that those
outputs read, clipped to the window::

    frames   |<---- left ---->|== new ==|<- lookahead ->|      rate 1
    conv7        [...........................]                 rate 1
    up x8                [...............]                     rate 8
    ...                        [....]                          rate 960, about the chunk

Positions count from the window's first frame, at each layer's own rate (positions per frame). Where
a range is clipped, the layer pads its input with zeros, just as at the edge of a whole sequence. So
a plan is a function of three numbers, and decoding by it equals decoding the window and trimming.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

#: The DAC decoder: kernels of size 7, and residual units with these dilations after each
#: upsampling.
KERNEL = 7
DILATIONS = (1, 3, 9)


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution in time. ``rate``: input positions per frame.

    With ``stride`` 1, output ``o`` reads inputs ``o - left .. o + right``. Otherwise it is a
    transposed convolution whose first ``cut`` outputs are cut off: output ``o`` reads inputs
    ``q - left .. q + right`` for ``q = (o + cut) // stride``. A kernel of ``2 * stride`` has a
    ``left`` of 1.
    """

    rate: int
    left: int
    right: int
    stride: int = 1
    cut: int = 0

    def reads(self, lo: int, hi: int) -> tuple[int, int]:
        """Return the range of inputs that outputs ``[lo, hi)`` read, without regard to edges."""
        first, last = (lo + self.cut) // self.stride, (hi - 1 + self.cut) // self.stride
        return first - self.left, last + self.right + 1


@dataclass(frozen=True, slots=True)
class Step:
    """The computation of one layer: pad its input with zeros, convolve, keep ``length`` outputs.

    ``skip`` counts from the start of the *unpadded* input for a convolution (where the residual
    path begins), and of the raw output for an upsampling (the part that is cut off).
    """

    pad_left: int
    pad_right: int
    skip: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The computation of a chunk's samples from frames ``[first_frame, end_frame)`` of the window.

    ``firsts``: for each step, the position where its input begins.
    """

    first_frame: int
    end_frame: int
    steps: tuple[Step, ...]
    firsts: tuple[int, ...]


def architecture(ratios: tuple[int, ...]) -> tuple[Layer, ...]:
    """Return the DAC decoder's layers in order; a residual unit counts as its dilated convolution.

    Upsampling by ``s`` cuts ``ceil(s / 2)`` outputs at the left, so that T positions become exactly
    ``T * s``.
    """
    half = KERNEL // 2
    layers = [Layer(1, half, half)]
    rate = 1
    for ratio in ratios:
        layers.append(Layer(rate, 1, 0, ratio, (ratio + 1) // 2))
        rate *= ratio
        layers.extend(Layer(rate, half * dilation, half * dilation) for dilation in DILATIONS)
    layers.append(Layer(rate, half, half))
    return tuple(layers)


def causal_architecture(upsample: tuple[int, ...], rates: tuple[int, ...]) -> tuple[Layer, ...]:
    """Return the layers of a causal decoder in order: for each of ``upsample`` an upsampling and a
    ConvNeXt block, then a DAC decoder with these ``rates``.
    """
    layers = []
    rate = 1
    for stride in upsample:
        layers.append(Layer(rate, 0, 0, stride))
        rate *= stride
        layers.append(Layer(rate, KERNEL - 1, 0))
    layers.append(Layer(rate, KERNEL - 1, 0))
    for stride in rates:
        layers.append(Layer(rate, 1, 0, stride))
        rate *= stride
        layers.extend(Layer(rate, (KERNEL - 1) * dilation, 0) for dilation in DILATIONS)
    layers.append(Layer(rate, KERNEL - 1, 0))
    return tuple(layers)


def without_lookahead(layer: Layer, zero_taps: int) -> Layer:
    """Return the layer with less lookahead, for a kernel with ``zero_taps`` zero taps ahead.

    A convolution looks that many taps less far ahead. A transposed one looks ahead only with its
    first ``cut`` taps. If all of these are zero, its outputs begin with their own input and nothing
    has to be cut off; otherwise it stays as it is. The last outputs of an input then no longer read
    the one before. This is not counted, so the receptive field may come out one frame too long.
    """
    if layer.stride == 1:
        dilation = layer.left // (KERNEL // 2)
        return replace(layer, right=layer.right - dilation * min(zero_taps, KERNEL // 2))
    return replace(layer, cut=0) if zero_taps >= layer.cut else layer


def receptive_field(layers: tuple[Layer, ...]) -> tuple[int, int]:
    """Return the numbers of whole frames before and after a frame that can change its samples."""
    lo, hi = 0, layers[-1].rate * layers[-1].stride
    for layer in reversed(layers):
        lo, hi = layer.reads(lo, hi)
    return -lo, hi - 1


@lru_cache(maxsize=4096)
def plan(layers: tuple[Layer, ...], left: int, new: int, lookahead: int) -> Plan:
    """Plan the decoding of ``new`` frames between two contexts, all counted in frames."""
    frames = left + new + lookahead
    hop = layers[-1].rate * layers[-1].stride
    lo, hi = left * hop, (left + new) * hop
    steps = []
    firsts = []
    for layer in reversed(layers):
        want_lo, want_hi = layer.reads(lo, hi)
        have_lo, have_hi = max(0, want_lo), min(want_hi, frames * layer.rate)
        skip = lo - have_lo
        if layer.stride > 1:
            skip = lo + layer.cut - (want_lo + layer.left) * layer.stride
        steps.append(Step(have_lo - want_lo, want_hi - have_hi, skip, hi - lo))
        lo, hi = have_lo, have_hi
        firsts.append(lo)
    return Plan(lo, hi, tuple(reversed(steps)), tuple(reversed(firsts)))
