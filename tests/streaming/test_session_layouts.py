"""A session whose rows are whole frames and whose codec is causal with a history."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from loadtest.fakes.codec import FakeDecoder
from streaming.chunk_schedule import PaceBounds, ScheduleSettings
from streaming.delay import RowLayout
from streaming.events import (
    AudioDecoded,
    Command,
    Decode,
    EndRequested,
    Event,
    RowsReceived,
    SendAudio,
    SetTimer,
    StartTalker,
    TextAppended,
    TimerFired,
    UtteranceEnded,
)
from streaming.ports import TalkerRows
from streaming.session import Session, SessionSettings
from streaming.spec import CodecSpec, Codes
from streaming.utterance import QueueSettings
from streaming.window import DecodeWindow

SPEC = CodecSpec(24_000, 6, (60, 20, 20), 2, 0, history_frames=9)
FRAMES, ROW_S = 60, 0.00002


def random_frames() -> Codes:
    rng = np.random.default_rng(5)
    return np.stack([rng.integers(0, n, FRAMES) for n in SPEC.codebook_sizes], 1).astype(np.int16)


@pytest.mark.parametrize("mode", ["chunked", "whole"])
@pytest.mark.parametrize("ends_by_code", [False, True])
def test_session_with_whole_rows_equals_one_shot_decode(mode: str, ends_by_code: bool) -> None:
    schedule = ScheduleSettings(
        frame_s=SPEC.frame_s, delay_rows=0, left_context_frames=SPEC.left_frames,
        first_lookahead_frames=0, lookahead_frames=0, max_chunk_frames=12,
    )  # fmt: skip
    bounds = PaceBounds(ROW_S, 0.0, 0.0, 0.0, 0.0)
    queue = QueueSettings(SPEC, schedule, lambda _: bounds, mode, layout=RowLayout.WHOLE)  # type: ignore[arg-type]
    session, decoder, frames = Session(SessionSettings(queue)), FakeDecoder(SPEC), random_frames()
    rows = frames
    if ends_by_code:  # a row with a special code is no frame
        rows = np.concatenate([frames, [[60, 0, 0]]]).astype(np.int16)
    events: deque[Event] = deque([TextAppended("A text."), EndRequested()])
    windows: list[DecodeWindow] = []
    sent, now = [], 0.0
    while events:
        now += ROW_S
        for command in session.handle(events.popleft(), now):
            match command:
                case StartTalker(utterance):
                    for number, row in enumerate(rows):
                        is_last = number == len(rows) - 1
                        batch = TalkerRows(row[None], "stop" if is_last else None)
                        events.append(RowsReceived(utterance, batch))
                case Decode(utterance, window):
                    windows.append(window)
                    samples = decoder.decode_windows([window])[0]
                    events.appendleft(AudioDecoded(utterance, samples))
                case SendAudio(samples):
                    sent.append(samples)
    whole = decoder.decode([np.ascontiguousarray(frames.T)])[0]
    assert np.array_equal(np.concatenate(sent), whole)
    assert all(window.lookahead == 0 for window in windows)
    if mode == "chunked":
        assert len(windows) > 4
        kept = [0 if w.history is None else w.history.shape[1] for w in windows]
        assert max(kept) == SPEC.history_frames


def test_end_that_comes_after_last_audio_is_told() -> None:
    """The step that ends an utterance makes no frame, so its audio may all have been sent."""
    schedule = ScheduleSettings(
        frame_s=SPEC.frame_s, delay_rows=0, left_context_frames=SPEC.left_frames,
        first_lookahead_frames=0, lookahead_frames=0,
    )  # fmt: skip
    bounds = PaceBounds(ROW_S, 0.0, 0.0, 0.0, 0.0)
    queue = QueueSettings(SPEC, schedule, lambda _: bounds, layout=RowLayout.WHOLE)
    session, decoder, frames = Session(SessionSettings(queue)), FakeDecoder(SPEC), random_frames()
    now, timer, sent = 0.0, None, list[SendAudio]()

    def post(event: Event) -> list[Command]:
        nonlocal timer
        commands = session.handle(event, now)
        sent.extend(command for command in commands if isinstance(command, SendAudio))
        for command in list(commands):
            if isinstance(command, SetTimer):
                timer = command.at
            elif isinstance(command, Decode):
                samples = decoder.decode_windows([command.window])[0]
                commands += post(AudioDecoded(command.utterance, samples))
        return commands

    post(TextAppended("A text. And"))
    told = post(RowsReceived(0, TalkerRows(frames)))
    while sum(len(audio.samples) for audio in sent) < FRAMES * SPEC.hop_length:
        assert timer is not None
        now, timer = timer, None
        told += post(TimerFired())
    assert not any(audio.ends_utterance for audio in sent)
    assert not any(isinstance(command, UtteranceEnded) for command in told)
    told = post(RowsReceived(0, TalkerRows(frames[:0], "stop")))
    assert UtteranceEnded(0) in told
    assert session.is_idle
