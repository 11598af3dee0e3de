"""Rows several at a time, by vLLM's own output processor: none twice, none left out."""

from __future__ import annotations

import pytest

from talker.stream_interval import StreamIntervals

#: PyTorch's own, when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Engine:
    """Makes an id for each request with every step: 0, 1, 2 and so on."""

    def __init__(self, *names: str) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.output_processor import OutputProcessor

        self.processor = OutputProcessor(None, log_stats=False)
        self.intervals = StreamIntervals(self.processor)
        self.heard: dict[str, list[list[int]]] = {name: [] for name in names}
        self._made = 0
        for name in names:
            params = SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA)
            request = EngineCoreRequest(
                f"{name}-inside", [1], None, params, None, 0.0, None, None, None,
                external_req_id=name,
            )  # fmt: skip
            self.processor.add_request(request, None)

    def step(self, times: int = 1, *, is_last: bool = False) -> None:
        from vllm.v1.engine import EngineCoreOutput, FinishReason

        reason = FinishReason.STOP if is_last else None
        for _ in range(times):
            new = [
                EngineCoreOutput(f"{name}-inside", [self._made], finish_reason=reason)
                for name in self.heard
            ]
            self._made += 1
            for output in self.processor.process_outputs(new).request_outputs:
                self.heard[output.request_id].append(list(output.outputs[0].token_ids))
            self.intervals.settle()

    def sizes(self, name: str = "a") -> list[int]:
        """How many came at a time; all of them came, in order."""
        flat = [i for piece in self.heard[name] for i in piece]
        assert flat == list(range(len(flat)))
        return [len(piece) for piece in self.heard[name]]


def test_interval_is_raised_and_lowered_while_rows_come() -> None:
    engine = Engine("a")
    engine.step(3)
    engine.intervals.set("a", 4)
    engine.step(8)
    assert engine.sizes() == [1, 1, 1, 4, 4]
    engine.intervals.set("a", 1)  # none is held back: at once
    engine.step(2)
    assert engine.sizes() == [1, 1, 1, 4, 4, 1, 1]


def test_what_is_held_back_comes_with_the_next_and_then_singly() -> None:
    engine = Engine("a")
    engine.step()
    engine.intervals.set("a", 8)
    engine.step(5)
    assert engine.sizes() == [1]
    engine.intervals.set("a", 1)
    engine.step(4)
    assert engine.sizes() == [1, 6, 1, 1, 1]


def test_who_changes_his_mind_gets_the_last_that_was_asked_for() -> None:
    engine = Engine("a")
    engine.step()
    for rows in (8, 1, 4):
        engine.intervals.set("a", rows)
        engine.step(0 if rows == 1 else 3)
    engine.step(12)
    assert engine.sizes()[2:] == [4, 4, 4]


def test_interval_of_one_request_changes_no_other() -> None:
    engine = Engine("a", "b")
    engine.step()
    engine.intervals.set("a", 3)
    engine.step(3)
    assert (engine.sizes("a"), engine.sizes("b")) == ([1, 3], [1, 1, 1, 1])


def test_an_interval_from_the_first_row_on() -> None:
    engine = Engine("a")
    engine.intervals.set("a", 3)
    engine.step(8)
    engine.step(is_last=True)
    assert engine.sizes() == [1, 3, 3, 2]


@pytest.mark.parametrize("rows", [1, 4])
def test_a_request_that_has_ended_is_no_error(rows: int) -> None:
    engine = Engine("a")
    engine.step()
    engine.intervals.set("a", 4)
    engine.step()
    engine.intervals.set("a", rows)  # if 1, to be settled with the next
    engine.step(is_last=True)
    assert sum(engine.sizes()) == 3
    engine.intervals.set("a", rows)
    engine.intervals.settle()
    assert not engine.processor.external_req_ids  # nothing is left of it
