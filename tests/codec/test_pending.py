"""Pending windows and clips: messages to the worker, deadlines, retries. No worker runs here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from codec import pending
from codec.messages import Cancel, Decode, Decoded, Decoding, Encode, Encoded, Encoding
from codec.pending import BEGIN_S, PendingDecodes, PendingEncodes, WorkerChoice
from streaming.errors import BackendError, ErrorCode
from streaming.ports import DecodeStats
from streaming.spec import Samples
from streaming.window import DecodeWindow

LEFT, NEW, LOOKAHEAD = 3, 4, 3
HOP = 6


async def sent_for(window: DecodeWindow, deadline_s: float) -> list[Decode | Cancel]:
    """Return the messages sent for a window whose decode is cancelled."""
    sent: list[Decode | Cancel] = []
    decodes = PendingDecodes(lambda message, worker: sent.append(message), 1)
    asking = asyncio.create_task(decodes.decode(7, window, HOP, deadline_s, 60.0))
    await asyncio.sleep(0)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    assert len(decodes) == 0
    return sent


def window(left: int = 0, first_frame: int = 0) -> DecodeWindow:
    codes = np.zeros((2, left + NEW + LOOKAHEAD), np.int16)
    return DecodeWindow(
        codes, left, NEW, LOOKAHEAD, first_frame, is_first=not (left or first_frame)
    )


async def test_cancelled_window_is_withdrawn() -> None:
    decode, *rest = await sent_for(window(), time.monotonic() + 1.0)
    assert isinstance(decode, Decode)
    assert rest == [Cancel(7)]


async def test_first_window_deadline_is_delayed_by_begin_s() -> None:
    now = time.monotonic()
    decode, _ = await sent_for(window(), now)
    assert isinstance(decode, Decode)
    assert decode.begins
    assert now + BEGIN_S <= decode.deadline_s <= time.monotonic() + BEGIN_S


async def test_window_due_just_now_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "time", SimpleNamespace(monotonic=lambda: 100.0))
    decode, _ = await sent_for(window(), 100.0)
    assert isinstance(decode, Decode)
    assert decode.begins
    assert decode.deadline_s == 100.0 + BEGIN_S


@pytest.mark.parametrize(
    ("one", "in_s"),
    [
        (window(), 60.0),  # the previous utterance is still playing
        (window(LEFT), 60.0),
        (window(LEFT), -0.5),  # its stream has run out of audio
        (window(first_frame=40), -0.5),  # the same without left context
    ],
)
async def test_window_of_playing_stream_keeps_its_deadline(one: DecodeWindow, in_s: float) -> None:
    deadline_s = time.monotonic() + in_s
    decode, _ = await sent_for(one, deadline_s)
    assert isinstance(decode, Decode)
    assert not decode.begins
    assert decode.deadline_s == deadline_s


class Out:
    """Pending windows by id, and the messages sent for them."""

    def __init__(self) -> None:
        self.sent: list[Decode | Cancel] = []
        self.decodes = PendingDecodes(lambda message, worker: self.sent.append(message), 10)
        self.asking: dict[int, asyncio.Task[tuple[Samples, DecodeStats]]] = {}

    async def ask(self, id: int, in_s: float = 9.0, one: DecodeWindow | None = None) -> None:
        deadline_s = time.monotonic() + in_s
        one = one or window(LEFT)
        asked = self.decodes.decode(id, one, HOP, deadline_s, 60.0, f"request {id}")
        self.asking[id] = asyncio.create_task(asked)
        await asyncio.sleep(0)

    def answer(self, id: int, count: int = NEW * HOP) -> None:
        samples = np.full(count, id, "<f4").tobytes()
        self.decodes.on_message(
            Decoded(id, memoryview(samples), 0.0, 0.01, 1, LEFT + NEW + LOOKAHEAD)
        )

    def next_worker(self) -> list[tuple[int, bool]]:
        """Return the ids of the windows that it gets, in order, and whether each goes alone."""
        self.sent.clear()
        self.decodes.on_ready()
        return [(one.id, one.alone) for one in self.sent if isinstance(one, Decode)]


async def test_next_worker_gets_windows_in_deadline_order() -> None:
    out = Out()
    for id, in_s in enumerate([5.0, 1.0, 3.0]):
        await out.ask(id, in_s)
    out.decodes.on_down()
    assert out.next_worker() == [(1, False), (2, False), (0, False)]
    for id in out.asking:
        out.answer(id)
    for id, asking in out.asking.items():
        samples, stats = await asking
        assert set(samples.tolist()) == {id}
        assert (stats.new_frames, stats.decode_s, stats.batch) == (NEW, 0.01, 1)
        assert 0 < stats.slack_s <= 5.0


async def test_next_worker_gets_windows_that_begin_a_little_later() -> None:
    """Like the first worker: listeners who run out of audio soon have precedence."""
    out = Out()
    await out.ask(0, 0.0, window())
    await out.ask(1, BEGIN_S / 2)
    await out.ask(2, 9.0)
    out.decodes.on_down()
    assert out.next_worker() == [(1, False), (0, False), (2, False)]
    out.decodes.stop()
    await asyncio.gather(*out.asking.values(), return_exceptions=True)


async def test_only_windows_decoded_last_are_retried_alone() -> None:
    out = Out()
    for id in range(3):
        await out.ask(id)
    out.decodes.on_message(Decoding([0, 1]))  # a piece of each
    out.decodes.on_message(Decoding([1]))
    out.decodes.on_down()
    assert out.next_worker() == [(0, False), (1, True), (2, False)]
    out.decodes.stop()
    await asyncio.gather(*out.asking.values(), return_exceptions=True)


async def test_worker_death_before_decoding_adds_no_strike() -> None:
    out = Out()
    await out.ask(0)
    out.decodes.on_message(Decoding([0]))
    for _ in range(3):
        out.decodes.on_down()
        assert out.next_worker() == [(0, True)]
    out.answer(0)
    samples, _ = await out.asking[0]
    assert len(samples) == NEW * HOP


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the messages of the log, and the request that each is about."""
    return [(record.getMessage(), record.__dict__["request_id"]) for record in caplog.records]


