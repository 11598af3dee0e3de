"""What a step must cost at least, and what it is expected to cost.

A step of the talker reads every weight and the KV cache of its streams once; the rest are small
kernels and launches. The constants were counted from the code and from published measurements of
the GPUs, not measured with this code: where a GPU disagrees with them, they are to be corrected.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A frame of the family's codecs, in seconds: a stream needs a step in this time.
FRAME_S = 0.04
#: Bytes per second that large reads reach, by what the driver calls the GPU.
_BANDWIDTHS = {"H100": 3.0e12, "H200": 4.3e12, "A100": 1.7e12, "L40S": 0.75e12, "L4": 0.26e12}
#: Milliseconds of a step beside its reads: small kernels inside the graph, and outside of it the
#: sampler and the embeddings as Triton kernels or in PyTorch.
GRAPH_MS, KERNELS_MS, TORCH_FORM_MS = 0.45, 0.05, 0.27
#: What the codec on the same GPU takes of its time at sixteen streams, in float32.
CODEC_SHARE = 0.10
#: Positions of a request whose step is counted.
_POSITIONS = 300


@dataclass(frozen=True, slots=True)
class Model:
    """As much of a talker's shape as a step's cost depends on; bytes per number in ``width``."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    text_rows: int
    books: int = 8
    codebook_rows: int = 1026
    width: int = 2

    @property
    def layer_weights(self) -> int:
        """Numbers in the linear layers of one block."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.inner

    @property
    def step_bytes(self) -> int:
        """Read in each step whatever the batch: all layers and the head of codes. Of the text
        embedding a step reads single rows.
        """
        head = self.books * self.codebook_rows * self.hidden
        return self.width * (self.layers * self.layer_weights + head)

    @property
    def position_bytes(self) -> int:
        """The KV cache of one position."""
        return 2 * self.width * self.layers * self.kv_heads * self.head_dim


#: The published 4B talker.
FULL = Model(2560, 9728, 36, 32, 8, 128, 151_936)
#: For machines without a GPU.
SMALL = Model(64, 128, 3, 4, 2, 32, 64, width=4)


@dataclass(frozen=True, slots=True)
class Range:
    """At least ``floor``, and about ``expected``; None where nothing is known."""

    floor: float | None = None
    expected: float | None = None


def bandwidth(name: str) -> float | None:
    """Bytes per second of a GPU by its name; None for one that is not listed."""
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
    """A stream's seconds of computing per second of audio, from a step's milliseconds."""

    def scaled(ms: float | None) -> float | None:
        return None if ms is None else ms / (1000 * FRAME_S)

    return Range(scaled(step.floor), scaled(step.expected))
