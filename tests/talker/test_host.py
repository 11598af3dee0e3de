"""The in-process host with a scripted engine: any order of the gateway's messages."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talker.frames import FRAME_BASE
from talker.messages import Abort, Failed, Generate, Pause, Resume, Step, StreamInterval, TextSpan
from talker.request_table import RequestTable

if TYPE_CHECKING:
    from talker.host_inprocess import InProcessHost

BOOKS, SIZE, STOP = 2, 100, 3
SHAPE: Any = SimpleNamespace(
    num_codebooks=BOOKS,
    codebook_rows=SIZE,
    is_delayed=True,
    backbone=SimpleNamespace(vocab_size=50),
    holds_prompt=lambda ids: 0 <= min(ids) <= max(ids) < 50,
)
#: First codes (offsets included) that report a fault, and the reason that the gateway is told.
FAULTS = {BOOKS * SIZE: "lost", BOOKS * SIZE + BOOKS: "logits", SIZE: "code"}


class Engine:
    """Stands for vLLM's core. As the talker's, a row depends on its position and the seed alone.

    The seed is the number of rows that the speech has.
    """

    def __init__(self) -> None:
        self.active: dict[str, tuple[list[int], Any, int]] = {}
        self.faults: dict[int, int] = {}
        #: Rows made, by handle.
        self.made = Counter[int]()
        self._counter = 0

    @staticmethod
    def make_request(id: str, prompt: Any, params: Any, rank: None, priority: int) -> Any:
        return id, prompt, params

    def add_request(self, request: Any) -> None:
        id, prompt, params = request
        assert id not in self.active
        self.active[id] = (list(prompt["prompt_token_ids"]), params, params.max_tokens)

    def abort_requests(self, ids: list[str]) -> None:
        for id in ids:
            self.active.pop(id, None)  # vLLM ignores those that have ended

    def get_output(self) -> Any:
        outputs = []
        for id, (prompt, params, left) in list(self.active.items()):
            row = sum(i >= FRAME_BASE for i in prompt)
            is_over = row + 1 == params.seed
            frame, finish = FRAME_BASE + self._counter, "length" if left == 1 else None
            if is_over:
                frame, finish = STOP, "stop"
            self._counter += 1
            handle = int(id.partition(".")[0])
            self.made[handle] += 1
            first = self.faults.pop(handle, row)
            channel = SimpleNamespace(
                logprob_token_ids=np.array([[first, SIZE + params.seed]], np.int32),
                logprobs=np.array([[row / 64, 0]], np.float32),
            )
            outputs.append(
                SimpleNamespace(
                    request_id=id,
                    new_token_ids=[frame],
                    new_logprobs=channel,
                    finish_reason=finish,
                )
            )
            self.active[id] = ([*prompt, frame], params, left - 1)
            if finish:
                del self.active[id]
        return SimpleNamespace(outputs=outputs, scheduler_stats=None)


class Gateway:
    """Sends messages to a host and checks the answers against what it has asked for."""

    def __init__(self) -> None:
        from talker.host_inprocess import InProcessHost

        self.engine = engine = Engine()

        class Host(InProcessHost):
            def _start_engine(self, arguments: dict[str, Any]) -> Any:
                self._core = engine
                return engine.make_request

        checkpoint: Any = SimpleNamespace(shape=SHAPE)
        requests = RequestTable(slots=1 << 20)
        self.host: InProcessHost = Host({"max_model_len": 1000}, checkpoint, STOP, requests)
        self.host._link = self  # type: ignore[assignment]
        #: By handle: the length of its speech, and the most frames it may have.
        self.plans: dict[int, tuple[int, int]] = {}
        self.heard: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        #: The reasons for which requests are to fail.
        self.faults: dict[int, str] = {}
        #: The least rows per message that were asked for.
        self.gathered: dict[int, int] = {}
        self.paused: set[int] = set()
        self.is_pausing = False
        #: The request that fails in this step; its rows that were held back are due before.
        self.failing = 0
        self.live = 0

    def send(self, message: Step | Failed) -> None:
        """Take an answer of the host."""
        self.live = message.live
        if isinstance(message, Failed):
            self._end(message.handle, message.reason)
            return
        for new in message.rows:
            assert new.handle not in self.ends
            rows = np.frombuffer(new.rows, np.int16).reshape(-1, BOOKS)
            assert set(rows[:, 1].tolist()) == {self.plans[new.handle][0]}
            # the text has one id for 64 characters
            assert np.array_equal(np.frombuffer(new.spoken, np.float32), rows[:, 0])
            self.heard[new.handle] += rows[:, 0].tolist()
            is_due = self.is_pausing or new.handle == self.failing
            assert new.finish or is_due or len(rows) >= self.gathered.get(new.handle, 1)
            if new.finish:
                self._end(new.handle, new.finish)

    def _end(self, handle: int, reason: str) -> None:
        assert handle not in self.ends
        assert reason not in FAULTS.values() or self.faults[handle] == reason
        self.ends[handle] = reason

    def act(self, kind: str, handle: int, number: int) -> None:
        """Send a message, or let the engine work or fail."""
        known = handle in self.plans and handle not in self.ends
        match kind:
            case "speak":
                handle = len(self.plans) + 1
                self.plans[handle], self.heard[handle] = (number, 8), []
                text = TextSpan(1, (0, 64))
                self.host._handle(
                    Generate(handle, (7, 8, 9), 8, 1.0, 1.0, 5, seed=number, text=text)
                )
                self.act("gather", handle, 1 + number % 3)
            case "pause":
                self.is_pausing = True
                self.host._handle(Pause(handle))
                self.is_pausing = False
                if known:
                    self.paused.add(handle)
                    assert len(self.heard[handle]) == self.engine.made[handle]
            case "resume":
                self.host._handle(Resume(handle))
                self.paused.discard(handle)
            case "abort":
                self.host._handle(Abort(handle))
                if known:
                    self._end(handle, "aborted")
                self.paused.discard(handle)
            case "gather":
                self.host._handle(StreamInterval(handle, number))
                if handle in self.plans:
                    self.gathered[handle] = number
            case "step" | "fail":
                fails = kind == "fail" and known and handle not in self.paused
                if fails:
                    code = self.engine.faults[handle] = sorted(FAULTS)[number % len(FAULTS)]
                    self.faults[handle] = FAULTS[code]
                self.failing = handle if fails else 0
                self.host._unsound = 0  # a process that is replaced has a test of its own
                self.host._send_step(self.host._read(self.engine.get_output()))
                if fails:
                    assert self.ends[handle] == self.faults[handle]
                    assert len(self.heard[handle]) == self.engine.made[handle] - 1


KINDS = ["speak", "pause", "pause", "resume", "abort", "gather", "fail", *["step"] * 3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by PyTorch
@settings(max_examples=80)
@given(
    lengths=st.lists(st.integers(2, 12), min_size=2, max_size=3),
    actions=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(1, 4), st.integers(1, 10)),
        min_size=10,
        max_size=40,
    ),
)
def test_each_stream_is_whole_whatever_its_neighbours_do(
    lengths: list[int], actions: list[tuple[str, int, int]]
) -> None:
    gateway = Gateway()
    for length in lengths:
        gateway.act("speak", 0, length)
    for action in actions:
        gateway.act(*action)
        working = {int(id.partition(".")[0]) for id in gateway.engine.active}
        assert working == set(gateway.plans) - set(gateway.ends) - gateway.paused
        if action[0] not in ("speak", "resume", "gather"):  # these are not answered
            assert gateway.live == len(working)
    for handle in gateway.plans:
        gateway.act("resume", handle, 0)
    for _ in range(8):
        gateway.act("step", 0, 0)
    for handle, (length, most) in gateway.plans.items():
        heard, end = gateway.heard[handle], gateway.ends[handle]
        assert heard == list(range(len(heard)))
        if end not in ("aborted", *FAULTS.values()):
            assert (len(heard), end) == (min(length, most), "stop" if length <= most else "length")
    assert not gateway.engine.active
