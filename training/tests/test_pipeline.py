"""The training pipeline with a fake teacher: its stages, interruptions and checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from training import (
    adversary,
    codec_training,
    corpus,
    dataset,
    decoder_training,
    encoder_training,
    export,
    guess,
    postfilter,
    rehearsal,
    sampling,
    speech,
    talker_training,
    train,
    warm,
)
from training import progress as progress_module
from training.adversary import Adversary
from training.decoder_training import decoder_error, examples
from training.encoder_training import recordings
from training.pitch import HOP
from training.progress import Progress, restore_weights
from training.quantise import COMPONENTS
from training.spectra import spectra
from training.talker import Shape
from training.tests.fake_rehearsal import FakeRecogniser, fake_draw
from training.tests.fake_teacher import FakeTeacher, fake_reading

SMALL = Shape(hidden=32, layers=2, heads=2, kv_heads=1, head=16, ffn=48, guided=(0, 1))
STEPS = 4


class BrokenOff(Exception):
    """A simulated interruption of a stage."""


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for module in (train, speech, dataset):
            patch.setattr(module, "read", fake_reading)
        patch.setattr(train, "teacher_of", lambda _plan: FakeTeacher())
        patch.setattr(train, "_ENCODER_HIDDEN", 4)
        patch.setattr(train, "_SPOKEN", 40)
        patch.setattr(speech, "GROUPS", 5)
        patch.setattr(speech, "PART", 20)
        patch.setattr(dataset, "PART", 20)
        patch.setattr(train, "Shape", lambda: SMALL)
        patch.setattr(talker_training, "_TESTED", 3)
        patch.setattr(talker_training, "_POOL", 2)
        patch.setattr(guess, "_LENGTH", 40)
        patch.setattr(guess, "_UNSEEN", 2)
        patch.setattr(decoder_training, "_TESTED", 2)
        patch.setattr(postfilter, "_UNSEEN", 2)
        patch.setattr(postfilter, "_LENGTH", 10)
        patch.setattr(postfilter, "_UNKNOWN", 2)
        patch.setattr(postfilter, "ALONE", 2)
        patch.setattr(adversary, "ALONE", 2)
        patch.setattr(adversary, "FRAMES", 8)
        patch.setattr(adversary, "SIZE", 2)
        patch.setattr(encoder_training, "_TESTED", 2)
        patch.setattr(train, "Recogniser", FakeRecogniser)
        patch.setattr(rehearsal, "draw", fake_draw)
        patch.setattr(rehearsal, "TEXTS", 3)
        yield


def plan(work: Path, *more: str) -> train.Plan:
    """Return a plan with a few steps for each stage."""
    steps = {
        "--speech-parts": 2, "--codes-parts": 2, "--hidden": 32, "--decoder-steps": STEPS,
        "--postfilter-steps": STEPS, "--sharpen-steps": STEPS, "--adversary-steps": STEPS,
        "--encoder-steps": STEPS, "--guess-steps": STEPS, "--talker-steps": STEPS,
        "--rehearsals": 2, "--workers": 1,
    }  # fmt: skip
    options = [str(value) for pair in steps.items() for value in pair]
    return train.plan_of(["all", "--work", str(work), "--out", str(work / "out"), *options, *more])[
        1
    ]


def prepared(folder: Path) -> Path:
    """Make a work folder with sentences, so that Debian's WordNet is not needed."""
    folder.mkdir()
    random = Random(0)
    words = ["tea", "or", "me", "sing", "alone", "house", "river", "you", "again", "blue"]
    lines = [" ".join(random.sample(words, 5)) + "." for _ in range(170)]
    (folder / "sentences.json").write_text(json.dumps(lines))
    return folder


@pytest.fixture(scope="module")
def made(_small: None, tmp_path_factory: pytest.TempPathFactory) -> train.Plan:
    """Run all stages but the first without interruption."""
    whole = plan(prepared(tmp_path_factory.mktemp("whole") / "work"))
    for stage in train.STAGES[1:]:
        train.run(stage, whole)
    return whole


