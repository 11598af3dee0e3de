"""Requests converted for vLLM and its outputs read back, without an engine."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from talker.checkpoint import open_checkpoint
from talker.frames import FRAME_BASE
from talker.messages import Generate, NewRows, TextSpan, VoiceRows
from talker.request_table import ConversationHistory, RequestState, RequestTable
from talker.sampling import MAX_SEED
from talker.shape import TalkerShape

if TYPE_CHECKING:
    from talker.vllm_requests import Outcome

#: Raised by PyTorch when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

EMBEDDED = Path(__file__).parents[2] / "embedded" / "checkpoint"
BOOKS, ROOM = 2, 64
IDS = (1, 2, 3, 4, 5, 6)


@pytest.fixture(scope="module")
def shape() -> TalkerShape:
    return dataclasses.replace(open_checkpoint(str(EMBEDDED)).shape, num_codebooks=BOOKS)


def asking(**changes: Any) -> Generate:
    made = {
        "handle": 1, "ids": IDS, "max_frames": 50, "temperature": 1.0, "top_p": 0.9, "top_k": 5,
        "seed": 3, **changes,
    }  # fmt: skip
    return Generate(**made)


def clip(at: int, rows: int = 1, code: int = 0) -> VoiceRows:
    return VoiceRows(np.full(rows * BOOKS, code, np.int16).tobytes(), at)


def given(shape: TalkerShape, history: ConversationHistory | None = None, **changes: Any) -> Any:
    """The engine's input for a request."""
    from talker.vllm_requests import engine_input

    return engine_input(RequestState(asking(**changes), history), shape, ROOM)


def said(length: int) -> ConversationHistory:
    return ConversationHistory(array("i", range(length)))


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 0}, {"seed": MAX_SEED}, {"top_k": 1}, {"max_frames": 1}, {"temperature": 0.0},
        {"ids": (0,)}, {"ids": (1,) * (ROOM - 1)},
        {"text": TextSpan(0, (0, 9))}, {"text": TextSpan(2, (0, 1, 2, 3, 9))},
    ],
)  # fmt: skip
def test_request_within_bounds_is_accepted(shape: TalkerShape, changes: dict[str, Any]) -> None:
    assert given(shape, **changes)["prompt_token_ids"] == list(changes.get("ids", IDS))


def test_ids_and_codes_are_bounded_by_model_shape(shape: TalkerShape) -> None:
    from talker.vllm_requests import Refused

    vocab, rows = shape.backbone.vocab_size, shape.codebook_rows
    given(shape, ids=(vocab - 1,))
    given(shape, clips=(clip(0, code=rows - 1),))
    for changes in ({"ids": (vocab,)}, {"clips": (clip(0, code=rows),)}):
        with pytest.raises(Refused):
            given(shape, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": ()}, {"ids": (1,) * ROOM}, {"ids": (1, -1)}, {"seed": -1},
        {"seed": MAX_SEED + 1}, {"top_k": 0}, {"max_frames": 0},
        {"temperature": float("nan")}, {"top_p": float("inf")},
        {"text": TextSpan(2, (0, 1, 2, 3, 4, 9))}, {"text": TextSpan(-1, (0, 9))},
        {"text": TextSpan(1, (0,))}, {"text": TextSpan(1, ())},
        {"clips": (clip(0, code=-1),)}, {"clips": (VoiceRows(b"", 0),)}, {"clips": (clip(-1),)},
        {"clips": (VoiceRows(bytes(2 * BOOKS + 2), 0),)}, {"clips": (clip(5, rows=2),)},
        {"clips": (clip(0, rows=3), clip(2))}, {"clips": (clip(4), clip(0))},
        {"clips": (VoiceRows(bytes(4 * BOOKS), 0, is_vector=True),)},
    ],
)  # fmt: skip
def test_request_out_of_bounds_is_refused(shape: TalkerShape, changes: dict[str, Any]) -> None:
    from talker.vllm_requests import Refused

    with pytest.raises(Refused):
        given(shape, **changes)


