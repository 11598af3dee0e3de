"""The state machine of one context, in simulated time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streaming.chunk_schedule import PaceBounds
from streaming.events import (
    AudioDecoded,
    AudioRead,
    Cancelled,
    CancelRequested,
    Decode,
    Done,
    EndRequested,
    Flushed,
    FlushRequested,
    NothingToSay,
    PlaybackReported,
    ResumeTalker,
    RowsReceived,
    SetTimer,
    TextAppended,
    TimerFired,
)
from streaming.ports import TalkerRows
from streaming.session import State
from streaming.spec import UNKNOWN
from tests.streaming.session_world import ROW_S, SPEC, World, is_of, rows_of, settings


def test_session_sends_every_frame_once_in_order_then_done() -> None:
    world = World(settings())
    world.post(TextAppended("One sentence. And"))
    world.post(TextAppended(" another one."))
    world.post(EndRequested())
    world.run()
    assert world.talked == ["One sentence.", "And another one."]
    assert world.samples == 2 * world.frames * SPEC.hop_length
    values = np.unique(np.concatenate([audio.samples for audio in world.sent]), return_index=True)
    assert values[0].tolist() == [np.float32(100 / 1024), np.float32(101 / 1024)]
    offsets = [audio.sample_offset for audio in world.sent]
    assert offsets == np.cumsum([0] + [len(a.samples) for a in world.sent[:-1]]).tolist()
    assert [a.is_first for a in world.sent] == [True] + [False] * (len(world.sent) - 1)
    assert [a.is_last for a in world.sent] == [False] * (len(world.sent) - 1) + [True]
    assert sum(a.ends_utterance for a in world.sent) == 2
    assert not any(a.late for a in world.sent)
    done = world.told[-1]
    assert isinstance(done, Done)
    assert done.reason == "complete"
    assert done.report.underruns == 0
    assert done.report.ttfa_s == pytest.approx(world_first_send(world), abs=1e-9)
    assert world.session.state is State.CLOSED


def world_first_send(world: World) -> float:
    rows = world.windows[0].window.codes.shape[1] + SPEC.num_codebooks - 1
    return rows * ROW_S + 0.003


def test_first_chunk_is_small_and_later_chunks_grow() -> None:
    world = World(settings(), frames=200)
    world.post(TextAppended("A long one."))
    world.post(EndRequested())
    world.run()
    sizes = [decode.window.new_frames for decode in world.windows]
    assert sizes[0] <= 3
    assert max(sizes) > 4 * sizes[0]
    assert sum(sizes) == 200
    assert [d.window.first_frame for d in world.windows] == np.cumsum([0, *sizes[:-1]]).tolist()


@pytest.mark.parametrize("frames", [1, 2, 5, 60])
def test_incomplete_frames_are_used_as_lookahead(frames: int) -> None:
    """The first chunk is sent earlier, since its lookahead need not be complete."""
    worlds = [World(settings(incomplete=n), frames=frames) for n in (0, 2)]
    for world in worlds:
        world.post(TextAppended("A long one."))
        world.post(EndRequested())
        world.run()
        assert world.samples == frames * SPEC.hop_length
    waiting, early = (world.windows for world in worlds)
    for decode in early:
        window = decode.window
        assert SPEC.are_codes(window.codes, window.lookahead)
        assert window.codes[window.codes != UNKNOWN].tolist().count(100) == np.sum(
            window.codes != UNKNOWN
        )
    if frames == 60:
        first, sooner = waiting[0], early[0]
        assert sooner.deadline == pytest.approx(first.deadline - 2 * ROW_S)
        assert sooner.window.codes.shape == first.window.codes.shape
        known = sooner.window.codes != UNKNOWN
        assert known[:, : sooner.window.new_frames].all()
        assert known[:, -2:].T.tolist() == [[True] * 3 + [False], [True] * 2 + [False] * 2]


def test_whole_mode_decodes_each_utterance_once() -> None:
    world = World(settings("whole"))
    world.post(TextAppended("One. Two is here."))
    world.post(EndRequested())
    world.run()
    windows = [decode.window for decode in world.windows]
    assert [(w.left_context, w.new_frames, w.lookahead) for w in windows] == [(0, 40, 0)] * 2
    assert len(world.sent) == 2


def test_flush_speaks_partial_sentence_and_is_reported_after_audio() -> None:
    world = World(settings())
    world.post(TextAppended("Half a sent"))
    assert world.talked == []
    world.post(FlushRequested("f1"))
    world.run()
    assert world.talked == ["Half a sent"]
    assert world.told[-1] == Flushed("f1")
    assert world.samples == world.frames * SPEC.hop_length
    world.post(FlushRequested("f2"))  # no text is left: done at once
    assert world.told[-1] == Flushed("f2")
    assert world.session.is_idle


def test_lead_limit_holds_back_codec_and_next_utterance() -> None:
    lead_s = 1.0
    world = World(settings(max_lead_s=lead_s), frames=100)
    world.post(TextAppended("One is here. Two is here. Three is here. "))
    world.post(FlushRequested("f"))
    while world.told[-1:] != [Flushed("f")]:
        world.run(world.now + 0.1)
        lead = world.samples / SPEC.sample_rate - world.now
        assert lead < lead_s + 50 * SPEC.frame_s  # one chunk may exceed the limit
        in_hand = sum(world.frames for _ in world.talked) * SPEC.frame_s - world.now
        assert in_hand < 2 * 100 * SPEC.frame_s + lead_s
    assert world.samples == 3 * 100 * SPEC.hop_length
    assert not any(audio.late for audio in world.sent)


def test_lead_exactly_at_limit_does_not_stall_session() -> None:
    """The utterance is sent all at once and is exactly as long as the allowed lead."""
    frames = 40
    world = World(settings("whole", max_lead_s=frames * SPEC.frame_s), frames=frames)
    world.post(TextAppended("One. Two is here. "))
    rows = rows_of(np.full((frames, SPEC.num_codebooks), 100, np.int16))
    world.post(RowsReceived(0, TalkerRows(rows, "stop")))
    world.post(AudioDecoded(0, np.zeros(frames * SPEC.hop_length, np.float32)))
    assert world.session._queue.playback.lead_s(world.now) == frames * SPEC.frame_s
    assert world.talked == ["One."]
    world._rows.clear()  # no further event comes: the session must have set a timer
    world.run()
    assert world.talked == ["One.", "Two is here."]


@pytest.mark.parametrize("is_read", [None, 0], ids=["played", "read"])
def test_lead_exactly_at_limit_sets_no_immediate_timer(is_read: int | None) -> None:
    """The second utterance waits for credit. A timer for the present moment would fire again and
    again without effect. Unread audio has a slack of two seconds minus the lead limit.
    """
    frames = 25
    world = World(settings(max_lead_s=frames * SPEC.frame_s))
    session = world.session
    slack_frames = 0 if is_read is None else round((2.0 - frames * SPEC.frame_s) / SPEC.frame_s)
    rows = rows_of(np.full((frames + slack_frames, SPEC.num_codebooks), 100, np.int16))
    session.handle(TextAppended("One. Two is here. "), 0.0)
    if is_read is not None:
        session.handle(AudioRead(is_read), 0.0)
    commands = session.handle(RowsReceived(0, TalkerRows(rows, "stop")), 0.0)
    # no timer while a window is in the codec, since its result triggers the next step
    assert not any(isinstance(one, SetTimer) for one in commands)
    while decode := next((one for one in commands if isinstance(one, Decode)), None):
        samples = np.zeros(decode.window.new_frames * SPEC.hop_length, np.float32)
        commands = session.handle(AudioDecoded(decode.utterance, samples), 0.0)
    limit_s = frames * SPEC.frame_s
    now = 0.0 if is_read is None else 30.0
    assert session._queue.playback.lead_s(now) == limit_s
    timers = [one.at for one in session.handle(TimerFired(), now) if isinstance(one, SetTimer)]
    assert all(at > now for at in timers)
    assert bool(timers) is (is_read is None)


@pytest.mark.parametrize("is_client", [True, False])
def test_gap_is_reported_unless_client_did_not_read(is_client: bool) -> None:
    world = World(settings(max_lead_s=2.0), frames=400)
    if is_client:
        world.session.handle(AudioRead(0), 0.0)
    world.post(TextAppended("One. "))
    world.run(until=0.5 if not is_client else 30.0)
    world.hold = not is_client
    world.run(until=30.0)
    world.hold, sent = False, len(world.sent)
    if is_client:
        world.post(AudioRead(world.samples))
    world.run(until=31.0)
    after = world.sent[sent]
    assert after.late
    assert (after.gap_s == 0) is is_client
    assert is_client or 20 < after.gap_s < 30
    assert not any(audio.gap_s for audio in world.sent[sent + 1 :])


def test_gap_after_client_has_read_again_is_reported() -> None:
    world = World(settings(max_lead_s=4.0), frames=1000)
    world.session.handle(AudioRead(0), 0.0)
    world.post(TextAppended("One. "))
    world.run(until=30.0)
    for step in range(60):
        world.post(AudioRead(world.samples))
        world.run(until=30.0 + 0.1 * step)
    world.hold, sent = True, len(world.sent)
    world.run(until=60.0)
    world.hold = False
    world.run(until=60.5)
    after = world.sent[sent]
    assert after.late
    assert after.gap_s > 10


def test_late_window_is_due_when_its_listener_ran_out_of_audio() -> None:
    """Of several late windows, the codec takes the one first that is latest."""
    world = World(settings(), frames=400)
    world.post(TextAppended("One. "))
    world.run(until=0.5)
    world._rows = [(at + 60.0 * isinstance(e, RowsReceived), e) for at, e in world._rows]
    world.run(until=50.0)  # all frames in hand have been sent
    windows, dry_at = len(world.windows), world.session._queue.playback.dry_at
    world.run(until=70.0)
    assert dry_at < 50.0
    assert world.windows[windows].deadline == dry_at


def test_chunks_grow_as_soon_as_codec_becomes_slow() -> None:
    config, bounds = settings(), PaceBounds(ROW_S, 0.0, 0.0, 0.002, 0.0005)
    world = World(replace(config, queue=replace(config.queue, bounds=lambda _: bounds)), frames=200)
    world.post(TextAppended("A long one."))
    world.post(EndRequested())
    while not world.sent:
        world.run(until=world.now + 0.001)
    bounds, before = replace(bounds, queue_s=0.4), len(world.windows)
    world.run()
    assert before <= 2
    assert world.windows[2].window.new_frames >= 11  # the queue's 0.4 s and the decode


def test_first_chunk_is_planned_with_pace_when_it_is_sent() -> None:
    config, bounds = settings(), PaceBounds(ROW_S, 0.0, 0.0, 0.002, 0.0005)
    world = World(replace(config, queue=replace(config.queue, bounds=lambda _: bounds)), frames=200)
    world.post(TextAppended("A long one. "))
    assert world.talked
    bounds = replace(bounds, queue_s=0.4)
    world.run()
    assert world.windows[0].window.new_frames >= 11  # the queue's 0.4 s and the decode


def test_paused_talker_is_not_resumed_without_room() -> None:
    world = World(settings(max_lead_s=2.0), frames=2000)
    world.post(TextAppended("One. "))
    while not world.paused:
        world.run(until=world.now + 0.01)
    resumed = [
        command
        for event in (TextAppended("Half a"), TimerFired())
        for command in world.session.handle(event, world.now)
        if isinstance(command, ResumeTalker)
    ]
    assert resumed == []


@pytest.mark.parametrize("lead_s", [0.5, 2.0, 8.0])
def test_talker_is_paused_two_chunks_beyond_lead(lead_s: float) -> None:
    world = World(settings(max_lead_s=lead_s), frames=1000)
    world.post(TextAppended("A very long one. "))
    largest = 0.0
    while not world.paused and world.now < 30:
        world.run(world.now + 0.01)
    assert world.now < 30, "rows are wanted for ever"
    generated = world.session._queue.generated_samples / SPEC.sample_rate
    largest = max(largest, generated - world.now)
    # One chunk may be sent beyond the lead, and two more may be in hand.
    assert lead_s <= largest <= lead_s + (1.5 + 2.5) * 50 * SPEC.frame_s
    world.hold = True  # no rows come while playback continues, so they are wanted again
    while world.paused:
        world.hold = False
        world._rows = [item for item in world._rows if not isinstance(item[1], RowsReceived)]
        world.run(world.now + 0.05)
    assert not any(audio.late for audio in world.sent)


def test_talker_deadline_is_the_end_of_audio_without_more_rows() -> None:
    world = World(settings(), frames=100)
    world.now = 5.0
    world.post(TextAppended("One. "))
    assert world.session.talker_deadline == 5.0  # nothing is played
    world.post(FlushRequested("one"))
    world.post(TextAppended("Two. "))
    world.post(FlushRequested("two"))
    world.run(5.525)  # all rows of the first text have come
    assert world.talked == ["One.", "Two."]
    deadline = world.session.talker_deadline
    world._rows = [item for item in world._rows if not is_of(item[1], 1)]
    world.run()
    assert world.session._queue.playback.dry_at == pytest.approx(deadline)
    world.now = 60.0
    world.session.handle(NothingToSay(1), world.now)
    world.post(TextAppended("After a silence. "))
    world.post(FlushRequested("three"))
    assert world.session.talker_deadline == 60.0


def test_whole_mode_never_pauses_talker() -> None:
    world = World(settings("whole", max_lead_s=0.1), frames=1000)
    world.post(TextAppended("A very long one. "))
    world.run(2.0)
    assert not world.paused


def test_playback_report_restores_credit_early() -> None:
    world = World(settings(max_lead_s=1.0), frames=200)
    world.post(TextAppended("A long one. "))
    world.run(0.9)
    before = world.samples
    world.run(1.0)
    assert world.samples == before
    world.post(PlaybackReported(world.samples))
    world.run(1.1)
    assert world.samples > before


@pytest.mark.parametrize("at", [0.0, 0.004, 0.02, 0.05, 0.1, 0.3, 1.0])
def test_session_sends_nothing_after_cancel(at: float) -> None:
    world = World(settings(), frames=100)
    world.post(TextAppended("One is here. Two is here. "))
    world.run(at)
    late = list(world._rows)
    sent = world.samples
    world.post(CancelRequested())
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert cancelled.text_spoken + cancelled.text_remaining == "One is here. Two is here. "
    assert cancelled.sent_s == sent / SPEC.sample_rate
    assert cancelled.played_s <= min(at, cancelled.sent_s) + 1e-9
    assert cancelled.generated_s >= cancelled.sent_s
    told = len(world.told)
    for _, event in late:
        world.post(event)
    assert world.session.handle(CancelRequested(), world.now) == []
    assert len(world.told) == told


def test_cancel_excludes_unsent_and_unplayed_audio() -> None:
    world = World(settings(), frames=100)
    world.post(TextAppended("Nineteen characters. "))
    world.run(3.0)
    world.post(CancelRequested(played_samples=48_000, unsent_samples=24_000))
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert cancelled.sent_s == world.samples / 24_000 - 1
    assert cancelled.played_s == 2.0
    assert cancelled.text_spoken == "Nineteen "  # half of it was played; cut at the end of a word


def test_unsent_audio_does_not_count_as_played() -> None:
    world = World(settings(), frames=100)
    world.post(TextAppended("Nineteen characters. "))
    world.run(30.0)
    world.post(CancelRequested(unsent_samples=72_000))
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert cancelled.played_s == cancelled.sent_s == 1.0


@pytest.mark.parametrize("speed", [0.25, 0.5, 2.0])
def test_lead_and_figures_count_played_seconds_at_any_speed(speed: float) -> None:
    lead_s, rate = 2.0, SPEC.sample_rate * speed
    world = World(settings(max_lead_s=lead_s, speed=speed), frames=600)
    world.post(TextAppended("A very long one. "))
    world.post(EndRequested())
    while not world.sent:
        world.run(world.now + 0.01)
    started, leads = world.now, []
    while world.now < 5:
        world.run(world.now + 0.05)
        leads.append(world.samples / rate - (world.now - started))
    assert lead_s / 2 < max(leads) < lead_s + 1.5 * 50 * SPEC.frame_s / speed
    assert not any(audio.late for audio in world.sent)
    played = world.samples // 2
    world.post(CancelRequested(played_samples=played))
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert cancelled.sent_s == cancelled.report.audio_s == world.samples / rate
    assert cancelled.played_s == played / rate
    assert cancelled.generated_s == world.session._queue.generated_samples / rate


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_spoken_text_does_not_depend_on_speed(speed: float) -> None:
    world = World(settings(speed=speed), frames=100)
    world.post(TextAppended("Nineteen characters. "))
    world.run(3.0)
    world.post(CancelRequested(played_samples=48_000, unsent_samples=24_000))
    cancelled = world.told[-1]
    assert isinstance(cancelled, Cancelled)
    assert cancelled.text_spoken == "Nineteen "
    assert cancelled.played_s == 2.0 / speed
