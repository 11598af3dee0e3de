"""Evaluation of the embedded voice: metrics of speech with known values, tools, and reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from codec.family import CheckpointError as CodecCheckpointError
from streaming.spec import Samples
from talker.shape import CheckpointError
from training import evaluate
from training.evaluate import _options, _texts, main
from training.evaluation.measure import Judge
from training.evaluation.metrics import (
    audible_s,
    intelligibility,
    letter_error_rate,
    mel_distance_db,
    pitch_match,
    word_errors,
    words_of,
)
from training.evaluation.pitch import pitch_track
from training.evaluation.recogniser import (
    Judges,
    MosPredictor,
    NoEars,
    NoJudges,
    NoMosPredictor,
    Recogniser,
    read_wav,
    write_wav,
)
from training.evaluation.report import (
    CodecFigures,
    Evaluation,
    Independent,
    Rating,
    SeamFigure,
    SpeechFigures,
    TalkerFigures,
    VoiceFigures,
    to_data,
    to_markdown,
)
from training.evaluation.source import NoSource, Source, file_of
from training.evaluation.speak import Speech
from training.evaluation.voices import CheckpointVoices

RATE = 24_000
WORDS = st.lists(st.sampled_from(["tea", "two", "three", "please", "no"]), max_size=8)


def glide(low_hz: float, high_hz: float, seconds: float = 1.0, rate: int = RATE) -> Samples:
    """A tone of ten harmonics whose pitch changes linearly."""
    pitch = np.linspace(low_hz, high_hz, round(seconds * rate))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    tones = [np.cos(k * phase) / k for k in range(1, 11)]
    return (np.sum(tones, 0) / 6).astype(np.float32)


def noise(seconds: float = 1.0, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    return (0.1 * rng.standard_normal(round(seconds * RATE))).astype(np.float32)


def test_word_errors_compare_spoken_forms() -> None:
    assert word_errors("It's 3 km, Dr. Lee!", "it's three kilometers doctor lee") == (0, 5)
    assert word_errors("one two three", "one three") == (1, 3)
    assert word_errors("one two", "one two two") == (1, 2)
    assert word_errors("one", "") == (1, 1)
    assert words_of("🙂") == []


@given(WORDS, WORDS)
def test_word_errors_are_a_distance(one: list[str], other: list[str]) -> None:
    said, heard = " ".join(one), " ".join(other)
    errors, count = word_errors(said, heard)
    assert count == len(one)
    assert errors == word_errors(heard, said)[0]
    assert abs(len(one) - len(other)) <= errors <= max(len(one), len(other))
    assert (errors == 0) == (one == other)


def test_letter_error_rate_compares_spoken_forms() -> None:
    assert letter_error_rate("3 km", "three kilometers") == 0
    assert letter_error_rate("a bird.", "a bard!") == 1 / 6
    assert letter_error_rate("a bird.", "") == 1


def test_word_error_rate_is_over_all_words_of_all_sentences() -> None:
    heard = intelligibility(["one", "two three four"], ["", "two three four"])
    assert heard.word_error_rate == pytest.approx(1 / 4)
    assert heard.whole == pytest.approx(1 / 2)


def test_audible_time_excludes_surrounding_silence() -> None:
    silence = np.zeros(RATE // 2, np.float32)
    speech = np.concatenate([silence, glide(100, 100, 0.7), silence])
    assert audible_s(speech, RATE) == pytest.approx(0.7, abs=0.02)
    assert audible_s(silence, RATE) == 0
    assert audible_s(np.zeros(0, np.float32), RATE) == 0


@pytest.mark.parametrize("rate", [16_000, 24_000])
@pytest.mark.parametrize(("low", "high"), [(80, 80), (200, 200), (350, 350), (90, 140), (280, 180)])
def test_pitch_track_has_mean_error_below_one_hertz(low: float, high: float, rate: int) -> None:
    found = pitch_track(glide(low, high, rate=rate), rate)[10:90]
    wanted = np.linspace(low, high, 101)[10:90]
    assert (found > 0).all()
    assert np.abs(found - wanted).max() < 2.5
    assert np.abs(found - wanted).mean() < 1


def test_noise_and_silence_have_no_pitch() -> None:
    assert (pitch_track(noise(), RATE) > 0).mean() < 0.05
    assert not pitch_track(np.zeros(RATE, np.float32), RATE).any()


def test_pitch_match_compares_melodies() -> None:
    up, down = glide(100, 180), glide(180, 100)
    same = pitch_match(up, glide(110, 198), RATE)
    assert same is not None
    assert same.correlation > 0.99
    assert same.agreement > 0.95
    against = pitch_match(up, down, RATE)
    assert against is not None
    assert against.correlation < -0.99
    half = np.concatenate([up[: RATE // 2], 0 * up[RATE // 2 :]])
    silent = pitch_match(up, half, RATE)
    assert silent is not None
    assert silent.agreement == pytest.approx(0.5, abs=0.06)
    assert pitch_match(up, noise(), RATE) is None


def test_mel_distance_grows_with_noise_and_ignores_level_and_delay() -> None:
    speech = glide(100, 180) + np.float32(0.02) * noise()
    assert mel_distance_db(speech, speech, RATE) == pytest.approx(0, abs=1e-9)
    assert mel_distance_db(speech, (speech / 3).astype(np.float32), RATE) < 0.01
    late = np.concatenate([np.zeros(480, np.float32), speech])
    assert mel_distance_db(speech, late, RATE) < 0.1
    little = mel_distance_db(speech, speech + 0.02 * noise(seed=1), RATE)
    much = mel_distance_db(speech, speech + 0.5 * noise(seed=1), RATE)
    assert 0.1 < little < much


def test_checkpoint_voices_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    codes = np.arange(12, dtype=np.int16).reshape(3, 4)
    for name, default in (("ann", "false"), ("bob", "true")):
        save_file(
            {"codes": codes},
            tmp_path / "voices" / f"{name}.safetensors",
            {"name": name, "text": f"I am {name}.", "default": default}
            | ({"teacher": "af_ann"} if name == "ann" else {}),
        )
    voices = CheckpointVoices(tmp_path)
    assert voices.names() == ("ann", "bob")
    bob = voices.get("bob")
    assert bob is not None
    assert bob.transcript == "I am bob."
    assert np.array_equal(bob.frames, codes.T)
    assert voices.get("default") == bob
    assert voices.get("cat") is None
    assert voices.teacher("ann") == "af_ann"
    assert voices.teacher("bob") is None
    assert CheckpointVoices(tmp_path / "none").names() == ()


def test_evaluation_reports_missing_tools(tmp_path: Path) -> None:
    with pytest.raises(NoEars, match="make test"):
        Recogniser(tmp_path / "python")
    with pytest.raises(NoSource, match=r"training\.recite"):
        Source(tmp_path, "af_ann", RATE).speak("Hello.")
    with pytest.raises(NoMosPredictor, match="no "):
        MosPredictor(tmp_path / "python")


@pytest.mark.parametrize("at_once", [True, False])
def test_recogniser_that_ends_is_reported_as_missing(tmp_path: Path, at_once: bool) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n" + ("exit 3\n" if at_once else "read line\nexit 3\n"))
    python.chmod(0o755)
    with Recogniser(python) as ears:
        if at_once:
            ears._process.wait(30)
        with pytest.raises(NoEars, match="ended with 3"):
            ears.hear([noise(0.1)], RATE)


def _interpreter(folder: Path, script: str) -> Path:
    """Write a fake interpreter, which runs ``script`` whatever its arguments."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_mos_predictor_without_package_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(NoMosPredictor, match="has no distillmos"):
        MosPredictor(_interpreter(tmp_path, "exit 1"))