async def test_window_is_given_up_at_second_death_during_its_decoding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = Out()
    for id in range(2):
        await out.ask(id)
    for is_left in (True, False):
        out.decodes.on_message(Decoding([0]))
        out.decodes.on_down()
        assert out.next_worker() == ([(0, True), (1, False)] if is_left else [(1, False)])
    with pytest.raises(BackendError) as failed:
        await out.asking[0]
    assert failed.value.code is ErrorCode.CODEC_FAILED
    assert logged(caplog) == [("a window is given up: workers died of it", "request 0")]
    out.answer(1)
    await out.asking[1]


async def test_window_that_fails_is_logged_with_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = Out()
    for id in range(2):
        await out.ask(id)
    out.decodes.on_failed(1, "RuntimeError: no memory")
    out.decodes.on_failed(2, "RuntimeError: cancelled meanwhile")
    with pytest.raises(BackendError):
        await out.asking[1]
    assert logged(caplog) == [("a window failed: RuntimeError: no memory", "request 1")]
    out.answer(0)
    await out.asking[0]


@pytest.mark.parametrize("end", ["answer", "fail", "stop"])
async def test_worker_hears_no_more_of_window_that_has_ended(end: str) -> None:
    """Neither is it withdrawn, nor does the next worker get it. Another one, whose caller gives up
    at this very moment, does no harm.
    """
    out = Out()
    for id in range(2):
        await out.ask(id)
    out.sent.clear()
    out.asking[1].cancel()  # it has not run since
    for id in range(2):
        match end:
            case "answer":
                out.answer(id)
            case "fail":
                out.decodes.on_failed(id, "RuntimeError: no memory")
            case _:
                out.decodes.stop()
    first, second = await asyncio.gather(*out.asking.values(), return_exceptions=True)
    assert isinstance(first, tuple if end == "answer" else BackendError)
    assert isinstance(second, asyncio.CancelledError)
    assert out.sent == []
    assert out.next_worker() == []


@pytest.mark.parametrize("count", [0, NEW * HOP - 1, NEW * HOP + 1])
async def test_audio_of_wrong_length_fails_decode(count: int) -> None:
    out = Out()
    await out.ask(0)
    out.answer(0, count)
    with pytest.raises(BackendError, match="length") as failed:
        await out.asking[0]
    assert failed.value.code is ErrorCode.CODEC_FAILED
    assert len(out.decodes) == 0


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
async def test_audio_that_is_not_finite_fails_decode(odd: float) -> None:
    """LAME would abort the gateway, and a resampler would stay silent."""
    out = Out()
    for id in range(2):
        await out.ask(id)
    samples = np.zeros(NEW * HOP, "<f4")
    samples[-1] = odd
    out.decodes.on_message(
        Decoded(0, memoryview(samples.tobytes()), 0.0, 0.01, 1, LEFT + NEW + LOOKAHEAD)
    )
    out.answer(1)
    with pytest.raises(BackendError) as caught:
        await out.asking[0]
    assert caught.value.code is ErrorCode.CODEC_FAILED
    assert len((await out.asking[1])[0]) == NEW * HOP


