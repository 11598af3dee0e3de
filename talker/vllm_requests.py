"""Conversion of requests and outputs to and from vLLM's types, used by both hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from vllm import SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from streaming.spec import Codes
from talker.attention import SPAN_KEY
from talker.messages import NewRows, TextSpan, VoiceRows
from talker.reference_audio import clips_input
from talker.request_table import RequestState, RequestTable
from talker.sampler import RAS_KEY
from talker.sampling import MAX_SEED
from talker.shape import TalkerShape

_FINISH: dict[str | None, Literal["", "stop", "length"]] = {
    None: "", "stop": "stop", "length": "length",
}  # fmt: skip


class Refused(Exception):
    """A request that the engine cannot process. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The contents of a step's outputs: rows to pass on, and requests that failed."""

    rows: list[NewRows]
    lost: list[int]
    broken: list[int]


def sampling_params(state: RequestState, num_codebooks: int, stop_id: int) -> SamplingParams:
    """vLLM's sampling parameters for a request.

    The codes travel in the logprobs channel: as many "logprobs" as codebooks. A stop id is always
    given, since vLLM does not know it without a tokenizer.
    """
    request, text, extra = state.request, state.request.text, dict[str, Any]()
    if text is not None:
        extra[SPAN_KEY] = [len(state.before) + text.at, len(text.starts) - 1]
    if request.ras_win_len:
        extra[RAS_KEY] = [request.ras_win_len, request.ras_max_repeat]
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        max_tokens=state.frames_left,
        stop_token_ids=[stop_id],
        logprobs=num_codebooks - 1,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra or None,
    )


def engine_input(state: RequestState, shape: TalkerShape, max_positions: int) -> Any:
    """The engine's prompt, with the history of its conversation before it, and after it the frames
    that a paused request has already made. Raises Refused for input that would fail the engine's
    step, and with it all other requests.
    """
    request, vocab = state.request, shape.backbone.vocab_size
    prompt, given = state.prompt, len(state.before) + len(request.ids)
    if not request.ids or given >= max_positions:
        raise Refused(f"a prompt of {given} ids")
    if min(request.ids) < 0 or max(request.ids) >= vocab:
        raise Refused("a prompt id outside the vocabulary")
    finite = math.isfinite(request.temperature) and math.isfinite(request.top_p)
    if not finite or request.top_k < 1 or request.max_frames < 1:
        raise Refused("sampling parameters out of range")
    if not 0 <= request.seed <= MAX_SEED:
        raise Refused("a seed outside int64")
    if request.text is not None and not _is_inside(request.text, len(request.ids)):
        raise Refused("a text outside the prompt")
    if not state.clips:
        return tokens_input(prompt)
    clips, after = [], 0
    for clip in state.clips:
        rows = _clip_rows(clip, shape)
        if clip.at < after or clip.at + len(rows) > given:
            raise Refused("reference rows outside the prompt")
        clips.append((rows, clip.at))
        after = clip.at + len(rows)
    return clips_input(prompt, clips)


def _clip_rows(clip: VoiceRows, shape: TalkerShape) -> Codes:
    flat = np.frombuffer(clip.rows, np.int16)
    if flat.size == 0 or flat.size % shape.num_codebooks:
        raise Refused("reference rows of a wrong size")
    if flat.min() < 0 or flat.max() >= shape.codebook_rows:
        raise Refused("a reference row's code outside the codebook")
    return flat.reshape(-1, shape.num_codebooks)


def read_outputs(outputs: Sequence[Any], shape: TalkerShape, requests: RequestTable) -> Outcome:
    """Read the rows from vLLM's outputs of one step, as int16 bytes without the codes' offsets. The
    row with the stop id is left out if it is not part of the stream.

    All outputs are converted at once, since they are many and small. Outputs of requests that were
    aborted or paused in the meantime are skipped; the frame ids of the others are recorded. A
    request is broken if a code of its first codebook lies outside of this codebook.
    """
    flat: list[int] = []
    beside: list[float] = []
    wanted: list[tuple[Any, RequestState, int, int]] = []
    for output in outputs:
        state = requests.of(output.request_id)
        if state is None or state.paused:
            continue
        start = len(flat)
        if channel := output.outputs[0].logprobs:
            flat += channel.token_ids
            beside += channel.logprobs
        requests.note(state, output.outputs[0].token_ids)
        wanted.append((output, state, start, len(flat)))
    books, size = shape.num_codebooks, shape.codebook_rows
    table = np.array(flat, np.int32).reshape(-1, books)
    codes = (table - np.arange(books, dtype=np.int32) * size).astype(np.int16)
    gone = table[:, 0] >= books * size
    outside = codes[:, 0] >= size  # drawn from logits that are not numbers
    outcome = Outcome([], [], [])
    for output, state, start, end in wanted:
        handle, reason = state.request.handle, output.outputs[0].finish_reason
        first, last = start // books, end // books
        if gone[first:last].any():
            outcome.lost.append(handle)
        elif reason not in _FINISH or outside[first:last].any():
            outcome.broken.append(handle)
        else:
            if reason == "stop" and not shape.is_delayed:
                last, end = last - 1, end - books
            rows, spoken = codes[first:last].tobytes(), b""
            if (text := state.request.text) is not None:
                spoken = spoken_at(text, beside[start:end:books]).tobytes()
            outcome.rows.append(NewRows(handle, rows, _FINISH[reason], spoken))
    return outcome


def spoken_at(text: TextSpan, places: Sequence[float]) -> npt.NDArray[np.float32]:
    """Convert positions among the text's ids, which may be fractional, to its characters."""
    ids = np.arange(len(text.starts))
    return np.interp(places, ids, text.starts).astype(np.float32)


def _is_inside(text: TextSpan, ids: int) -> bool:
    """Whether the text is not empty and lies within the first ``ids`` ids."""
    return text.at >= 0 and 1 < len(text.starts) <= ids - text.at + 1
