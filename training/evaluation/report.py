"""The results of an evaluation, as data and as a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from loadtest.program import markdown_table
from training.evaluation.metrics import intelligibility, word_errors


@dataclass(frozen=True, slots=True)
class Rating:
    """DNSMOS's ratings from 1 to 5: of the speech signal, of the background, and overall."""

    signal: float
    background: float
    overall: float


@dataclass(frozen=True, slots=True)
class Independent:
    """What judges that took no part in training say. ``heard``, ``ratings``: by sentence; silence
    has no rating.
    """

    word_error_rate: float
    heard: tuple[str, ...]
    ratings: tuple[Rating | None, ...]


@dataclass(frozen=True, slots=True)
class SpeechFigures:
    """Results for one source of speech over all sentences. ``whole``: the share of sentences heard
    without a wrong word. ``silent``: number of silent sentences. ``pitch_hz``: the median;
    ``melody_semitones``: the standard deviation of the pitch, 0 for a monotone. ``heard``: the
    words heard, by sentence. ``mos``: the predicted naturalness from 1 to 5, if it was measured.
    ``independent``: the same speech by other judges, if they were there.
    """

    word_error_rate: float
    whole: float
    silent: int
    seconds: float
    pitch_hz: float | None
    melody_semitones: float | None
    heard: tuple[str, ...]
    mos: float | None = None
    independent: Independent | None = None


@dataclass(frozen=True, slots=True)
class CodecFigures:
    """The source's speech after encoder and decoder, and its distance from the source."""

    speech: SpeechFigures
    pitch_correlation: float | None
    voicing_agreement: float | None
    mel_distance_db: float


@dataclass(frozen=True, slots=True)
class TalkerFigures:
    """The talker's speech, with all seeds together. Its lengths are divided by those of the source,
    if there is one: mean, minimum and maximum. ``by_seed``: the word error rate with each seed.
    """

    speech: SpeechFigures
    ran_away: int
    length_ratio: tuple[float, float, float] | None
    by_seed: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VoiceFigures:
    """Results for one voice; ``teacher`` is the voice it was trained on, if recorded."""

    name: str
    teacher: str | None
    source: SpeechFigures | None
    codec: CodecFigures | None
    talker: TalkerFigures


