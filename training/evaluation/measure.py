"""Measurement of one voice: its source, the source through the codec, and the talker."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from codec.families.higgs.encoder import HiggsEncoder
from streaming.ports import CodecDecoder
from streaming.spec import Samples
from training.evaluation.metrics import (
    PitchMatch,
    audible_s,
    intelligibility,
    mel_distance_db,
    pitch_match,
)
from training.evaluation.pitch import pitch_track
from training.evaluation.recogniser import Judges, MosPredictor, Recogniser
from training.evaluation.report import (
    CodecFigures,
    Independent,
    SpeechFigures,
    TalkerFigures,
)
from training.evaluation.speak import Speech

_SEMITONES = 12


class Judge:
    """Measures speech of ``texts`` at ``rate``; its naturalness too, if there is a predictor, and
    what others say, if there are ``judges``.
    """

    def __init__(
        self,
        texts: Sequence[str],
        ears: Recogniser,
        rate: int,
        predictor: MosPredictor | None = None,
        judges: Judges | None = None,
    ) -> None:
        self._judges = judges
        self._texts, self._ears, self._rate, self._predictor = texts, ears, rate, predictor

    def speech(self, speeches: Sequence[Samples]) -> SpeechFigures:
        """Measure speech by itself, without a comparison: of all texts, once or several times."""
        words = self._ears.hear(speeches, self._rate)
        heard = intelligibility(self._all_texts(len(speeches)), words)
        lengths = [audible_s(samples, self._rate) for samples in speeches]
        tracks = [pitch_track(samples, self._rate) for samples in speeches if len(samples)]
        pitches = np.concatenate([track[track > 0] for track in tracks] or [np.zeros(0)])
        middle = float(np.median(pitches)) if len(pitches) else None
        melody = float(_SEMITONES * np.log2(pitches).std()) if len(pitches) else None
        return SpeechFigures(
            heard.word_error_rate,
            heard.whole,
            sum(not length for length in lengths),
            sum(lengths),
            middle,
            melody,
            tuple(words),
            self._naturalness(speeches),
            self._independent(speeches),
        )

    def _all_texts(self, count: int) -> list[str]:
        return [*self._texts] * (count // len(self._texts))

    def _naturalness(self, speeches: Sequence[Samples]) -> float | None:
        """Return the mean score; None without a predictor or without speech."""
        scores = self._predictor.scores(speeches, self._rate) if self._predictor else []
        return fmean(scores) if scores else None

    def _independent(self, speeches: Sequence[Samples]) -> Independent | None:
        """Return what the judges say that took no part in training, if they are there."""
        if self._judges is None:
            return None
        heard = self._judges.hear(speeches, self._rate)
        ratings = self._judges.rate(speeches, self._rate)
        wrong = intelligibility(self._all_texts(len(speeches)), heard).word_error_rate
        return Independent(wrong, tuple(heard), tuple(ratings))

    def codec(
        self, sources: Sequence[Samples], encoder: HiggsEncoder, decoder: CodecDecoder
    ) -> CodecFigures:
        """Measure the sources after encoder and decoder."""
        coded = decoder.decode([encoder.encode(samples) for samples in sources])
        pairs = list(zip(sources, coded, strict=True))
        found = [pitch_match(*pair, self._rate) for pair in pairs]
        matches: list[PitchMatch] = [match for match in found if match]
        return CodecFigures(
            self.speech(coded),
            fmean(match.correlation for match in matches) if matches else None,
            fmean(match.agreement for match in matches) if matches else None,
            fmean(mel_distance_db(*pair, self._rate) for pair in pairs),
        )

    def talker(
        self, spoken: Sequence[Sequence[Speech]], sources: Sequence[Samples] | None
    ) -> TalkerFigures:
        """Measure the talker's speech: all texts, with each seed. ``sources`` are the same texts by
        the voice that it was trained on; lengths are not compared where a source is silent.
        """
        said = [speech for speeches in spoken for speech in speeches]
        ratio = None
        if sources is not None:
            ratios = [
                audible_s(mine.samples, self._rate) / length
                for mine, source in zip(said, [*sources] * len(spoken), strict=True)
                if (length := audible_s(source, self._rate))
            ]
            ratio = (fmean(ratios), min(ratios), max(ratios)) if ratios else None
        figures = self.speech([speech.samples for speech in said])
        count = len(self._texts)
        heard = [figures.heard[start : start + count] for start in range(0, len(said), count)]
        wrong = tuple(intelligibility(self._texts, words).word_error_rate for words in heard)
        return TalkerFigures(figures, sum(speech.ran_away for speech in said), ratio, wrong)
