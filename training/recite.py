"""Recordings of the held-out sentences by the teacher: ``python -m training.recite``.

``make voice-eval ARGS="--teacher FOLDER"`` compares codec and talker with these recordings. They
are the teacher's own speech, before any pitch is rounded. An interrupted run is resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from text.english.normaliser import normalise
from training import kokoro, speech
from training.evaluation.recogniser import write_wav
from training.evaluation.source import file_of
from training.phonemes import read
from training.pitch import HOP, RATE


def recite(
    folder: Path, voice: str, texts: Sequence[str], teacher: kokoro.Teacher, gain: float
) -> None:
    """Write the missing recordings of a voice."""
    (folder / voice).mkdir(parents=True, exist_ok=True)
    for text in texts:
        file = file_of(folder, voice, text)
        if file.exists():
            continue
        reading = read(normalise(text).text, speech.british(voice))
        features = teacher.features(reading.phonemes, voice)
        begin, frames = features.span()
        own = teacher.waveform(features, features.f0)[begin : begin + frames * HOP]
        partial = file.with_suffix(".partial")
        write_wav(partial, np.clip(own * np.float32(gain), -1, 1), RATE)
        partial.rename(file)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("voice-work"), help="training's folder")
    parser.add_argument("--voices", type=Path, default=Path("kokoro-voices"), help="of styles")
    parser.add_argument(
        "--from", type=Path, dest="start", metavar="CHECKPOINT", help="has gains if --work has none"
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder for the recordings")
    parser.add_argument("--sentences", type=Path, default=Path(__file__).with_name("held_out.txt"))
    parser.add_argument("--count", type=int, help="so many of them, spread over the file")
    options = parser.parse_args(argv)
    texts = [line for line in options.sentences.read_text(encoding="utf-8").splitlines() if line]
    count = min(options.count or len(texts), len(texts))
    chosen = [texts[at * len(texts) // count] for at in range(count)]
    files = [options.work / "gains.json"]
    if options.start:
        files.append(options.start / speech.KEPT_GAINS)
    file = next((one for one in files if one.exists()), None)
    if file is None:
        parser.error(f"no {files[-1]} with the voices' gains; try --from embedded/checkpoint")
    gains = json.loads(file.read_text(encoding="utf-8"))
    try:
        kokoro.fetch(options.work / "teacher")
        teacher = kokoro.Teacher(options.work / "teacher", options.voices)
        for voice in speech.NAMED:
            recite(options.out, voice, chosen, teacher, gains[voice])
            print(voice, file=sys.stderr, flush=True)
    except kokoro.NoTeacher as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