def test_vector_has_size_of_model_and_finite_values(shape: TalkerShape) -> None:
    from talker.vllm_requests import Refused

    wide = dataclasses.replace(shape, vector_size=3)

    def vector(*values: float) -> VoiceRows:
        return VoiceRows(np.array(values, np.float32).tobytes(), 1, is_vector=True)

    taken = given(wide, clips=(vector(0.5, -1, 2), clip(2, rows=4)))
    places = [(p.offset, p.length) for p in taken["mm_placeholders"]["audio"]]
    assert places == [(1, 1), (2, 4)]
    odd = VoiceRows(bytes(11), 1, is_vector=True)
    for wrong in (vector(0.5, 1), vector(1, 2, 3, 4), vector(1, float("nan"), 2), odd):
        with pytest.raises(Refused, match="vector"):
            given(wide, clips=(wrong,))


def test_history_counts_as_prompt(shape: TalkerShape) -> None:
    from talker.vllm_requests import Refused

    longest = ROOM - 1 - len(IDS)
    assert given(shape, said(longest))["prompt_token_ids"] == [*range(longest), *IDS]
    with pytest.raises(Refused):
        given(shape, said(longest + 1))


def test_adjacent_clips_up_to_prompt_end_are_accepted(shape: TalkerShape) -> None:
    taken = given(shape, clips=(clip(0, rows=2), clip(2, rows=4)))
    places = [(p.offset, p.length) for p in taken["mm_placeholders"]["audio"]]
    assert places == [(0, 2), (2, 4)]


def test_resumed_request_may_make_remaining_frames() -> None:
    from talker.vllm_requests import sampling_params

    state = RequestState(asking(text=TextSpan(2, (0, 4, 9))), said(10))
    state.frame_ids = [FRAME_BASE, FRAME_BASE + 1]
    params = sampling_params(state, BOOKS, 7)
    assert params.max_tokens == 48
    assert params.logprobs == BOOKS - 1
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (1.0, 0.9, 5, 3)
    assert list(params.extra_args.values()) == [
        [12, 2]
    ]  # position after the history, number of ids
    assert sampling_params(RequestState(asking()), BOOKS, 7).extra_args is None