def test_mos_predictor_leaves_out_too_short_speech(tmp_path: Path) -> None:
    """Speech that is too short for the network has no score."""
    script = "echo ready; while read file; do test -f $file && echo 3.5; done"
    with MosPredictor(_interpreter(tmp_path, script)) as predictor:
        speeches = [noise(0.1), np.zeros(0, np.float32), noise(0.2)]
        assert predictor.scores(speeches, RATE) == [3.5, 3.5]


def test_mos_predictor_scores_speech_higher_than_noise() -> None:
    """Uses the real DistillMOS, if it is installed."""
    try:
        predictor = MosPredictor()
    except NoMosPredictor as missing:
        pytest.skip(str(missing))
    with predictor:
        clear, noisy = predictor.scores([glide(120, 180), noise()], RATE)
    assert 1 <= noisy < clear <= 5


def test_missing_judges_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoJudges, match="make judges"):
        Judges(tmp_path / "python")
    with pytest.raises(NoJudges, match="lacks faster-whisper"):
        Judges(_interpreter(tmp_path, "exit 1"))
    one = 'case "$1" in *whisper*) echo ready; read line;; esac'
    with pytest.raises(NoJudges, match="lacks onnxruntime"):
        Judges(_interpreter(tmp_path, one))
    monkeypatch.setattr("training.evaluate.Recogniser", nullcontext)
    monkeypatch.setattr("training.evaluate.JUDGES_PYTHON", tmp_path / "none")
    assert main(["--judges-python", str(tmp_path / "none")]) == 1  # named, so needed
    assert f"no {tmp_path / 'none'}: make judges" in capsys.readouterr().err
    with evaluate._judges(None) as judges:
        assert judges is None
    assert "no judges that took no part" in capsys.readouterr().err


