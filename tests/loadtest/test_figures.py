from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadtest.figures import figures, most_at_once, overlap
from loadtest.plan import Plan
from loadtest.process_stats import ProcessStats, Sample, usage
from loadtest.records import TurnRecord, from_line, read_records, to_line, write_records

RATE = 1000
PLAN = Plan(url="ws://127.0.0.1:1/", duration_s=20, warmup_s=10, rate_per_s=1)


def turn(session: int = 0, at: float = 10.0, **changes: Any) -> TurnRecord:
    """One second of audio, from 0.5 s on (50 silent samples); its sentence is due after 0.2 s."""
    fields: dict[str, Any] = {
        "outcome": "complete",
        "opened_s": at + 0.1,
        "arrivals": [(at + 0.5, 500), (at + 0.8, 500)],
        "silence": 50,
        "ended_s": at + 1.0,
        "rtf": 0.3,
        "underrun_ms": 0.0,
    } | changes
    return TurnRecord(
        session=session,
        turn=0,
        characters=10,
        intended_s=at,
        sentence_s=at + 0.2,
        started_s=fields.pop("started_s", at + 0.01),
        sample_rate=RATE,
        **fields,
    )


def made(*records: TurnRecord, **options):
    return figures(PLAN, records, slo_ttfa_ms=400, **options)


def test_times_count_from_intended_start() -> None:
    late = made(turn(started_s=10.4))
    assert late.ttfb.p50.value == pytest.approx(500)
    assert late.ttfa.p50.value == pytest.approx(550)
    assert late.ttfa_sentence.p50.value == pytest.approx(350)
    assert late.lateness.p50.value == pytest.approx(400)


def test_only_turns_within_measurement_window_count() -> None:
    done = made(turn(at=9.99), turn(1, at=10.0), turn(2, at=19.99), turn(3, at=20.0))
    assert done.measured_turns == done.ttfa.n == 2
    assert done.offered_per_s == pytest.approx(2 / 10)
    # The intended start decides whether a turn is in the window, not the actual one.
    assert made(turn(at=19.9, started_s=20.5), turn(1, at=9.9, started_s=10.4)).ttfa.n == 1
    assert made(turn(at=19.9, started_s=20.5)).measured_turns == 1
    early = turn(4, at=2.0, outcome="failed", code="timeout")
    assert made(early, turn(at=11.0)).codes_before == {"timeout": 1}
    stopped = made(turn(at=11.0), turn(1, at=16.0), until_s=15.0)
    assert stopped.measured_turns == 1
    assert stopped.window_s == 5


def test_outcomes_are_counted_separately() -> None:
    nothing: dict[str, Any] = {
        "opened_s": None,
        "arrivals": [],
        "silence": None,
        "rtf": None,
        "underrun_ms": None,
    }
    done = made(
        turn(),
        turn(1, outcome="refused", code="overloaded", **nothing | {"ended_s": 10.02}),
        turn(2, outcome="failed", code="timeout"),
        turn(3, outcome="unfinished"),
    )
    assert done.outcomes == {"complete": 1, "refused": 1, "failed": 1, "unfinished": 1}
    assert done.codes == {"overloaded": 1, "timeout": 1}
    assert done.ttfa.n == 1
    assert done.refusal.p50.value == pytest.approx(20)


def test_gap_free_share_depends_on_prebuffer() -> None:
    # 500 samples at 10.5 last until 11.0; the rest comes 150 ms late.
    gap = turn(arrivals=[(10.5, 500), (11.15, 500)])
    done = made(gap, turn(1))
    assert done.gap_free["0"].value == done.gap_free["100"].value == 0.5
    assert done.gap_free["200"].value == 1
    assert sorted((done.gap.p50.value, done.gap.max)) == pytest.approx([475, 650])


