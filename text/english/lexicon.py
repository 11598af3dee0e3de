"""The lexicon of words with their sounds, in the signs of ``text.english.sounds``."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

#: Made by ``training.lexicon``.
FILE = Path(__file__).resolve().parents[2] / "embedded" / "lexicon.txt.gz"


@functools.cache
def lexicon() -> dict[str, str]:
    """Return the pronunciations of some 233,000 words."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        return dict(line.rstrip("\n").split(" ", 1) for line in lines if line.strip())
