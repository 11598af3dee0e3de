"""Makes the embedded voice: ``python -m training.train all --out folder``.

Stages: ``teacher`` (Kokoro, cut in two), ``speech`` (spoken sentences), ``quantiser`` (codebooks),
``decoder``, ``postfilter`` (a network that makes its spectra clearer), ``sharpen`` (the decoder
learns these, and clearer formants), ``adversary`` (it learns from critics), ``encoder``, ``guess``
(a network that replaces the vocoder), ``codes`` (sentences as codes), ``talker``, ``rehearse`` (the
talker, trained on what a recogniser misheard), ``clips`` (candidates for the voices' clips) and
``export``.
Each keeps its results in the work folder and can be resumed. ``--from`` a checkpoint keeps its
codebooks and begins with its weights. The numbers of steps and all seeds are fixed. A run's
duration depends on the machine; its result does not, except for rounding.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

from text.english.normaliser import normalise
from text.english.sounds import sounds
from training import (
    adversary,
    codec_training,
    corpus,
    dataset,
    decoder_training,
    encoder_training,
    export,
    guess,
    kokoro,
    postfilter,
    quantise,
    rehearsal,
    sampling,
    sharpen,
    speech,
    talker_training,
    tokenizer_model,
    warm,
)
from training.evaluation.recogniser import PYTHON, Recogniser
from training.phonemes import read
from training.pitch import RATE, Ints
from training.progress import EVERY, FALL, Progress, restore_weights
from training.quantise import ACTIVE, BOOKS, Quantiser
from training.scripts import Utterance, sounded
from training.spectra import spectra
from training.talker import ROWS, Shape, TalkerNet

_SEED = 1
#: Sentences: the first are for the codec and the others for the talker.
_SENTENCES, _SPOKEN = 80_000, 20_000
_ENCODER_HIDDEN = 24
#: Temperatures at which the talker generates speech to find bursts.
_TALKED = (0.3, 0.6, 0.9)
#: Texts per voice, and utterances per batch.
_TALKED_TEXTS, _TOGETHER = 200, 80
_LEAST_FRAMES = 4
STAGES = (
    "teacher", "speech", "quantiser", "decoder", "postfilter", "sharpen", "adversary", "encoder",
    "guess", "codes", "talker", "rehearse", "clips", "export",
)  # fmt: skip
#: Stages that train the decoder, one after another.
DECODERS = ("decoder", "sharpen", "adversary")
GENERATION = {
    "do_sample": True,
    "temperature": 0.3,
    "top_k": 50,
    "top_p": 0.95,
    "max_new_tokens": 700,
    "alignment_heads": [[layer, 0] for layer in Shape().guided],
    "text_frontend": "english-sounds",
    "segment_chars": 120,
    # Of 1,090 utterances (the reading cases and the held-out sentences, voice "default") half have
    # less than .31 of these rows, 99 % less than .42, and all but one less than .55. The one, "4111
    # 1111 1111 1111", went on repeating itself for 24 s; the ceiling is 14 s.
    "ceiling_rows": 100,
    "ceiling_rows_per_char": 2,
    # The teacher leaves 510 ms between sentences. The codes keep 250 ms of it, since the silence at
    # the ends of the clips is cut.
    "sentence_pause_ms": 220,
    "paragraph_pause_ms": 400,
    # The codes speak 203 words a minute (docs/design/embedded_voice.md).
    "default_speed": 0.9,
    "continuation": True,
    "continuation_positions": 900,
    "end_codebooks": 1,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and options of a run. ``voices``: the folder of Kokoro's style vectors."""

    work: Path
    out: Path
    held_out: Path
    voices: Path
    speech_parts: int
    codes_parts: int
    hidden: int
    decoder_steps: int
    postfilter_steps: int
    sharpen_steps: int
    adversary_steps: int
    encoder_steps: int
    guess_steps: int
    talker_steps: int
    talker_tokens: int
    rehearsals: int
    workers: int
    device: str
    compiled: bool
    start: Path | None = None
    refit: bool = False
    decoder_from: Path | None = None
    encoder_from: Path | None = None
    talker_from: Path | None = None
    blend: float = 1.0
    decoder_blend: float = 1.0
    rate: float = 1.0
    fall: float = FALL
    ears: Path = PYTHON
    seed: int = _SEED
    threads: int = 1


