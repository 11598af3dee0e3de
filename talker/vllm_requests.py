"""Requests as vLLM takes them and outputs as it gives them; shared by both hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from vllm import SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from talker.messages import NewRows
from talker.reference_audio import voice_input
from talker.sampling import MAX_SEED
from talker.shape import TalkerShape
from talker.takes import Take, Takes

_FINISH: dict[str | None, Literal["", "stop", "length"]] = {
    None: "", "stop": "stop", "length": "length",
}  # fmt: skip


class Refused(Exception):
    """A request that the engine would choke on. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step's outputs hold: rows to pass on, and requests that failed alone."""

    rows: list[NewRows]
    lost: list[int]
    broken: list[int]


def sampling_params(take: Take, num_codebooks: int, stop_id: int) -> SamplingParams:
    """The codes travel in the logprobs channel: as many "logprobs" as codebooks.

    A stop id is always given, since without a tokenizer vLLM knows of none.
    """
    request = take.request
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        max_tokens=take.frames_left,
        stop_token_ids=[stop_id],
        logprobs=num_codebooks - 1,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def engine_input(take: Take, shape: TalkerShape, max_positions: int) -> Any:
    """The prompt, with the frames that a paused request has made already. Raises Refused
    for what must never reach the engine's step, where one bad request would take all others
    with it.
    """
    request, vocab = take.request, shape.backbone.vocab_size
    if not request.ids or len(request.ids) >= max_positions:
        raise Refused(f"a prompt of {len(request.ids)} ids")
    if min(request.ids) < 0 or max(request.ids) >= vocab:
        raise Refused("a prompt id outside the vocabulary")
    finite = math.isfinite(request.temperature) and math.isfinite(request.top_p)
    if not finite or request.top_k < 1 or request.max_frames < 1:
        raise Refused("sampling parameters out of range")
    if not 0 <= request.seed <= MAX_SEED:
        raise Refused("a seed outside int64")
    if request.voice is None:
        return tokens_input([*request.ids, *take.frame_ids])
    flat = np.frombuffer(request.voice.rows, np.int16)
    if flat.size == 0 or flat.size % shape.num_codebooks:
        raise Refused("voice rows of a wrong size")
    rows, at = flat.reshape(-1, shape.num_codebooks), request.voice.at
    if at < 0 or at + len(rows) > len(request.ids) or rows.min() < 0:
        raise Refused("voice rows outside the prompt")
    if rows.max() >= shape.codebook_rows:
        raise Refused("a voice's code outside the codebook")
    return voice_input([*request.ids, *take.frame_ids], rows, at)


def read_outputs(outputs: Sequence[Any], shape: TalkerShape, takes: Takes) -> Outcome:
    """Rows from vLLM's outputs of one step: offsets taken off, as int16 bytes.

    All outputs are converted at once; they are many and small. Outputs of requests that
    were aborted or paused meanwhile are passed over; of the others, the frame ids are noted.
    """
    flat: list[int] = []
    wanted: list[tuple[Any, Take, int, int]] = []
    for output in outputs:
        take = takes.of(output.request_id)
        if take is None or take.paused:
            continue
        start = len(flat)
        if channel := output.outputs[0].logprobs:
            flat += channel.token_ids
        take.note(output.outputs[0].token_ids)
        wanted.append((output, take, start, len(flat)))
    books, size = shape.num_codebooks, shape.codebook_rows
    table = np.array(flat, np.int32).reshape(-1, books)
    codes = (table - np.arange(books, dtype=np.int32) * size).astype(np.int16)
    gone = table[:, 0] >= books * size
    outcome = Outcome([], [], [])
    for output, take, start, end in wanted:
        handle, reason = take.request.handle, output.outputs[0].finish_reason
        first, last = start // books, end // books
        if gone[first:last].any():
            outcome.lost.append(handle)
        elif reason not in _FINISH:
            outcome.broken.append(handle)
        else:
            outcome.rows.append(NewRows(handle, codes[first:last].tobytes(), _FINISH[reason]))
    return outcome