def numbered(window: DecodeWindow, request: str, turn_s: float, worker: int | None = None) -> Any:
    """A pending window of an utterance that plays."""
    answer: Any = None
    return pending._PendingWindow(0, window, 0, turn_s, 0.0, answer, request, worker=worker)


def test_window_goes_to_the_worker_that_soonest_gets_to_it() -> None:
    choice = WorkerChoice()
    choice.workers = (0, 1, 2)
    busy = [
        numbered(window(LEFT), "a", 1.0, 0),
        numbered(window(LEFT), "b", 9.0, 1),
        numbered(window(LEFT), "c", 1.0, 2),
        numbered(window(LEFT), "d", 1.0),  # no worker has it
    ]
    assert choice.choose(numbered(window(LEFT), "e", 5.0), busy) == 1, "its other one is due later"
    assert choice.choose(numbered(window(LEFT), "e", 10.0), busy[1:]) == 0


def test_idle_workers_take_turns_and_new_one_does_not_make_up_for_the_past() -> None:
    choice = WorkerChoice()
    choice.workers = (0, 1)
    turns = [choice.choose(numbered(window(LEFT), "a", 1.0), []) for _ in range(6)]
    assert turns == [0, 1] * 3
    choice.on_up(2)
    choice.workers = (0, 1, 2)
    assert [choice.choose(numbered(window(LEFT), "a", 1.0), []) for _ in range(4)] == [0, 1, 2, 0]


def test_without_worker_none_is_chosen() -> None:
    choice = WorkerChoice()
    choice.workers = ()
    assert choice.choose(numbered(window(), "a", 1.0), []) is None


def test_stream_with_state_stays_until_its_end_or_its_workers() -> None:
    choice = WorkerChoice()
    choice.keeps_streams = True
    choice.workers = (0, 1)
    first = {name: choice.choose(numbered(window(), name, 1.0), []) for name in "abcd"}
    assert first == {"a": 0, "b": 1, "c": 0, "d": 1}, "as many streams for each"
    busy = [numbered(window(LEFT), "x", 0.0, 0)]
    for name in "abcd":
        assert choice.choose(numbered(window(LEFT), name, 1.0), busy) == first[name]
    last = replace(window(LEFT), is_last=True)
    for name in "ac":
        assert choice.choose(numbered(last, name, 1.0), busy) == 0
    assert [choice.choose(numbered(window(), n, 1.0), busy) for n in "ef"] == [0, 0]
    choice.workers = (1,)
    assert choice.choose(numbered(window(LEFT), "e", 1.0), busy) == 1
    choice.workers = (0, 1)
    assert choice.choose(numbered(window(LEFT), "e", 1.0), busy) == 0


async def test_windows_of_dead_worker_alone_are_sent_again() -> None:
    sent: list[tuple[int, int]] = []
    choice = WorkerChoice()
    choice.workers = (0, 1)
    decodes = PendingDecodes(lambda message, worker: sent.append((message.id, worker)), 10, choice)
    asking = [
        asyncio.create_task(decodes.decode(id, window(LEFT), HOP, 1.0 + id, 60.0))
        for id in range(4)
    ]
    await asyncio.sleep(0)
    assert sent == [(0, 0), (1, 1), (2, 0), (3, 1)]
    decodes.on_message(Decoding([0]), 0)
    decodes.on_message(Decoding([1]), 1)
    sent.clear()
    choice.workers = (0,)
    decodes.on_down(1)
    decodes.on_ready()
    assert sent == [(1, 0), (3, 0)]
    assert [one.strikes for one in decodes._pending.values()] == [0, 1, 0, 0]
    decodes.stop()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_clip_in_hand_fails_with_its_worker_and_waiting_clips_go_to_the_next() -> None:
    sent: list[Encode | Cancel] = []
    encodes = PendingEncodes(sent.append, 3)
    clip = np.zeros(HOP, np.float32)
    answers = [asyncio.create_task(encodes.encode(id, clip, HOP, 60.0)) for id in (1, 2, 3)]
    await asyncio.sleep(0)
    encodes.on_message(Encoding(1))
    encodes.on_message(Encoded(1, b"\7\0\7\0", 2))
    assert (await answers[0]).codes.tolist() == [[7], [7]]
    encodes.on_down()  # nothing is in hand: no clip is to blame
    encodes.on_ready()
    assert [message.id for message in sent] == [1, 2, 3, 2, 3]
    encodes.on_message(Encoding(2))
    encodes.on_down()
    with pytest.raises(BackendError):
        await answers[1]
    encodes.on_ready()
    assert [message.id for message in sent[5:]] == [3]
    answers[2].cancel()
    await asyncio.wait(answers)
    assert sent[6:] == [Cancel(3)]
