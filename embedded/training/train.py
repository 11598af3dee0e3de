"""Makes the embedded voice: ``python -m embedded.training.train all --out folder``.

Stages: ``data`` (speak the sentences), ``quantiser`` (codebooks), ``decoder``, ``encoder``,
``talker`` and ``export``. Each keeps what it made in the work folder and is skipped, or resumed
where it stood, when run again. ``--from`` a checkpoint keeps that one's codebooks and begins with
its weights. ``all`` runs the codec's two beside the talker's. The numbers of
steps are fixed, as are all seeds: a run's length depends on the machine, its result does not but
for rounding.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedded.text import normalise
from embedded.training import (
    codec_training,
    decoder_training,
    encoder_training,
    export,
    quantise,
    tokenizer_model,
    warm,
)
from embedded.training.dataset import GROUP, build, load, speakers
from embedded.training.features import Speaker
from embedded.training.progress import Progress
from embedded.training.quantise import ACTIVE, Quantiser
from embedded.training.scripts import Utterance
from embedded.training.talker import ROWS, Shape, TalkerNet
from embedded.training.talker_training import Group, train

_SEED = 1
_FITTED_ON, _FITTED_FRAMES = 6000, 160_000
_DECODER_ON, _ENCODER_ON = 4000, 4000
_DECODER_HIDDEN, _ENCODER_HIDDEN = 256, 12
_LEAST_FRAMES = 4
_DEFAULT = Speaker("slt")
STAGES = ("data", "quantiser", "decoder", "encoder", "talker", "export")
GENERATION = {
    "do_sample": True,
    "temperature": 0.3,
    "top_k": 50,
    "top_p": 0.95,
    "max_new_tokens": 500,
    "alignment_heads": [[layer, 0] for layer in Shape().guided],
    "text_frontend": "english",
    "continuation": True,
    "continuation_positions": 440,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    work: Path
    out: Path
    held_out: Path
    sentences: int
    decoder_steps: int
    encoder_steps: int
    talker_steps: int
    workers: int
    device: str
    compiled: bool
    start: Path | None = None
    rate: float = 1.0
    seed: int = _SEED
    threads: int = 1


def data(plan: Plan) -> None:
    """Speak the sentences."""
    lines = plan.held_out.read_text(encoding="utf-8").splitlines()
    held = [normalise(line).text for line in lines]
    build(plan.work / "data", plan.sentences, plan.seed, frozenset(held), plan.workers)


def quantiser(plan: Plan) -> Quantiser:
    """The codebooks, worked out once, or those of the checkpoint that is trained further."""
    file = plan.work / "quantiser.safetensors"
    if plan.start and not file.exists():
        warm.quantiser_of(plan.start).save(file)
    if not file.exists():
        items = islice(load(plan.work / "data"), _FITTED_ON)
        envelopes = np.concatenate([item.envelopes for item in items])
        chosen = np.random.default_rng(0).permutation(len(envelopes))[:_FITTED_FRAMES]
        quantise.fit(envelopes[chosen], 0).save(file)
    return Quantiser.load(file)


def new_codec(plan: Plan) -> Any:
    """The codec before a part of it is trained."""
    torch.manual_seed(0)
    model = tokenizer_model.new_model(_DECODER_HIDDEN, _ENCODER_HIDDEN)
    if plan.start:
        warm.fill_codec(model, plan.start)
    tokenizer_model.set_books(model, quantiser(plan))
    return model.to(plan.device)


def decoder(plan: Plan) -> None:
    """The codec's decoder."""
    progress = Progress("decoder", plan.work, plan.decoder_steps, rate=plan.rate)
    chosen = list(islice(load(plan.work / "data"), _DECODER_ON))
    pool = decoder_training.examples(chosen, quantiser(plan))
    decoder_training.train_decoder(new_codec(plan), pool, progress, compiled=plan.compiled)


def encoder(plan: Plan) -> None:
    """The codec's encoder."""
    progress = Progress("encoder", plan.work, plan.encoder_steps, rate=plan.rate)
    chosen = list(islice(load(plan.work / "data"), _DECODER_ON, _DECODER_ON + _ENCODER_ON))
    pool = encoder_training.recordings(chosen, quantiser(plan), seed=3)
    own = encoder_training.originals(chosen, _voices(plan), quantiser(plan), seed=4)
    encoder_training.train_encoder(new_codec(plan), pool, own, progress, compiled=plan.compiled)


