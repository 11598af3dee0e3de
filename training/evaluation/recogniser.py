"""The recogniser, the MOS predictor, and the judges that took no part in training. Each runs in a
process of its own, in another environment, so that an evaluation does not need their packages.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from streaming.spec import Samples
from training.evaluation.report import Rating

#: The interpreter of the environment with the recogniser: requirements/dev.txt.
PYTHON = Path(__file__).parents[2] / ".venv" / "bin" / "python"
NAME = "Moonshine tiny-en (moonshine-voice 0.0.48, MIT)"
MOS_NAME = "DistillMOS (distillmos 0.9.1, MIT)"
#: The interpreter of the environment that ``make judges`` makes.
JUDGES_PYTHON = Path(__file__).parents[2] / ".venv-judges" / "bin" / "python"
JUDGES_NAME = (
    "Whisper base (MIT, int8, faster-whisper 1.2.1) and DNSMOS P.835 (speechmos 0.0.1.1, MIT)"
)


class NoEars(Exception):
    """The recogniser is not available."""


class NoMosPredictor(Exception):
    """The MOS predictor is not available; the text says why."""


class NoJudges(Exception):
    """The judges that took no part in training are not available; the text says why."""


class _Process:
    """A script that reads paths of WAV files, and answers each with a line of JSON."""

    def __init__(self, python: Path, script: str, missing: type[Exception]) -> None:
        self._missing = missing
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has exited already
            self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def answer(self, samples: Samples, rate: int) -> Any:
        """Return the script's answer to ``[n]`` samples at ``rate``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "speech.wav")
            write_wav(file, samples, rate)
            answer = ""
            with suppress(BrokenPipeError):
                self._process.stdin.write(f"{file}\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
        if not answer:
            raise self._missing(f"{type(self).__name__} ended with {self._process.wait(30)}")
        return json.loads(answer)

    def wait_until_ready(self, missing: str) -> None:
        """Wait for the script's first line. If it exits instead, raise what is missing."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.__exit__(None, None, None)
            raise self._missing(missing)


class Recogniser(_Process):
    """Recognises speech, in one process until the block ends. Raises NoEars if unavailable."""

    def __init__(self, python: Path = PYTHON) -> None:
        if not python.is_file():
            raise NoEars("no recogniser here: make test installs it")
        super().__init__(python, "hear.py", NoEars)

    def hear(self, speeches: Sequence[Samples], rate: int) -> list[str]:
        """Return the words of each of ``speeches``, ``[n]`` samples at ``rate``. Raises NoEars if
        the recogniser exits before it has answered.
        """
        return [str(self.answer(samples, rate)) for samples in speeches]


class MosPredictor(_Process):
    """Predicts the naturalness of speech from 1 to 5. Raises NoMosPredictor if its interpreter has
    no ``distillmos`` (training/pyproject.toml).
    """

    def __init__(self, python: Path = PYTHON) -> None:
        if not python.is_file():
            raise NoMosPredictor(f"no {python}")
        super().__init__(python, "score.py", NoMosPredictor)
        self.wait_until_ready(f"{python} has no distillmos")

    def scores(self, speeches: Sequence[Samples], rate: int) -> list[float]:
        """Return the score of each of ``speeches``, ``[n]`` samples at ``rate``. Those shorter than
        a twentieth of a second are left out.
        """
        return [float(self.answer(s, rate)) for s in speeches if len(s) > rate // 20]


class Judges:
    """Judges that no stage of training has asked: Whisper base hears the words, DNSMOS rates the
    signal. Raises NoJudges if the interpreter lacks their packages (training/pyproject.toml).
    """

    def __init__(self, python: Path = JUDGES_PYTHON) -> None:
        if not python.is_file():
            raise NoJudges(f"no {python}: make judges installs it")
        with ExitStack() as opened:
            self._whisper, self._dnsmos = (
                opened.enter_context(_Process(python, script, NoJudges))
                for script in ("whisper_base.py", "dnsmos.py")
            )
            self._whisper.wait_until_ready(f"{python} lacks faster-whisper or the weights")
            self._dnsmos.wait_until_ready(f"{python} lacks onnxruntime or speechmos")
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def hear(self, speeches: Sequence[Samples], rate: int) -> list[str]:
        """Return the words that Whisper hears in each of ``speeches``, ``[n]`` at ``rate``."""
        return [str(self._whisper.answer(samples, rate)) for samples in speeches]

    def rate(self, speeches: Sequence[Samples], rate: int) -> list[Rating | None]:
        """Return DNSMOS's ratings of each of ``speeches``; None for one of less than a twentieth of
        a second.
        """
        return [
            Rating(*self._dnsmos.answer(samples, rate)) if len(samples) > rate // 20 else None
            for samples in speeches
        ]


def write_wav(file: Path, samples: Samples, rate: int) -> None:
    """Write samples within [-1, 1] as 16 bits."""
    with wave.open(str(file), "wb") as speech:
        speech.setnchannels(1)
        speech.setsampwidth(2)
        speech.setframerate(rate)
        pcm = np.clip(np.round(samples * 32768), -32768, 32767)
        speech.writeframes(pcm.astype("<i2").tobytes())


def read_wav(file: Path) -> tuple[Samples, int]:
    """Read a 16-bit mono WAV file. Returns its samples within [-1, 1] and its rate."""
    with wave.open(str(file)) as speech:
        rate, pcm = speech.getframerate(), speech.readframes(speech.getnframes())
    return np.asarray(np.frombuffer(pcm, "<i2") / 32768, np.float32), rate
