"""The codec worker's loop, run in the test's process with a scripted link and fake decoders."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from codec.batching import BatchLimits, DecodeCost
from codec.clips import ClipThread
from codec.decode_loop import DecodeLoop, DecoderBroken
from codec.memory import HeapTrimmer
from codec.messages import (
    Cancel,
    Decode,
    Decoded,
    Decoding,
    Encode,
    Failed,
    ToWorker,
    decode_message,
    samples_of,
)
from codec.worker import FATAL
from ipc.child import ChildLink, LinkClosed
from loadtest.fakes.codec import FakeDecoder
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow

SPEC = CodecSpec(24_000, 6, (100,) * 2, 3, 3)
FAR = 1e12


Received = Decode | Encode | Cancel


class ScriptedLink(ChildLink[ToWorker]):
    """Delivers one list of messages per turn, then closes; records the messages sent."""

    def __init__(self, turns: Sequence[Sequence[Received]]) -> None:
        self.turns = list(turns)
        self.sent: list[object] = []
        self.waited: list[bool] = []

    def receive(self, *, wait: bool) -> list[Any]:
        self.waited.append(wait)
        if self.turns:
            return list(self.turns.pop(0))
        if wait:
            raise LinkClosed
        return []

    def send(self, message: object) -> None:
        self.sent.append(message)

    def answers(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]


class Moody(FakeDecoder):
    """Fails on batches that have a window with code 13."""

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        if any((window.codes == 13).any() for window in windows):
            raise RuntimeError("superstition")
        return super().decode_windows(windows)


def message(id: int, new: int = 4, deadline_s: float = FAR, code: int = 1) -> Decode:
    codes = np.full((2, new + 4), code, np.int16)
    codes[:, 3] = id
    return decode_message(id, DecodeWindow(codes, 2, new, 2), deadline_s, alone=False)


def run(
    turns: list[list[Decode | Cancel]],
    decoder: FakeDecoder | None = None,
    unmet: Sequence[DecodeWindow] = (),
) -> ScriptedLink:
    link = ScriptedLink(turns)
    limits = BatchLimits(piece_frames=8, seconds=1e9)
    decoder = decoder or FakeDecoder(SPEC)
    loop = DecodeLoop(link, decoder, DecodeCost(0.0, 0.0), limits, unmet=unmet)
    with pytest.raises(LinkClosed):
        loop.run()
    return link


def test_batch_is_announced_and_answered() -> None:
    link = run([[message(1), message(2), message(3, new=5)]])
    assert [type(m) for m in link.sent] == [Decoding, Decoded, Decoded, Decoding, Decoded]
    assert [m.ids for m in link.answers(Decoding)] == [[1, 2], [3]]
    first, second, third = link.answers(Decoded)
    assert (first.id, first.batch, first.frames) == (1, 2, 8)
    assert (third.id, third.batch, third.frames) == (3, 1, 9)
    assert min(m.queue_s for m in (first, second, third)) >= 0
    codes = np.full((2, 8), 1, np.int16)
    codes[:, 3] = 2
    expected = FakeDecoder(SPEC).decode_windows([DecodeWindow(codes, 2, 4, 2)])[0]
    assert np.array_equal(samples_of(second), expected)


def test_long_window_is_answered_whole() -> None:
    long = message(1, new=50)
    link = run([[long], [message(2, deadline_s=0.0)]])
    assert [m.ids for m in link.answers(Decoding)] == [[1], [2], *[[1]] * 6]
    done = {m.id: m for m in link.answers(Decoded)}
    codes = np.full((2, 54), 1, np.int16)
    expected = FakeDecoder(SPEC).decode_windows([DecodeWindow(codes, 2, 50, 2)])[0]
    assert np.array_equal(samples_of(done[1]), expected)
    assert done[1].frames == 54


def test_cancelled_windows_are_not_answered() -> None:
    link = run([[message(1), message(2), Cancel(1), Cancel(9)], [Cancel(2)]])
    assert [m.ids for m in link.answers(Decoding)] == [[2]]
    assert [m.id for m in link.answers(Decoded)] == [2]


def test_window_marked_alone_is_decoded_by_itself() -> None:
    """It may have killed a worker, and no other window may fail with it."""
    suspect = msgspec.structs.replace(message(2), alone=True)
    link = run([[message(1), suspect, message(3)]])
    assert [m.ids for m in link.answers(Decoding)] == [[1, 3], [2]]
    assert {m.id: m.batch for m in link.answers(Decoded)} == {1: 2, 2: 1, 3: 2}


@pytest.mark.parametrize("begins", [False, True])
def test_long_window_yields_to_playing_streams_if_its_own_begins(begins: bool) -> None:
    due = time.monotonic()
    long = msgspec.structs.replace(message(1, new=104, deadline_s=due), begins=begins)
    link = run([[long, message(2, deadline_s=due + 0.001)]])
    order = [id for m in link.answers(Decoding) for id in m.ids]
    assert order == ([1, 2, *[1] * 12] if begins else [*[1] * 13, 2])


def test_cancelled_clip_is_not_encoded_after_the_one_before_it() -> None:
    begun, cancelled, done = threading.Event(), threading.Event(), threading.Event()
    encoded: list[int] = []

    class Encoder:
        def encode(self, samples: Samples) -> np.ndarray:
            encoded.append(int(samples[0]))
            if samples[0] == 1:
                begun.set()
                assert cancelled.wait(60)
            elif samples[0] == 3:
                done.set()
            return np.zeros((2, 1), np.int16)

    class ClipLink(ScriptedLink):
        def receive(self, *, wait: bool) -> list:
            if len(self.waited) == 1:
                assert begun.wait(60)
            elif len(self.waited) == 2:
                cancelled.set()
                assert done.wait(60)
            return super().receive(wait=wait)

    first, second, third = (Encode(id, np.full(4, id, "<f4").tobytes()) for id in (1, 2, 3))
    link = ClipLink([[first, second, third], [Cancel(2), Cancel(9)]])
    clips = ClipThread(link.send, Encoder)
    loop = DecodeLoop(link, FakeDecoder(SPEC), DecodeCost(0.0, 0.0), BatchLimits(), clips)
    with pytest.raises(LinkClosed):
        loop.run()
    assert encoded == [1, 3]


def test_long_window_can_be_cancelled_between_pieces() -> None:
    link = run([[message(1, new=50)], [], [Cancel(1)]])
    assert len(link.answers(Decoding)) == 2
    assert link.answers(Decoded) == []


def test_batch_of_long_window_is_the_largest_of_its_pieces() -> None:
    link = run([[message(1, new=24), message(2, new=24)], [], [Cancel(2)]])
    assert [m.ids for m in link.answers(Decoding)] == [[1, 2], [1, 2], [1]]
    (answer,) = link.answers(Decoded)
    assert (answer.id, answer.batch) == (1, 2)


def test_failing_window_does_not_fail_its_batch(caplog: pytest.LogCaptureFixture) -> None:
    link = run([[message(1), message(2, code=13), message(3)]], Moody(SPEC))
    assert [m.id for m in link.answers(Decoded)] == [1, 3]
    assert [(m.id, m.reason) for m in link.answers(Failed)] == [(2, "decode_failed")]
    assert [m.ids for m in link.answers(Decoding)] == [[1, 2, 3], [1], [2], [3]]
    assert len(caplog.records) == 1
    assert "RuntimeError: superstition" in caplog.text


@pytest.mark.parametrize("code", [-1, 100])
def test_special_codes_fail_only_their_window(code: int, caplog: pytest.LogCaptureFixture) -> None:
    link = run([[message(1), message(2, code=code)]])
    assert [m.id for m in link.answers(Decoded)] == [1]
    assert [(m.id, m.reason) for m in link.answers(Failed)] == [(2, "bad_window")]
    assert not caplog.records, "a client's window fills no log"


def test_worker_refuses_malformed_and_duplicate_windows() -> None:
    whole = message(1)
    torn = Decode(2, whole.codes[:-2], 2, 2, 4, 2, FAR)
    link = run([[whole, torn, message(1)]])
    assert [(m.id, m.reason) for m in link.answers(Failed)] == [
        (2, "bad_window"),
        (1, "bad_window"),
    ]
    assert [m.id for m in link.answers(Decoded)] == [1]


def test_window_beyond_full_queue_is_refused() -> None:
    link = ScriptedLink([[message(1), message(2), message(3)], [message(4)]])
    limits = BatchLimits(queued=2, rows=1)
    loop = DecodeLoop(link, FakeDecoder(SPEC), DecodeCost(0.0, 0.0), limits)
    with pytest.raises(LinkClosed):
        loop.run()
    assert [(m.id, m.reason) for m in link.answers(Failed)] == [(3, "decode_failed")]
    assert [m.id for m in link.answers(Decoded)] == [1, 2, 4]


def test_queue_time_of_long_window_ends_with_its_first_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 50.0

    class Slow(FakeDecoder):
        def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
            nonlocal now
            now += 1
            return super().decode_windows(windows)

    monkeypatch.setattr("time.monotonic", lambda: now)
    link = run([[message(1, deadline_s=0.0), message(2, new=24)]], Slow(SPEC))
    _, long = link.answers(Decoded)
    assert (long.queue_s, long.decode_s) == (1, 3)


def test_worker_ends_on_device_error() -> None:
    """Later windows would fail too. All that are pending go to the next worker."""

    class Broken(FakeDecoder):
        def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
            raise torch.AcceleratorError("an illegal memory access was encountered")

    link = ScriptedLink([[message(1), message(2)]])
    loop = DecodeLoop(link, Broken(SPEC), DecodeCost(0.0, 0.0), BatchLimits(), fatal=FATAL)
    with pytest.raises(torch.AcceleratorError):
        loop.run()
    assert link.answers(Failed) == []


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        ([13, 13], False),
        ([13, 13, 13], True),
        ([13, 13, 1, 13, 13], False),
        ([13, 1, 13, 13, 13], True),
        ([13, 13, -1, -1], False),
        ([-1, 13, -1, 13, -1, 13], True),
    ],
)
def test_worker_ends_after_three_failed_windows_without_success(
    codes: list[int], ends: bool
) -> None:
    """13 fails in the decoder. -1 is not a code: the window's own fault says nothing of others."""
    link = ScriptedLink([[message(id, code=code)] for id, code in enumerate(codes)])
    loop = DecodeLoop(link, Moody(SPEC), DecodeCost(0.0, 0.0), BatchLimits())
    with pytest.raises(DecoderBroken if ends else LinkClosed):
        loop.run()
    answered = {m.id for kind in (Failed, Decoded) for m in link.answers(kind)}
    unanswered = {len(codes) - 1} if ends else set()
    assert answered == set(range(len(codes))) - unanswered


