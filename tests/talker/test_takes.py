"""Requests in the talker process across pauses: what is known of each, and what is out of date."""

from __future__ import annotations

import pytest

from talker.frames import FRAME_BASE
from talker.messages import Generate, VoiceRows
from talker.takes import Take, Takes

IDS = (1, 2, 3)


@pytest.fixture
def takes() -> Takes:
    return Takes(slots=1024, cores=2)


def ask(takes: Takes, handle: int, **changes: object) -> Take:
    take = takes.add(Generate(handle, IDS, 50, 1.0, 0.9, 5, 3, **changes))
    assert take is not None
    return take


def test_those_that_are_paused_are_not_worked_on(takes: Takes) -> None:
    for handle in (1, 2, 3):
        ask(takes, handle)
    takes.pause(2)
    assert takes.live == 2
    takes.resume(2)
    takes.drop(1)
    takes.drop(1)
    assert takes.live == 2
    assert (1 in takes, 2 in takes) == (False, True)


def test_what_is_paused_is_paused_once_and_resumed_once(takes: Takes) -> None:
    take = ask(takes, 1)
    assert takes.resume(1) is None
    assert takes.pause(1) is take
    assert takes.pause(1) is None
    assert takes.resume(1) is take
    assert takes.resume(1) is None
    assert takes.pause(1) is take
    takes.drop(1)
    assert (takes.pause(1), takes.resume(1)) == (None, None)


def test_a_late_output_of_an_earlier_stretch_is_nobody_s(takes: Takes) -> None:
    take = ask(takes, 1)
    first = take.engine_id
    assert takes.of(first) is take
    takes.pause(1)
    takes.resume(1)
    assert takes.of(first) is None
    assert takes.of(take.engine_id) is take
    takes.drop(1)
    assert takes.of(take.engine_id) is None


def test_how_many_rows_at_a_time_outlives_a_pause(takes: Takes) -> None:
    take = ask(takes, 1)
    assert takes.gather(1, 4) is take
    takes.pause(1)
    assert takes.gather(1, 8) is None  # the engine does not know it now
    resumed = takes.resume(1)
    assert resumed is not None
    assert resumed.gathered == 8
    assert takes.gather(2, 8) is None


def test_the_core_with_the_fewest_at_work_gets_the_next(takes: Takes) -> None:
    assert [ask(takes, handle).core for handle in (1, 2, 3)] == [0, 1, 0]
    takes.pause(1)
    takes.pause(3)
    assert ask(takes, 4).core == 0


def test_the_stop_id_is_no_frame_and_every_frame_is_one_less_to_make(takes: Takes) -> None:
    take = ask(takes, 1)
    takes.note(take, [FRAME_BASE, FRAME_BASE + 1, 7])
    assert take.prompt == [*IDS, FRAME_BASE, FRAME_BASE + 1]
    assert take.frames_left == 48


def test_reference_rows_come_before_those_of_an_utterance(takes: Takes) -> None:
    voice, earlier = VoiceRows(b"\0\0", 1), VoiceRows(b"\1\0", 2)
    assert ask(takes, 1, voice=voice, earlier=earlier).clips == (voice, earlier)
    assert ask(takes, 2, earlier=earlier).clips == (earlier,)


def test_a_conversation_that_is_forgotten_between_two_utterances_is_not_gone_on_from(
    takes: Takes,
) -> None:
    takes.note(ask(takes, 1, conversation=6), [FRAME_BASE])
    takes.end(1, "stop")
    takes.forget(6)
    assert takes.add(Generate(2, IDS, 50, 1.0, 0.9, 5, 3, conversation=6, goes_on=True)) is None
