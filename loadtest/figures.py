"""The results of a run, computed from its raw records alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from loadtest.plan import Plan
from loadtest.process_stats import ProcessStats
from loadtest.records import TurnRecord
from loadtest.stats import Interval, Quantiles, quantiles, share_interval
from talkwire_client.playback import Arrival, StreamReport, report, underrun

#: Milliseconds of audio that a listener may buffer before playback.
PREBUFFERS_MS = (0, 100, 200)


class Figures(Struct, frozen=True):
    """The results of one run, described in docs/guides/load_testing.md; times in milliseconds."""

    #: Turns that were due per second.
    offered_per_s: float
    #: Turns that were due in the window.
    measured_turns: int
    #: Number of turns by outcome.
    outcomes: dict[str, int]
    #: Number of errors by code.
    codes: dict[str, int]
    #: The same before the window, in which their sessions are missing.
    codes_before: dict[str, int]
    #: Mean number of open contexts.
    streams: float
    #: Maximum number of open contexts.
    streams_most: int
    #: Seconds of audio received per second.
    audio_per_s: float
    #: From a turn's intended start to its first chunk.
    ttfb: Quantiles
    #: From a turn's intended start to its first audible sample.
    ttfa: Quantiles
    #: To the same from when the first sentence was due to be complete.
    ttfa_sentence: Quantiles
    #: Between two chunks.
    gap: Quantiles
    #: Share of turns without underrun, by the milliseconds that the listener buffers.
    gap_free: dict[str, Interval | None]
    #: Share of turns of which the server itself reported an underrun.
    server_underrun_share: Interval | None
    #: The talker's real-time factor, by the server.
    rtf: Quantiles
    #: Time to the last chunk over the duration of the audio.
    delivery_rtf: Quantiles
    #: From a cancel to its acknowledgement.
    cancel_ack: Quantiles
    #: From a cancel to the last audio.
    cancel_last_byte: Quantiles
    #: From a request to its refusal.
    refusal: Quantiles
    #: How late the generator started turns.
    lateness: Quantiles
    #: The ``ttfa_sentence`` within which a turn is good.
    slo_ttfa_ms: float
    #: Good turns per second: in time, and gap-free without a prebuffer.
    goodput_per_s: float
    #: Seconds that were measured.
    window_s: float
    #: What the server's processes used.
    server: ProcessStats | None = None
    #: Streams for each core that the server used.
    streams_per_core: float | None = None
    #: The machine's load before and after the run.
    load_average: tuple[float, float] = (0.0, 0.0)


def stream_report(record: TurnRecord) -> StreamReport:
    """Compute the listener's measurements of one turn, from its intended start."""
    return report(
        arrivals_of(record),
        started_s=record.intended_s,
        sample_rate=record.sample_rate,
        leading_silence_samples=record.silence,
    )


def arrivals_of(record: TurnRecord) -> list[Arrival]:
    """List a record's chunks. Every silence counts, whatever its cause."""
    return [Arrival(at, samples) for at, samples in record.arrivals]


def is_gap_free(record: TurnRecord, prebuffer_ms: int) -> bool:
    """Whether a listener with that prebuffer had no underrun before the end or the cancel."""
    chunks = arrivals_of(record)
    if record.outcome == "cancelled" and record.cancel_s is not None:
        chunks.append(Arrival(record.cancel_s, 1))  # audio that was to come had not arrived by then
    return underrun(chunks, record.sample_rate, prebuffer_ms / 1000)[0] == 0


def measured_turns(
    plan: Plan, records: Iterable[TurnRecord], until_s: float | None = None
) -> list[TurnRecord]:
    """Select turns that were due between the warm-up and the plan's end (or ``until_s``)."""
    end_s = min(plan.duration_s, until_s or plan.duration_s)
    return [r for r in records if plan.warmup_s <= r.intended_s < end_s]


def open_spans(records: Iterable[TurnRecord]) -> list[tuple[float, float]]:
    """List the time span in which each context was open."""
    return [(r.opened_s, r.ended_s) for r in records if r.opened_s is not None]


