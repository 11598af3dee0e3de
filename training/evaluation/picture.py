"""Plot a sentence as spoken by teacher, codec and talker:
``python -m training.evaluation.picture``.

Draws three spectrograms to compare by eye. The codec's must look like the teacher's, harmonics and
gaps included. The talker's must look like speech of the same words by the same voice.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

from codec.families.higgs.checkpoint import open_higgs
from streaming.ports import Sampling
from streaming.spec import Samples
from talker.engine import TalkerProcessEngine
from talker.request_builder import DEFAULT_VOICE
from talker.settings import TalkerSettings
from text.registry import FRONT_ENDS
from training.evaluation.source import Source
from training.evaluation.speak import Narrator
from training.evaluation.voices import CheckpointVoices

mpl.use("Agg")
from matplotlib import pyplot as plt

_CHECKPOINT = Path(__file__).parents[2] / "embedded" / "checkpoint"
_FFT, _STEP, _FLOOR_DB, _HIGHEST_HZ = 1024, 240, -80.0, 8000


def spectrogram(samples: Samples) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return dB below the loudest, ``[bins, frames]``."""
    padded = np.pad(samples, _FFT)
    blocks = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_STEP]
    power = np.abs(np.fft.rfft(blocks * np.hanning(_FFT))) ** 2
    decibels = 10 * np.log10(power / power.max() + 1e-12)
    return np.asarray(np.maximum(decibels, _FLOOR_DB).T)


def draw(file: Path, clips: dict[str, Samples], rate: int) -> None:
    """Draw one picture with a row for each clip."""
    figure, rows = plt.subplots(len(clips), 1, figsize=(11, 2.4 * len(clips)), sharex=True)
    for axes, (title, samples) in zip(np.atleast_1d(rows), clips.items(), strict=True):
        extent = (0, len(samples) / rate, 0, rate / 2)
        axes.imshow(spectrogram(samples), origin="lower", aspect="auto", extent=extent)
        axes.set(title=title, ylabel="Hz", ylim=(0, _HIGHEST_HZ))
    np.atleast_1d(rows)[-1].set_xlabel("s")
    figure.tight_layout()
    figure.savefig(file, dpi=80)
    plt.close(figure)


async def clips(
    folder: Path, text: str, voice: str, recordings: Path | None
) -> tuple[dict[str, Samples], int]:
    """Return the sentence as spoken by each, and the sample rate. Teacher and codec are left out
    without recordings.
    """
    found = open_higgs(str(folder))
    decoder, encoder = found.load_decoder(), found.load_encoder()
    rate = decoder.spec.sample_rate
    voices, made = CheckpointVoices(folder), dict[str, Samples]()
    teacher = voices.teacher(voice)
    if recordings and teacher:
        made[f"teacher, {teacher}"] = source = Source(recordings, teacher, rate).speak(text)
        made["through the codec"] = decoder.decode([encoder.encode(source)])[0]
    talker = TalkerProcessEngine(
        str(folder),
        TalkerSettings(max_num_seqs=1),
        voices=voices,
        front_ends=FRONT_ENDS,
    )
    await talker.start()
    try:
        said = await Narrator(talker, decoder, Sampling(seed=1)).speak(text, voice)
    finally:
        await talker.stop()
    return made | {f"talker, {voice}": said.samples}, rate


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=_CHECKPOINT)
    parser.add_argument("--text", default="The children built a castle out of wet sand.")
    parser.add_argument("--voice", default=DEFAULT_VOICE)
    parser.add_argument("--teacher", type=Path, help="recordings, by training.recite")
    parser.add_argument("--out", type=Path, default=Path("spectrograms.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, rate = asyncio.run(clips(options.model, options.text, options.voice, options.teacher))
    draw(options.out, found, rate)


if __name__ == "__main__":
    main()
