"""The kernels that oneDNN makes for each shape of windows on a CPU, and keeps for a while."""

from __future__ import annotations

import os

import numpy as np

from codec.graphs import GraphDecoder
from streaming.ports import CodecDecoder
from streaming.window import DecodeWindow

#: Kernels that are kept: a shape of windows needs about twenty.
_KERNELS = 4096
#: Windows that are decoded once before anybody asks: first ones, and later ones. Lookaheads and
#: the largest chunk are the default settings'.
_FIRST_FRAMES, _FIRST_LOOKAHEADS = 8, (2, 4)
_LARGEST_FRAMES, _LOOKAHEAD = 50, 4


def keep_kernels() -> None:
    """Let oneDNN keep the kernels of some 200 shapes of windows, about 600 MiB when all are used
    (1024 of them: 170 MiB; measured with the embedded codec and shapes at random).

    It makes kernels for each shape, which takes longer than a short window's decoding, and
    keeps 1024 by default: those of 50 shapes, fewer than a stream has. The variable is oneDNN's
    own and is read with the first convolution; what the operator has set wins.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNELS))


def meet_first_windows(decoder: CodecDecoder) -> None:
    """Decode the shapes with which utterances begin: nobody should wait while their kernels are
    made. Graphs have been recorded already.
    """
    if isinstance(decoder, GraphDecoder):
        return
    for new in range(1, _FIRST_FRAMES + 1):
        for lookahead in _FIRST_LOOKAHEADS:
            decoder.decode_windows([_window(decoder, 0, new, lookahead)])


def later_windows(decoder: CodecDecoder) -> list[DecodeWindow]:
    """The shapes with which they go on, for a worker to decode once while it has nothing to do."""
    if isinstance(decoder, GraphDecoder):
        return []
    left = decoder.spec.receptive_field_frames
    return [_window(decoder, left, new, _LOOKAHEAD) for new in range(1, _LARGEST_FRAMES + 1)]


def _window(decoder: CodecDecoder, left: int, new: int, lookahead: int) -> DecodeWindow:
    codes = np.zeros((decoder.spec.num_codebooks, left + new + lookahead), np.int16)
    return DecodeWindow(codes, left, new, lookahead)
