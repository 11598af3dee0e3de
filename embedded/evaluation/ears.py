"""The recogniser, in a process of its own: whoever listens need not have it installed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from streaming.spec import Samples

#: The interpreter that has the recogniser: requirements/dev.txt.
PYTHON = Path(__file__).parents[2] / ".venv" / "bin" / "python"
NAME = "Moonshine tiny-en (moonshine-voice 0.0.48, MIT)"


class NoEars(Exception):
    """There is no recogniser here."""


class Ears:
    """Hears speech. One process for as long as the block lasts; raises NoEars without one."""

    def __init__(self, python: Path = PYTHON) -> None:
        if not python.is_file():
            raise NoEars("no recogniser here: make test installs it")
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("hear.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Ears:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended by itself
            self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def hear(self, speeches: Sequence[Samples], rate: int) -> list[str]:
        """The words of each of ``speeches``, ``[n]`` samples at ``rate``. Raises NoEars if the
        recogniser ends before it has answered.
        """
        return [self._hear(samples, rate) for samples in speeches]

    def _hear(self, samples: Samples, rate: int) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "speech.wav")
            with wave.open(str(file), "wb") as speech:
                speech.setnchannels(1)
                speech.setsampwidth(2)
                speech.setframerate(rate)
                pcm = np.clip(np.round(samples * 32768), -32768, 32767)
                speech.writeframes(pcm.astype("<i2").tobytes())
            answer = ""
            with suppress(BrokenPipeError):
                self._process.stdin.write(f"{file}\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
        if not answer:
            raise NoEars(f"the recogniser ended with {self._process.wait(30)}")
        return str(json.loads(answer))
