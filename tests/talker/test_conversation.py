"""Continuity: conversations in the gateway and their histories in the talker process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streaming.errors import BackendError, ErrorCode
from streaming.ports import RowGenerator, TalkerRows
from streaming.spec import Codes
from talker.conversation import Conversation, Conversations, Gone, Order, Turn, continued
from talker.frames import FRAME_BASE, FRAME_SPAN
from talker.messages import Generate, TextSpan, VoiceRows
from talker.prompts import MAX_EARLIER_ROWS
from talker.request_table import (
    ConversationCache,
    ConversationHistory,
    RequestState,
    RequestTable,
    RowCount,
)

HEAD, TURN = (1, 2, 3), (7, 40, 41, 8)
BOOKS = 2
VOICE, OTHER = VoiceRows(b"\0" * 4, 2), VoiceRows(b"\1" * 4, 4)


def rows(count: int, first: int = 0) -> Codes:
    return np.arange(first, first + count * BOOKS, dtype=np.int16).reshape(count, BOOKS)


def whole(**changes: object) -> Generate:
    made: dict[str, Any] = {
        "handle": 1, "ids": HEAD + TURN, "max_frames": 50, "temperature": 1.0, "top_p": 0.9,
        "top_k": 5, "seed": 3, "clips": (VOICE, OTHER),
        "text": TextSpan(4, (0, 1, 5)), **changes,
    }  # fmt: skip
    return Generate(**made)


def order(talk: Conversation, room: int = 200) -> Order:
    return continued(whole(), len(HEAD), talk, room)


class TestContinuation:
    def test_first_utterance_sends_whole_prompt(self) -> None:
        first = order(Conversation(4))
        assert first == Order(whole(conversation=4), TURN, 7)

    def test_next_utterance_sends_only_turn_ids(self) -> None:
        talk = Conversation(4)
        talk.held, talk.last = 146, Turn((7, 50, 8), rows(3))
        then = order(talk)
        assert (then.message.ids, then.turn, then.positions) == (TURN, TURN, 150)
        assert (then.message.continues, then.message.conversation) == (146, 4)
        assert then.message.clips == ()
        assert then.message.text == TextSpan(1, (0, 1, 5))
        assert then.message.max_frames == 50

    @pytest.mark.parametrize("held", [0, 147])
    def test_prompt_restarts_from_last_utterance_if_history_is_unusable(self, held: int) -> None:
        talk = Conversation(4)
        talk.held, talk.last = held, Turn((7, 50, 8), rows(3))
        over = order(talk).message
        assert over.ids == (*HEAD, 7, 50, 8, *(8, 8, 8), *TURN)
        assert over.clips == (VOICE, OTHER, VoiceRows(rows(3).tobytes(), 6))
        assert (over.continues, over.conversation) == (0, 4)
        assert over.text == TextSpan(10, (0, 1, 5))
        assert over.ids[over.text.at : over.text.at + 2] == TURN[1:3]

    def test_ids_between_turns_stand_before_every_turn_but_the_first(self) -> None:
        talk, between = Conversation(4), (5, 6)
        first = continued(whole(), len(HEAD), talk, 200, between=between)
        assert (first.message.ids, first.turn) == (HEAD + TURN, TURN)
        talk.last = Turn((7, 50, 8), rows(3))
        over = continued(whole(), len(HEAD), talk, 200, between=between)
        assert over.message.ids == (*HEAD, 7, 50, 8, *(8, 8, 8), *between, *TURN)
        talk.held = 100
        then = continued(whole(), len(HEAD), talk, 200, between=between)
        assert (then.message.ids, then.turn, then.positions) == ((*between, *TURN), TURN, 106)

    def test_last_utterance_too_long_is_left_out(self) -> None:
        talk = Conversation(4)
        talk.last = Turn((7, 50, 8), rows(141))
        assert order(talk).message == whole(conversation=4)
        talk.last = Turn((7, 50, 8), rows(140))
        assert order(talk).positions == 150

    def test_continuation_limit_of_checkpoint_restarts_prompt_sooner(self) -> None:
        talk = Conversation(4)
        talk.held, talk.last = 20, Turn((7, 50, 8), rows(3))
        assert continued(whole(), len(HEAD), talk, 200, 24).message.continues
        over = continued(whole(), len(HEAD), talk, 200, 23)
        assert len(over.message.clips) == 3
        assert over.positions == len(HEAD) + 6 + len(TURN)
        assert continued(whole(), len(HEAD), talk, 200, 12).message == whole(conversation=4)

    def test_max_frames_fits_remaining_positions(self) -> None:
        talk = Conversation(4)
        talk.held = 28
        assert order(talk, room=64).message.max_frames == 64 - 28 - len(TURN)


class Process:
    """A talker process whose answers are scripted: pieces, or an exception instead."""

    def __init__(self) -> None:
        self.asked: list[Generate] = []
        self.answers: list[list[TalkerRows] | Exception] = []

    async def start(self, message: Generate) -> RowGenerator:
        self.asked.append(message)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        for piece in answer:
            await asyncio.sleep(0)
            yield piece


def ordering(talk: Conversation) -> Callable[[], Order]:
    return lambda: order(talk)


async def take(talk: Conversation, process: Process) -> list[TalkerRows]:
    return [piece async for piece in talk.speak(ordering(talk), process.start)]


SPOKEN = [TalkerRows(rows(4)), TalkerRows(rows(5, 8), "stop")]


class TestConversation:
    async def test_history_keeps_spoken_rows_except_stop_row(self) -> None:
        talk, process = Conversation(1), Process()
        process.answers = [SPOKEN, SPOKEN]
        assert await take(talk, process) == SPOKEN
        assert talk.held == len(HEAD + TURN) + 8
        assert talk.last is not None
        assert talk.last.ids == TURN
        assert np.array_equal(talk.last.rows, rows(8))
        held = talk.held
        await take(talk, process)
        assert process.asked[1].continues == held
        assert talk.held == len(HEAD + TURN) + 8 + len(TURN) + 8

    async def test_history_keeps_all_rows_if_each_is_whole_frame(self) -> None:
        """The row with the stop id is not part of such a stream."""
        talk, process = Conversation(1), Process()
        process.answers = [SPOKEN]

        def build() -> Order:
            return continued(whole(), len(HEAD), talk, 200, is_delayed=False)

        assert [piece async for piece in talk.speak(build, process.start)] == SPOKEN
        assert talk.held == len(HEAD + TURN) + 9
        assert talk.last is not None
        assert np.array_equal(talk.last.rows[4:], rows(5, 8))

    @pytest.mark.parametrize(
        "answer",
        [
            [TalkerRows(rows(4)), TalkerRows(rows(5), "length")],
            BackendError(ErrorCode.ENGINE_FAILED, "no"),
        ],
    )
    async def test_history_ignores_truncated_and_failed_utterances(
        self, answer: list[TalkerRows] | Exception
    ) -> None:
        talk, process = Conversation(1), Process()
        process.answers = [SPOKEN, answer]
        await take(talk, process)
        before = talk.held, talk.last
        if isinstance(answer, Exception):
            with pytest.raises(BackendError):
                await take(talk, process)
        else:
            await take(talk, process)
        assert (talk.held, talk.last) == before

    async def test_early_close_adds_no_history_and_starts_next_utterance(self) -> None:
        talk, process = Conversation(1), Process()
        process.answers = [SPOKEN, SPOKEN]
        first = talk.speak(ordering(talk), process.start)
        await anext(first)
        second = asyncio.create_task(take(talk, process))
        await asyncio.sleep(0.01)
        assert len(process.asked) == 1
        await first.aclose()
        assert await second == SPOKEN
        assert not process.asked[1].continues

    async def test_close_after_last_piece_counts_as_complete(self) -> None:
        talk, process = Conversation(1), Process()
        process.answers = [SPOKEN]
        stream = talk.speak(ordering(talk), process.start)
        while (await anext(stream)).finish is None:
            pass
        await stream.aclose()
        assert talk.held

    async def test_gone_history_is_resent_with_rows(self) -> None:
        talk, process = Conversation(1), Process()
        process.answers = [SPOKEN, Gone(), SPOKEN]
        await take(talk, process)
        assert await take(talk, process) == SPOKEN
        assert [m.continues > 0 for m in process.asked] == [False, True, False]
        assert len(process.asked[2].clips) == 3
        assert talk.held == len(process.asked[2].ids) + 8

    async def test_process_death_clears_held_positions_keeps_last_utterance(self) -> None:
        talk, process = Conversation(1), Process()
        process.answers = [SPOKEN]
        stream = talk.speak(ordering(talk), process.start)
        await anext(stream)
        talk.lose()
        assert (await anext(stream)).finish == "stop"  # sent before the process died
        await stream.aclose()
        assert talk.held == 0
        assert talk.last is not None

    @pytest.mark.parametrize(
        ("frames", "is_kept"),
        [(0, False), (1, True), (MAX_EARLIER_ROWS, True), (MAX_EARLIER_ROWS + 1, False)],
    )
    async def test_utterance_is_kept_for_restart_if_its_rows_are_a_valid_clip(
        self, frames: int, is_kept: bool
    ) -> None:
        talk, process = Conversation(1), Process()
        process.answers = [[TalkerRows(rows(frames + 1), "stop")]]
        await take(talk, process)
        assert (talk.last is not None) == is_kept
        assert talk.held == len(HEAD + TURN) + frames


def test_conversations_evict_least_recent_and_forget_by_name() -> None:
    known = Conversations(2)
    a, b = known.of("a"), known.of("b")
    assert known.of("a") is a
    known.of("c")
    assert len(known) == 2
    assert (known.forget("b"), known.forget("a"), known.forget("a")) == (None, a.number, None)
    assert len({a.number, b.number, known.of("a").number, 0}) == 4  # 0 is no conversation


class TestConversationCache:
    def test_row_count_survives_counter_wraparound(self) -> None:
        count = RowCount()
        near = FRAME_SPAN - 10
        for ahead in range(0, near, FRAME_SPAN // 3):
            count.see(FRAME_BASE + ahead)
        count.see(FRAME_BASE + near)
        assert count.see(FRAME_BASE + near - 5) == near  # ids of one step arrive in any order
        assert count.see(FRAME_BASE + 7) == FRAME_SPAN + 7

    def test_history_expires_when_ring_overwrites_first_frame(self) -> None:
        kept = ConversationCache(slots=64, cores=2, limit=4)
        kept.counts[1].see(FRAME_BASE + 10)
        kept.keep(5, ConversationHistory(core=1, since=10))
        kept.counts[0].see(FRAME_BASE + 500)  # another core's ring
        kept.counts[1].see(FRAME_BASE + 73)
        assert kept.get(5) is not None
        kept.counts[1].see(FRAME_BASE + 74)
        assert kept.get(5) is None
        assert not len(kept)

    def test_conversation_cache_evicts_least_recently_used(self) -> None:
        kept = ConversationCache(slots=64, cores=1, limit=2)
        for number in (1, 2):
            kept.keep(number, ConversationHistory())
        kept.get(1)
        kept.keep(3, ConversationHistory())
        assert [kept.get(n) is not None for n in (1, 2, 3)] == [True, False, True]
        kept.drop(1)
        kept.drop(1)
        assert kept.get(1) is None

    def test_conversation_that_went_on_is_evicted_last(self) -> None:
        kept = ConversationCache(slots=64, cores=1, limit=2)
        for number in (1, 2, 1, 3):
            kept.keep(number, ConversationHistory())
        assert [kept.get(n) is not None for n in (1, 2, 3)] == [True, False, True]


def ask(handle: int, **changes: object) -> Generate:
    return whole(handle=handle, **{"clips": (OTHER,), "conversation": 1, **changes})


def speak(
    requests: RequestTable, take: RequestState | None, *counters: int, finish: str = "stop"
) -> None:
    assert take is not None
    requests.note(take, [FRAME_BASE + c for c in counters])
    requests.end(take.request.handle, finish)


class TestRequestTable:
    def test_utterance_continues_from_ids_clips_and_core(self) -> None:
        requests = RequestTable(slots=1024, cores=2)
        busy = requests.add(ask(1, conversation=0))
        first = requests.add(ask(2, clips=(VOICE, OTHER)))
        assert busy is not None
        assert first is not None
        assert (busy.core, first.core) == (0, 1)
        speak(requests, first, 5, 6)
        requests.drop(1)  # now both cores are idle
        then = requests.add(ask(3, ids=TURN, continues=9))
        assert then is not None
        assert then.prompt == [*HEAD, *TURN, FRAME_BASE + 5, FRAME_BASE + 6, *TURN]
        assert (then.clips, then.core, then.since) == ((VOICE, OTHER), 1, 5)
        speak(requests, then, 9)
        third = requests.add(ask(4, ids=TURN, continues=14))
        assert third is not None
        assert third.prompt == [*then.prompt, *TURN]
        assert third.since == 5

    @pytest.mark.parametrize(("conversation", "finish"), [(0, "stop"), (1, "length")])
    def test_history_needs_conversation_and_complete_utterance(
        self, conversation: int, finish: str
    ) -> None:
        requests = RequestTable(slots=1024)
        speak(requests, requests.add(ask(1, conversation=conversation)), 1, finish=finish)
        assert requests.add(ask(2, conversation=conversation, continues=8)) is None
        assert 2 not in requests

    def test_longer_history_than_expected_is_not_continued(self) -> None:
        """An utterance had ended here when its consumer left without its last rows."""
        requests = RequestTable(slots=1024)
        speak(requests, requests.add(ask(1)), 1)
        speak(requests, requests.add(ask(2, ids=TURN, continues=8)), 2)
        assert requests.add(ask(3, ids=TURN, continues=8)) is None
        speak(requests, requests.add(ask(4)), 4)  # it starts over
        assert requests.add(ask(5, ids=TURN, continues=8)) is not None

    def test_utterance_without_frames_is_continued(self) -> None:
        requests = RequestTable(slots=1024)
        speak(requests, requests.add(ask(1)))
        then = requests.add(ask(2, ids=TURN, continues=7))
        assert then is not None
        assert then.prompt == [*HEAD, *TURN, *TURN]

    def test_forget_during_speech_leaves_no_history_of_that_conversation(self) -> None:
        requests = RequestTable(slots=1024)
        speaking, other = requests.add(ask(1)), requests.add(ask(2, conversation=2))
        requests.forget(1)
        speak(requests, speaking, 1)
        speak(requests, other, 2)
        assert requests.add(ask(3, continues=8)) is None
        assert requests.add(ask(4, continues=8, conversation=2)) is not None

    def test_lose_before_first_frame_allows_resend_and_drops_history(self) -> None:
        requests = RequestTable(slots=1024)
        speak(requests, requests.add(ask(1)), 1)
        assert requests.add(ask(2, continues=8)) is not None
        assert requests.lose(2)
        assert requests.add(ask(3, continues=8)) is None  # the history's KV blocks may be wrong

    def test_lose_after_first_frame_forbids_resend(self) -> None:
        requests = RequestTable(slots=1024)
        speak(requests, requests.add(ask(1)), 1)
        going = requests.add(ask(2, continues=8))
        assert going is not None
        requests.note(going, [FRAME_BASE + 2])
        assert not requests.lose(2)
        assert not requests.lose(9)

    def test_paused_request_resumes_with_history_and_frames(self) -> None:
        requests = RequestTable(slots=1024)
        speak(requests, requests.add(ask(1)), 1)
        going = requests.add(ask(2, ids=TURN, continues=8))
        assert going is not None
        requests.note(going, [FRAME_BASE + 2])
        requests.pause(2)
        assert requests.resume(2) is going
        assert going.prompt == [*HEAD, *TURN, FRAME_BASE + 1, *TURN, FRAME_BASE + 2]
        assert going.frames_left == 49
