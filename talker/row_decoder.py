"""Decodes what is used of an engine core's outputs.

vLLM's decoder builds three arrays for each row, with six calls from C into Python. This takes ten
times as long as the rest of the decoding, and longer than all that the talker process then does
with a row. Here the arrays stay as they came (``RawArray``), and the codes of all rows of a step
are read at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)
#: The fields of vLLM's LogprobsLists.
_FIELDS = ("logprob_token_ids", "logprobs", "sampled_token_ranks", "cu_num_generated_tokens")
#: numpy's name of an array's type, its shape, and its bytes or the number of the frame with them.
RawArray = tuple[str, tuple[int, ...], msgspec.msgpack.Ext | int]


def raw(array: RawArray | npt.NDArray[Any]) -> tuple[str, tuple[int, ...], Any]:
    """Return type, shape and bytes of an array, decoded or not."""
    if isinstance(array, tuple):
        dtype, shape, extension = array
        assert not isinstance(extension, int)
        return dtype, shape, extension.data
    return array.dtype.str, array.shape, np.ascontiguousarray(array).data


def decoded(array: RawArray | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array as one of numpy's, decoded or not."""
    if not isinstance(array, tuple):
        return array
    dtype, shape, data = raw(array)
    return np.frombuffer(data, dtype).reshape(shape)


class RowDecoder:
    """Takes the place of the msgspec decoder inside vLLM's decoder of outputs, ``owner``."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._decode = msgspec.msgpack.Decoder(
            _outputs_type(), ext_hook=owner.ext_hook, dec_hook=owner.dec_hook
        ).decode

    def decode(self, message: Any) -> Any:
        """Decode the first frame of a message into ``EngineCoreOutputs``."""
        outputs = self._decode(message)
        if len(frames := self._owner.aux_buffers) > 1:
            for output in outputs.outputs:
                if (lists := output.new_logprobs) is not None:
                    ids, beside = (_with_frame(array, frames) for array in lists[:2])
                    output.new_logprobs = lists._replace(logprob_token_ids=ids, logprobs=beside)
        return outputs


def _with_frame(array: RawArray, frames: Sequence[Any]) -> RawArray:
    """Return an array with its bytes, which have a frame of their own if they are many."""
    dtype, shape, data = array
    if isinstance(data, int):
        data = msgspec.msgpack.Ext(0, memoryview(frames[data]))
    return dtype, shape, data


def _outputs_type() -> Any:
    """Return EngineCoreOutputs with undecoded arrays."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    kinds = (RawArray, RawArray, msgspec.Raw, msgspec.Raw)
    lists = NamedTuple("Lists", list(zip(_FIELDS, kinds, strict=True)))  # type: ignore[misc]
    options: dict[str, Any] = {"array_like": True, "omit_defaults": True, "gc": False}
    output = msgspec.defstruct(
        "Output", [("new_logprobs", lists | None, None)], bases=(EngineCoreOutput,), **options
    )
    return msgspec.defstruct(
        "Outputs",
        [("outputs", list[output], msgspec.field(default_factory=list))],  # type: ignore[valid-type]
        bases=(EngineCoreOutputs,),
        **options,
    )


def install(decoder: Any) -> None:
    """Let vLLM's decoder of outputs leave arrays as they came, unless vLLM encodes them in another
    way than is known here.
    """
    if _reads_example():
        decoder.decoder = RowDecoder(decoder)
    else:
        log.warning("vLLM's outputs have an unknown format: a row costs more processor time")


def _reads_example() -> bool:
    """Whether outputs that vLLM's own encoder has encoded are read as they were."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    ids = np.arange(6, dtype=np.int32).reshape(2, 3)
    lists = LogprobsLists(ids, ids / np.float32(8), np.arange(2, dtype=np.int32))
    rows = EngineCoreOutput("a", [7, 8], lists)
    end = EngineCoreOutput("b", [9], finish_reason=FinishReason.LENGTH)
    frames = MsgpackEncoder().encode(EngineCoreOutputs(engine_index=3, outputs=[rows, end]))
    try:
        reader = MsgpackDecoder(EngineCoreOutputs)
        reader.decoder = RowDecoder(reader)
        outputs = reader.decode(frames)
        first, last = outputs.outputs
        read = [decoded(array) for array in first.new_logprobs[:2]]
    except Exception:
        log.exception("an example of vLLM's outputs cannot be decoded")
        return False
    return bool(
        all(map(np.array_equal, read, lists))
        and (outputs.engine_index, first.request_id, first.new_token_ids) == (3, "a", [7, 8])
        and (last.request_id, last.new_token_ids, last.new_logprobs) == ("b", [9], None)
        and (first.finish_reason, last.finish_reason) == (None, FinishReason.LENGTH)
    )
