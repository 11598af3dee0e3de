"""A fake recogniser and fake utterances, for tests of the talker's rehearsals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from training.pitch import Floats
from training.quantise import ACTIVE, BOOKS
from training.sampling import Drawing, Drawn
from training.scripts import Script
from training.talker import TalkerNet

WORDS = ("tea", "or", "me", "sing", "alone", "house", "river", "you", "again", "blue")


class FakeRecogniser:
    """Recognises the words whose bits are set in the sum of the samples."""

    def __init__(self, _python: Path) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hear(self, speeches: Sequence[Floats], _rate: int) -> list[str]:
        """See the class."""
        sums = [int(1e3 * np.abs(samples).sum()) for samples in speeches]
        return [" ".join(w for i, w in enumerate(WORDS) if total >> i & 1) for total in sums]


def fake_draw(
    _net: TalkerNet, prompts: Sequence[Script], _drawing: Drawing, seed: int
) -> list[Drawn]:
    """Draw random codes, whatever the network."""
    random = np.random.default_rng(seed)
    silent = np.zeros((8, BOOKS - ACTIVE), np.int64)
    return [
        Drawn(np.hstack([random.integers(0, 1016, (8, ACTIVE)), silent]), ended=True)
        for _ in prompts
    ]
