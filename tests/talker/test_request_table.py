"""Requests in the talker process across pauses: what is known of each, and what is out of date."""

from __future__ import annotations

import numpy as np
import pytest

from talker.frames import FRAME_BASE
from talker.messages import Generate, NewRows, VoiceRows
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
    requests.gather(1, 4)
    assert state.gathered == 4
    requests.pause(1)
    requests.gather(1, 8)
    assert requests.resume(1) is state
    assert state.gathered == 8
    requests.gather(2, 8)  # it has just ended, which is no error


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


def test_reference_rows_are_those_of_the_request(requests: RequestTable) -> None:
    voice, earlier = VoiceRows(b"\0\0", 1), VoiceRows(b"\1\0", 2)
    assert ask(requests, 1, clips=(voice, earlier)).clips == (voice, earlier)


def test_a_conversation_that_is_forgotten_between_two_utterances_is_not_gone_on_from(
    requests: RequestTable,
) -> None:
    requests.note(ask(requests, 1, conversation=6), [FRAME_BASE])
    requests.end(1, "stop")
    requests.forget(6)
    assert requests.add(Generate(2, IDS, 50, 1.0, 0.9, 5, 3, conversation=6, goes_on=True)) is None


class Rows:
    """Makes rows of a request one by one, and keeps how many came of them at a time."""

    def __init__(self, requests: RequestTable, handle: int = 1) -> None:
        self.requests, self._handle, self._made = requests, handle, 0
        self.heard: list[NewRows] = []
        self._state = ask(requests, handle)

    def make(self, count: int = 1, finish: str = "", together: int = 1) -> None:
        """So many times ``together`` rows in one piece."""
        for _ in range(count):
            made = np.arange(self._made, self._made + together)
            self.requests.note(self._state, (FRAME_BASE + made).tolist())
            rows, spoken = made.astype(np.int16), made.astype(np.float32)
            new = NewRows(self._handle, rows.tobytes(), finish, spoken.tobytes())
            if ready := self.requests.collect(new):
                self.heard.append(ready)
            self._made += together

    def want(self, rows: int) -> None:
        self.requests.gather(self._handle, rows)

    @property
    def sizes(self) -> list[int]:
        """How many came at a time; all of them came, in order."""
        rows = np.frombuffer(b"".join(new.rows for new in self.heard), np.int16)
        spoken = np.frombuffer(b"".join(new.spoken for new in self.heard), np.float32)
        assert rows.tolist() == spoken.tolist() == list(range(len(rows)))
        return [len(new.rows) // 2 for new in self.heard]


def test_rows_come_as_many_at_a_time_as_were_asked_for(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.make(3)
    rows.want(4)
    rows.make(8)
    assert rows.sizes == [1, 1, 1, 4, 4]
    rows.want(1)  # none is held back: at once
    rows.make(2)
    assert rows.sizes == [1, 1, 1, 4, 4, 1, 1]


def test_rows_that_come_in_one_piece_count_as_rows(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.want(4)
    rows.make(2, together=3)
    rows.make(1, together=5)
    assert rows.sizes == [6, 5]


def test_what_is_held_back_comes_with_the_next_and_then_singly(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.make()
    rows.want(8)
    rows.make(5)
    assert rows.sizes == [1]
    rows.want(1)
    rows.make(4)
    assert rows.sizes == [1, 6, 1, 1, 1]


def test_who_changes_his_mind_gets_the_last_that_was_asked_for(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.make()
    for wanted in (8, 1, 4):
        rows.want(wanted)
        rows.make(0 if wanted == 1 else 3)
    rows.make(12)
    assert rows.sizes == [1, 4, 4, 4, 4]


def test_rows_at_a_time_of_one_request_change_no_other(requests: RequestTable) -> None:
    one, other = Rows(requests, 1), Rows(requests, 2)
    one.want(3)
    for _ in range(3):
        one.make()
        other.make()
    assert (one.sizes, other.sizes) == ([3], [1, 1, 1])


def test_the_last_rows_come_when_the_request_ends(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.want(3)
    rows.make(7)
    rows.make(finish="stop")
    assert rows.sizes == [3, 3, 2]
    assert [new.finish for new in rows.heard] == ["", "", "stop"]
    assert 1 not in requests
    rows.want(4)  # it has ended, which is no error


def test_a_paused_request_leaves_nothing_held_back(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.want(8)
    rows.make(3)
    state = requests.pause(1)
    assert state is not None
    released = state.release()
    assert released is not None
    rows.heard.append(released)
    assert state.release() is None
    requests.resume(1)
    rows.make(8)
    assert rows.sizes == [3, 8], "what was asked for holds in the next stretch"