def overlap(spans: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Sum up the seconds of spans within ``[begin_s, end_s]``."""
    return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in spans)


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Return the maximum number of spans that overlap."""
    changes = sorted([(b, 1) for b, _ in spans] + [(e, -1) for _, e in spans])
    return max(itertools.accumulate(change for _, change in changes), default=0)


def _known(values: Iterable[float | None]) -> Quantiles:
    return quantiles([value for value in values if value is not None])


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(name for name in names if name is not None))


def _after_cancel_ms(record: TurnRecord, at_s: float | None) -> float | None:
    """Return the time from an acknowledged cancel to ``at_s``; 0 if that was earlier or never."""
    if record.cancelled_s is None or record.cancel_s is None:
        return None
    return 1000 * max(0.0, (at_s or 0.0) - record.cancel_s)


def _refusal_ms(plan: Plan, record: TurnRecord) -> float | None:
    """Return the time from request to refusal; over HTTP the request has the whole text."""
    requested_s = record.sentence_s if plan.protocol == "openai" else record.intended_s
    return 1000 * (record.ended_s - requested_s) if record.outcome == "refused" else None


def _sentence_ttfa(record: TurnRecord, measured: StreamReport) -> float | None:
    if measured.ttfa_ms is None:
        return None
    return measured.ttfa_ms - 1000 * (record.sentence_s - record.intended_s)


def figures(
    plan: Plan,
    records: Sequence[TurnRecord],
    *,
    slo_ttfa_ms: float,
    server: ProcessStats | None = None,
    load_average: tuple[float, float] = (0.0, 0.0),
    until_s: float | None = None,
) -> Figures:
    """Compute the results of the turns that were due between the warm-up and the plan's end.

    ``until_s``: the time at which the run was stopped before the plan's end.
    """
    begin_s, end_s = plan.warmup_s, min(plan.duration_s, until_s or plan.duration_s)
    window_s = max(1e-9, end_s - begin_s)
    measured = measured_turns(plan, records, until_s)
    audible = [
        (record, stream_report(record))
        for record in measured
        if record.outcome in ("complete", "cancelled") and record.arrivals
    ]
    sentence = [(r, _sentence_ttfa(r, h)) for r, h in audible]
    good = [r for r, t in sentence if t is not None and t <= slo_ttfa_ms and is_gap_free(r, 0)]
    spans = open_spans(records)
    streams = overlap(spans, begin_s, end_s) / window_s
    underruns_ms = [r.underrun_ms for r in measured if r.underrun_ms is not None]
    samples = sum(
        n / r.sample_rate for r in records for at, n in r.arrivals if begin_s <= at < end_s
    )
    return Figures(
        offered_per_s=len(measured) / window_s,
        measured_turns=len(measured),
        outcomes=_counted(r.outcome for r in measured),
        codes=_counted(r.code for r in measured),
        codes_before=_counted(r.code for r in records if r.intended_s < begin_s),
        streams=streams,
        streams_most=most_at_once(spans),
        audio_per_s=samples / window_s,
        ttfb=_known(h.ttfb_ms for _, h in audible),
        ttfa=_known(h.ttfa_ms for _, h in audible),
        ttfa_sentence=_known(t for _, t in sentence),
        gap=quantiles([gap for r, _ in audible for gap in gaps_ms(r)]),
        gap_free={
            str(held): share_interval(sum(is_gap_free(r, held) for r, _ in audible), len(audible))
            for held in PREBUFFERS_MS
        },
        server_underrun_share=share_interval(sum(ms > 0 for ms in underruns_ms), len(underruns_ms)),
        rtf=_known(r.rtf for r in measured),
        delivery_rtf=_known(h.rtf for _, h in audible),
        cancel_ack=_known(_after_cancel_ms(r, r.cancelled_s) for r in measured),
        cancel_last_byte=_known(_after_cancel_ms(r, r.last_audio_s) for r in measured),
        refusal=_known(_refusal_ms(plan, r) for r in measured),
        lateness=quantiles([1000 * (r.started_s - r.intended_s) for r in measured]),
        slo_ttfa_ms=slo_ttfa_ms,
        goodput_per_s=len(good) / window_s,
        window_s=window_s,
        server=server,
        streams_per_core=streams / server.cores if server and server.cores else None,
        load_average=load_average,
    )


def gaps_ms(record: TurnRecord) -> list[float]:
    """List the times between a chunk's arrival and the next one's."""
    return [1000 * (b[0] - a[0]) for a, b in itertools.pairwise(record.arrivals)]