def test_pipeline_writes_checkpoint_that_can_be_trained_further(
    made: train.Plan, tmp_path: Path
) -> None:
    found = load_file(made.out / "model.safetensors")
    assert all(t.isfinite().all() for t in found.values() if t.is_floating_point())
    for number, voice in enumerate(export.VOICES):
        with safe_open(made.out / "voices" / f"{voice.name}.safetensors", "pt") as clip:
            codes, facts = clip.get_tensor("codes"), clip.metadata()
        assert codes.shape[0] == 8
        assert facts["default"] == ("true" if number == 0 else "false")
        assert facts["teacher"] == voice.teacher
    table = warm.quantiser_of(made.out)
    again = plan(made.work, "--from", str(made.out))
    pool = examples(list(train.spoken(made))[:2], table)
    began = decoder_error(train.new_codec(again), pool)
    fresh = decoder_error(train.new_codec(made), pool)
    assert began["spectral"] < fresh["spectral"]
    elsewhere = plan(tmp_path, "--from", str(made.out))
    assert train.gains(elsewhere) == train.gains(made)
    assert (tmp_path / "gains.json").exists(), "what recites for the evaluation needs it"


def test_checkpoint_clips_are_kept_unless_their_texts_change(
    made: train.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken: list[str] = []

    def speaks_anew(_plan: train.Plan, _table: object, voice: export.NamedVoice) -> torch.Tensor:
        spoken.append(voice.name)
        return torch.zeros(3, 8, dtype=torch.long)

    monkeypatch.setattr(train, "_clip", speaks_anew)
    first, *others = export.VOICES
    monkeypatch.setattr(export, "VOICES", (replace(first, text="another one."), *others))
    table = train.quantiser(made)
    found = train._clips(replace(made, start=made.out), table)
    assert spoken == [first.name]
    assert len(train._clips(replace(made, start=made.out, refit=True), table)) == 5
    assert spoken[1:] == [voice.name for voice in export.VOICES], "refit codes mean other sounds"
    for voice, codes in list(found.items())[1:]:
        kept = load_file(made.out / "voices" / f"{voice.name}.safetensors")["codes"]
        assert torch.equal(codes.T.to(torch.int16), kept)


def test_sharpen_refuses_decoder_from_checkpoint(made: train.Plan, tmp_path: Path) -> None:
    """It may have been sharpened already."""
    elsewhere = replace(made, work=tmp_path, start=made.out)
    for name in ("speech", "quantiser.safetensors", "gains.json"):
        (tmp_path / name).symlink_to(made.work / name)
    for stage in ("postfilter", "sharpen"):
        with pytest.raises(LookupError, match="nothing to sharpen"):
            train.run(stage, elsewhere)


def test_sharpen_asks_for_postfilter(made: train.Plan, tmp_path: Path) -> None:
    elsewhere = replace(made, work=tmp_path)
    for name in ("speech", "quantiser.safetensors", "gains.json", "decoder.state.safetensors"):
        (tmp_path / name).symlink_to(made.work / name)
    with pytest.raises(LookupError, match="stage `postfilter` has kept no state"):
        train.run("sharpen", elsewhere)
    train.run("sharpen", replace(elsewhere, postfilter_steps=0))
    plain, clearer = (
        load_file(folder / "sharpen.state.safetensors")["model.fc2.weight"]
        for folder in (tmp_path, made.work)
    )
    assert not torch.equal(plain, clearer), "the postfilter changes what the decoder learns"


def test_talker_utterances_require_trained_talker(
    made: train.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "draw", fake_draw)
    monkeypatch.setattr(train, "_TALKED_TEXTS", 2)
    table = train.quantiser(made)
    said = list(train._talked(made, table))
    assert len(said) == 2 * len(export.VOICES) * 3, "at three temperatures"
    assert {tuple(codes.shape) for codes in said} == {(8, 8)}
    assert all(not codes[:, 4:].any() for codes in said)
    assert not list(train._talked(plan(prepared(tmp_path / "fresh")), table))


def test_last_decoder_is_exported(made: train.Plan) -> None:
    *earlier, last = (
        load_file(made.work / f"{stage}.state.safetensors")["model.fc2.weight"].bfloat16()
        for stage in train.DECODERS
    )
    exported = load_file(made.out / "model.safetensors")[f"{export.CODEC}fc2.weight"]
    assert torch.equal(exported, last)
    assert not any(torch.equal(exported, one) for one in earlier)


def test_adversary_goes_on_from_sharpened_decoder(
    made: train.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distances are measured from what that decoder says."""
    seen: list[torch.Tensor] = []
    latents = torch.zeros(1, 4, 80)

    def train_decoder(model: object, *_: object, adversary: Adversary, **__: object) -> None:
        seen.append(decoder_training.decode(model, latents))
        seen.append(adversary.target(latents, np.random.default_rng(0)))

    monkeypatch.setattr(decoder_training, "train_decoder", train_decoder)
    monkeypatch.setattr(sampling, "draw", fake_draw)
    train.run("adversary", made)
    model = train.new_codec(made)
    restore_weights("sharpen", made.work, codec_training.parts(model)["decoder"])
    right = decoder_training.decode(model, latents)
    assert torch.equal(seen[0], right)
    assert torch.allclose(seen[1], right, atol=0.01), "in bfloat16, with a little noise"


def test_adversary_needs_decoder(made: train.Plan, tmp_path: Path) -> None:
    elsewhere = replace(made, work=tmp_path)
    for name in ("speech", "quantiser.safetensors", "gains.json"):
        (tmp_path / name).symlink_to(made.work / name)
    with pytest.raises(LookupError, match="no decoder to judge"):
        train.run("adversary", elsewhere)


def test_size_of_talker_batches_is_an_option(
    made: train.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = dict[str, object]()
    monkeypatch.setattr(talker_training, "train", lambda *_, **options: seen.update(options))
    train.run("talker", plan(made.work, "--talker-tokens", "4096"))
    assert seen["tokens"] == 4096


def test_rehearsed_talker_is_exported(made: train.Plan) -> None:
    name = "layers.0.mlp.up_proj.weight"
    plain, rehearsed = (
        load_file(made.work / f"{stage}.state.safetensors")[f"model.{name}"]
        for stage in ("talker", "rehearse")
    )
    exported = load_file(made.out / "model.safetensors")[f"body.{name}"]
    assert torch.equal(exported, rehearsed.bfloat16())
    assert not torch.equal(rehearsed, plain)


@pytest.mark.parametrize(
    "stage",
    [
        "speech", "codes", "guess", "decoder", "postfilter", "sharpen", "adversary", "talker",
        "rehearse",
    ],
)  # fmt: skip
def test_resumed_stage_equals_uninterrupted_stage(
    made: train.Plan, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage is interrupted after the first state or part that is kept, and run again."""
    work = prepared(tmp_path / "work")
    before = train.STAGES[1 : train.STAGES.index(stage)]
    kept = {"speech": "speech", "quantiser": "quantiser.safetensors", "codes": "codes"}
    names = [kept.get(name, f"{name}.state.safetensors") for name in before]
    for name in [*names, "gains.json"] if before else []:
        (work / name).symlink_to(made.work / name)
    module = {"speech": speech, "codes": dataset}.get(stage)
    with monkeypatch.context() as patch:
        if module:
            name = "speak" if stage == "speech" else "make"
            plain, seen = getattr(module, name), 0

            def breaking(*values: object) -> object:
                nonlocal seen
                seen += 1
                if seen == 30:  # in the second part
                    raise BrokenOff
                return plain(*values)

            patch.setattr(module, name, breaking)
        else:
            keep = Progress.keep

            def keep_once(self: Progress, *values: object, **more: object) -> None:
                keep(self, *values, **more)  # type: ignore[arg-type]
                raise BrokenOff

            patch.setattr(Progress, "keep", keep_once)
        with pytest.raises(BrokenOff):
            train.run(stage, plan(work))
    train.run(stage, plan(work))
    if module:
        files = sorted((made.work / stage).glob("*.npz"))
        assert files
        for file in files:
            with np.load(file) as whole, np.load(work / stage / file.name) as resumed:
                assert all(np.array_equal(whole[name], resumed[name]) for name in whole.files)
    else:
        whole_state = load_file(made.work / f"{stage}.state.safetensors")
        resumed_state = load_file(work / f"{stage}.state.safetensors")
        assert whole_state.keys() == resumed_state.keys()
        different = [n for n, t in whole_state.items() if not torch.equal(t, resumed_state[n])]
        assert not different


def test_extended_run_resumes_before_rate_fell(tmp_path: Path) -> None:
    """It resumes where the rate began to fall, not at its end, where the rate was near zero."""
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 2)
    rates = []
    for steps in (8, 16):
        progress = Progress("line", tmp_path, steps, every=100)
        progress.restore(module)
        for _ in progress:
            rates.append(progress.slope(1))
            if progress.due:
                progress.keep(module)
    assert rates[:6] == [1.0] * 6
    assert rates[6:8] == [1.0, 0.5]
    assert rates[8:14] == [1.0] * 6, "from step 6 on, where the shorter run's rate began to fall"
    assert len(rates) == 8 + 10


def test_rate_falls_in_given_share_of_steps(tmp_path: Path) -> None:
    progress = Progress("line", tmp_path, 10, fall=0.4)
    rates = [progress.slope(1) for _ in progress]
    assert rates == pytest.approx([1.0] * 7 + [0.75, 0.5, 0.25])


def test_time_left_follows_latest_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step takes 1,000 seconds, since much is set up there, and others take 60."""
    now = 0.0
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    progress = Progress("line", tmp_path, 6, report=2)
    now = 500.0  # data are read
    for step in progress:
        now += 60.0 if step else 1000.0
    told = [line.split(", ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "530.00 s a step, 35 min left", "60.00 s a step, 2 min left", "60.00 s a step, 0 min left",
    ]  # fmt: skip


def test_shortened_run_can_be_extended_again(tmp_path: Path) -> None:
    """The state at which the rate began to fall is kept. Reading it changes nothing."""
    module = torch.nn.Linear(2, 2)

    def went(steps: int, until: int) -> list[float]:
        progress, rates = Progress("line", tmp_path, steps, every=5), []
        progress.restore(module)
        for step in progress:
            rates.append(progress.slope(1))
            with torch.no_grad():
                module.bias.fill_(step + 1)
            if progress.due:
                progress.keep(module)
            if step + 1 == until:
                break
        return rates

    assert went(100, 10) == [1.0] * 10
    restore_weights("line", tmp_path, module)
    assert went(12, 12) == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    restore_weights("line", tmp_path, module)
    assert module.bias.tolist() == [12, 12]
    assert went(100, 11) == [1.0], "on from step 10, where it was ended"
    assert module.bias.tolist() == [11, 11]


def test_levelled_voices_are_equally_loud() -> None:
    random = np.random.default_rng(0)
    pitch, place = np.ones(20, np.int64), np.zeros(20, np.float32)
    said = [
        speech.Spoken("a", voice, (level * random.standard_normal(20 * HOP)).astype(np.float32),
                      pitch, place)
        for voice, level in (("x", 0.02), ("y", 0.2), ("x", 0.02))
    ]  # fmt: skip
    levels = [one.samples.std() for one in speech.levelled(said, speech.gains(said))]
    assert levels == pytest.approx([0.1] * 3, rel=0.03)


def test_voice_of_draws_voices_by_their_shares() -> None:
    drawn = [speech.voice_of(group, seed=1) for group in range(4000)]
    assert drawn == [speech.voice_of(group, seed=1) for group in range(4000)]
    shares = {voice: drawn.count(voice) / len(drawn) for voice in set(drawn)}
    for voice, share in speech.NAMED.items():
        assert shares[voice] == pytest.approx(share, abs=0.02)
    assert set(shares) == {*speech.NAMED, *speech.OTHERS}
    assert {voice.teacher for voice in export.VOICES} == set(speech.NAMED)


def test_passages_keep_order_of_sentences() -> None:
    lines = [f"{corpus.number(i)} is said." for i in range(3000)]
    texts = dataset.passages(lines, seed=1)
    said = [lines.index(line.strip()) for text in texts for line in re.findall(r"[^.]+\.", text)]
    assert said == sorted(set(said))
    assert len(said) > 0.9 * len(lines), "few are dropped: where one more would be too long"
    assert len(texts) % speech.GROUP == 0
    assert max(map(len, texts)) <= dataset.LONGEST
    assert 0.1 < sum(len(text) > 100 for text in texts) / len(texts) < 0.3


def test_recordings_stay_within_full_scale(made: train.Plan) -> None:
    said = next(train.spoken(made))
    loud = replace(said, samples=said.samples / np.abs(said.samples).max())
    peaks = [float(r.samples.abs().max()) for r in recordings([loud] * 8, 3)]
    assert max(peaks) == pytest.approx(1, abs=1e-3)
    assert min(peaks) < 0.9


def test_latents_of_recording_follow_loudness(made: train.Plan) -> None:
    """The latents of a louder recording differ by its gain, as the spectra do."""
    table, said = train.quantiser(made), next(train.spoken(made))
    quiet, loud = (recordings([said], seed)[0].samples.float() for seed in (3, 4))
    gain = float((loud.std() / quiet.std()).log())
    unit = torch.zeros(1, len(table.mean))
    unit[:, ::30] = 80**0.5  # one neper more in each of eighty bands
    step = table.components(unit + table.mean)[0, :COMPONENTS]
    pitch = torch.from_numpy(said.pitch)
    change = table.exact(spectra(loud), pitch) - table.exact(spectra(quiet), pitch)
    change = change[:, :COMPONENTS]
    voiced = pitch > 0
    measured = float((change[voiced] @ step / step.pow(2).sum()).mean())
    assert abs(gain) > 0.05
    assert measured == pytest.approx(gain, rel=0.15)
