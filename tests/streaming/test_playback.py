from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.playback import PlaybackClock

RATE = 1000


def test_playback_starts_at_first_send_and_stalls_when_dry() -> None:
    clock = PlaybackClock(RATE)
    assert clock.dry_at == float("-inf")
    assert (clock.played_samples(5.0), clock.lead_s(5.0)) == (0, 0.0)
    clock.on_sent(500, 10.0)
    clock.on_sent(250, 10.1)
    assert clock.dry_at == pytest.approx(10.75)
    assert clock.played_samples(10.5) == 500
    assert clock.lead_s(10.5) == pytest.approx(0.25)
    assert clock.played_samples(99.0) == 750
    assert clock.lead_s(99.0) == 0.0
    assert (clock.underruns, clock.underrun_s) == (0, 0.0)


def test_late_send_is_underrun_unless_pause_is_intended() -> None:
    clock = PlaybackClock(RATE)
    clock.on_sent(100, 0.0)
    clock.on_sent(100, 0.1)
    assert clock.underruns == 0
    clock.on_sent(100, 0.5)
    assert (clock.underruns, clock.underrun_s) == (1, pytest.approx(0.3))
    assert clock.dry_at == pytest.approx(0.6)
    assert clock.played_samples(0.55) == 250
    clock.on_sent(100, 2.0, continues=False)
    assert (clock.underruns, clock.underrun_s) == (1, pytest.approx(0.3))
    assert clock.dry_at == pytest.approx(2.1)


def test_underrun_is_neither_rounding_error_nor_sending_of_nothing() -> None:
    clock = PlaybackClock(RATE)
    clock.on_sent(100, 0.0)
    clock.on_sent(100, 0.1 + 1e-7)
    clock.on_sent(0, 9.0)
    assert (clock.underruns, clock.underrun_s) == (0, 0.0)
    clock.on_sent(100, 10.0)
    assert (clock.underruns, clock.underrun_s) == (1, pytest.approx(9.8))


def test_report_replaces_estimate() -> None:
    clock = PlaybackClock(RATE)
    clock.on_sent(1000, 0.0)
    clock.on_report(200, 0.5)  # the client began 300 ms late
    assert clock.played_samples(0.5) == 200
    assert clock.played_samples(0.7) == 400
    assert clock.dry_at == pytest.approx(1.3)
    clock.on_sent(100, 1.2)
    assert clock.underruns == 0
    clock.on_report(1100, 1.3)  # it is dry already
    assert clock.dry_at == pytest.approx(1.3)
    clock.on_sent(100, 1.5)
    assert (clock.underruns, clock.underrun_s) == (1, pytest.approx(0.2))


def test_impossible_reports_are_clamped() -> None:
    clock = PlaybackClock(RATE)
    clock.on_report(10**9, 0.0)
    assert clock.played_samples(0.0) == 0
    clock.on_sent(1000, 1.0)
    clock.on_report(-5, 1.0)
    assert clock.played_samples(1.0) == 0
    clock.on_report(400, 1.4)
    clock.on_report(100, 1.5)
    assert clock.played_samples(1.5) == 400
    clock.on_report(10**9, 1.6)
    assert clock.played_samples(1.6) == 1000
    assert clock.sent_samples == 1000
    with pytest.raises(ValueError):
        clock.on_sent(-1, 2.0)
    with pytest.raises(ValueError):
        PlaybackClock(0)


def test_credit_returns_as_audio_is_played() -> None:
    clock = PlaybackClock(RATE)
    assert clock.lead_s(0.0) == 0.0
    assert clock.when_credit(0.0, 2.0, 1.5) == 0.0
    clock.on_sent(3000, 0.0)
    assert clock.lead_s(0.5) >= 2.0
    assert clock.lead_s(1.5) == pytest.approx(1.5)
    assert clock.when_credit(0.5, 2.0, 0.5) == pytest.approx(1.5)
    assert clock.when_credit(2.9, 2.0, 0.5) == 2.9
    # Exactly at the limit there is no credit yet, but just after.
    assert 1.0 < clock.when_credit(1.0, 2.0, 0.0) == pytest.approx(1.0)
    # More than the whole limit is sent when the client has nothing left to play.
    assert clock.when_credit(0.5, 2.0, 5.0) == pytest.approx(3.0)


events = st.lists(
    st.tuples(
        st.sampled_from(["sent", "report", "wait"]),
        st.integers(-100, 3000),
        st.floats(0, 1, allow_subnormal=False),
    ),
    max_size=30,
)


