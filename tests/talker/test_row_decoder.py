"""Outputs of an engine core whose arrays are not decoded, against vLLM's own decoder."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

if TYPE_CHECKING:
    from vllm.v1.serial_utils import MsgpackDecoder

#: Raised by PyTorch when vLLM is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def decoder() -> MsgpackDecoder:
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.serial_utils import MsgpackDecoder

    return MsgpackDecoder(EngineCoreOutputs)


def outputs(rows: int, books: int = 8) -> Any:
    """A step of two requests with that many rows each, and of one without."""
    from vllm.v1.engine import (
        EngineCoreEvent,
        EngineCoreEventType,
        EngineCoreOutput,
        EngineCoreOutputs,
        FinishReason,
    )
    from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
    from vllm.v1.outputs import LogprobsLists

    codes = np.arange(2 * rows * books, dtype=np.int32).reshape(-1, books)
    lists = LogprobsLists(codes, codes / np.float32(7), np.arange(2 * rows, dtype=np.int32))
    events = [EngineCoreEvent(EngineCoreEventType.PREEMPTED, 1.5)]
    return EngineCoreOutputs(
        engine_index=2,
        outputs=[
            EngineCoreOutput("4.0", [5] * rows, lists.slice_request(0, rows), events=events),
            EngineCoreOutput("6.1", [], finish_reason=FinishReason.ERROR),
            EngineCoreOutput(
                "9.2",
                [7] * rows,
                lists.slice_request(rows, rows),
                finish_reason=FinishReason.STOP,
                stop_reason=7,
            ),
        ],
        scheduler_stats=SchedulerStats(prefix_cache_stats=PrefixCacheStats(hits=3)),
        timestamp=12.5,
        finished_requests={"9.2"},
        wave_complete=1,
    )


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (3, 1), (40, 5)])
def test_outputs_are_those_of_vllms_decoder(rows: int, frames: int) -> None:
    """Large arrays come in frames of their own."""
    from vllm.v1.serial_utils import MsgpackEncoder

    from talker.row_decoder import decoded, install, raw

    message = MsgpackEncoder().encode(outputs(rows))
    assert len(message) >= frames
    ours = decoder()
    install(ours)
    expected, read = decoder().decode(message), ours.decode(message)
    for name in expected.__struct_fields__:
        if name != "outputs":
            assert getattr(read, name) == getattr(expected, name), name
    for theirs, output in zip(expected.outputs, read.outputs, strict=True):
        for name in theirs.__struct_fields__:
            if name != "new_logprobs":
                assert getattr(output, name) == getattr(theirs, name), name
        if theirs.new_logprobs is None:
            assert output.new_logprobs is None
            continue
        for array, lists in zip(theirs.new_logprobs[:2], output.new_logprobs[:2], strict=True):
            assert isinstance(lists, tuple), "vLLM's decoder is still in place"
            assert np.array_equal(decoded(lists), array)
            assert decoded(lists).dtype == array.dtype
            kind, shape, data = raw(lists)
            assert (kind, tuple(shape), bytes(data)) == (
                array.dtype.str, array.shape, array.tobytes(),
            )  # fmt: skip


def test_decoded_array_is_taken_as_it_is() -> None:
    from talker.row_decoder import decoded, raw

    array = np.arange(12, dtype=np.int32).reshape(6, 2)[::2]
    assert decoded(array) is array
    dtype, shape, data = raw(array)
    assert (dtype, shape, bytes(data)) == ("<i4", (3, 2), array.tobytes())


def test_unknown_format_leaves_vllms_decoder_in_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.v1 import serial_utils

    from talker.row_decoder import install

    def encode(self: Any, array: np.ndarray[Any, Any]) -> Any:
        return array.tolist()

    monkeypatch.setattr(serial_utils.MsgpackEncoder, "_encode_ndarray", encode)
    ours = decoder()
    install(ours)
    assert isinstance(ours.decoder, msgspec.msgpack.Decoder)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
