"""Which clip speaks best for a voice: ``python -m embedded.training.clips --model folder``.

A voice that ships is a clip of its speaker, and some clips are followed better than others.
Each line of ``clips.txt`` is spoken by each voice's speaker, ``tuning.txt`` is spoken after each,
and the recogniser listens. Those are sentences of their own: what is chosen by the held-out ones
could not be judged by them.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import markdown_table
from codec.decoder import HiggsDecoder
from embedded.evaluation.ears import Ears
from embedded.evaluation.metrics import intelligibility
from embedded.evaluation.speak import Narrator
from embedded.text import FRONT_ENDS
from embedded.training.export import VOICES, NamedVoice, clip_codes
from embedded.training.flite import Flite
from embedded.training.quantise import Quantiser
from embedded.training.warm import quantiser_of
from streaming.delay import apply_delay
from streaming.ports import Sampling
from talker.engine import TalkerProcessEngine
from talker.prompts import ReferenceVoice
from talker.settings import TalkerSettings

_HERE = Path(__file__).parent
_STREAMS = 8


class Candidates:
    """Voices by name, a clip each; implements ``talker.intake.VoiceSource``."""

    def __init__(self, voices: Mapping[str, ReferenceVoice]) -> None:
        self._voices = voices

    def names(self) -> Sequence[str]:
        """All of them."""
        return tuple(self._voices)

    def get(self, name: str) -> ReferenceVoice | None:
        """One of them, or None."""
        return self._voices.get(name)


def candidates(
    voices: Sequence[NamedVoice], clips: Sequence[str], quantiser: Quantiser, size: int
) -> Candidates:
    """Each voice with each clip, as ``voice 0``, ``voice 1`` and so on."""
    flite, made = Flite(), dict[str, ReferenceVoice]()
    for voice in voices:
        for number, text in enumerate(clips):
            codes = clip_codes(text, voice.speaker, quantiser, flite)
            rows = apply_delay(codes.numpy().astype(np.int16), size, size + 1)
            made[f"{voice.name} {number}"] = ReferenceVoice(rows, text)
    return Candidates(made)


async def listen(
    model: Path, source: Candidates, texts: Sequence[str], ears: Ears
) -> dict[str, float]:
    """The share of words misheard, by candidate."""
    decoder, found = HiggsDecoder.load(str(model)), dict[str, float]()
    settings = TalkerSettings(max_num_seqs=_STREAMS)
    talker = TalkerProcessEngine(str(model), settings, voices=source, front_ends=FRONT_ENDS)
    await talker.start()
    try:
        narrator = Narrator(talker, decoder, Sampling(seed=1))
        for name in source.names():
            said = await narrator.speak_all(texts, name, _STREAMS)
            heard = ears.hear([one.samples for one in said], decoder.spec.sample_rate)
            found[name] = intelligibility(texts, heard).word_error_rate
    finally:
        await talker.stop()
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="what `export` wrote")
    parser.add_argument("--voices", type=lambda names: names.split(","), help="a,b; else all")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    clips = (_HERE / "clips.txt").read_text(encoding="utf-8").splitlines()
    texts = (_HERE / "tuning.txt").read_text(encoding="utf-8").splitlines()
    chosen = [v for v in VOICES if not options.voices or v.name in options.voices]
    size = HiggsDecoder.load(str(options.model)).spec.codebook_size
    source = candidates(chosen, clips, quantiser_of(options.model), size)
    with Ears() as ears:
        found = asyncio.run(listen(options.model, source, texts, ears))
    rows = [
        (text, *(f"{found[f'{voice.name} {number}']:.3f}" for voice in chosen))
        for number, text in enumerate(clips)
    ]
    print(markdown_table(("clip", *(voice.name for voice in chosen)), rows))


if __name__ == "__main__":
    main()
