"""How a stream went for its listener: pure arithmetic over (arrival time, samples) records.

The listener is modelled by a playback clock: playback begins with the first chunk (after a
prebuffer, if one is asked for), runs in real time, and stalls when nothing is left.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streaming.playback import PlaybackClock
from streaming.report import AUDIBLE


class Arrival(NamedTuple):
    """``samples`` arrived at ``at_s``. ``continues`` is false after a pause that is meant."""

    at_s: float
    samples: int
    continues: bool = True


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A stream's figures; None where there was no (audible) audio.

    ``ttfb_ms`` runs to the first chunk's arrival, ``ttfa_ms`` to when the first audible sample is
    played (so leading silence counts, and a stall within it). ``rtf`` is the time to the last
    chunk over the audio's length. ``underrun_ms`` is the silence that late chunks caused in
    ``underruns`` places.
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
    """How often a listener ran dry, and for how many seconds in all."""
    clock = PlaybackClock(sample_rate)
    play_s = arrivals[0].at_s + prebuffer_s if arrivals else 0.0
    for arrival in arrivals:
        clock.on_sent(arrival.samples, max(arrival.at_s, play_s), continues=arrival.continues)
    return clock.underruns, clock.underrun_s


def _played_s(arrivals: Sequence[Arrival], sample_rate: int, sample: int) -> float | None:
    """When a listener hears the sample of that number; None if it has not come."""
    clock = PlaybackClock(sample_rate)
    for arrival in arrivals:
        ahead = sample - clock.sent_samples
        starts_s = max(arrival.at_s, clock.dry_at)
        if ahead < arrival.samples:
            return starts_s + ahead / sample_rate
        clock.on_sent(arrival.samples, arrival.at_s)
    return None


def report(
    arrivals: Sequence[Arrival],
    *,
    started_s: float,
    sample_rate: int,
    leading_silence_samples: int | None = 0,
    prebuffer_s: float = 0.0,
) -> StreamReport:
    """Figures of one stream whose text was sent at ``started_s``.

    ``arrivals`` are in order of time, on the clock of ``started_s``; ones without samples do not
    count. ``leading_silence_samples`` is None when nothing audible came at all.
    """
    heard = [arrival for arrival in arrivals if arrival.samples]
    samples = sum(arrival.samples for arrival in heard)
    audio_s = samples / sample_rate
    ttfb_s = heard[0].at_s - started_s if heard else None
    audible_s = None
    if leading_silence_samples is not None:
        audible_s = _played_s(heard, sample_rate, leading_silence_samples)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(heard) if b.continues]
    underruns, underrun_s = underrun(heard, sample_rate, prebuffer_s)
    return StreamReport(
        ttfb_ms=None if ttfb_s is None else 1000 * ttfb_s,
        ttfa_ms=None if audible_s is None else 1000 * (audible_s - started_s),
        audio_s=audio_s,
        rtf=(heard[-1].at_s - started_s) / audio_s if heard else None,
        largest_gap_ms=1000 * max(gaps, default=0.0),
        underrun_ms=1000 * underrun_s,
        underruns=underruns,
        chunks=len(heard),
    )


class LeadingSilence:
    """Counts the samples before the first audible one, over chunks of s16le PCM."""

    def __init__(self) -> None:
        self._samples = 0
        self._audible = False

    @property
    def samples(self) -> int | None:
        """The count; None while nothing audible has come."""
        return self._samples if self._audible else None

    def push(self, pcm: bytes) -> None:
        """The next chunk: whole samples, signed 16 bits, little-endian."""
        if self._audible:
            return
        chunk = array("h", pcm)
        if sys.byteorder == "big":
            chunk.byteswap()
        threshold = AUDIBLE * 32768
        audible = next((i for i, sample in enumerate(chunk) if abs(sample) >= threshold), None)
        self._audible = audible is not None
        self._samples += len(chunk) if audible is None else audible
