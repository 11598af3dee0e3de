"""Hostile text is processed in small steps, and its cost is proportional to its length.

Work is counted in characters and calls rather than seconds, so that a busy machine does not
matter.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.fakes.talker import FakeTalker
from streaming.events import EndRequested, Event, NothingToSay, StartTalker, TextAppended
from streaming.session import Session, State
from tests.service.live import client, gateway
from tests.streaming.session_world import settings as session_settings
from tests.text.operations import operations
from tests.text.written import UNIT
from text.english.normaliser import normalise
from text.front_end import spoken_lengths
from text.segmenter import Segmenter, SegmentSettings

MOST_CHARS = 90


@given(unit=UNIT)
@settings(max_examples=12, deadline=None)
def test_segmenter_work_grows_linearly_with_length(unit: str) -> None:
    def work(chars: int) -> int:
        text = (unit * chars)[:chars]
        segmenter = Segmenter(SegmentSettings(MOST_CHARS))
        return operations(lambda: (segmenter.push(text), segmenter.flush()))

    long = work(1200)
    assert long < 5 * work(300) + 2000
    assert long < 120 * 1200


@given(unit=UNIT, sizes=st.lists(st.integers(1, 900), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_session_normalises_at_most_one_utterance_per_event(unit: str, sizes: list[int]) -> None:
    read: list[int] = []

    def lengths(text: str) -> list[int]:
        read.append(len(text))
        return list(range(len(text) + 1))

    segments = SegmentSettings(MOST_CHARS, spoken_lengths=lengths)
    session = Session(replace(session_settings(), segments=segments, max_text_chars=10_000))
    text = (unit * sum(sizes))[: sum(sizes)]

    def handle(event: Event) -> list[StartTalker]:
        before = sum(read)
        commands = session.handle(event, 0.0)
        assert sum(read) - before <= MOST_CHARS
        return [command for command in commands if isinstance(command, StartTalker)]

    started, at = [], 0
    for size in sizes:
        started += handle(TextAppended(text[at : at + size]))
        at += size
    started += handle(EndRequested())
    while started:
        started += handle(NothingToSay(started.pop(0).utterance))
    assert session.state is State.CLOSED
    assert sum(read) <= len(text)


class Turns:
    """Counts the characters normalised in each iteration of the event loop."""

    def __init__(self) -> None:
        self.most = self.total = self._now = 0
        self._loop = asyncio.get_running_loop()
        self._turn()

    def _turn(self) -> None:
        self._now = 0
        self._next = self._loop.call_soon(self._turn)

    def note(self, text: str) -> list[int]:
        self._now += len(text)
        self.total += len(text)
        self.most = max(self.most, self._now)
        return spoken_lengths(normalise, text)

    def stop(self) -> None:
        self._next.cancel()


class SilentTalker(FakeTalker):
    """Finds nothing to speak in the hostile text of the test."""

    def check(self, request: Any) -> None:
        super().check(replace(request, text=request.text.replace("1", "")))


async def test_hostile_text_is_normalised_in_small_steps_of_event_loop() -> None:
    talker = SilentTalker()
    async with (
        gateway(talker, max_segment_chars=MOST_CHARS) as server,
        client(server.url) as talk,
    ):
        turns = Turns()
        talker.spec = replace(talker.spec, spoken_lengths=turns.note)
        for number in range(4):
            await talk.send("context.create", context_id=f"c{number}")
            await talk.send("text.append", context_id=f"c{number}", text='"1' * 2_000)
            await talk.send("context.end", context_id=f"c{number}")
        for number in range(4):
            error = await talk.error()
            assert error["code"] == "invalid_text", (number, error)
        turns.stop()
        assert turns.total >= 4 * 3_900
        assert turns.most <= 4 * MOST_CHARS  # one utterance of each context