@given(events)
def test_clock_stays_consistent_for_any_reports(history: list[tuple[str, int, float]]) -> None:
    clock, now, reported, lost = PlaybackClock(RATE), 0.0, 0, 0.0
    for kind, samples, step in history:
        now += step
        if kind == "sent" and samples >= 0:
            late = now - clock.dry_at if clock.sent_samples and samples else 0.0
            lost += late if late > 1e-6 else 0.0
            clock.on_sent(samples, now)
        elif kind == "report":
            clock.on_report(samples, now)
            reported = min(max(reported, samples), clock.sent_samples)
        assert reported <= clock.played_samples(now) <= clock.sent_samples
        unplayed = (clock.sent_samples - clock.played_samples(now)) / RATE
        assert clock.lead_s(now) == pytest.approx(unplayed, abs=1.01 / RATE)
        assert clock.underrun_s == pytest.approx(lost)
        if clock.sent_samples:
            assert clock.lead_s(clock.dry_at) == 0.0
        for needed in (0.1, 1.0, 5.0):
            at = clock.when_credit(now, 2.0, needed)
            assert at >= now
            assert 2.0 - clock.lead_s(at) >= min(needed, 2.0) - 1e-9
            assert clock.lead_s(at) < max(2.0 - needed, 1e-9)
            assert clock.when_credit(at, 2.0, needed) == at, "it need not wait once more"


def test_unread_audio_counts_into_lead() -> None:
    clock = PlaybackClock(RATE)
    clock.on_read(0)
    clock.on_sent(3000, 0.0)
    assert clock.lead_s(2.0) == pytest.approx(3.0)  # one second by the clock alone
    assert clock.when_credit(2.0, 2.0, 0.0) == float("inf")
    assert clock.lead_s(2.0) >= 2.0
    clock.on_read(2500)
    assert clock.lead_s(2.0) == pytest.approx(1.0)
    assert clock.lead_s(9.0) == pytest.approx(0.5)
    assert clock.when_credit(2.0, 2.0, 1.4) == pytest.approx(2.4)
    # All of the lead is unread audio, so waiting would not reduce it.
    assert clock.when_credit(9.0, 2.0, 1.5) == float("inf")
    clock.on_read(99_999)  # more than was sent
    assert (clock.unread_s, clock.lead_s(9.0)) == (0.0, 0.0)
    clock.on_sent(100, 9.0)
    assert clock.unread_s == pytest.approx(0.1)


def test_unread_slack_does_not_count_into_lead() -> None:
    clock = PlaybackClock(RATE, unread_slack_s=1.5)
    clock.on_read(0)
    clock.on_sent(1000, 0.0)
    # Playback alone helps, although the client has not told yet that it has read anything.
    assert clock.when_credit(0.0, 2.0, 1.5) == pytest.approx(0.5, abs=1e-5)
    assert clock.lead_s(5.0) == 0.0
    clock.on_sent(1000, 5.0)
    assert clock.lead_s(99.0) == pytest.approx(0.5)


def test_audio_counts_as_read_without_reports() -> None:
    clock = PlaybackClock(RATE)
    clock.on_sent(3000, 0.0)
    assert clock.lead_s(2.0) == pytest.approx(1.0)


def test_report_of_at_most_only_lowers_estimate() -> None:
    clock = PlaybackClock(RATE)
    clock.on_sent(3000, 0.0)
    clock.on_report(2500, 1.0, at_most=True)
    assert clock.played_samples(1.0) == 1000
    clock.on_report(500, 1.0, at_most=True)
    assert (clock.played_samples(1.0), clock.dry_at) == (500, pytest.approx(3.5))


def test_only_unread_audio_counts_into_lifted_lead() -> None:
    clock = PlaybackClock(RATE, unread_slack_s=0.5)
    clock.on_read(0)
    clock.on_sent(3000, 0.0)
    clock.lift()
    assert clock.lead_s(0.0) == pytest.approx(2.5)
    assert clock.when_credit(0.0, 2.0, 0.0) == float("inf")
    clock.on_read(2000)
    assert clock.lead_s(0.0) == pytest.approx(0.5)
    # Playback does not help, although two seconds of what was read have not been played.
    assert clock.when_credit(0.0, 2.0, 1.8) == float("inf")
    clock.on_read(3000)
    assert clock.lead_s(0.0) == 0.0
    assert clock.when_credit(0.0, 2.0, 0.0) == 0.0


def test_read_audio_stays_read() -> None:
    clock = PlaybackClock(RATE)
    clock.on_sent(3000, 0.0)
    clock.on_read(2000)
    clock.on_read(1000)
    assert clock.unread_s == pytest.approx(1.0)
