"""Starts that hold back many frames, which must get the rows that they wait for."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from streaming.chunk_schedule import PaceBounds, ScheduleSettings
from streaming.events import (
    AudioDecoded,
    Decode,
    Done,
    EndRequested,
    Event,
    PauseTalker,
    ResumeTalker,
    RowsReceived,
    SetTimer,
    StartTalker,
    TextAppended,
    TimerFired,
)
from streaming.ports import TalkerRows
from streaming.session import Session, SessionSettings
from streaming.spec import CodecSpec
from streaming.utterance import QueueSettings

SPEC = CodecSpec(24_000, 960, (1024,) * 8, 10, 10)
FRAMES = 300


def outcome(row_s: float, lead_s: float, speed: float, late_row: int = -1) -> str:
    """Return how a long utterance ends. A row comes every ``row_s`` seconds if rows are wanted,
    but the one after ``late_row`` only when the listener has long run out of audio.
    """
    bounds = PaceBounds(row_s, 0.1, 0.005, 0.008, 0.0005)
    schedule = ScheduleSettings(SPEC.frame_s / speed, SPEC.num_codebooks - 1, 10)
    line = QueueSettings(SPEC, schedule, lambda _: bounds, "chunked", lead_s, speed)
    session = Session(SessionSettings(line))
    waiting: list[tuple[float, int, Event]] = []
    now, rows, talking, ring_at, row_at = 0.0, 0, -1, float("inf"), row_s
    paused = False
    events: list[Event] = [TextAppended("word " * 50 + "end."), EndRequested()]
    while True:
        for event in events:
            for command in session.handle(event, now):
                if isinstance(command, StartTalker):
                    talking, paused = command.utterance, False
                elif isinstance(command, Decode):
                    samples = np.zeros(command.window.new_frames * SPEC.hop_length, np.float32)
                    came = AudioDecoded(command.utterance, samples)
                    heapq.heappush(waiting, (now + 0.01, id(came), came))
                elif isinstance(command, PauseTalker):
                    paused = True
                elif isinstance(command, ResumeTalker):
                    paused = False
                elif isinstance(command, SetTimer):
                    ring_at = command.at
                elif isinstance(command, Done):
                    return command.reason
        wants = talking >= 0 and rows < FRAMES and not paused
        row_at = max(row_at, now) if wants else now + row_s
        decoded_at = waiting[0][0] if waiting else float("inf")
        next_at = min(row_at if wants else float("inf"), decoded_at, ring_at)
        if next_at == float("inf"):
            return "nobody wakes it"
        now = max(now, next_at)
        if decoded_at <= now:
            events = [heapq.heappop(waiting)[2]]
        elif ring_at <= now:
            ring_at, events = float("inf"), [TimerFired()]
        else:
            rows, row_at = rows + 1, now + row_s + 60.0 * (rows + 1 == late_row)
            last = rows == FRAMES
            codes = np.full((1, 8), 1025 if last else 100, np.int16)
            events = [RowsReceived(talking, TalkerRows(codes, "stop" if last else None))]


@pytest.mark.parametrize("lead_s", [0.2, 0.5, 1.0, 1.5, 3.0, 10.0])
@pytest.mark.parametrize(("row_s", "speed"), [(0.06, 1.0), (0.044, 1.0), (0.03, 2.0), (0.01, 1.0)])
def test_long_utterance_completes_with_any_lead_limit(
    row_s: float, lead_s: float, speed: float
) -> None:
    assert outcome(row_s, lead_s, speed) == "complete"


@pytest.mark.parametrize("lead_s", [0.2, 1.0])
def test_slow_utterance_completes_after_underrun(lead_s: float) -> None:
    """It starts again, with many frames held back, although the lead limit allows few."""
    assert outcome(0.06, lead_s, 1.0, late_row=160) == "complete"