@dataclass(frozen=True, slots=True)
class SeamFigure:
    """Streamed against whole decoding, in dB; infinite if the samples are equal."""

    lookahead: int
    snr_db: float
    worst_chunk_db: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All results. ``rtf``: seconds of computing per second of speech by talker and codec, one
    stream. ``kinds``: the kind of each sentence, if the file names kinds.
    """

    model: str
    weights: str
    recogniser: str
    mos_predictor: str | None
    environment: dict[str, str]
    sampling: str
    sentences: tuple[str, ...]
    words: int
    rtf: float
    voices: tuple[VoiceFigures, ...]
    seams: tuple[SeamFigure, ...]
    judges: str | None = None
    kinds: tuple[str, ...] = ()


def to_data(evaluation: Evaluation) -> dict[str, Any]:
    """Convert to JSON data. JSON has no infinity, so the SNR of equal samples is null."""
    data = asdict(evaluation)
    for seam in data["seams"]:
        for name, value in seam.items():
            seam[name] = None if math.isinf(value) else value
    return data


def to_markdown(evaluation: Evaluation) -> str:
    """Format as a page of tables."""
    environment = "; ".join(f"{key} {value}" for key, value in evaluation.environment.items())
    parts = [
        "# The embedded voice, measured",
        f"`make voice-eval`: {len(evaluation.sentences)} held-out sentences, {evaluation.words}"
        f" words; {evaluation.sampling}. Heard by {evaluation.recogniser}, words compared as"
        f" `text.english` reads them. Naturalness: {evaluation.mos_predictor or 'not measured'}."
        f" Weights {evaluation.weights}.",
        f"{environment}. One stream alone takes {evaluation.rtf:.2f} s for a second of speech.",
        "## Understood",
        _understood(evaluation.voices),
        *_independent(evaluation),
        "## Likeness",
        _likeness(evaluation.voices),
        "## Seams",
        "Streamed in chunks of 5 frames, against the same codes decoded whole.",
        markdown_table(
            ["lookahead", "SNR dB", "worst chunk dB"],
            [[s.lookahead, _db(s.snr_db), _db(s.worst_chunk_db)] for s in evaluation.seams],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _understood(voices: Sequence[VoiceFigures]) -> str:
    head = ["voice", "speech", "words wrong", "sentences right", "MOS", "ran away", "silent",
            "length"]  # fmt: skip
    rows: list[list[object]] = []
    for voice in voices:
        if voice.source:
            source = f"Kokoro {voice.teacher}"
            rows.append([voice.name, source, *_heard(voice.source), "-", "-", 1])
        if voice.codec:
            coded = _heard(voice.codec.speech)
            rows.append([voice.name, "through the codec", *coded, "-", "-", 1])
        talker, ratio = voice.talker, voice.talker.length_ratio
        length = "-" if ratio is None else "{:.2f} ({:.2f} to {:.2f})".format(*ratio)
        mine: list[object] = [voice.name, "**talker**", *_heard(talker.speech)]
        if len(rates := voice.talker.by_seed) > 1:
            mine[2] = f"{mine[2]} ({min(rates):.1%} to {max(rates):.1%})"
        rows.append([*mine, talker.ran_away, talker.speech.silent, length])
    return markdown_table(head, rows)


def _heard(figures: SpeechFigures) -> list[str]:
    return [f"{figures.word_error_rate:.1%}", f"{figures.whole:.0%}", _optional(figures.mos)]


def _independent(evaluation: Evaluation) -> list[str]:
    """The talker by judges that took no part in training, beside the recogniser that did."""
    if evaluation.judges is None:
        return []
    head = ["voice", "texts", "words", "words wrong: the recogniser", "an independent one",
            "DNSMOS: overall", "signal", "background"]  # fmt: skip
    kinds = list(dict.fromkeys(evaluation.kinds))
    rows = [
        _judged(evaluation, [voice], kind) for voice in evaluation.voices for kind in (*kinds, None)
    ]
    rows += [_judged(evaluation, evaluation.voices, kind) for kind in (*kinds, None)]
    return [
        "## By judges that took no part in training",
        f"{evaluation.judges}. The recogniser above was heard in training, and DistillMOS chose"
        " between decoders; these were not asked.",
        markdown_table(head, rows),
    ]


def _judged(
    evaluation: Evaluation, voices: Sequence[VoiceFigures], kind: str | None
) -> list[object]:
    """A row: speech by ``voices`` of the texts of one kind, or of all."""
    said: list[str] = []
    heard: list[str] = []
    also_heard: list[str] = []
    ratings: list[Rating] = []
    for voice in voices:
        figures = voice.talker.speech
        times = len(figures.heard) // len(evaluation.sentences)
        kinds = (evaluation.kinds or (None,) * len(evaluation.sentences)) * times
        chosen = [at for at, one in enumerate(kinds) if kind in (one, None)]
        said += [evaluation.sentences[at % len(evaluation.sentences)] for at in chosen]
        heard += [figures.heard[at] for at in chosen]
        if figures.independent:
            also_heard += [figures.independent.heard[at] for at in chosen]
            ratings += [one for at in chosen if (one := figures.independent.ratings[at])]
    words = sum(word_errors(text, "")[1] for text in said)
    return [
        voices[0].name if len(voices) == 1 else "all",
        kind or "all",
        words,
        f"{intelligibility(said, heard).word_error_rate:.1%}",
        f"{intelligibility(said, also_heard).word_error_rate:.1%}",
        *(
            _optional(fmean(getattr(one, aspect) for one in ratings) if ratings else None)
            for aspect in ("overall", "signal", "background")
        ),
    ]


def _likeness(voices: Sequence[VoiceFigures]) -> str:
    head = ["voice", "pitch, melody: source", "codec", "talker", "codec's pitch follows",
            "voicing agrees", "mel distance dB"]  # fmt: skip
    rows = []
    for voice in voices:
        codec = voice.codec
        close: list[object] = ["-", "-", "-"]
        if codec:
            close = [_optional(codec.pitch_correlation), _optional(codec.voicing_agreement),
                     codec.mel_distance_db]  # fmt: skip
        kinds = (voice.source, codec.speech if codec else None, voice.talker.speech)
        rows.append([voice.name, *map(_melody, kinds), *close])
    return markdown_table(head, rows)


def _melody(figures: SpeechFigures | None) -> str:
    if figures is None or figures.pitch_hz is None or figures.melody_semitones is None:
        return "-"
    return f"{figures.pitch_hz:.0f} Hz ± {figures.melody_semitones:.1f} st"


def _optional(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _db(value: float) -> str:
    return "equal" if math.isinf(value) else f"{value:.1f}"
