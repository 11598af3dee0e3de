"""Measurements of one context, for ``metrics`` messages and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming.ports import Arrival
from streaming.spec import Samples

#: Levels below which a sample counts as silence (AUDIBLE, -40 dBFS), and below which silence before
#: speech can be cut off unnoticed (QUIET, -50 dBFS).
AUDIBLE, QUIET = 0.01, 0.003


def leading_silence(samples: Samples, level: float = AUDIBLE) -> int:
    """Number of samples before the first of at least ``level``; all of them if there is none."""
    audible = np.flatnonzero(np.abs(samples) >= level)
    return int(audible[0]) if len(audible) else len(samples)


@dataclass(frozen=True, slots=True)
class ContextReport:
    """Measurements of a context. Times are in seconds; ``None``: the context did not come to that.

    ``ttfa_s``: from the moment the first piece of text was complete until its first audible
    sample is heard, ``leading_silence_s`` included. ``rtf``: the time for which the talker worked
    for this context, without pauses, over the duration of the audio generated.
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
    """Collects a context's measurements. ``sample_rate``: samples played per second."""

    def __init__(self, sample_rate: float) -> None:
        self._rate = sample_rate
        self._first_text: float | None = None
        self._first_start: float | None = None
        self._heard_at: float | None = None
        self._silence = 0
        self._talking_since: float | None = None
        self._talked = 0.0

    def on_text(self, now: float) -> None:
        """Record that a piece of text is complete."""
        if self._first_text is None:
            self._first_text = now

    def on_talker_start(self, now: float, *, is_first: bool) -> None:
        """Record that the talker is asked for an utterance, the context's first one or another."""
        self._talking_since = now
        if is_first:
            self._first_start = now

    def on_rows(self, came: Sequence[Arrival]) -> None:
        """Record rows. The time for which the talker was held back does not count as work."""
        for rows, at, _ in came:
            if rows and self._talking_since is not None:
                self._talked += max(0.0, at - self._talking_since)
            self._talking_since = at

    def on_audio(self, samples: Samples, heard_from: float) -> None:
        """Record samples that are sent and heard from ``heard_from`` on."""
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
        """Return the measurements so far."""
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
