"""Requests in the talker process across pauses: what is known of each, and what is out of date."""

from __future__ import annotations

import pytest

from talker.frames import FRAME_BASE
from talker.messages import Generate, VoiceRows
from talker.request_table import RequestState, RequestTable

IDS = (1, 2, 3)


@pytest.fixture
def requests() -> RequestTable:
    return RequestTable(slots=1024, cores=2)


def ask(requests: RequestTable, handle: int, **changes: object) -> RequestState:
    state = requests.add(Generate(handle, IDS, 50, 1.0, 0.9, 5, 3, **changes))
    assert state is not None
    return state


def test_those_that_are_paused_are_not_worked_on(requests: RequestTable) -> None:
    for handle in (1, 2, 3):
        ask(requests, handle)
    requests.pause(2)
    assert requests.live == 2
    requests.resume(2)
    requests.drop(1)
    requests.drop(1)
    assert requests.live == 2
    assert (1 in requests, 2 in requests) == (False, True)


def test_what_is_paused_is_paused_once_and_resumed_once(requests: RequestTable) -> None:
    state = ask(requests, 1)
    assert requests.resume(1) is None
    assert requests.pause(1) is state
    assert requests.pause(1) is None
    assert requests.resume(1) is state
    assert requests.resume(1) is None
    assert requests.pause(1) is state
    requests.drop(1)
    assert (requests.pause(1), requests.resume(1)) == (None, None)


def test_a_late_output_of_an_earlier_stretch_is_nobody_s(requests: RequestTable) -> None:
    state = ask(requests, 1)
    first = state.engine_id
    assert requests.of(first) is state
    requests.pause(1)
    requests.resume(1)
    assert requests.of(first) is None
    assert requests.of(state.engine_id) is state
    requests.drop(1)
    assert requests.of(state.engine_id) is None


def test_how_many_rows_at_a_time_outlives_a_pause(requests: RequestTable) -> None:
    state = ask(requests, 1)
    assert requests.gather(1, 4) is state
    requests.pause(1)
    assert requests.gather(1, 8) is None  # the engine does not know it now
    resumed = requests.resume(1)
    assert resumed is not None
    assert resumed.gathered == 8
    assert requests.gather(2, 8) is None


def test_the_core_with_the_fewest_at_work_gets_the_next(requests: RequestTable) -> None:
    assert [ask(requests, handle).core for handle in (1, 2, 3)] == [0, 1, 0]
    requests.pause(1)
    requests.pause(3)
    assert ask(requests, 4).core == 0


def test_the_stop_id_is_no_frame_and_every_frame_is_one_less_to_make(
    requests: RequestTable,
) -> None:
    state = ask(requests, 1)
    requests.note(state, [FRAME_BASE, FRAME_BASE + 1, 7])
    assert state.prompt == [*IDS, FRAME_BASE, FRAME_BASE + 1]
    assert state.frames_left == 48


def test_reference_rows_come_before_those_of_an_utterance(requests: RequestTable) -> None:
    voice, earlier = VoiceRows(b"\0\0", 1), VoiceRows(b"\1\0", 2)
    assert ask(requests, 1, voice=voice, earlier=earlier).clips == (voice, earlier)
    every = ask(requests, 3, voice=voice, others=(voice, earlier), earlier=earlier)
    assert every.clips == (voice, voice, earlier, earlier)
    assert ask(requests, 2, earlier=earlier).clips == (earlier,)


def test_a_conversation_that_is_forgotten_between_two_utterances_is_not_gone_on_from(
    requests: RequestTable,
) -> None:
    requests.note(ask(requests, 1, conversation=6), [FRAME_BASE])
    requests.end(1, "stop")
    requests.forget(6)
    assert requests.add(Generate(2, IDS, 50, 1.0, 0.9, 5, 3, conversation=6, goes_on=True)) is None
