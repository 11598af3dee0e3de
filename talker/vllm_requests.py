"""Conversion of requests and outputs to and from vLLM's types, used by both hosts."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from vllm import SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from streaming.spec import Codes, SpeakerVector
from talker.attention import SPAN_KEY
from talker.messages import FailureReason, NewRows, TextSpan, VoiceRows
from talker.reference_audio import clips_input
from talker.request_table import RequestState, RequestTable
from talker.row_decoder import decoded, raw
from talker.sampler import MASK_KEY, RAS_KEY, TRACK_KEY
from talker.sampling import MAX_SEED
from talker.shape import TalkerShape

log = logging.getLogger(__name__)
#: numpy's name of int32.
_CODES = np.dtype(np.int32).str
#: By vLLM's name of the reason. All others are failures.
_FINISH: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


class Refused(Exception):
    """A request that the engine cannot process. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The contents of a step's outputs: rows to pass on, the requests that failed, with the reason,
    and those whose stretch has ended before their speech, for want of text.
    """

    rows: list[NewRows] = field(default_factory=list)
    failed: dict[int, FailureReason] = field(default_factory=dict)
    ended: list[RequestState] = field(default_factory=list)


def sampling_params(state: RequestState, num_codebooks: int, stop_id: int) -> SamplingParams:
    """vLLM's sampling parameters for a request.

    The codes travel in the logprobs channel: as many "logprobs" as codebooks. A stop id is always
    given, since vLLM does not know it without a tokenizer.
    """
    request = state.request
    text = state.request.text
    extra = dict[str, Any]()
    if text is not None:
        extra[SPAN_KEY] = [len(state.before) + text.at, len(text.starts) - 1]
    if request.ras_win_len:
        extra[RAS_KEY] = [request.ras_win_len, request.ras_max_repeat]
    if request.mask:
        extra[MASK_KEY] = list(request.mask)
    if coming := state.coming_text:
        extra[TRACK_KEY] = coming
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        max_tokens=state.stretch_frames,
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
    request = state.request
    prompt = state.prompt
    given = len(state.before) + len(request.ids)
    if not request.ids or given >= max_positions:
        raise Refused(f"a prompt of {given} ids")
    if not shape.holds_prompt(request.ids):
        raise Refused("a prompt id outside the vocabulary")
    if any(not 0 <= code < shape.codebook_size for code in request.mask[1:]):
        raise Refused("a masked code outside the codebook")
    if state.track and not 0 <= min(state.track) <= max(state.track) < shape.backbone.vocab_size:
        raise Refused("a text id outside the vocabulary")
    finite = math.isfinite(request.temperature) and math.isfinite(request.top_p)
    if not finite or request.top_k < 1 or request.max_frames < 1:
        raise Refused("sampling parameters out of range")
    if not 0 <= request.seed <= MAX_SEED:
        raise Refused("a seed outside int64")
    if request.text is not None and not _is_inside(request.text, len(request.ids)):
        raise Refused("a text outside the prompt")
    if not state.clips:
        return tokens_input(prompt)
    clips = []
    after = 0
    for clip in state.clips:
        rows = _clip_rows(clip, shape)
        if clip.at < after or clip.at + len(rows) > given:
            raise Refused("reference rows outside the prompt")
        clips.append((rows, clip.at))
        after = clip.at + len(rows)
    return clips_input(prompt, clips)


def _clip_rows(clip: VoiceRows, shape: TalkerShape) -> Codes | SpeakerVector:
    if clip.is_vector:
        if not shape.vector_size or len(clip.rows) != 4 * shape.vector_size:
            raise Refused("a speaker's vector of a wrong size")
        vector = np.frombuffer(clip.rows, np.float32)
        if not np.isfinite(vector).all():
            raise Refused("a speaker's vector that is not finite")
        return vector[None]
    flat = np.frombuffer(clip.rows, np.int16)
    if flat.size == 0 or flat.size % shape.num_codebooks:
        raise Refused("reference rows of a wrong size")
    if flat.min() < 0 or flat.max() >= shape.codebook_rows:
        raise Refused("a reference row's code outside the codebook")
    return flat.reshape(-1, shape.num_codebooks)


def read_outputs(outputs: Sequence[Any], shape: TalkerShape, requests: RequestTable) -> Outcome:
    """Read the rows from an engine core's outputs of one step, as int16 bytes without the codes'
    offsets. The row with the stop id is left out if it is not part of the stream.

    All outputs are converted at once, since they are many and small. Outputs of requests that were
    aborted or paused in the meantime are skipped; the frame ids of the others are recorded. The
    failure of a request does not affect the step's other requests.
    """
    outcome = Outcome()
    parts: list[Any] = []
    wanted: list[tuple[Any, RequestState, int, int]] = []
    rows = 0
    for output in outputs:
        state = requests.of(output.request_id)
        if state is None:
            continue
        try:
            count, codes = _codes(output.new_logprobs, shape.num_codebooks)
            requests.note(state, output.new_token_ids)
        except Exception:
            _log_unreadable(state)
            outcome.failed[state.request.handle] = "broken"
            continue
        parts.append(codes)
        wanted.append((output, state, rows, rows + count))
        rows += count
    step = _StepRows(b"".join(parts), shape)
    for output, state, first, last in wanted:
        handle = state.request.handle
        try:
            if (reason := step.failure(output, first, last)) is not None:
                outcome.failed[handle] = reason
            else:
                new = step.new_rows(output, state, first, last)
                outcome.rows.append(new)
                if output.finish_reason is not None and not new.finish:
                    outcome.ended.append(state)
        except Exception:
            _log_unreadable(state)
            outcome.failed[handle] = "broken"
    return outcome


class _StepRows:
    """The rows of a step's outputs, one after the other, from int32 codes with their offsets."""

    def __init__(self, codes: bytes, shape: TalkerShape) -> None:
        books = shape.num_codebooks
        size = shape.codebook_rows
        table = np.frombuffer(codes, np.int32).reshape(-1, books)
        self._is_delayed = shape.is_delayed
        self._row_bytes = 2 * books
        plain = table - np.arange(books, dtype=np.int32) * size
        self._rows = plain.astype(np.int16).tobytes()
        #: Rows with a code that its codebook does not have. The first codebook's tells why.
        self._outside = np.asarray(((plain < 0) | (plain >= size)).any(1))
        self._first_codes = table[:, 0]
        self._has_outside = bool(self._outside.any())
        #: See ``RowSampler.lost_row`` and ``RowSampler.broken_row``.
        self._lost_row = books * size
        self._broken_row = self._lost_row + books

    def failure(self, output: Any, first: int, last: int) -> FailureReason | None:
        """Why a request with the rows from ``first`` to before ``last`` has failed; None if it has
        not. The first bad row decides.
        """
        if self._has_outside and (outside := np.flatnonzero(self._outside[first:last])).size:
            code = self._first_codes[first + outside[0]]
            if code == self._lost_row:
                return "lost"
            return "logits" if code == self._broken_row else "code"
        reason = output.finish_reason
        return None if reason is None or str(reason) in _FINISH else "broken"

    def new_rows(self, output: Any, state: RequestState, first: int, last: int) -> NewRows:
        """Return the rows from ``first`` to before ``last`` of a request that has not failed."""
        reason = output.finish_reason
        finish: Literal["", "stop", "length"] = "" if reason is None else _FINISH[str(reason)]
        if finish == "length" and state.track is not None and state.frames_left > 0:
            finish = ""  # the end of this stretch only
        if finish == "stop" and not self._is_delayed:
            last = max(first, last - 1)
        spoken = b""
        if (text := state.request.text) is not None and last > first:
            places = decoded(output.new_logprobs.logprobs)[: last - first, 0]
            spoken = spoken_at(text, places).tobytes()
        rows = self._rows[first * self._row_bytes : last * self._row_bytes]
        return NewRows(state.request.handle, rows, finish, spoken)


def _codes(logprobs: Any, num_codebooks: int) -> tuple[int, Any]:
    """Return an output's number of rows, and their int32 codes with offsets, as bytes."""
    if logprobs is None:
        return 0, b""
    dtype, shape, codes = raw(logprobs.logprob_token_ids)
    if dtype != _CODES or len(shape) != 2 or shape[1] != num_codebooks:
        raise ValueError(f"codes of type {dtype} and shape {shape} for {num_codebooks} codebooks")
    return shape[0], codes


def _log_unreadable(state: RequestState) -> None:
    log.exception("the rows of request %d cannot be read", state.request.handle)


def spoken_at(
    text: TextSpan, places: Sequence[float] | npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Convert positions among the text's ids, which may be fractional, to its characters."""
    ids = np.arange(len(text.starts))
    return np.interp(places, ids, text.starts).astype(np.float32)


def _is_inside(text: TextSpan, ids: int) -> bool:
    """Whether the text is not empty and lies within the first ``ids`` ids."""
    return text.at >= 0 and 1 < len(text.starts) <= ids - text.at + 1