def output(
    state: RequestState,
    shape: TalkerShape,
    rows: Sequence[Sequence[int]],
    *,
    reason: str | None = None,
    places: Sequence[float] = (),
    counter: int = 0,
) -> Any:
    """vLLM's output for a request after a step; each codebook's codes have their own offset."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.outputs import LogprobsLists

    offsets = np.arange(BOOKS, dtype=np.int32) * shape.codebook_rows
    beside = np.full((len(rows), BOOKS), -1, np.float32)
    if places:
        beside[:, 0] = places
    channel = LogprobsLists(
        np.array(rows, np.int32) + offsets, beside, np.zeros(len(rows), np.int32)
    ) if rows else None  # fmt: skip
    return EngineCoreOutput(
        state.engine_id,
        [FRAME_BASE + counter + i for i in range(len(rows))],
        channel,
        finish_reason=None if reason is None else FinishReason[reason.upper()],
    )


class Reading:
    """Requests with the handles 1 to 3, of which 2 asks for word timings."""

    def __init__(self, shape: TalkerShape) -> None:
        self.shape, self.requests = shape, RequestTable(slots=1024)
        self.of = {1: self._add(1), 2: self._add(2, text=TextSpan(1, (0, 10, 20))), 3: self._add(3)}

    def _add(self, handle: int, **changes: Any) -> RequestState:
        state = self.requests.add(asking(handle=handle, **changes))
        assert state is not None
        return state

    def output(self, handle: int, *rows: Sequence[int], **more: Any) -> Any:
        return output(self.of[handle], self.shape, rows, **more)

    def read(self, *outputs: Any) -> Outcome:
        from talker.vllm_requests import read_outputs

        return read_outputs(outputs, self.shape, self.requests)


@pytest.fixture
def reading(shape: TalkerShape) -> Reading:
    return Reading(shape)


def packed(*rows: Sequence[int]) -> bytes:
    return np.array(rows, np.int16).tobytes()


def test_read_outputs_gives_each_request_own_rows_and_places(reading: Reading) -> None:
    outcome = reading.read(
        reading.output(1, (1, 2), (3, 4)),
        reading.output(2, (5, 6), (7, 8), reason="stop", places=(0.5, 1.0)),
        reading.output(3, reason="length"),
    )
    places = np.array([5.0, 10.0], np.float32).tobytes()
    assert outcome.rows == [
        NewRows(1, packed((1, 2), (3, 4)), ""),
        NewRows(2, packed((5, 6), (7, 8)), "stop", places),
        NewRows(3, b"", "length"),
    ]
    assert outcome.failed == {}


def test_lost_or_broken_request_affects_no_other(reading: Reading) -> None:
    gone = BOOKS * reading.shape.codebook_rows
    outcome = reading.read(
        reading.output(1, (1, 2)),
        reading.output(2, (gone, 0), places=(0.0,)),
        reading.output(3, (1, 2), reason="abort"),
    )
    assert [new.handle for new in outcome.rows] == [1]
    assert outcome.failed == {2: "lost", 3: "broken"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (lambda size: (size, 0), "code"),
        (lambda size: (0, size), "code"),
        (lambda size: (-1, 0), "code"),
        (lambda size: (BOOKS * size, 1), "lost"),
        (lambda size: (BOOKS * size + BOOKS, 1), "logits"),
        (lambda size: (BOOKS * size + 2 * BOOKS, 1), "code"),
    ],
)
def test_code_outside_its_codebook_tells_why_request_failed(
    reading: Reading, row: Callable[[int], tuple[int, int]], reason: str
) -> None:
    size = reading.shape.codebook_rows
    outcome = reading.read(
        reading.output(1, (1, 2), row(size)), reading.output(3, (size - 1, 2), (3, 4))
    )
    assert [new.handle for new in outcome.rows] == [3]
    assert outcome.failed == {1: reason}


def test_outputs_of_paused_or_dropped_requests_are_ignored(reading: Reading) -> None:
    outputs = [reading.output(handle, (1, 2), places=(0.0,)) for handle in (1, 2, 3)]
    reading.requests.pause(1)
    reading.requests.drop(2)
    outcome = reading.read(*outputs)
    assert [new.handle for new in outcome.rows] == [3]
    assert reading.of[1].prompt == list(IDS)  # the row is made again
    assert reading.of[3].prompt == [*IDS, FRAME_BASE]


def test_step_without_outputs_yields_no_rows(reading: Reading) -> None:
    assert reading.read().rows == []


@pytest.mark.parametrize(
    "changes",
    [
        {"new_token_ids": None},
        {"new_logprobs": "not a table"},
        {"new_logprobs": SimpleNamespace(logprob_token_ids=np.zeros((1, BOOKS + 1), np.int32))},
        {"new_logprobs": "no places"},
    ],
    ids=["no ids", "no rows", "another number of codebooks", "no places in the text"],
)
def test_output_that_cannot_be_read_breaks_its_request_alone(
    reading: Reading, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    odd = SimpleNamespace(
        request_id=reading.of[2].engine_id, new_token_ids=[], new_logprobs=None, finish_reason=None
    )
    vars(odd).update(changes)
    if odd.new_logprobs == "no places":
        codes = np.arange(BOOKS, dtype=np.int32)[None] * reading.shape.codebook_rows
        odd.new_logprobs = SimpleNamespace(logprob_token_ids=codes)
    outcome = reading.read(reading.output(1, (1, 2)), odd, reading.output(3, (3, 4)))
    assert outcome.rows == [NewRows(1, packed((1, 2)), ""), NewRows(3, packed((3, 4)), "")]
    assert outcome.failed == {2: "broken"}
    (record,) = caplog.records
    assert "request 2 " in record.getMessage()
