"""Scores WAV files with DistillMOS: a script for the environment that has it.

Reads paths from stdin and answers each with a JSON number, after a first line when it is ready.
"""

import contextlib
import importlib.machinery
import io
import sys
import types
import wave

import numpy as np
import soxr
import torch

_RATE = 16_000


def main() -> None:
    """Answer until stdin ends. Exit at once if the package is missing."""
    # the package imports torchaudio for its command line, but it does not load with a CPU torch
    for name in ("torchaudio", "torchaudio.transforms"):
        stub = types.ModuleType(name)
        stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, stub)
    sys.modules["torchaudio.transforms"].MFCC = object  # type: ignore[attr-defined]
    try:
        from distillmos import ConvTransformerSQAModel
    except ImportError:
        sys.exit(1)
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        model = ConvTransformerSQAModel().eval()
    print("ready", flush=True)
    for line in sys.stdin:
        with wave.open(line.rstrip("\n")) as speech:
            rate, pcm = speech.getframerate(), speech.readframes(speech.getnframes())
        samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
        resampled = torch.from_numpy(soxr.resample(samples, rate, _RATE))[None]
        with torch.inference_mode():
            print(float(model(resampled)), flush=True)


if __name__ == "__main__":
    main()
