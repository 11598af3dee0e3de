"""``RequestTable``: the requests of a talker process, across pauses and in gathered rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from talker.frames import FRAME_BASE
from talker.messages import AppendText, Generate, NewRows, VoiceRows
from talker.request_table import RequestState, RequestTable

Finish = Literal["", "stop", "length"]
IDS = (1, 2, 3)


@pytest.fixture
def requests() -> RequestTable:
    return RequestTable(slots=1024, cores=2)


def ask(requests: RequestTable, handle: int, **changes: Any) -> RequestState:
    state = requests.add(Generate(handle, IDS, 50, 1.0, 0.9, 5, 3, **changes))
    assert state is not None
    return state


def test_paused_requests_are_not_live(requests: RequestTable) -> None:
    for handle in (1, 2, 3):
        ask(requests, handle)
    requests.pause(2)
    assert requests.live == 2
    requests.resume(2)
    requests.drop(1)
    requests.drop(1)
    assert requests.live == 2
    assert (1 in requests, 2 in requests) == (False, True)


def test_pause_and_resume_take_effect_once(requests: RequestTable) -> None:
    state = ask(requests, 1)
    assert requests.resume(1) is None
    assert requests.pause(1) is state
    assert requests.pause(1) is None
    assert requests.resume(1) is state
    assert requests.resume(1) is None
    assert requests.pause(1) is state
    requests.drop(1)
    assert (requests.pause(1), requests.resume(1)) == (None, None)


def test_engine_id_is_invalid_after_pause_or_drop(requests: RequestTable) -> None:
    state = ask(requests, 1)
    first = state.engine_id
    assert requests.of(first) is state
    requests.pause(1)
    requests.resume(1)
    assert requests.of(first) is None
    assert requests.of(state.engine_id) is state
    requests.drop(1)
    assert requests.of(state.engine_id) is None


def test_engine_id_of_reused_handle_is_new(requests: RequestTable) -> None:
    """The engine may still be busy with the request that had the handle before."""
    first = ask(requests, 1).engine_id
    requests.drop(1)
    again = ask(requests, 1)
    assert again.engine_id != first
    assert requests.of(first) is None
    assert requests.of(again.engine_id) is again
    assert [state.engine_id for state in requests.working] == [again.engine_id]


def test_gather_size_survives_pause(requests: RequestTable) -> None:
    state = ask(requests, 1)
    requests.gather(1, 4)
    assert state.gathered == 4
    requests.pause(1)
    requests.gather(1, 8)
    assert requests.resume(1) is state
    assert state.gathered == 8
    requests.gather(2, 8)  # a request that has just ended is no error


def test_next_request_goes_to_least_busy_core(requests: RequestTable) -> None:
    assert [ask(requests, handle).core for handle in (1, 2, 3)] == [0, 1, 0]
    requests.pause(1)
    requests.pause(3)
    assert ask(requests, 4).core == 0


def test_note_counts_frames_but_not_stop_id(
    requests: RequestTable,
) -> None:
    state = ask(requests, 1)
    requests.note(state, [FRAME_BASE, FRAME_BASE + 1, 7])
    assert state.prompt == [*IDS, FRAME_BASE, FRAME_BASE + 1]
    assert state.frames_left == 48


def test_clips_are_those_of_request(requests: RequestTable) -> None:
    voice, earlier = VoiceRows(b"\0\0", 1), VoiceRows(b"\1\0", 2)
    assert ask(requests, 1, clips=(voice, earlier)).clips == (voice, earlier)


def test_forgotten_conversation_is_not_continued(
    requests: RequestTable,
) -> None:
    requests.note(ask(requests, 1, conversation=6), [FRAME_BASE])
    requests.end(1, "stop")
    requests.forget(6)
    assert requests.add(Generate(2, IDS, 50, 1.0, 0.9, 5, 3, conversation=6, continues=4)) is None


def test_history_without_frames_is_not_overwritten(requests: RequestTable) -> None:
    requests.note(ask(requests, 1), range(FRAME_BASE, FRAME_BASE + 2000))
    requests.drop(1)
    ask(requests, 3, conversation=6)
    requests.end(3, "stop")
    assert ask(requests, 4, conversation=6, continues=3).prompt == [*IDS, *IDS]


class Rows:
    """Makes the rows of a request and records how many are delivered at a time."""

    def __init__(self, requests: RequestTable, handle: int = 1) -> None:
        self.requests, self._handle, self._made = requests, handle, 0
        self.heard: list[NewRows] = []
        self._state = ask(requests, handle)

    def make(self, count: int = 1, finish: Finish = "", together: int = 1) -> None:
        """Make ``count`` pieces of ``together`` rows each."""
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
        """Rows per delivery; asserts that all rows came in order."""
        rows = np.frombuffer(b"".join(new.rows for new in self.heard), np.int16)
        spoken = np.frombuffer(b"".join(new.spoken for new in self.heard), np.float32)
        assert rows.tolist() == spoken.tolist() == list(range(len(rows)))
        return [len(new.rows) // 2 for new in self.heard]


def test_gather_delivers_requested_number_of_rows(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.make(3)
    rows.want(4)
    rows.make(8)
    assert rows.sizes == [1, 1, 1, 4, 4]
    rows.want(1)  # takes effect at once, because no row is held back
    rows.make(2)
    assert rows.sizes == [1, 1, 1, 4, 4, 1, 1]


def test_gather_counts_rows_not_pieces(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.want(4)
    rows.make(2, together=3)
    rows.make(1, together=5)
    assert rows.sizes == [6, 5]


def test_held_rows_come_with_next_row_after_gather_of_one(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.make()
    rows.want(8)
    rows.make(5)
    assert rows.sizes == [1]
    rows.want(1)
    rows.make(4)
    assert rows.sizes == [1, 6, 1, 1, 1]


def test_gather_applies_latest_size(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.make()
    for wanted in (8, 1, 4):
        rows.want(wanted)
        rows.make(0 if wanted == 1 else 3)
    rows.make(12)
    assert rows.sizes == [1, 4, 4, 4, 4]


def test_gather_affects_no_other_request(requests: RequestTable) -> None:
    one, other = Rows(requests, 1), Rows(requests, 2)
    one.want(3)
    for _ in range(3):
        one.make()
        other.make()
    assert (one.sizes, other.sizes) == ([3], [1, 1, 1])


def test_held_rows_are_delivered_at_end(requests: RequestTable) -> None:
    rows = Rows(requests)
    rows.want(3)
    rows.make(7)
    rows.make(finish="stop")
    assert rows.sizes == [3, 3, 2]
    assert [new.finish for new in rows.heard] == ["", "", "stop"]
    assert 1 not in requests
    rows.want(4)  # a request that has ended is no error


def test_paused_request_releases_held_rows(requests: RequestTable) -> None:
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


def speak(state: RequestState, frames: int) -> None:
    """Record frames that the engine has made."""
    state.frame_ids += [FRAME_BASE + len(state.frame_ids) + n for n in range(frames)]


def test_stretch_is_as_long_as_its_text(requests: RequestTable) -> None:
    state = ask(requests, 1, track=(7, 8), is_open=True)
    assert (state.is_working, state.stretch_frames, state.coming_text) == (True, 2, [2, 7, 8])
    assert requests.append(AppendText(1, (9,))) is None  # the stretch goes on as it is
    speak(state, 2)
    assert requests.end_stretch(state) is None  # one id is too few for the next one
    assert (requests.live, 1 in requests) == (0, True)
    assert requests.append(AppendText(1, (10, 11))) is None
    assert requests.append(AppendText(1, (12,))) is state
    assert (state.stretch_frames, state.coming_text) == (4, [4, 9, 10, 11, 12])
    speak(state, 4)
    assert requests.end_stretch(state) is None
    assert requests.append(AppendText(1, (13,), max_frames=30)) is state
    assert (state.stretch_frames, state.coming_text) == (24, [8, 13])


@pytest.mark.parametrize("is_last", [False, True])
def test_text_that_comes_in_a_pause_waits_for_its_end(
    requests: RequestTable, is_last: bool
) -> None:
    state = ask(requests, 1, track=(7, 8), is_open=True)
    speak(state, 2)
    assert requests.pause(1) is state
    assert requests.append(AppendText(1, (9,) * 5, 40 if is_last else None)) is None
    assert requests.live == 0
    assert requests.resume(1) is state
    assert state.stretch_frames == (38 if is_last else 5)


def test_request_that_waits_for_text_can_be_paused_and_dropped(requests: RequestTable) -> None:
    state = ask(requests, 1, track=(), is_open=True)
    assert not state.is_working
    assert requests.pause(1) is None
    assert requests.resume(1) is None
    assert requests.append(AppendText(1, (7,))) is state
    speak(state, 1)
    assert requests.end_stretch(state) is None
    assert requests.drop(1) is state
    assert requests.append(AppendText(1, (8,) * 9)) is None
    assert requests.live == 0


def test_limit_of_client_ends_request_whose_text_goes_on(requests: RequestTable) -> None:
    state = ask(requests, 1, track=(7,) * 60, is_open=True)
    assert state.stretch_frames == 50
    speak(state, 50)
    assert state.frames_left == 0


def test_waiting_request_releases_rows_that_were_held_back(requests: RequestTable) -> None:
    state = ask(requests, 1, track=(7, 8), is_open=True)
    requests.gather(1, 8)
    speak(state, 2)
    assert requests.collect(NewRows(1, b"ab", "")) is None
    assert state.release_waiting() == NewRows(1, b"ab", "", waits=True)
    assert state.release_waiting() == NewRows(1, b"", "", waits=True)
