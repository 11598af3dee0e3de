"""The teacher's own speech: recordings by ``training.recite``."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import soxr

from streaming.spec import Samples
from text.english.normaliser import normalise
from training.evaluation.recogniser import read_wav


class NoSource(Exception):
    """The teacher's recording is missing; the text says what to do."""


def file_of(folder: Path, voice: str, text: str) -> Path:
    """Return the file of the teacher's recording of a text, named after the normalised text."""
    words = normalise(text).text.encode()
    return folder / voice / f"{hashlib.sha256(words).hexdigest()[:16]}.wav"


class Source:
    """A teacher's voice, recorded in ``folder``."""

    def __init__(self, folder: Path, voice: str, rate: int) -> None:
        self._folder, self._voice, self._rate = folder, voice, rate

    def find(self, text: str) -> Path:
        """Return the file of a text. Raises NoSource if the text was not recorded."""
        file = file_of(self._folder, self._voice, text)
        if not file.exists():
            raise NoSource(
                f"{self._voice} has not said {text!r} in {self._folder}: python -m training.recite"
            )
        return file

    def speak(self, text: str) -> Samples:
        """Return ``[n]`` samples at the requested rate. Raises NoSource if the text was not
        recorded.
        """
        samples, rate = read_wav(self.find(text))
        return np.asarray(soxr.resample(samples, rate, self._rate), np.float32)