def sentences(plan: Plan) -> list[str]:
    """Return all sentences to be spoken, made once."""
    file = plan.work / "sentences.json"
    if not file.exists():
        lines = plan.held_out.read_text(encoding="utf-8").splitlines()
        held = frozenset(normalise(line).text for line in lines)
        made = corpus.sentences(_SENTENCES, plan.seed, held)
        file.with_suffix(".partial").write_text(json.dumps(made), encoding="utf-8")
        file.with_suffix(".partial").rename(file)
    found: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return found


def teacher(plan: Plan) -> None:
    """Make Kokoro's two halves."""
    kokoro.fetch(plan.work / "teacher")


@cache
def teacher_of(plan: Plan) -> kokoro.Teacher:
    """Return the teacher, one per process."""
    return kokoro.Teacher(plan.work / "teacher", plan.voices)


def speak(plan: Plan) -> None:
    """Let the teacher speak sentences for the codec."""
    folder = plan.work / "speech"
    make = partial(
        speech.write_part, folder=folder, texts=sentences(plan)[:_SPOKEN], seed=plan.seed,
        teacher=partial(teacher_of, plan),
    )  # fmt: skip
    speech.make_parts(folder, plan.speech_parts, make, plan.workers)


def gains(plan: Plan) -> dict[str, float]:
    """Return the gains that make the voices equally loud. A known gain never changes."""
    file, known = plan.work / "gains.json", dict[str, float]()
    for kept in (plan.start and plan.start / speech.KEPT_GAINS, file):
        if kept and kept.exists():
            known = json.loads(kept.read_text(encoding="utf-8"))
    spoke = {speech.voice_of(i // speech.GROUP, plan.seed)
             for i in range(plan.speech_parts * speech.PART)}  # fmt: skip
    if spoke - known.keys():
        found = speech.gains(speech.load(plan.work / "speech", plan.speech_parts))
        known = found | known
    if not file.exists() or json.loads(file.read_text(encoding="utf-8")) != known:
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known


def spoken(plan: Plan) -> Iterator[speech.Spoken]:
    """Yield the spoken utterances, all voices equally loud."""
    said = speech.load(plan.work / "speech", plan.speech_parts)
    yield from speech.levelled(said, gains(plan))


def quantiser(plan: Plan) -> Quantiser:
    """Return the codebooks, fitted once, or those of the checkpoint that is trained further."""
    file = plan.work / "quantiser.safetensors"
    if plan.start and not plan.refit and not file.exists():
        warm.quantiser_of(plan.start).save(file)
    if not file.exists():
        heard = torch.cat([spectra(torch.from_numpy(one.samples)) for one in spoken(plan)])
        known = warm.quantiser_of(plan.start) if plan.start else None
        made, left = quantise.refit(heard, known) if known else quantise.fit(heard, 0)
        print(f"{len(heard)} frames; variance left, as heard: {left:.3f}", file=sys.stderr)
        made.save(file)
    return Quantiser.load(file)


def new_codec(plan: Plan) -> Any:
    """Make the codec before training."""
    torch.manual_seed(0)
    model = tokenizer_model.new_model(plan.hidden, _ENCODER_HIDDEN)
    if plan.start:
        warm.fill_codec(model, plan.start)
    if plan.decoder_from:
        warm.fill_decoder(model, plan.decoder_from, quantiser(plan))
    if plan.encoder_from:
        warm.fill_encoder(model, plan.encoder_from)
    tokenizer_model.set_books(model, quantiser(plan))
    return model.to(plan.device)


def decoder(plan: Plan) -> None:
    """Train the codec's decoder."""
    progress = _progress(plan, "decoder", plan.decoder_steps)
    pool = decoder_training.examples(spoken(plan), quantiser(plan))
    decoder_training.train_decoder(new_codec(plan), pool, progress, compiled=plan.compiled)


def _progress(
    plan: Plan, name: str, steps: int, share: float = 1.0, every: int = EVERY
) -> Progress:
    """Return a run of ``steps`` at ``share`` of the plan's learning rate, kept ``every`` so many
    steps.
    """
    return Progress(name, plan.work, steps, every, rate=share * plan.rate, fall=plan.fall)


def _smooth_decoder(plan: Plan) -> Any:
    """Return the codec with the decoder of stage ``decoder``.

    Raises LookupError if it was not trained in this work folder: a checkpoint's decoder may be
    sharpened already, and must not be sharpened twice.
    """
    model = new_codec(plan)
    if not restore_weights("decoder", plan.work, codec_training.parts(model)["decoder"]):
        raise LookupError(f"nothing to sharpen: stage `decoder` has kept no state in {plan.work}")
    return model


def postfiltered(plan: Plan) -> None:
    """Train the network that knows how the decoder's spectra should be."""
    if not plan.postfilter_steps:
        return
    model = _smooth_decoder(plan)
    known = postfilter.pairs(model, spoken(plan), quantiser(plan))
    postfilter.train(known, Progress("postfilter", plan.work, plan.postfilter_steps))


def sharpened(plan: Plan) -> None:
    """Sharpen the decoder's formants, after the postfilter if there is one."""
    if not plan.sharpen_steps:
        return
    model = _smooth_decoder(plan)
    progress = _progress(plan, "sharpen", plan.sharpen_steps, sharpen.RATE_SHARE)
    table = quantiser(plan)
    clearer = postfilter.load(plan.work) if plan.postfilter_steps else None
    pool = sharpen.examples(model, spoken(plan), table, clearer)
    said = [table.latents(codes).half() for codes in _talked(plan, table)]
    decoder_training.train_decoder(
        model, pool, progress, weights=sharpen.WEIGHTS, compiled=plan.compiled, said=said
    )


def judged(plan: Plan) -> None:
    """Train the decoder with critics, from where it is."""
    if not plan.adversary_steps:
        return
    model, table = new_codec(plan), quantiser(plan)
    progress = _progress(
        plan, "adversary", plan.adversary_steps, adversary.RATE_SHARE, adversary.EVERY
    )
    trained = [restore_weights(name, plan.work, codec_training.parts(model)["decoder"])
               for name in ("decoder", "sharpen")]  # fmt: skip
    if not any(trained) and not plan.start:
        raise LookupError(f"no decoder to judge: stage `decoder` has kept no state in {plan.work}")
    before = partial(decoder_training.decode, copy.deepcopy(model).requires_grad_(False))
    pool = decoder_training.examples(spoken(plan), table)
    said = [table.latents(codes).half() for codes in _talked(plan, table)]
    decoder_training.train_decoder(
        model, pool, progress,
        size=adversary.SIZE, frames=adversary.FRAMES, weights=adversary.WEIGHTS,
        compiled=plan.compiled, said=said,
        adversary=adversary.Adversary(table, model.device, before),
    )  # fmt: skip


def _talked(plan: Plan, table: Quantiser) -> Iterator[torch.Tensor]:
    """Yield codes ``[T, BOOKS]`` that the talker generates, if there is one, also at higher
    temperatures than the service's, so that rare bursts are found.
    """
    net, known = _learned_talker(plan)
    if not known:
        return
    said = filter(rehearsal.usable, sentences(plan))
    texts = sorted(islice(said, _TALKED_TEXTS), key=len)
    for number, temperature in enumerate(_TALKED):
        drawing = replace(sampling.Drawing(), temperature=temperature)
        for voice in _rehearsed(plan, table).values():
            prompts = [rehearsal.prompt(voice, sounds(text).text) for text in texts]
            for start in range(0, len(prompts), _TOGETHER):
                part = prompts[start : start + _TOGETHER]
                for one in sampling.draw(net, part, drawing, number):
                    yield torch.from_numpy(one.codes)


def encoder(plan: Plan) -> None:
    """Train the codec's encoder."""
    progress = _progress(plan, "encoder", plan.encoder_steps)
    pool = encoder_training.recordings(spoken(plan), seed=3)
    encoder_training.train_encoder(
        new_codec(plan), pool, quantiser(plan), progress, compiled=plan.compiled
    )


def guesser(plan: Plan) -> None:
    """Train the network that predicts the vocoder's output."""
    progress = Progress("guess", plan.work, plan.guess_steps)
    guess.train(_pairs(plan), progress)


def _pairs(plan: Plan) -> Iterator[guess.Pair]:
    for one in spoken(plan):
        reading = read(one.text, speech.british(one.voice))
        features = teacher_of(plan).features(reading.phonemes, one.voice)
        yield guess.pair(features, spectra(torch.from_numpy(one.samples)))


def codes(plan: Plan) -> None:
    """Make sentences as codes, for the talker."""
    folder = plan.work / "codes"
    texts = dataset.passages(sentences(plan)[_SPOKEN:], plan.seed)
    make = partial(
        dataset.write_part, folder=folder, texts=texts, seed=plan.seed + 1,
        tools=partial(_tools, plan),
    )  # fmt: skip
    count = min(plan.codes_parts, len(texts) // dataset.PART)
    speech.make_parts(folder, count, make, plan.workers)


@cache
def _tools(plan: Plan) -> tuple[kokoro.Teacher, guess.SpectrumGuess, Quantiser]:
    torch.set_num_threads(1)
    file = plan.work / "guess.state.safetensors"
    return teacher_of(plan), guess.load(file), quantiser(plan)


def groups(plan: Plan) -> list[talker_training.Group]:
    """Return the talker's training data, speaker by speaker."""
    found, random = dict[int, list[Utterance]](), np.random.default_rng((plan.seed, 11))
    default = set[int]()
    for item in dataset.load(plan.work / "codes"):
        if len(item.codes) < _LEAST_FRAMES:
            continue
        whole = torch.zeros(len(item.codes), BOOKS, dtype=torch.long)
        whole[:, :ACTIVE] = torch.from_numpy(item.codes)
        said = sounded(Utterance(item.text, whole.numpy(), item.place), random)
        found.setdefault(item.group, []).append(said)
        if item.voice == next(iter(speech.NAMED)):
            default.add(item.group)
    return [talker_training.Group(tuple(said), n in default) for n, said in found.items()]


def _new_talker(plan: Plan) -> TalkerNet:
    torch.manual_seed(0)
    net = TalkerNet(Shape())
    with torch.no_grad():
        net.audio[ACTIVE * ROWS :] = 0
    if plan.talker_from:
        warm.fill_reader(net, plan.talker_from)
    if plan.start:
        warm.fill_talker(net, plan.start)
    return net.to(plan.device)


def talker(plan: Plan) -> None:
    """Train the talker."""
    progress = _progress(plan, "talker", plan.talker_steps)
    talker_training.train(
        _new_talker(plan), groups(plan), progress,
        tokens=plan.talker_tokens, compiled=plan.compiled,
    )  # fmt: skip


def _trained_talker(plan: Plan) -> tuple[TalkerNet, bool]:
    """Return the talker after stage ``talker``, on the CPU, blended with the checkpoint's, and
    whether it has been trained.
    """
    net = _new_talker(plan).cpu()
    trained = _restore_blended(plan.work, net, ("talker",), plan.blend)
    return net, trained or plan.start is not None


def _restore_blended(work: Path, module: nn.Module, stages: Sequence[str], share: float) -> bool:
    """Load what the last of these stages has trained, and blend it with the weights that ``module``
    had before. Returns whether there was any.
    """
    before = copy.deepcopy(module.state_dict())
    trained = [restore_weights(stage, work, module) for stage in stages]
    warm.blend(module, before, share)
    return any(trained)


def _learned_talker(plan: Plan) -> tuple[TalkerNet, bool]:
    """Return the talker so far, on the CPU, and whether it has been trained."""
    net, trained = _trained_talker(plan)
    rehearsed = bool(restore_weights("rehearse", plan.work, net))
    return net, trained or rehearsed


def rehearse(plan: Plan) -> None:
    """Rehearse the talker with the current decoder, on the CPU in float32."""
    if not plan.rehearsals:
        return
    (net, _), table = _trained_talker(plan), quantiser(plan)
    began, model = copy.deepcopy(net), _learned_codec(plan).cpu()

    @torch.inference_mode()
    def hear(codes: Sequence[Ints]) -> list[str]:
        latents = [table.latents(torch.from_numpy(one))[None] for one in codes]
        said = [decoder_training.decode(model, one)[0].numpy() for one in latents]
        with Recogniser(plan.ears) as ears:  # not kept: it grows by 2 MB per utterance
            return ears.hear(said, RATE)

    with ThreadPoolExecutor(plan.workers) as pool:

        def listen(codes: Sequence[Ints]) -> list[str]:
            found, shares = (
                [""] * len(codes),
                [slice(n, None, plan.workers) for n in range(plan.workers)],
            )
            for share, heard in zip(
                shares, pool.map(hear, [codes[s] for s in shares]), strict=True
            ):
                found[share] = heard
            return found

        rehearsal.Rehearsal(
            net, began, _rehearsed(plan, table), sentences(plan)[_SPOKEN:], listen, plan.seed
        ).learn(Progress("rehearse", plan.work, plan.rehearsals, 1, 1, plan.rate, plan.fall))


def _rehearsed(plan: Plan, table: Quantiser) -> dict[str, rehearsal.Voice]:
    return {
        voice.name: rehearsal.Voice(sounds(voice.text).text, codes.numpy())
        for voice, codes in _clips(plan, table).items()
    }


def _learned_codec(plan: Plan) -> Any:
    model = new_codec(plan)
    parts = codec_training.parts(model)
    _restore_blended(plan.work, parts["decoder"], DECODERS, plan.decoder_blend)
    restore_weights("encoder", plan.work, parts["encoder"])
    return model


def write(plan: Plan) -> None:
    """Write the checkpoint with the training so far."""
    model, (net, _) = _learned_codec(plan), _learned_talker(plan)
    table = quantiser(plan)
    export.write(plan.out, net, model.cpu(), table, GENERATION, _clips(plan, table))
    kept = json.dumps(gains(plan), indent=1)
    (plan.out / speech.KEPT_GAINS).write_text(kept + "\n", encoding="utf-8")


def _clips(plan: Plan, table: Quantiser) -> dict[export.NamedVoice, torch.Tensor]:
    """Return the codes of the voices' clips: the checkpoint's own, if it has that clip and its
    codes mean the same.
    """
    return {
        voice: _clip(plan, table, voice) if (kept := _stored(plan, voice)) is None else kept
        for voice in export.VOICES
    }


def _stored(plan: Plan, voice: export.NamedVoice) -> torch.Tensor | None:
    file = plan.start and plan.start / "voices" / f"{voice.name}.safetensors"
    if file is None or not file.exists() or plan.refit:
        return None
    with safe_open(file, "pt") as kept:
        codes: torch.Tensor = kept.get_tensor("codes").long().T
        return codes if kept.metadata()["text"] == voice.text else None


def candidates(plan: Plan) -> None:
    """Make each voice with each candidate clip, for ``training.clips`` to compare."""
    table, made = quantiser(plan), {}
    texts = (Path(__file__).with_name("clips.txt")).read_text(encoding="utf-8").splitlines()
    for voice in export.VOICES:
        for number, text in enumerate(texts):
            one = replace(voice, name=f"{voice.name}-{number}", text=text)
            made[one] = _clip(plan, table, one)
    export.write_voices(plan.work / "clips" / "voices", made)


def _clip(plan: Plan, table: Quantiser, voice: export.NamedVoice) -> torch.Tensor:
    gain = gains(plan)[voice.teacher]
    return export.clip_codes(voice.text, voice.teacher, teacher_of(plan), table, gain)


_RUN = {
    "teacher": teacher, "speech": speak, "quantiser": quantiser, "decoder": decoder,
    "postfilter": postfiltered, "sharpen": sharpened, "adversary": judged, "encoder": encoder,
    "guess": guesser, "codes": codes, "talker": talker, "rehearse": rehearse, "clips": candidates,
    "export": write,
}  # fmt: skip


def run(stage: str, plan: Plan) -> None:
    """Run one stage, or all of them in order."""
    for name in STAGES if stage == "all" else (stage,):
        _RUN[name](plan)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("stage", choices=("all", *STAGES))
    add("--work", type=Path, default=Path("voice-work"), help="what is kept between stages")
    add("--out", type=Path, default=Path("voice-checkpoint"))
    add("--voices", type=Path, default=Path("kokoro-voices"), help="kokoro-js' folder of styles")
    add("--held-out", type=Path, default=Path(__file__).with_name("held_out.txt"),
        help="sentences that must not be learned")  # fmt: skip
    add("--speech-parts", type=int, default=120, help="of forty sentences, 90 s, for the codec")
    add("--codes-parts", type=int, default=150, help="of two hundred texts, for the talker")
    add("--hidden", type=int, default=384, help="of the decoder; 256 costs .6 of its CPU")
    add("--decoder-steps", type=int, default=20_000)
    add("--postfilter-steps", type=int, default=3000, help="0: sharpen without it")
    add("--sharpen-steps", type=int, default=6000, help="of the decoder, as it is sharpened")
    add("--adversary-steps", type=int, default=1200, help="0: without critics")
    add("--encoder-steps", type=int, default=4000)
    add("--guess-steps", type=int, default=4000)
    add("--talker-steps", type=int, default=16_000)
    add("--talker-tokens", type=int, default=2048, help="of a step's utterances; more on a GPU")
    add("--rehearsals", type=int, default=30, help="rounds of five hundred utterances")
    add("--ears", type=Path, default=PYTHON, help="the interpreter that has the recogniser")
    add("--from", type=Path, dest="start", metavar="CHECKPOINT",
        help="begin with its weights, and keep its codebooks unless --refit")  # fmt: skip
    add(
        "--refit",
        action="store_true",
        help="fit its codebooks further; codes nearly keep their meaning",
    )
    add("--decoder-from", type=Path, metavar="CHECKPOINT",
        help="begin with its decoder, whatever its codebooks")  # fmt: skip
    add("--encoder-from", type=Path, metavar="CHECKPOINT",
        help="begin with its encoder but for the last layer, likewise")  # fmt: skip
    add("--talker-from", type=Path, metavar="CHECKPOINT",
        help="begin with what its talker knows of reading, likewise")  # fmt: skip
    add("--blend", type=float, default=1.0, metavar="SHARE",
        help="of the trained talker's weights in their mean with the checkpoint's")  # fmt: skip
    add("--decoder-blend", type=float, default=1.0, metavar="SHARE", help="likewise, the decoder's")
    add(
        "--rate",
        type=float,
        default=1.0,
        help="of the usual learning rates; .3 after --from, .4 after --decoder-from",
    )
    add("--fall", type=float, default=FALL, help="share of the steps in which the rate falls")
    add("--seed", type=int, default=_SEED, help="of sentences and speakers; after --from: another")
    add("--workers", type=int, default=2, help="processes that make data")
    add("--threads", type=int, default=1, help="of the CPU")
    add("--device", default="cpu", help="cpu or cuda")
    add("--compiled", action="store_true", help="half as fast again, with a C++ compiler")
    return parser


def plan_of(arguments: Sequence[str] | None = None) -> tuple[str, Plan]:
    """Parse a command line into the stage and its plan."""
    parser = _parser()
    values = vars(parser.parse_args(arguments))
    if values["refit"] and not values["start"]:
        parser.error("--refit needs --from CHECKPOINT, whose codebooks it fits further")
    for name in ("blend", "decoder_blend"):
        option = f"--{name.replace('_', '-')}"
        if not 0 <= values[name] <= 1:
            parser.error(f"{option} {values[name]}: a share from 0 to 1")
        if values[name] < 1 and not values["start"]:
            parser.error(f"{option} needs --from CHECKPOINT, whose weights are the remainder")
    return values.pop("stage"), Plan(**values)


def main() -> None:
    """The command."""
    stage, plan = plan_of()
    plan.work.mkdir(parents=True, exist_ok=True)
    if plan.device == "cpu":
        torch.set_num_threads(plan.threads)
    run(stage, plan)


if __name__ == "__main__":
    main()