def test_worker_ends_when_every_window_of_batch_fails() -> None:
    link = ScriptedLink([[message(id, code=13) for id in range(4)]])
    limits = BatchLimits(seconds=1e9)
    loop = DecodeLoop(link, Moody(SPEC), DecodeCost(0.0, 0.0), limits)
    with pytest.raises(DecoderBroken):
        loop.run()
    assert [m.id for m in link.answers(Failed)] == [0, 1]


class Stateful(FakeDecoder):
    """Recomputes the state before each window in three slices."""

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__(spec)
        self.slices, self.decoded = 0, 0

    def catch_up(self, window: DecodeWindow) -> Iterator[None]:
        for _ in range(3):
            self.slices += 1
            yield

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        self.decoded += len(windows)
        return super().decode_windows(windows)


def test_state_of_cancelled_window_is_not_recomputed_further() -> None:
    decoder = Stateful(SPEC)
    link = run([[message(1)], [Cancel(1)]], decoder)
    assert (decoder.slices, decoder.decoded) == (1, 0)
    assert link.answers(Failed) == []
    decoder = Stateful(SPEC)
    link = run([[message(1), message(2)], [], [Cancel(1), message(3)]], decoder)
    assert [answer.id for answer in link.answers(Decoded)] == [2, 3]
    assert (decoder.slices, decoder.decoded) == (2 + 3 + 3, 2)


