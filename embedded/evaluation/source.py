"""The speech that the embedded voice was trained on, from the program that spoke it: flite."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import soxr

from embedded.text import normalise
from streaming.spec import Samples


class NoSource(Exception):
    """The program is not installed; the text says what to do."""


class Source:
    """Speaks by ``flite`` with one of its voices (``slt``, ``rms``, ``awb``).

    Raises NoSource at once if flite is not installed.
    """

    def __init__(self, voice: str, rate: int) -> None:
        program = shutil.which("flite")
        if program is None:
            raise NoSource("flite is not installed (on Debian: apt-get install flite)")
        self._program, self._voice, self._rate = program, voice, rate

    def speak(self, text: str) -> Samples:
        """``[n]`` samples at the rate asked for."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "speech.wav")
            words = normalise(text).text
            command = [self._program, "-voice", self._voice, "-t", words, "-o", str(file)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            with wave.open(str(file)) as speech:
                rate, pcm = speech.getframerate(), speech.readframes(speech.getnframes())
        samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
        return np.asarray(soxr.resample(samples, rate, self._rate), np.float32)
