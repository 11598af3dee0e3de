"""Measurements of one context, for ``metrics`` messages and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from streaming.ports import Arrival
from streaming.spec import Samples

#: Level below which a sample counts as silence: -40 dBFS.
AUDIBLE = 0.01
#: Level below which silence before speech can be cut off unnoticed: -50 dBFS.
QUIET = 0.003


def leading_silence(samples: Samples, level: float = AUDIBLE) -> int:
    """Number of samples before the first of at least ``level``; all of them if there is none."""
    audible = np.flatnonzero(np.abs(samples) >= level)
    return int(audible[0]) if len(audible) else len(samples)


@dataclass(frozen=True, slots=True)
class ContextReport:
    """Measurements of a context. ``None``: the context did not come to that."""

    #: From the first complete piece of text until the talker was asked for it.
    queue_s: float | None
    #: From there until the first audible sample is played, ``leading_silence_s`` included, but not
    #: pauses that the client requested.
    ttfa_s: float | None
    #: Silence at the beginning of the audio, without such pauses.
    leading_silence_s: float | None
    #: Duration of the audio sent, as it is played.
    audio_s: float
    #: Duration of the audio generated, as it would be played.
    generated_s: float
    #: Time for which the talker worked for this context, without pauses, over ``generated_s``.
    rtf: float | None
    #: Silence in which the listener waited for audio.
    underrun_s: float
    #: Number of such waits.
    underruns: int
    #: Length of the text.
    characters: int


class Stopwatch:
    """Collects a context's measurements. ``sample_rate``: samples played per second."""

    def __init__(self, sample_rate: float) -> None:
        self._rate = sample_rate
        self._first_text: float | None = None
        self._first_start: float | None = None
        self._audible_at: float | None = None
        self._silence = 0
        #: Seconds of pauses played between the first text and the first audible sample.
        self._paused = 0.0
        #: When the last of these pauses has been played.
        self._pause_end = -inf
        self._talking_since: float | None = None
        self._talked = 0.0

    def on_text(self, now: float) -> None:
        """Record that a piece of text is complete."""
        if self._first_text is None:
            self._first_text = now
            self._paused = max(0.0, self._pause_end - now)

    def on_talker_start(self, now: float, *, is_first: bool) -> None:
        """Record that an utterance is requested of the talker, the context's first or another."""
        self._talking_since = now
        if is_first:
            self._first_start = now

    def on_rows(self, came: Sequence[Arrival]) -> None:
        """Record rows. The time for which the talker was held back does not count as work."""
        for rows, at, _ in came:
            if rows and self._talking_since is not None:
                self._talked += max(0.0, at - self._talking_since)
            self._talking_since = at

    def on_audio(self, samples: Samples, played_at: float) -> None:
        """Record samples that are sent, and played from ``played_at`` on."""
        if self._audible_at is not None:
            return
        silent = leading_silence(samples)
        self._silence += silent
        if silent < len(samples):
            self._audible_at = played_at + silent / self._rate

    def on_pause(self, samples: int, played_at: float) -> None:
        """Record a part of a requested pause, which is played from ``played_at`` on."""
        if self._audible_at is not None:
            return
        self._pause_end = played_at + samples / self._rate
        if self._first_text is not None:
            self._paused += max(0.0, self._pause_end - max(played_at, self._first_text))

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
        queue: float | None = None
        ttfa: float | None = None
        silence: float | None = None
        if self._first_text is not None and self._first_start is not None:
            queue = self._first_start - self._first_text
        if self._audible_at is not None and self._first_text is not None:
            silence = self._silence / self._rate
            ttfa = self._audible_at - self._first_text - self._paused
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
