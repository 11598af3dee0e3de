"""Effect of too little lookahead on the seams between chunks.

The codes of whole utterances are decoded once whole and once in chunks. The difference is given as
a signal-to-noise ratio, over all samples and for the worst chunk that is not near silence. With
incomplete frames the lookahead has only the codes that the talker has generated when the chunk's
last frame is complete, so it causes no extra delay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from streaming.ports import CodecDecoder
from streaming.spec import UNKNOWN, CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

#: Codes of eight sentences by the embedded talker.
SPEECH = Path(__file__).parents[2] / "tests" / "codec" / "data" / "speech_codes.npz"
LOOKAHEADS = (0, 1, 2, 3, 4, 6, 8, 10)
#: Chunks below this power (of full scale) are ignored as silence in the worst chunk.
SILENCE_POWER = 1e-4


@dataclass(frozen=True)
class Seam:
    """Signal-to-noise ratio of streamed against whole decoding in dB; infinite if equal."""

    lookahead: int
    snr_db: float
    worst_chunk_db: float
    incomplete: bool = False


def measure(
    decoder: CodecDecoder,
    utterances: Sequence[Codes],
    left: int,
    chunk: int,
    lookaheads: Sequence[int] = LOOKAHEADS,
    *,
    incomplete: bool = False,
) -> list[Seam]:
    """Compare streamed with whole decoding at each of ``lookaheads``, of complete frames or not."""
    wholes = decoder.decode(utterances)
    seams = []
    for lookahead in lookaheads:
        signal, noise, worst = 0.0, 0.0, math.inf
        for codes, whole in zip(utterances, wholes, strict=True):
            for window in windows(codes, left, chunk, lookahead):
                start = window.first_frame * decoder.spec.hop_length
                seen = _begun(window, decoder.spec) if incomplete else window
                (got,) = decoder.decode_windows([seen])
                wanted = whole[start : start + len(got)]
                power, error = _energy(wanted), _energy(got - wanted)
                signal, noise = signal + power, noise + error
                if power / len(got) > SILENCE_POWER:
                    worst = min(worst, _ratio_db(power, error))
        seams.append(Seam(lookahead, _ratio_db(signal, noise), worst, incomplete))
    return seams


def windows(codes: Codes, left: int, chunk: int, lookahead: int) -> Iterator[DecodeWindow]:
    """Cut ``[K, T]`` into the windows of a stream with chunks of one size."""
    total = codes.shape[1]
    for first in range(0, total, chunk):
        last = min(total, first + chunk)
        start, stop = max(0, first - left), min(total, last + lookahead)
        yield DecodeWindow(codes[:, start:stop], first - start, last - first, stop - last, first)


def _begun(window: DecodeWindow, spec: CodecSpec) -> DecodeWindow:
    """Keep the lookahead's codes that exist with the last new frame: one less per frame."""
    codes = window.codes.copy()
    for ahead in range(window.lookahead):
        known = max(0, spec.delay_rows - ahead)
        at = window.left_context + window.new_frames + ahead
        codes[known : spec.delay_rows + 1, at] = UNKNOWN
    return replace(window, codes=codes)


def _energy(samples: Samples) -> float:
    return float((samples.astype(np.float64) ** 2).sum())


def _ratio_db(signal: float, noise: float) -> float:
    return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-30) / noise)
