"""Playback by a listener: the clock, and statistics of a stream.

A listener begins to play with the first chunk (after a prebuffer, if there is one), plays in real
time, and stalls when no audio is left. The times are arguments, in seconds on any clock that does
not run backwards.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

#: A 16-bit sample below this (-40 dBFS) counts as silence.
AUDIBLE = 0.01 * 32768
#: A deadline missed by less than this is a rounding error, not an underrun.
_TOLERANCE_S = 1e-6


class PlaybackClock:
    """The playback of one speech.

    Args:
        sample_rate: In Hz.

    Attributes:
        received_samples: Number of samples that have arrived.
        underruns: Number of chunks that arrived after an underrun.
        underrun_s: Seconds of silence that they caused.

    Raises:
        ValueError: The sample rate is below 1.
    """

    def __init__(self, sample_rate: float) -> None:
        if sample_rate < 1:
            raise ValueError(f"sample_rate must be positive, and is {sample_rate}")
        self._rate = sample_rate
        self._anchor_samples, self._anchor_s = 0, -inf
        self.received_samples = 0
        self.underruns = 0
        self.underrun_s = 0.0

    @property
    def dry_at(self) -> float:
        """Time when everything received will have been played; -inf before the first chunk."""
        if not self.received_samples:
            return -inf
        return self._anchor_s + (self.received_samples - self._anchor_samples) / self._rate

    def on_audio(self, samples: int, now: float, *, continues: bool = True) -> None:
        """Count ``samples`` that arrive at ``now``.

        Args:
            samples: Number of samples.
            now: Time of arrival.
            continues: False after an intended pause, which is no underrun.
        """
        if not samples:
            return
        dry_at = self.dry_at
        if now > dry_at:
            if continues and self.received_samples and now - dry_at > _TOLERANCE_S:
                self.underruns += 1
                self.underrun_s += now - dry_at
            self._anchor_samples, self._anchor_s = self.received_samples, now
        self.received_samples += samples

    def played_samples(self, now: float) -> int:
        """Count the samples that have been played by ``now``."""
        if not self.received_samples:
            return 0
        played = self._anchor_samples + round(max(0.0, now - self._anchor_s) * self._rate)
        return min(self.received_samples, played)

    def heard_at(self, sample: int) -> float:
        """Return the time at which a sample is played; it must be of the last chunk."""
        return self._anchor_s + (sample - self._anchor_samples) / self._rate


class Arrival(NamedTuple):
    """``samples`` that arrived at ``at_s``; ``continues`` is false after an intended pause."""

    at_s: float
    samples: int
    continues: bool = True


@dataclass(frozen=True, slots=True)
class StreamReport:
    """Measurements of a stream for its listener; None where there was no (audible) audio.

    Attributes:
        ttfb_ms: Time until the first chunk arrived.
        ttfa_ms: Time until the first audible sample was played, so leading silence counts.
        audio_s: Duration of the audio.
        rtf: The time to the last chunk over the audio's duration.
        largest_gap_ms: The longest time between two chunks.
        underrun_ms: The silence that late chunks caused.
        underruns: Number of underruns.
        chunks: Number of chunks.
    """

    ttfb_ms: float | None
    ttfa_ms: float | None
    audio_s: float
    rtf: float | None
    largest_gap_ms: float
    underrun_ms: float
    underruns: int
    chunks: int


def underrun(
    arrivals: Sequence[Arrival], sample_rate: int, prebuffer_s: float = 0.0
) -> tuple[int, float]:
    """Compute the underruns of one stream.

    Args:
        arrivals: In order of time.
        sample_rate: In Hz.
        prebuffer_s: How long the listener delays the first chunk.

    Returns:
        The number of underruns, and their duration in seconds.
    """
    clock = PlaybackClock(sample_rate)
    begin_s = arrivals[0].at_s + prebuffer_s if arrivals else 0.0
    for arrival in arrivals:
        clock.on_audio(arrival.samples, max(arrival.at_s, begin_s), continues=arrival.continues)
    return clock.underruns, clock.underrun_s


def report(
    arrivals: Sequence[Arrival],
    *,
    started_s: float,
    sample_rate: int,
    leading_silence_samples: int | None = 0,
    prebuffer_s: float = 0.0,
) -> StreamReport:
    """Compute the measurements of one stream.

    Args:
        arrivals: In order of time; those without samples are ignored.
        started_s: When its text was sent, on the same clock.
        sample_rate: In Hz.
        leading_silence_samples: Samples before the first audible one; None if all are silent.
        prebuffer_s: How long the listener delays the first chunk, for underruns.

    Returns:
        The measurements.
    """
    audible = [arrival for arrival in arrivals if arrival.samples]
    audio_s = sum(arrival.samples for arrival in audible) / sample_rate
    ttfb_s = audible[0].at_s - started_s if audible else None
    audible_s = None
    if leading_silence_samples is not None:
        audible_s = _heard_s(audible, sample_rate, leading_silence_samples)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(audible) if b.continues]
    underruns, underrun_s = underrun(audible, sample_rate, prebuffer_s)
    return StreamReport(
        ttfb_ms=None if ttfb_s is None else 1000 * ttfb_s,
        ttfa_ms=None if audible_s is None else 1000 * (audible_s - started_s),
        audio_s=audio_s,
        rtf=(audible[-1].at_s - started_s) / audio_s if audible else None,
        largest_gap_ms=1000 * max(gaps, default=0.0),
        underrun_ms=1000 * underrun_s,
        underruns=underruns,
        chunks=len(audible),
    )


def _heard_s(arrivals: Sequence[Arrival], sample_rate: int, sample: int) -> float | None:
    """Time at which a listener without a prebuffer hears a sample; None if it has not arrived."""
    clock = PlaybackClock(sample_rate)
    for arrival in arrivals:
        clock.on_audio(arrival.samples, arrival.at_s)
        if sample < clock.received_samples:
            return clock.heard_at(sample)
    return None


class LeadingSilence:
    """Counts the samples before the first audible one, over chunks of 16-bit PCM."""

    def __init__(self) -> None:
        self._samples = 0
        self._audible = False

    @property
    def samples(self) -> int | None:
        """The count; None before the first audible sample."""
        return self._samples if self._audible else None

    def push(self, pcm: bytes) -> None:
        """Count the next chunk: whole samples, signed 16 bits, little-endian."""
        if self._audible:
            return
        chunk = array("h", pcm)
        if sys.byteorder == "big":
            chunk.byteswap()
        audible = next((i for i, sample in enumerate(chunk) if abs(sample) >= AUDIBLE), None)
        self._audible = audible is not None
        self._samples += len(chunk) if audible is None else audible
