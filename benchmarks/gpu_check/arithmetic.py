"""The minimum and the expected cost of a step.

A step of the talker reads every weight and the KV cache of its streams once; the rest are small
kernels and launches. The milliseconds were measured on an H200 (``results/gpu_h200.json``), the
bandwidths come from published measurements: if a GPU disagrees, correct them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds of a frame of the family's codecs, in which each stream needs a step.
FRAME_S = 0.04
#: Bytes per second of large reads, by the driver's name of the GPU.
_BANDWIDTHS = {"H100": 3.0e12, "H200": 4.3e12, "A100": 1.7e12, "L40S": 0.75e12, "L4": 0.26e12}
#: Milliseconds of a step inside the graph, beside its reads at full bandwidth: 0.64 of them because
#: products with a vector reach 72 % of the bandwidth, the rest in small kernels.
GRAPH_MS = 1.5
#: Milliseconds of a step outside of the graph: the sampler and the embeddings as Triton kernels.
KERNELS_MS = 0.08
#: The same in PyTorch.
TORCH_FORM_MS = 1.05
#: The codec's share of the same GPU's time at sixteen streams, in float32 and chunks of 25 frames.
CODEC_SHARE = 0.02
#: Positions of a request in the computed step.
_POSITIONS = 300


@dataclass(frozen=True, slots=True)
class Model:
    """The part of a talker's shape that determines a step's cost."""

    #: Size of the hidden state.
    hidden: int
    #: Size of the hidden state within the MLP.
    inner: int
    #: Number of blocks.
    layers: int
    #: Number of attention heads.
    heads: int
    #: Number of heads for keys and values.
    kv_heads: int
    #: Size of a head.
    head_dim: int
    #: Rows of the text embedding.
    text_rows: int
    #: Number of codebooks.
    books: int = 8
    #: Codes of a codebook, special ones included.
    codebook_rows: int = 1026
    #: Bytes per weight.
    width: int = 2

    @property
    def layer_weights(self) -> int:
        """Number of weights in the linear layers of one block."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.inner

    @property
    def step_bytes(self) -> int:
        """Bytes read in each step, whatever the batch: all layers and the head of codes. Of the
        text embedding a step reads only single rows.
        """
        head = self.books * self.codebook_rows * self.hidden
        return self.width * (self.layers * self.layer_weights + head)

    @property
    def position_bytes(self) -> int:
        """Bytes of the KV cache per position."""
        return 2 * self.width * self.layers * self.kv_heads * self.head_dim


#: The published 4B talker.
FULL = Model(2560, 9728, 36, 32, 8, 128, 151_936)
#: For machines without a GPU.
SMALL = Model(64, 128, 3, 4, 2, 32, 64, width=4)


@dataclass(frozen=True, slots=True)
class Range:
    """At least ``floor``, and about ``expected``; None if unknown."""

    floor: float | None = None
    expected: float | None = None


def bandwidth(name: str) -> float | None:
    """Return the bytes per second of a GPU by its name; None if it is not listed."""
    words = name.replace("-", " ").split()
    return next((_BANDWIDTHS[word] for word in words if word in _BANDWIDTHS), None)


def step_ms(
    model: Model,
    streams: int,
    bytes_per_s: float | None,
    *,
    kernels: bool = True,
    eight_bits: bool = False,
) -> Range:
    """Milliseconds of one step of ``streams`` requests, without a codec on the same GPU."""
    if bytes_per_s is None:
        return Range()
    weights = model.step_bytes / (2 if eight_bits else 1)
    read = weights + streams * _POSITIONS * model.position_bytes
    floor = 1000 * read / bytes_per_s
    outside = KERNELS_MS if kernels else TORCH_FORM_MS
    return Range(floor, floor + GRAPH_MS + outside)


def rtf(step: Range) -> Range:
    """Convert a step's milliseconds to a stream's seconds of computing per second of audio."""

    def scaled(ms: float | None) -> float | None:
        return None if ms is None else ms / (1000 * FRAME_S)

    return Range(scaled(step.floor), scaled(step.expected))