def test_judges_hear_and_rate_each_speech(tmp_path: Path) -> None:
    script = """echo ready
while read file; do
    test -f $file || exit 1
    case "$1" in *whisper*) echo '"hello there"';; *) echo '[3.5, 4.0, 3.0]';; esac
done"""
    speech = [noise(0.2), np.zeros(0, np.float32)]
    with Judges(_interpreter(tmp_path, script)) as judges:
        assert judges.rate(speech, RATE) == [Rating(3.5, 4.0, 3.0), None]
        found = Judge(["Hello there.", "Tea."], _Deaf(), RATE, judges=judges).speech(speech)
    assert found.independent == Independent(
        2 / 3, ("hello there", "hello there"), (Rating(3.5, 4.0, 3.0), None)
    )
    assert found.word_error_rate == 1


def test_judges_prefer_speech_to_noise() -> None:
    """Uses the real Whisper and DNSMOS, if they are installed, and the voice's own recording."""
    try:
        judges = Judges()
    except NoJudges as missing:
        pytest.skip(str(missing))
    clear, rate = read_wav(Path("docs/audio/heart_1.wav"))
    noisy = np.clip(clear + noise(len(clear) / rate, 1)[: len(clear)] * 0.1, -1, 1)
    with judges:
        heard = judges.hear([clear, clear], rate)
        ratings = judges.rate([clear, np.asarray(noisy, np.float32)], rate)
    assert heard[0] == heard[1]
    assert len(words_of(heard[0])) > 3
    assert ratings[0]
    assert ratings[1]
    assert 1 <= ratings[1].background < ratings[0].background <= 5
    assert ratings[1].overall < ratings[0].overall


def test_nobody_tuned_to_the_texts_of_the_judges() -> None:
    training = Path(evaluate.__file__).parent
    phrases = json.dumps(json.loads((training / "phrases.json").read_text()), ensure_ascii=False)
    known = (training / "held_out.txt").read_text() + (training / "tuning.txt").read_text()
    file = training / "evaluation" / "untuned.txt"
    texts, kinds = _texts(_options(["--sentences", str(file)]))
    assert set(kinds) == {"Harvard sentences", "Agent replies", "Short answers"}
    assert len(set(texts)) == len(texts)
    assert all(kinds.count(kind) >= 15 for kind in set(kinds))
    longer = [text for text in texts if len(words_of(text)) > 3]
    assert not [text for text in longer if text in known or text in phrases]


class _Deaf(Recogniser):
    def __init__(self) -> None: ...

    def hear(self, speeches: Sequence[Samples], rate: int) -> list[str]:
        return [""] * len(speeches)


def test_length_ratio_leaves_out_silent_speech() -> None:
    silence = np.zeros(0, np.float32)
    said = [Speech((), glide(100, 200), False, 1.0), Speech((), silence, False, 1.0)]
    judge = Judge(["Hello.", "There."], _Deaf(), RATE)
    ratio = judge.talker([said], [glide(100, 200), silence]).length_ratio
    assert ratio == (1, 1, 1)
    assert judge.talker([said], [silence, silence]).length_ratio is None


def test_talker_is_judged_over_all_seeds() -> None:
    class Ears(Recogniser):
        """Hears the first of two words only if speech is long."""

        def __init__(self) -> None: ...

        def hear(self, speeches: Sequence[Samples], rate: int) -> list[str]:
            return ["hello there" if len(one) > RATE else "there" for one in speeches]

    texts = ["Hello there.", "Hello, there."]
    long, short = (Speech((), np.ones(n, np.float32), n > RATE, 1.0) for n in (RATE + 1, RATE))
    found = Judge(texts, Ears(), RATE).talker([[long, long], [short, short], [long, long]], None)
    assert found.by_seed == (0, 0.5, 0)
    assert found.speech.word_error_rate == pytest.approx(1 / 6)
    assert found.speech.whole == pytest.approx(2 / 3)
    assert found.ran_away == 4
    assert len(found.speech.heard) == 6


