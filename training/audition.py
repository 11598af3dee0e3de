"""Quality of the decoder so far: ``python -m training.audition --work voice-work``.

The teacher speaks held-out sentences on pitches that codes can represent. The recogniser and the
MOS predictor hear that speech, and the same decoded from its codes, whose WAV files are kept.
Encoder and talker are not involved: ``make voice-eval`` measures a whole checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from loadtest.program import markdown_table
from text.english.normaliser import normalise
from training import codec_training, speech, train
from training.decoder_training import decode, examples
from training.evaluation.metrics import intelligibility, mel_distance_db
from training.evaluation.recogniser import MosPredictor, Recogniser, write_wav
from training.evaluation.source import file_of
from training.pitch import RATE, Floats
from training.progress import restore_weights

_SAMPLES = Path("audition")


def recited(plan: train.Plan, texts: Sequence[str]) -> Iterator[speech.Spoken]:
    """Yield the sentences by each named voice. They are spoken once, and kept with the training
    data.
    """
    folder = plan.work / _SAMPLES / "teacher"
    gains = train.gains(plan)
    for voice in speech.NAMED:
        (folder / voice).mkdir(parents=True, exist_ok=True)
        for text in texts:
            file = file_of(folder, voice, text).with_suffix(".npz")
            if not file.exists():
                said = speech.speak(normalise(text).text, voice, train.teacher_of(plan))
                partial = file.with_suffix(".partial.npz")
                np.savez(partial, samples=said.samples, pitch=said.pitch, place=said.place)
                partial.rename(file)
            with np.load(file) as kept:
                said = speech.Spoken(text, voice, kept["samples"], kept["pitch"], kept["place"])
            yield from speech.levelled([said], gains)


@torch.inference_mode()
def rendered(model: Any, plan: train.Plan, said: Sequence[speech.Spoken]) -> list[Floats]:
    """Decode the same utterances from their codes."""
    pool = examples(said, train.quantiser(plan))
    return [decode(model, one.latents.float()[None])[0].numpy() for one in pool]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="voice-work", help="training's folder")
    parser.add_argument("--voices", default="kokoro-voices", help="kokoro-js' folder of styles")
    parser.add_argument("--hidden", default="384", help="as the decoder was trained with")
    parser.add_argument("--speech-parts", default="120", help="likewise")
    parser.add_argument("--after", choices=train.DECODERS, default="decoder", help="which stage")
    parser.add_argument("--count", type=int, default=20, help="sentences by each voice")
    parser.add_argument("--ears", type=Path, help="an interpreter that has moonshine-voice")
    parser.add_argument("--mos-python", type=Path, help="an interpreter that has distillmos")
    options = parser.parse_args(argv)
    given = ("work", "voices", "hidden", "speech_parts")
    pairs = [(f"--{name.replace('_', '-')}", getattr(options, name)) for name in given]
    plan = train.plan_of(["decoder", *(value for pair in pairs for value in pair)])[1]
    torch.set_num_threads(1)
    lines = plan.held_out.read_text(encoding="utf-8").splitlines()
    texts = [lines[at * len(lines) // options.count] for at in range(options.count)]
    model = train.new_codec(plan)
    stage = options.after
    steps = restore_weights(stage, plan.work, codec_training.parts(model)["decoder"])
    said = list(recited(plan, texts))
    made = rendered(model, plan, said)
    rows = []
    ears = Recogniser(*([options.ears] if options.ears else []))
    with ears, MosPredictor(*([options.mos_python] if options.mos_python else [])) as predictor:
        for voice in speech.NAMED:
            own = [number for number, one in enumerate(said) if one.voice == voice]
            for kind, waves in (("teacher", [one.samples for one in said]), ("decoder", made)):
                heard = [waves[number] for number in own]
                found = intelligibility(texts, ears.hear(heard, RATE))
                scores = predictor.scores(heard, RATE)
                mel = fmean(mel_distance_db(said[n].samples, waves[n], RATE) for n in own)
                spread = stdev(scores) / len(scores) ** 0.5
                rows.append([voice, kind, f"{found.word_error_rate:.3f}",
                             f"{fmean(scores):.2f} ± {spread:.2f}", f"{mel:.2f}"])  # fmt: skip
    folder = plan.work / _SAMPLES / f"{stage}-{steps}"
    for one, samples in zip(said, made, strict=True):
        file = file_of(folder, one.voice, one.text)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_wav(file, samples, RATE)
    print(f"{stage} after {steps} steps, {options.count} sentences a voice\n")
    print(markdown_table(["voice", "", "words wrong", "MOS", "mel distance dB"], rows))


if __name__ == "__main__":
    main()