def _voices(plan: Plan) -> list[Speaker]:
    return speakers(plan.sentences // GROUP + 1, plan.seed)


def groups(plan: Plan) -> list[Group]:
    """What the talker learns, speaker by speaker."""
    table, found = quantiser(plan), dict[int, list[Utterance]]()
    for item in load(plan.work / "data"):
        codes = table.encode(torch.from_numpy(item.envelopes), torch.from_numpy(item.pitch))
        if len(codes) >= _LEAST_FRAMES:
            found.setdefault(item.speaker, []).append(
                Utterance(item.text, codes.numpy(), item.place)
            )
    voices = _voices(plan)
    return [Group(tuple(said), voices[n] == _DEFAULT) for n, said in found.items()]


def _new_talker(plan: Plan) -> TalkerNet:
    torch.manual_seed(0)
    net = TalkerNet(Shape())
    with torch.no_grad():
        net.audio[ACTIVE * ROWS :] = 0
    if plan.start:
        warm.fill_talker(net, plan.start)
    return net.to(plan.device)


def talker(plan: Plan) -> None:
    """The talker."""
    progress = Progress("talker", plan.work, plan.talker_steps, rate=plan.rate)
    train(_new_talker(plan), groups(plan), progress, compiled=plan.compiled)


def write(plan: Plan) -> None:
    """The checkpoint, of whatever has been learned so far."""
    model, net = new_codec(plan), _new_talker(plan)
    parts = codec_training.parts(model)
    for name in ("decoder", "encoder"):
        Progress(name, plan.work, 1).restore(parts[name])
    Progress("talker", plan.work, 1).restore(net)
    export.write(plan.out, net.cpu(), model.cpu(), quantiser(plan), GENERATION)


def run(stage: str, plan: Plan) -> None:
    """One stage."""
    made = {"data": data, "quantiser": quantiser, "decoder": decoder, "encoder": encoder}
    made |= {"talker": talker, "export": write}
    made[stage](plan)


def everything(plan: Plan, arguments: Sequence[str]) -> None:
    """All stages; the codec's in a process beside the talker's."""
    for stage in ("data", "quantiser"):
        run(stage, plan)
    command = [sys.executable, "-m", "embedded.training.train", "codec", *arguments]
    with subprocess.Popen(command) as beside:
        run("talker", plan)
        if beside.wait():
            raise SystemExit("the codec's training failed")
    run("export", plan)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stage", choices=("all", "codec", *STAGES))
    parser.add_argument(
        "--work", type=Path, default=Path("voice-work"), help="what is kept between stages"
    )
    parser.add_argument("--out", type=Path, default=Path("voice-checkpoint"))
    parser.add_argument("--held-out", type=Path, default=Path(__file__).parents[1] / "held_out.txt",
                        help="sentences that must not be learned")  # fmt: skip
    parser.add_argument("--sentences", type=int, default=80_000)
    parser.add_argument("--decoder-steps", type=int, default=15_600)
    parser.add_argument("--encoder-steps", type=int, default=3300)
    parser.add_argument("--talker-steps", type=int, default=12_600)
    parser.add_argument("--from", type=Path, dest="start", metavar="CHECKPOINT",
                        help="keep its codebooks, begin with its weights")  # fmt: skip
    parser.add_argument("--rate", type=float, default=1.0,
                        help="of the usual learning rates; .3 after --from")  # fmt: skip
    parser.add_argument("--seed", type=int, default=_SEED,
                        help="of sentences and speakers; after --from: another")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="processes that make data")
    parser.add_argument("--threads", type=int, default=1,
                        help="of the CPU; with 1, two stages run side by side")  # fmt: skip
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--compiled", action="store_true",
                        help="half as fast again, where there is a C++ compiler")  # fmt: skip
    return parser


def plan_of(arguments: Sequence[str] | None = None) -> tuple[str, Plan]:
    """(stage, how much of everything) of a command line."""
    values = vars(_parser().parse_args(arguments))
    return values.pop("stage"), Plan(**values)


def main() -> None:
    """The command."""
    stage, plan = plan_of()
    plan.work.mkdir(parents=True, exist_ok=True)
    if plan.device == "cpu":
        torch.set_num_threads(plan.threads)
    if stage == "all":
        everything(plan, sys.argv[2:])
    elif stage == "codec":
        run("decoder", plan)
        run("encoder", plan)
    else:
        run(stage, plan)


if __name__ == "__main__":
    main()
