"""The lexicon of words with their sounds, in the signs of ``embedded.pronunciation``."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

#: Made by ``embedded.training.lexicon``.
FILE = Path(__file__).with_name("lexicon.txt.gz")


@functools.cache
def lexicon() -> dict[str, str]:
    """Return the pronunciations of some 233,000 words."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        return dict(line.rstrip("\n").split(" ", 1) for line in lines if line.strip())
