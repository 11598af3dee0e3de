"""Utterances that stay silent after their text, since the talker missed its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from streaming.delay import RowLayout
from streaming.events import (
    AudioDecoded,
    Command,
    Decode,
    Done,
    EndRequested,
    EndSilence,
    Event,
    RowsReceived,
    SendAudio,
    SetTimer,
    StartTalker,
    TextAppended,
    TimerFired,
)
from streaming.ports import TalkerRows
from streaming.session import Session, SessionSettings
from streaming.spec import Samples
from tests.streaming.session_world import SPEC, settings
from text.segmenter import SegmentSettings

LIMIT_S = 2.0
#: In frames of 40 ms.
LIMIT = round(LIMIT_S / SPEC.frame_s)
LOUD, QUIET = 500, 1


def guarded(limit_s: float = LIMIT_S, **options: object) -> SessionSettings:
    made = settings(max_lead_s=1000.0, chars=100_000, **options)  # type: ignore[arg-type]
    queue = replace(made.queue, layout=RowLayout.WHOLE, end_silence_s=limit_s)
    return replace(made, queue=queue)


class Runaway:
    """A session whose talker makes the frames that the test says; a code is a level."""

    def __init__(self, config: SessionSettings) -> None:
        self.session, self.now = Session(config), 0.0
        self.sent: list[Samples] = []
        self.told: list[Command] = []
        self.started: list[int] = []

    def post(self, *events: Event) -> None:
        waiting = deque(events)
        while waiting:
            waiting += self._handle(waiting.popleft())

    def _handle(self, event: Event) -> Iterator[Event]:
        """Handle an event; returns what the codec answers."""
        for command in self.session.handle(event, self.now):
            match command:
                case Decode(utterance, window):
                    codes = np.repeat(window.codes[0], SPEC.hop_length).astype(np.float32)
                    levels = codes / np.float32(1024)
                    self.now += 0.001
                    yield AudioDecoded(utterance, window.trim(levels))
                case SendAudio(samples):
                    self.sent.append(samples)
                    self.told.append(command)
                case StartTalker(utterance):
                    self.started.append(utterance)
                case SetTimer():
                    pass
                case _:
                    self.told.append(command)

    def make(self, utterance: int, code: int, frames: int, *, at_once: int = 1) -> None:
        """Generate frames of one level, until the utterance has ended."""
        for _ in range(frames // at_once):
            rows = np.full((at_once, SPEC.num_codebooks), code, np.int16)
            self.now += 0.01
            self.post(RowsReceived(utterance, TalkerRows(rows), 0.01))
            self.post(TimerFired())

    @property
    def ended(self) -> list[int]:
        return [command.utterance for command in self.told if isinstance(command, EndSilence)]

    @property
    def frames(self) -> float:
        return sum(map(len, self.sent)) / SPEC.hop_length


@pytest.mark.parametrize("at_once", [1, 10])
def test_silence_after_speech_ends_utterance_and_next_one_begins(at_once: int) -> None:
    run = Runaway(guarded())
    run.post(TextAppended("One sentence is here. And another one."))
    run.post(EndRequested())
    run.make(0, LOUD, 20, at_once=at_once)
    run.make(0, QUIET, 1000, at_once=at_once)
    assert run.ended == [0]
    assert run.started == [0, 1]
    # it ends with a window, of which none is longer than the largest chunk
    assert 20 + LIMIT <= run.frames < 20 + LIMIT + 100
    run.make(1, LOUD, 20)
    rows = np.full((1, SPEC.num_codebooks), LOUD, np.int16)
    run.post(RowsReceived(1, TalkerRows(rows, "stop"), 0.01))
    assert run.ended == [0]
    assert isinstance(run.told[-1], Done)
    assert run.told[-1].reason == "complete"


def test_silence_is_left_out_even_if_talker_has_reached_its_maximum() -> None:
    run = Runaway(guarded())
    run.post(TextAppended("One sentence is here."))
    run.post(EndRequested())
    codes = np.full((20 + 5 * LIMIT, SPEC.num_codebooks), QUIET, np.int16)
    codes[:20] = LOUD
    run.post(RowsReceived(0, TalkerRows(codes, "length"), 0.01))
    ends = [command for command in run.told if isinstance(command, EndSilence)]
    assert [(end.utterance, end.is_running) for end in ends] == [(0, False)]
    assert 20 + LIMIT <= run.frames < 20 + 5 * LIMIT
    assert isinstance(run.told[-1], Done)
    assert run.told[-1].reason == "complete"


def test_last_audio_of_silent_utterance_says_so() -> None:
    run = Runaway(guarded())
    run.post(TextAppended("One sentence is here."))
    run.post(EndRequested())
    run.make(0, LOUD, 20)
    run.make(0, QUIET, 1000)
    audio = [command for command in run.told if isinstance(command, SendAudio)]
    assert [one.is_last for one in audio] == [False] * (len(audio) - 1) + [True]
    assert isinstance(run.told[-1], Done)


@pytest.mark.parametrize(
    ("limit_s", "frames"),
    [
        (LIMIT_S, [(QUIET, 4 * LIMIT), (LOUD, 5)]),  # it has not been audible
        (LIMIT_S, [(LOUD, 5), (QUIET, LIMIT - 1), (LOUD, 1), (QUIET, LIMIT - 1), (LOUD, 5)]),
        (0.0, [(LOUD, 5), (QUIET, 4 * LIMIT), (LOUD, 5)]),
    ],
)
def test_other_silence_is_spoken(limit_s: float, frames: list[tuple[int, int]]) -> None:
    run = Runaway(guarded(limit_s))
    run.post(TextAppended("One sentence is here."))
    run.post(EndRequested())
    for code, count in frames:
        run.make(0, code, count)
    rows = np.full((1, SPEC.num_codebooks), LOUD, np.int16)
    run.post(RowsReceived(0, TalkerRows(rows, "stop"), 0.01))
    assert run.ended == []
    assert run.frames == sum(count for _, count in frames) + 1


def test_text_that_arrives_may_be_followed_by_silence_until_it_was_read() -> None:
    run = Runaway(replace(guarded(), segments=SegmentSettings(300), by_words=True))
    text = "one two three four " * 8
    run.post(TextAppended(text + "fi"))
    run.make(0, LOUD, 5)
    run.make(0, QUIET, 3 * LIMIT)
    assert run.ended == []  # more text may come
    run.post(EndRequested())
    run.make(0, QUIET, 3 * LIMIT + len(text))
    assert run.ended == [0]
    assert run.frames >= len(text.strip()) + LIMIT
