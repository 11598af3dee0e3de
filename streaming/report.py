"""Measurements of one context: the figures behind ``metrics`` and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming.ports import Arrival
from streaming.spec import Samples

#: Below AUDIBLE (-40 dBFS) a sample counts as silence. Where speech may be cut off from what is
#: before it (QUIET, -50 dBFS) nobody hears that it begins at once.
AUDIBLE, QUIET = 0.01, 0.003


def leading_silence(samples: Samples, level: float = AUDIBLE) -> int:
    """How many samples come before the first of that level (all of them if none is)."""
    audible = np.flatnonzero(np.abs(samples) >= level)
    return int(audible[0]) if len(audible) else len(samples)


@dataclass(frozen=True, slots=True)
class ContextReport:
    """Seconds throughout. ``None``: it did not come to that.

    ``ttfa_s`` runs from the moment the first utterance's text was complete to its first
    audible sample's being heard, so ``leading_silence_s`` is part of it. ``rtf`` is the time during
    which the talker worked for this context, pauses apart, over the audio that came of it.
    """

    queue_s: float | None
    ttfa_s: float | None
    leading_silence_s: float | None
    audio_s: float
    generated_s: float
    rtf: float | None
    underrun_s: float
    underruns: int
    characters: int


class Stopwatch:
    """Gathers a context's figures as they come. ``sample_rate``: samples heard per second."""

    def __init__(self, sample_rate: float) -> None:
        self._rate = sample_rate
        self._first_text: float | None = None
        self._first_start: float | None = None
        self._heard_at: float | None = None
        self._silence = 0
        self._talking_since: float | None = None
        self._talked = 0.0

    def on_text(self, now: float) -> None:
        """An utterance is complete."""
        if self._first_text is None:
            self._first_text = now

    def on_talker_start(self, now: float, *, is_first: bool) -> None:
        """The talker is asked for an utterance, the context's first one or another."""
        self._talking_since = now
        if is_first:
            self._first_start = now

    def on_rows(self, came: Sequence[Arrival]) -> None:
        """Rows came; the talker did not work while it was held back."""
        for rows, at, _ in came:
            if rows and self._talking_since is not None:
                self._talked += max(0.0, at - self._talking_since)
            self._talking_since = at

    def on_audio(self, samples: Samples, heard_from: float) -> None:
        """Samples go out and are heard from then on."""
        if self._heard_at is not None:
            return
        silent = leading_silence(samples)
        self._silence += silent
        if silent < len(samples):
            self._heard_at = heard_from + silent / self._rate

    def report(
        self,
        *,
        sent_samples: int,
        generated_samples: int,
        underrun_s: float,
        underruns: int,
        characters: int,
    ) -> ContextReport:
        """The figures so far."""
        queue = ttfa = silence = None
        if self._first_text is not None and self._first_start is not None:
            queue = self._first_start - self._first_text
        if self._heard_at is not None and self._first_text is not None:
            silence = self._silence / self._rate
            ttfa = self._heard_at - self._first_text
        generated_s = generated_samples / self._rate
        return ContextReport(
            queue_s=queue,
            ttfa_s=ttfa,
            leading_silence_s=silence,
            audio_s=sent_samples / self._rate,
            generated_s=generated_s,
            rtf=self._talked / generated_s if generated_s else None,
            underrun_s=underrun_s,
            underruns=underruns,
            characters=characters,
        )