@pytest.mark.parametrize(
    ("options", "seeds"),
    [([], [1, 2, 3]), (["--seeds", "7", "9"], [7, 9]), (["--greedy"], [None])],
)
def test_talker_speaks_once_with_each_seed(options: list[str], seeds: list[int | None]) -> None:
    found = evaluate._samplings(_options(options))
    assert [one.seed for one in found] == seeds
    assert {one.temperature for one in found} == ({0.0} if "--greedy" in options else {None})


@pytest.mark.parametrize("option", ["--count", "--streams", "--timed"])
@pytest.mark.parametrize("number", ["0", "-1", "all"])
def test_evaluation_refuses_numbers_below_one(
    option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _options([f"{option}={number}"])
    assert ended.value.code == 2
    assert "usage: training.evaluate" in capsys.readouterr().err


def test_evaluation_speaks_lines_with_words_below_their_headings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sentences.txt"
    file.write_text("Hello.\n\n  \n...\nBye.\n", encoding="utf-8")
    assert _texts(_options(["--sentences", str(file)])) == (["Hello.", "Bye."], [])
    file.write_text("# Greetings\nHello.\n\n# Others\nTea?\nNo.\nBye.\n", encoding="utf-8")
    kinds = ["Greetings", "Others", "Others", "Others"]
    assert _texts(_options(["--sentences", str(file)])) == (
        ["Hello.", "Tea?", "No.", "Bye."],
        kinds,
    )
    half = _texts(_options(["--sentences", str(file), "--count", "2"]))
    assert half == (["Hello.", "No."], ["Greetings", "Others"])
    file.write_text("\n...\n", encoding="utf-8")
    monkeypatch.setattr("training.evaluate.Recogniser", nullcontext)
    assert main(["--sentences", str(file)]) == 1
    assert "no sentence with words" in capsys.readouterr().err


@pytest.mark.parametrize("blocked", ["", "evaluation.md", "evaluation.json"])
def test_evaluation_refuses_unwritable_results_before_it_speaks(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    blocked: str,
) -> None:
    monkeypatch.setattr("training.evaluate.Recogniser", lambda: pytest.fail("started"))
    out = tmp_path / "out"
    if blocked:
        (out / blocked).mkdir(parents=True)
    else:
        out.write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(out)])
    assert ended.value.code == 2
    assert f"argument --out: cannot write {out / blocked}: " in capsys.readouterr().err