def test_decode_time_is_without_recomputing_of_state(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Slow(Stateful):
        def catch_up(self, window: DecodeWindow) -> Iterator[None]:
            nonlocal now
            for _ in super().catch_up(window):
                now += 100
                yield

        def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
            nonlocal now
            now += 1
            return super().decode_windows(windows)

    monkeypatch.setattr("time.monotonic", lambda: now)
    (answer,) = run([[message(1)]], Slow(SPEC)).answers(Decoded)
    assert (answer.queue_s, answer.decode_s) == (0, 1)


@pytest.mark.parametrize("windows", [1, 2])
def test_worker_ends_when_stopped_while_it_recomputes_state(windows: int) -> None:
    class StoppedLink(ScriptedLink):
        """Closes at the second turn, and has nothing to read after that, as after a Stop."""

        def receive(self, *, wait: bool) -> list[Any]:
            if len(self.waited) == 1:
                self.waited.append(wait)
                raise LinkClosed
            return super().receive(wait=wait)

    link = StoppedLink([[message(id) for id in range(windows)]])
    loop = DecodeLoop(link, Stateful(SPEC), DecodeCost(0.0, 0.0), BatchLimits())
    with pytest.raises(LinkClosed):
        loop.run()
    assert [type(sent) for sent in link.sent] == [Decoding]
    assert link.waited == [True, False]


def test_worker_waits_for_messages_only_when_idle() -> None:
    link = run([[message(1, new=20)]])
    assert link.waited == [True, False, False, True]


def test_worker_warms_up_shapes_only_when_idle() -> None:
    met: list[int] = []

    class Noting(FakeDecoder):
        def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
            met.extend(window.new_frames for window in windows)
            return super().decode_windows(windows)

    unmet = [DecodeWindow(np.zeros((2, new), np.int16), 0, new, 0) for new in (1, 2)]
    link = run([[message(1, new=7)], [], [message(2, new=8)], []], Noting(SPEC), unmet)
    assert met == [7, 1, 8, 2]
    assert link.waited == [False, False, False, False, True]
    assert [m.id for m in link.answers(Decoded)] == [1, 2]


def test_heap_is_looked_at_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of ever new shapes would otherwise fill the memory with holes."""
    looks: list[int] = []
    monkeypatch.setattr(HeapTrimmer, "check", lambda trimmer: looks.append(1))
    link = run([[message(1, new=20)], [message(2)]])
    assert len(looks) == len(link.answers(Decoding)) > 2