def test_silence_before_barge_in_is_gap() -> None:
    # The audio lasts until 11.5. The barge-in comes at 13, after 1.5 s of silence.
    cut = turn(outcome="cancelled", cancel_s=13.0, cancelled_s=13.01, ended_s=13.01)
    done = made(cut)
    assert [share.value for share in done.gap_free.values()] == [0, 0, 0]
    assert done.goodput_per_s == 0
    in_time = turn(outcome="cancelled", cancel_s=11.4, cancelled_s=11.41, ended_s=11.41)
    assert made(in_time).gap_free["0"].value == 1


def test_ttfa_includes_stall_within_leading_silence() -> None:
    # 50 silent samples last until 10.55; the 60th comes only at 12.
    stall = turn(arrivals=[(10.5, 50), (12.0, 500)], silence=60)
    assert made(stall).ttfa.p50.value == pytest.approx(2010)
    # The 60th is in the second chunk, which is played after the first.
    ahead = turn(arrivals=[(10.5, 50), (10.51, 500)], silence=60)
    assert made(ahead).ttfa.p50.value == pytest.approx(560)


def test_http_refusal_is_timed_from_request() -> None:
    refused = turn(outcome="refused", code="overloaded", arrivals=[], opened_s=None, ended_s=10.22)
    assert made(refused).refusal.p50.value == pytest.approx(220)
    plan = msgspec.structs.replace(PLAN, protocol="openai")
    soon = figures(plan, [refused], slo_ttfa_ms=400).refusal.p50
    assert soon is not None
    assert soon.value == pytest.approx(20)


def test_goodput_excludes_slow_starts_and_gaps() -> None:
    slow = turn(1, arrivals=[(10.6, 500), (10.9, 500)])  # 450 ms from the sentence
    gap = turn(2, arrivals=[(10.5, 500), (11.15, 500)])
    assert made(turn(), slow, gap).goodput_per_s == pytest.approx(1 / 10)


def test_cancel_is_timed_to_answer_and_to_last_byte() -> None:
    asked: dict[str, Any] = {"outcome": "cancelled", "cancel_s": 10.9, "cancelled_s": 10.95}
    done = made(turn(last_audio_s=10.92, **asked), turn(1, last_audio_s=10.8, **asked))
    assert done.cancel_ack.p50.value == pytest.approx(50)
    assert done.cancel_last_byte.max == pytest.approx(20)
    assert done.cancel_last_byte.p50.value == pytest.approx(10)  # one of them was 0


def test_streams_is_mean_number_of_open_contexts() -> None:
    spans = [(0.0, 12.0), (11.0, 13.0), (19.0, 30.0)]
    assert overlap(spans, 10, 20) == 2 + 2 + 1
    assert most_at_once(spans) == 2
    assert most_at_once([(0, 1), (1, 2)]) == 1
    busy = made(turn(opened_s=10.0, ended_s=15.0), turn(1, opened_s=10.0, ended_s=25.0))
    assert busy.streams == pytest.approx(1.5)
    metered = made(turn(opened_s=10.0, ended_s=20.0), server=ProcessStats(0.5, 100))
    assert metered.streams_per_core == pytest.approx(2)


def test_usage_averages_over_window() -> None:
    samples = [
        Sample(t, cpu, rss) for t, cpu, rss in ((1, 9, 1), (2, 10, 1 << 20), (4, 13, 1), (9, 99, 1))
    ]
    assert usage(samples, 2, 5) == ProcessStats(1.5, 1)
    assert usage(samples, 5, 8) is None


def test_records_round_trip_through_file(tmp_path) -> None:
    record = turn(code="überlastet", last_audio_s=None)
    assert from_line(to_line(record)) == record
    write_records(tmp_path / "raw.jsonl", [turn(1, at=12), record])
    assert read_records(tmp_path / "raw.jsonl") == [record, turn(1, at=12)]
    write_records(tmp_path / "raw.jsonl", [turn(1, at=12)], [record])  # one run after the other
    assert read_records(tmp_path / "raw.jsonl") == [turn(1, at=12), record]