def test_evaluation_names_missing_voice_or_file_before_it_speaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.evaluate.Recogniser", nullcontext)
    monkeypatch.setattr(
        "training.evaluate.TalkerProcessEngine", lambda *_, **__: pytest.fail("started")
    )
    assert main(["--voices", "default,nobody"]) == 1
    assert "no voice 'nobody'; it has: " in capsys.readouterr().err
    assert main(["--sentences", str(tmp_path / "missing.txt")]) == 1
    assert "missing.txt cannot be read: " in capsys.readouterr().err
    assert main(["--teacher", str(tmp_path), "--count", "2"]) == 1
    assert f"in {tmp_path}: python -m training.recite\n" in capsys.readouterr().err
    assert main(["--model", str(tmp_path / "missing")]) == 1
    assert "missing' is neither a folder nor a hub id" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [CheckpointError("config.json: missing or not JSON"), CodecCheckpointError("no codec")]
)
def test_evaluation_reports_unusable_checkpoint(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("training.evaluate.Recogniser", nullcontext)
    monkeypatch.setattr("training.evaluate.TalkerProcessEngine", refuse)
    assert main(["--count", "1"]) == 1
    assert capsys.readouterr().err.endswith(f"{error}\n")


def test_source_finds_recordings_by_spoken_words(tmp_path: Path) -> None:
    """The spelling does not matter. Recordings are resampled to the requested rate."""
    file = file_of(tmp_path, "af_ann", "3 km")
    file.parent.mkdir()
    write_wav(file, glide(100, 180), RATE)
    speech = Source(tmp_path, "af_ann", 16_000).speak("three kilometers")
    assert len(speech) == 16_000
    assert pitch_match(glide(100, 180, rate=16_000), speech, 16_000).correlation > 0.99  # type: ignore[union-attr]
    with pytest.raises(NoSource, match="four kilometers"):
        Source(tmp_path, "af_ann", RATE).speak("four kilometers")


def evaluation_of(data: str) -> Evaluation:
    """Read the JSON of a report."""
    found = json.loads(data)
    for seam in found["seams"]:
        seam |= {name: float("inf") for name, value in seam.items() if value is None}
    return msgspec.convert(found, Evaluation)


def test_report_has_figures_in_markdown_and_json() -> None:
    speech = SpeechFigures(0.125, 0.5, 0, 9.0, 171.0, 2.0, ("hello",), 4.25)
    codec = CodecFigures(SpeechFigures(0.25, 0.5, 0, 9.0, 170.0, 1.5, ("hello",)), 0.91, 0.95, 3.5)
    heard = SpeechFigures(0.375, 0.5, 1, 9.0, None, None, ("",))
    talker = TalkerFigures(heard, 2, (1.0, 0.9, 1.1), (0.375,))
    thrice = TalkerFigures(heard, 2, None, (0.375, 0.25, 0.5))
    evaluation = Evaluation(
        "checkpoint",
        "sha256:0",
        "ears",
        "predictor",
        {"cpu": "a"},
        "greedy",
        ("Hello.",),
        1,
        0.5,
        (VoiceFigures("ann", "af_ann", speech, codec, talker),
         VoiceFigures("bob", None, None, None, thrice)),
        (SeamFigure(0, 15.9, 3.1), SeamFigure(10, float("inf"), float("inf"))),
    )  # fmt: skip
    page = to_markdown(evaluation)
    assert "| ann | Kokoro af_ann | 12.5% | 50% | 4.25 | - | - | 1 |" in page
    assert "| ann | through the codec | 25.0% | 50% | - | - | - | 1 |" in page
    assert "| ann | **talker** | 37.5% | 50% | - | 2 | 1 | 1.00 (0.90 to 1.10) |" in page
    assert "| ann | 171 Hz ± 2.0 st | 170 Hz ± 1.5 st | - | 0.91 | 0.95 | 3.5 |" in page
    assert "| bob | **talker** | 37.5% (25.0% to 50.0%) | 50% | - | 2 | 1 | - |" in page
    assert "| bob | - | - | - | - | - | - |" in page
    assert "Naturalness: predictor." in page
    assert "| 0 | 15.9 | 3.1 |" in page
    assert "| 10 | equal | equal |" in page
    assert evaluation_of(json.dumps(to_data(evaluation), allow_nan=False)) == evaluation


def test_report_has_independent_judges_beside_recogniser_by_kind() -> None:
    texts, kinds = ("Hello there.", "No."), ("Greetings", "Answers")
    other = Independent(
        0.5,
        ("hello there", "no", "hello", "know"),
        (Rating(3, 4, 2.5), None, Rating(3, 4, 2), None),
    )
    ears = ("hello there", "no", "hello there", "snow")
    speech = SpeechFigures(0.25, 0.5, 0, 9.0, None, None, ears, None, other)
    talker = TalkerFigures(speech, 0, None, (0.0, 0.5))
    voices = tuple(VoiceFigures(name, None, None, None, talker) for name in ("ann", "bob"))
    evaluation = Evaluation(
        "checkpoint", "sha256:0", "ears", None, {"cpu": "a"}, "twice", texts, 3, 0.5, voices, (),
        "others", kinds,
    )  # fmt: skip
    page = to_markdown(evaluation)
    assert "| ann | Greetings | 4 | 0.0% | 25.0% | 2.25 | 3.00 | 4.00 |" in page
    assert "| ann | Answers | 2 | 50.0% | 50.0% | - | - | - |" in page
    assert "| bob | all | 6 | 16.7% | 33.3% | 2.25 | 3.00 | 4.00 |" in page
    assert "| all | all | 12 | 16.7% | 33.3% | 2.25 | 3.00 | 4.00 |" in page
    assert "others." in page
    assert evaluation_of(json.dumps(to_data(evaluation), allow_nan=False)) == evaluation
    unjudged = replace(evaluation, judges=None, kinds=())
    assert "no part in training" not in to_markdown(unjudged)
    plain = to_markdown(replace(evaluation, kinds=()))
    assert "| all | all | 12 | 16.7% | 33.3% | 2.25 | 3.00 | 4.00 |" in plain
    assert "Greetings" not in plain


def test_committed_report_is_equal_in_markdown_and_json() -> None:
    folder = evaluate._CHECKPOINT
    evaluation = evaluation_of((folder / "evaluation.json").read_text(encoding="utf-8"))
    assert to_markdown(evaluation) == (folder / "evaluation.md").read_text(encoding="utf-8")
