"""Comparison of clips for the voices: ``python -m training.clips --model folder``.

A voice that ships is a clip of its speaker, and the talker follows some clips better than others.
Each line of ``clips.txt`` is spoken by each voice's speaker (training's stage ``clips``). Each clip
then speaks ``tuning.txt``, and the recogniser listens. ``tuning.txt`` is separate, since the
held-out sentences cannot judge a choice that was made by them.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch

from codec.families.higgs.checkpoint import open_higgs
from codec.families.higgs.decoder import HiggsDecoder
from loadtest.program import markdown_table
from streaming.ports import Sampling
from talker.engine import TalkerProcessEngine
from talker.settings import TalkerSettings
from text.registry import FRONT_ENDS
from training.evaluation.metrics import intelligibility
from training.evaluation.recogniser import Recogniser
from training.evaluation.speak import Narrator
from training.evaluation.voices import CheckpointVoices

_HERE = Path(__file__).parent
_STREAMS = 8


def lines(name: str) -> list[str]:
    """Return the lines of ``clips.txt`` or ``tuning.txt``."""
    return (_HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def candidate(voice: str, number: int) -> str:
    """Return the name of a voice with a clip."""
    return f"{voice}-{number}"


async def listen(
    model: Path,
    source: CheckpointVoices,
    decoder: HiggsDecoder,
    texts: Sequence[str],
    ears: Recogniser,
) -> dict[str, float]:
    """Return the word error rate by candidate."""
    settings, found = TalkerSettings(max_num_seqs=_STREAMS), dict[str, float]()
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


def table(found: dict[str, float]) -> str:
    """Format a row for each clip and a column for each voice."""
    voices = list(dict.fromkeys(name.rpartition("-")[0] for name in found))
    rows = [
        (text, *(f"{found[candidate(voice, number)]:.3f}" for voice in voices))
        for number, text in enumerate(lines("clips"))
    ]
    return markdown_table(("clip", *voices), rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="what `export` wrote")
    parser.add_argument("--work", type=Path, default=Path("voice-work"), help="training's folder")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    decoder = open_higgs(str(options.model)).load_decoder()
    source = CheckpointVoices(options.work / "clips")
    with Recogniser() as ears:
        found = asyncio.run(listen(options.model, source, decoder, lines("tuning"), ears))
    print(table(found))


if __name__ == "__main__":
    main()
