"""The teacher's own speech: recordings that ``embedded.training.recite`` wrote."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import soxr

from embedded.evaluation.recogniser import read_wav
from embedded.text import normalise
from streaming.spec import Samples


class NoSource(Exception):
    """The teacher has not spoken it; the text says what to do."""


def file_of(folder: Path, voice: str, text: str) -> Path:
    """Where the teacher's speech of a text is kept: by its words, as the front end reads them."""
    words = normalise(text).text.encode()
    return folder / voice / f"{hashlib.sha256(words).hexdigest()[:16]}.wav"


class Source:
    """A teacher's voice, as recorded in ``folder``."""

    def __init__(self, folder: Path, voice: str, rate: int) -> None:
        self._folder, self._voice, self._rate = folder, voice, rate

    def speak(self, text: str) -> Samples:
        """``[n]`` samples at the rate asked for. Raises NoSource if it was not recorded."""
        file = file_of(self._folder, self._voice, text)
        if not file.exists():
            raise NoSource(
                f"{self._voice} has not said {text!r} in {self._folder}: "
                "python -m embedded.training.recite"
            )
        samples, rate = read_wav(file)
        return np.asarray(soxr.resample(samples, rate, self._rate), np.float32)
