"""Find the alignment heads of a checkpoint: ``python -m benchmarks.alignment CHECKPOINT``.

Its engine speaks some sentences. A plain float32 talker, which takes four bytes a parameter of
memory, reads them again. Heads are chosen that follow the text and keep time with the clock (see
``scores``). The result goes to the user's cache, where the server finds it, or to ``--out``. It is
written also if it cannot be trusted; the server then says why there are no word timings.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmarks.alignment.reading import (
    PlainTalker,
    Utterance,
    Weights,
    attention,
    plain_talker,
    speak,
)
from benchmarks.alignment.scores import Floats, apart, clock, margins, shifted
from talker.alignment import NEAR, AlignmentHead, Calibration, cached_calibration, fingerprint
from talker.checkpoint import Checkpoint, open_checkpoint
from talker.settings import TalkerSettings

#: Texts of 3 to 15 words; three suffice nearly, ten are safe.
SENTENCES = (
    "The old red bus stopped in front of the library.",
    "Could you show me how the small machine works, please?",
    "Nine green bottles arrived yesterday from the factory.",
    "We followed the river until it disappeared between the hills.",
    "She never told anybody about the letter under the door.",
    "After breakfast, they washed the dishes and listened to the radio.",
    "My neighbour sells honey, candles and bread on the market.",
    "It snows again.",
    "Put the heavy boxes on the floor, and then close the window behind you.",
    "Nothing grew in the dry garden except a few yellow flowers.",
)
SEEDS = (1, 2)
#: Heads that are compared with the clock, and the least margin of one.
_CANDIDATES, _LEAST_MARGIN = 8, 0.2
#: Shifts and breadths of the peak that are tried, the usual ones first.
_SHIFTS, _NEAR = (0, 1, -1, 2, -2, 3), (NEAR, 1, 0)
#: A smaller shift, and the usual breadth, win within this factor of the least deviation.
_EQUAL = 1.1
#: A head is chosen if it deviates from the clock by this factor more than the best one at most.
_WORSE = 1.25
_MOST_HEADS = 4


class Calibrator:
    """Compares the heads of a talker on some utterances.

    Args:
        talker: Reads the utterances.
        checkpoint: The checkpoint.
        said: The utterances.
        frame_ms: The length of a frame.
    """

    def __init__(
        self,
        talker: PlainTalker,
        checkpoint: Checkpoint,
        said: Sequence[Utterance],
        frame_ms: float,
    ) -> None:
        self._said, self._frame_ms = said, frame_ms
        self._per_layer = checkpoint.shape.backbone.num_heads
        self._looks = [attention(talker, one) for one in said]
        layout = checkpoint.shape.layout
        self._clocks = [clock(talker, one, layout, frame_ms) for one in said]
        #: The margin of each head.
        self.margins: Floats = np.mean([margins(look) for look in self._looks], 0)

    def best(self) -> tuple[list[AlignmentHead], int]:
        """Return the heads and the breadth of the peak that keep time best."""
        order = np.argsort(-self.margins)[:_CANDIDATES]
        numbers = [int(n) for n in order if self.margins[n] >= _LEAST_MARGIN] or [int(order[0])]
        found: dict[int, list[tuple[float, AlignmentHead]]] = {}
        for near in _NEAR:
            rated = sorted((self._rated(number, near) for number in numbers), key=lambda it: it[0])
            best_ms = rated[0][0]
            found[near] = [one for one in rated if one[0] <= _WORSE * best_ms][:_MOST_HEADS]
        off = {near: self.off_ms([head for _, head in found[near]], near).mean() for near in _NEAR}
        near = next(near for near in _NEAR if off[near] <= _EQUAL * min(off.values()))
        return [head for _, head in found[near]], near

    def _rated(self, number: int, near: int) -> tuple[float, AlignmentHead]:
        """A head with the shift that keeps time best, and its mean deviation in ms."""
        layer, head = divmod(number, self._per_layer)
        tries = [AlignmentHead(layer, head, shift) for shift in _SHIFTS]
        off = [float(self.off_ms([one], near).mean()) for one in tries]
        best = next(at for at, ms in enumerate(off) if ms <= _EQUAL * min(off))
        return off[best], tries[best]

    def _mixed(self, heads: Sequence[AlignmentHead]) -> list[Weights]:
        numbers = [one.layer * self._per_layer + one.head for one in heads]
        return [
            np.mean([shifted(look[n], one.shift) for n, one in zip(numbers, heads, strict=True)], 0)
            for look in self._looks
        ]

    def off_ms(self, heads: Sequence[AlignmentHead], near: int) -> Floats:
        """How far words begin from the clock by these heads together, in ms."""
        return apart(self._said, self._mixed(heads), self._clocks, near, self._frame_ms)

    def result(self, heads: Sequence[AlignmentHead], near: int, mark: str) -> Calibration:
        """Return the result with its quality."""
        margin = np.mean([margins(look[None])[0] for look in self._mixed(heads)])
        off = self.off_ms(heads, near)
        return Calibration(
            fingerprint=mark,
            heads=[(one.layer, one.head, one.shift) for one in heads],
            near=near,
            margin=round(float(margin), 3),
            off_ms=round(float(np.median(off)), 1),
            off_p90_ms=round(float(np.percentile(off, 90)), 1),
        )


def calibrate(
    checkpoint: Checkpoint, said: Sequence[Utterance], frame_ms: float, talker: PlainTalker
) -> Calibration:
    """Find the alignment heads of a checkpoint from what it has spoken."""
    found = Calibrator(talker, checkpoint, said, frame_ms)
    heads, near = found.best()
    return found.result(heads, near, fingerprint(checkpoint.folder))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("checkpoint", help="a folder or a hub id")
    parser.add_argument("--frame-ms", type=float, default=40.0, help="length of a codec frame")
    parser.add_argument("--out", type=Path, help="where to write instead of the cache")
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.checkpoint)
    talker_settings = TalkerSettings(max_num_seqs=4)
    said = asyncio.run(speak(checkpoint, talker_settings, SENTENCES, SEEDS))
    torch.set_grad_enabled(False)
    found = calibrate(checkpoint, said, options.frame_ms, plain_talker(checkpoint))
    out = options.out or cached_calibration(found.fingerprint)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    print(msgspec.json.encode(found).decode())
    print(found.refusal or f"word timings: {out}")


if __name__ == "__main__":
    main()
