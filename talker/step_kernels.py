"""The talker's part of a step as Triton kernels: frame embeddings before the backbone, sampling
after it.

Between two replays of the backbone's CUDA graph, eager PyTorch launches about a hundred kernels,
which takes longer than running them. Here there are three:

- ``embed``: embed text and frame ids, and mark stale frames;
- ``_draw_kernel``: draw one code per row and codebook (top-k, top-p, noise, repetition-aware
  sampling, the delay pattern);
- ``_keep_kernel``: write the rows to the frame table, return ids and codes, advance the counter.

``talker.sampler`` and ``talker.frames`` define the results, and run where there is no Triton. The
tests compare the two code by code in Triton's interpreter. Two things may differ: the order of
equal logits (here the lowest code comes first), and the last bit of a sum of probabilities.

Nothing here waits for the device or reads a number from it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.triton_utils import tl, triton

from talker.families.delayed import SPECIAL_CODES
from talker.frames import _EPOCHS, FRAME_BASE, FRAME_SPAN, FrameTable, power_of_two
from talker.noise import CODE_STRIDE, MIX_1, MIX_2, NOISE_BITS, SEED_STRIDE
from talker.sampler import REPETITION_MARK, DelayedRowSampler, Draw, Repetition, RowSampler

#: Rows per iteration of ``_keep_kernel``, which has only one program.
_ROWS_AT_ONCE = 32
#: Tokens whose stale marks are read together.
_TOKENS_AT_ONCE = 256
#: Warps of a program that draws. One would have no barriers and little more than half of the
#: instructions, but all one after another: ``make gpu-check`` times both.
DRAW_WARPS = 4
#: Embedding columns per program.
_COLUMNS = 512


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's inputs on the device. R is the number of requests; slots are the runner's."""

    #: ``[R]``: each request's slot.
    slots: Tensor
    #: ``[R]``: the index of each request's last token.
    last_tokens: Tensor
    #: ``[R + 1]``: the requests' bounds in the flat list of tokens.
    ends: Tensor
    #: By token: its id.
    input_ids: Tensor
    #: By token: its position.
    positions: Tensor
    #: By token, bool: whether its frame is no longer in the table.
    stale: Tensor
    #: ``[R]``: positions of each request after this step.
    lengths: Tensor
    #: By slot: the positions that must be computed before a row is sampled.
    prompts: Tensor
    #: By slot, bool: whether the request has met a stale frame; updated here.
    lost: Tensor


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Ids ``[R]`` int64, offset codes ``[R, K]`` int32 (see ``RowSampler.step``), and the number of
    rows sampled per request, ``[R]`` int32: 0 for a chunk that does not end its prompt.
    """

    ids: Tensor
    codes: Tensor
    num_sampled: Tensor


class StepKernels:
    """Draws a step's rows like ``DelayedRowSampler.step``, in two launches.

    ``books_each``: codebooks per program. On a GPU it is one, which spreads a row over as many
    processors as there are codebooks. Triton's interpreter is faster with all of them in one.
    ``warps``: of such a program.
    """

    def __init__(
        self,
        rows: DelayedRowSampler,
        max_requests: int,
        books_each: int | None = None,
        warps: int = DRAW_WARPS,
    ) -> None:
        if books_each is None:
            interpreted = os.environ.get("TRITON_INTERPRET") == "1"
            books_each = rows.num_codebooks if interpreted else 1
        if rows.num_codebooks % books_each or books_each & (books_each - 1):
            raise ValueError(f"{rows.num_codebooks} codebooks do not go into {books_each}s")
        self._rows = rows
        self._books_each = books_each
        self._warps = warps
        device = rows.table.cells.device
        none = torch.zeros(max_requests, dtype=torch.int64, device=device)
        self._no_repetition = Repetition(none, none + 1)
        # used only between the two launches, so all steps can share it
        self._drawn = torch.zeros(
            max_requests, rows.num_codebooks, dtype=torch.int32, device=device
        )
        # the delay state; whether the look-back is lost, and the new row's links
        columns = 2 + rows.table.look_back_rows
        self._before = torch.zeros(max_requests, columns, dtype=torch.int32, device=device)

    def step(self, logits: Tensor, given: StepInputs, draw: Draw) -> StepOutputs:
        """Draw one row for each request from ``logits`` ``[R, K * V]`` of any float type."""
        rows = self._rows
        table = self._rows.table
        requests = logits.shape[0]
        books = rows.num_codebooks
        width = rows.codebook_rows
        look_back = table.look_back_rows
        ages = power_of_two(max(1, look_back))
        repetition = draw.repetition or self._no_repetition
        device = logits.device
        # allocated anew in each step, since the copies to the host overlap the next step
        out = StepOutputs(
            torch.empty(requests, dtype=torch.int64, device=device),
            torch.empty(requests, books, dtype=torch.int32, device=device),
            torch.empty(requests, dtype=torch.int32, device=device),
        )
        _draw_kernel[(requests, books // self._books_each)](
            logits,
            logits.stride(0),
            given.slots,
            given.last_tokens,
            given.ends,
            given.input_ids,
            given.positions,
            given.stale,
            given.lost,
            draw.temperature,
            draw.top_k,
            draw.top_p,
            draw.seed,
            repetition.window,
            repetition.max_repeat,
            table.cells,
            table.links,
            self._drawn,
            self._before,
            BOOKS=books,
            BOOKS_EACH=self._books_each,
            WIDTH=width,
            CODES=width - SPECIAL_CODES,
            BLOCK=power_of_two(width - SPECIAL_CODES),
            LOOK_BACK=look_back,
            AGES=ages,
            TOKENS=_TOKENS_AT_ONCE,
            SLOTS=table.n_slots,
            SHIFT=table.n_slots.bit_length() - 1,
            EPOCHS=_EPOCHS,
            BOC=rows.boc,
            EOC=rows.eoc,
            END_BOOKS=rows.end_codebooks,
            **_CONSTANTS,
            num_warps=self._warps,
        )
        _keep_kernel[(1,)](
            requests,
            given.slots,
            given.lost,
            given.lengths,
            given.prompts,
            table.cells,
            table.links,
            rows.counter,
            self._drawn,
            self._before,
            out.ids,
            out.codes,
            out.num_sampled,
            BOOKS=books,
            BOOKS_BLOCK=power_of_two(books),
            ROWS=_ROWS_AT_ONCE,
            WIDTH=width,
            LOOK_BACK=look_back,
            AGES=ages,
            SLOTS=table.n_slots,
            SHIFT=table.n_slots.bit_length() - 1,
            EOC=rows.eoc,
            STOP=rows.stop,
            LOST_ROW=rows.lost_row,
            BASE=FRAME_BASE,
            SPAN=FRAME_SPAN,
            EPOCHS=_EPOCHS,
            num_warps=1,
        )
        return out


def fits(rows: RowSampler) -> bool:
    """Whether ``StepKernels`` can replace ``rows``: the sampler is for the delay pattern, and the
    special codes are the last of a codebook. Other samplers run in PyTorch.
    """
    width = rows.codebook_rows
    return type(rows) is DelayedRowSampler and {rows.boc, rows.eoc} == {width - 2, width - 1}


def embed(
    ids: Tensor,
    table: FrameTable,
    code_weight: Tensor,
    text_weight: Tensor,
    embeds: Tensor,
    stale: Tensor,
) -> None:
    """Embed ``ids`` ``[N]`` into ``embeds`` ``[>= N, D]``, and mark in ``stale`` ``[>= N]`` the
    frames that the table has forgotten. One launch.

    ``code_weight`` ``[K * V, D]`` and ``text_weight`` ``[ids, D]`` must be whole: a vocabulary that
    is split over GPUs is not supported.
    """
    tokens = ids.shape[0]
    size = embeds.shape[1]
    if tokens == 0:
        return
    _embed_kernel[(tokens, -(-size // _COLUMNS))](
        ids,
        table.cells,
        code_weight,
        text_weight,
        embeds,
        embeds.stride(0),
        stale,
        size,
        BOOKS=table.num_codebooks,
        WIDTH=code_weight.shape[0] // table.num_codebooks,
        SLOTS=table.n_slots,
        SHIFT=table.n_slots.bit_length() - 1,
        BASE=FRAME_BASE,
        EPOCHS=_EPOCHS,
        BLOCK=_COLUMNS,
        num_warps=4,
    )


#: The constants of the noise (``talker.noise``), and where frame ids begin.
_CONSTANTS: dict[str, Any] = {
    "BASE": FRAME_BASE,
    "NOISE_BITS": NOISE_BITS,
    "SEED_STRIDE": SEED_STRIDE,
    "CODE_STRIDE": CODE_STRIDE,
    "AGAIN": REPETITION_MARK,
    "MIX_1": MIX_1,
    "MIX_2": MIX_2,
}


@triton.jit
def _mix(x, MIX_1: tl.constexpr, MIX_2: tl.constexpr):
    """splitmix64's finaliser on int64, which wraps; masks make the shifts logical."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _ordered(x):
    """Map float32 to int32 in the same order: of negative numbers the lower bits are inverted."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _log_uniform(hashed, NOISE_BITS: tl.constexpr, MIX_1: tl.constexpr, MIX_2: tl.constexpr):
    """The last part of ``talker.noise.log_uniform``: the logarithm of a uniform number."""
    top = (_mix(hashed, MIX_1, MIX_2) >> (64 - NOISE_BITS)) & ((1 << NOISE_BITS) - 1)
    return tl.log((top.to(tl.float32) + 0.5) * (1.0 / (1 << NOISE_BITS)))


@triton.jit
def _by_chance(
    chance,
    end_chance,
    seed,
    position,
    book,
    code,
    inside,
    BOOKS: tl.constexpr,
    EOC: tl.constexpr,
    NOISE_BITS: tl.constexpr,
    SEED_STRIDE: tl.constexpr,
    CODE_STRIDE: tl.constexpr,
    MIX_1: tl.constexpr,
    MIX_2: tl.constexpr,
):
    """Draw a code of each codebook: the largest ``log(chance) + gumbel`` is the smallest
    ``chance / log(uniform)``.
    """
    hashed = seed * SEED_STRIDE + position * BOOKS + (book + 1).to(tl.int64)
    hashed = _mix(hashed, MIX_1, MIX_2) + CODE_STRIDE
    noise = hashed[:, None] + code.to(tl.int64) * CODE_STRIDE
    score = chance / _log_uniform(noise, NOISE_BITS, MIX_1, MIX_2)
    least, chosen = tl.min(tl.where(inside, score, 1.0), 1, return_indices=True)
    noise = hashed + (book * 0 + EOC).to(tl.int64) * CODE_STRIDE
    score = end_chance / _log_uniform(noise, NOISE_BITS, MIX_1, MIX_2)
    return tl.where(score < least, EOC, chosen.to(tl.int32))


@triton.jit
def _draw_kernel(
    logits_ptr,
    logits_stride,
    slots_ptr,
    last_ptr,
    ends_ptr,
    ids_ptr,
    positions_ptr,
    stale_ptr,
    lost_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    seed_ptr,
    window_ptr,
    max_repeat_ptr,
    cells_ptr,
    links_ptr,
    drawn_ptr,
    before_ptr,
    BOOKS: tl.constexpr,
    BOOKS_EACH: tl.constexpr,
    WIDTH: tl.constexpr,
    CODES: tl.constexpr,
    BLOCK: tl.constexpr,
    LOOK_BACK: tl.constexpr,
    AGES: tl.constexpr,
    TOKENS: tl.constexpr,
    SLOTS: tl.constexpr,
    SHIFT: tl.constexpr,
    EPOCHS: tl.constexpr,
    BOC: tl.constexpr,
    EOC: tl.constexpr,
    END_BOOKS: tl.constexpr,
    BASE: tl.constexpr,
    NOISE_BITS: tl.constexpr,
    SEED_STRIDE: tl.constexpr,
    CODE_STRIDE: tl.constexpr,
    AGAIN: tl.constexpr,
    MIX_1: tl.constexpr,
    MIX_2: tl.constexpr,
):
    """Draw ``BOOKS_EACH`` codes of one row per program. The first program of a row also saves for
    ``_keep_kernel`` the delay state before the row, the rows before it, and whether its request is
    lost.

    The block has the ``CODES`` real codes; BOC and EOC, which follow them, are numbers beside it,
    since with them a block of 1,024 would have to be one of 2,048. ``LOOK_BACK`` is the number of
    rows that the table looks back, 0 for none.

    From logits that are not finite ``WIDTH`` is drawn, which is no code of the codebook; see
    ``RowSampler.find_broken``.
    """
    row = tl.program_id(0)
    first_book = tl.program_id(1) * BOOKS_EACH
    last = tl.load(last_ptr + row).to(tl.int64)
    token = tl.load(ids_ptr + last).to(tl.int64)
    # the table's row after the ring is the state of a request that has not begun
    cell = tl.where(token >= BASE, (token - BASE) & (SLOTS - 1), SLOTS)
    state_ptr = cells_ptr + cell * (BOOKS + 3) + BOOKS
    started = tl.load(state_ptr).to(tl.int32)
    over = tl.load(state_ptr + 1).to(tl.int32)

    book = first_book + tl.arange(0, BOOKS_EACH)
    code = tl.arange(0, BLOCK)[None, :]
    inside = code < CODES
    row_ptr = logits_ptr + row * logits_stride + book * WIDTH
    value = tl.load(row_ptr[:, None] + code, mask=inside, other=float("-inf")).to(tl.float32)
    begin_value = tl.load(row_ptr + BOC).to(tl.float32)
    end_value = tl.load(row_ptr + EOC).to(tl.float32)
    highest = tl.max(value, 1)
    is_broken = tl.max((value != value).to(tl.int32), 1) > 0
    is_broken = is_broken | (begin_value != begin_value) | (end_value != end_value)
    all_highest = tl.maximum(highest, tl.maximum(begin_value, end_value))
    is_broken = is_broken | (tl.abs(all_highest) == float("inf"))
    value = tl.where(is_broken[:, None], 0.0, value)
    end_value = tl.where(is_broken, 0.0, end_value)
    # BOC is never drawn; EOC only by the first codebooks, and not in the ramp
    mute = book >= END_BOOKS
    if END_BOOKS > 1:
        mute = mute | (over > 0)
    end_value = tl.where(mute, float("-inf"), end_value)
    highest = tl.maximum(tl.where(is_broken, 0.0, highest), end_value)

    seed = tl.load(seed_ptr + row).to(tl.int64)
    position = tl.load(positions_ptr + last).to(tl.int64)
    top_k = tl.load(top_k_ptr + row).to(tl.int32)
    if top_k == 1:
        chosen = tl.argmax(value, 1, tie_break_left=True).to(tl.int32)
        # EOC alone may be higher than all codes
        chosen = tl.where(tl.max(value, 1) < end_value, EOC, chosen)
    else:
        # padding sorts below every code, masked ones included
        key = tl.where(inside, _ordered(value), -0x80000000)
        end_key = _ordered(end_value)
        # The top_k-th largest key, bit by bit from the top: the largest threshold that at least
        # top_k keys reach. int32's sign bit counts the other way round.
        wanted = tl.minimum(top_k, CODES + 1)
        reach = tl.sum((key >= 0).to(tl.int32), 1) + (end_key >= 0).to(tl.int32)
        threshold = tl.where(reach >= wanted, 0, -0x80000000)
        for bit in range(30, -1, -1):
            trial = threshold | (1 << bit)
            reach = tl.sum((key >= trial[:, None]).to(tl.int32), 1)
            reach += (end_key >= trial).to(tl.int32)
            threshold = tl.where(reach >= wanted, trial, threshold)
        above = key > threshold[:, None]
        level = ((key == threshold[:, None]) & inside).to(tl.int32)
        end_above = end_key > threshold
        # of equal logits the lowest codes are kept, until there are top_k
        room = wanted - tl.sum(above.to(tl.int32), 1) - end_above.to(tl.int32)
        kept = above | ((level > 0) & (tl.cumsum(level, 1) <= room[:, None]))
        end_kept = end_above | ((end_key == threshold) & (tl.sum(level, 1) < room))

        temperature = tl.load(temperature_ptr + row)
        hottest = highest / temperature
        chance = tl.where(kept, tl.exp(value / temperature - hottest[:, None]), 0.0)
        end_chance = tl.where(end_kept, tl.exp(end_value / temperature - hottest), 0.0)
        total = tl.sum(chance, 1) + end_chance
        chance = chance / total[:, None]
        end_chance = end_chance / total
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            # A code stays if the codes before it sum to less than top_p. So find the largest
            # threshold whose keys sum to at least top_p: all keys above it stay, and the first of
            # those equal to it.
            mass = tl.sum(tl.where(key >= 0, chance, 0.0), 1)
            mass += tl.where(end_key >= 0, end_chance, 0.0)
            edge = tl.where(mass >= top_p, 0, -0x80000000)
            for bit in range(30, -1, -1):
                trial = edge | (1 << bit)
                mass = tl.sum(tl.where(key >= trial[:, None], chance, 0.0), 1)
                mass += tl.where(end_key >= trial, end_chance, 0.0)
                edge = tl.where(mass >= top_p, trial, edge)
            higher = tl.sum(tl.where(key > edge[:, None], chance, 0.0), 1)
            higher += tl.where(end_key > edge, end_chance, 0.0)
            even = tl.where(key == edge[:, None], chance, 0.0)
            ahead = higher[:, None] + tl.cumsum(even, 1) - even
            stays = (key > edge[:, None]) | ((key == edge[:, None]) & (ahead < top_p))
            chance = tl.where(stays, chance, 0.0)
            end_ahead = higher + tl.sum(even, 1)
            end_stays = (end_key > edge) | ((end_key == edge) & (end_ahead < top_p))
            end_chance = tl.where(end_stays, end_chance, 0.0)

        chosen = _by_chance(
            chance, end_chance, seed, position, book, code, inside, BOOKS, EOC,
            NOISE_BITS, SEED_STRIDE, CODE_STRIDE, MIX_1, MIX_2,
        )  # fmt: skip

    if LOOK_BACK > 0:
        # the rows before, newest first: the last one, and those that it links to
        age = tl.arange(0, AGES)
        link_ptr = links_ptr + cell * (LOOK_BACK - 1) + age - 1
        counter = tl.load(link_ptr, mask=(age > 0) & (age < LOOK_BACK), other=-1).to(tl.int64)
        counter = tl.where(age == 0, tl.maximum(token - BASE, -1), counter)
        is_row = counter >= 0
        past_ptr = cells_ptr + (counter & (SLOTS - 1)) * (BOOKS + 3)
        recent = tl.load(past_ptr[None, :] + book[:, None], mask=is_row[None, :], other=-1)
        is_near = (age < tl.load(window_ptr + row).to(tl.int32))[None, :]
        repeats = (recent.to(tl.int32) == chosen[:, None]) & is_near
        count = tl.sum(repeats.to(tl.int32), 1)
        again = (count >= tl.load(max_repeat_ptr + row).to(tl.int32)) & (chosen < BOC)
        if tl.max(again.to(tl.int32), 0) > 0:
            # from all codes, at temperature 1
            chance = tl.exp(value - highest[:, None])
            end_chance = tl.exp(end_value - highest)
            total = tl.sum(chance, 1) + end_chance
            chance = chance / total[:, None]
            end_chance = end_chance / total
            second = _by_chance(
                chance, end_chance, seed ^ AGAIN, position, book, code, inside, BOOKS, EOC,
                NOISE_BITS, SEED_STRIDE, CODE_STRIDE, MIX_1, MIX_2,
            )  # fmt: skip
            chosen = tl.where(again, second, chosen)

    chosen = tl.where(book > started, BOC, chosen)
    chosen = tl.where(book < over, EOC, chosen)
    chosen = tl.where(is_broken, WIDTH, chosen)
    tl.store(drawn_ptr + row * BOOKS + book, chosen)
    if first_book == 0:
        saved_ptr = before_ptr + row * (2 + LOOK_BACK)
        tl.store(saved_ptr, started)
        tl.store(saved_ptr + 1, over)
        if LOOK_BACK > 0:
            epoch = tl.load(past_ptr + BOOKS + 2, mask=is_row, other=0).to(tl.int64)
            forgotten = is_row & (epoch != (counter >> SHIFT) % EPOCHS + 1)
            tl.store(saved_ptr + 2, tl.max(forgotten.to(tl.int32), 0))
            tl.store(saved_ptr + 3 + age, counter.to(tl.int32), mask=age < LOOK_BACK - 1)
        begin = tl.load(ends_ptr + row).to(tl.int32)
        end = tl.load(ends_ptr + row + 1).to(tl.int32)
        slot = tl.load(slots_ptr + row).to(tl.int64)
        found = tl.load(lost_ptr + slot).to(tl.int32)
        for start in range(begin, end, TOKENS):
            at_token = start + tl.arange(0, TOKENS)
            marks = tl.load(stale_ptr + at_token, mask=at_token < end, other=0).to(tl.int32)
            found = tl.maximum(found, tl.max(marks, 0))
        tl.store(lost_ptr + slot, found.to(tl.int1))


@triton.jit(do_not_specialize=["requests"])
def _keep_kernel(
    requests,
    slots_ptr,
    lost_ptr,
    lengths_ptr,
    prompts_ptr,
    cells_ptr,
    links_ptr,
    counter_ptr,
    drawn_ptr,
    before_ptr,
    ids_ptr,
    codes_ptr,
    num_sampled_ptr,
    BOOKS: tl.constexpr,
    BOOKS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    LOOK_BACK: tl.constexpr,
    AGES: tl.constexpr,
    SLOTS: tl.constexpr,
    SHIFT: tl.constexpr,
    EOC: tl.constexpr,
    STOP: tl.constexpr,
    LOST_ROW: tl.constexpr,
    BASE: tl.constexpr,
    SPAN: tl.constexpr,
    EPOCHS: tl.constexpr,
):
    """Store all rows in one program, since they share the counter and are few numbers."""
    first = tl.load(counter_ptr)
    first = tl.where(first > SPAN - requests, 0, first)
    tl.debug_barrier()  # all threads read the counter before one of them advances it
    tl.store(counter_ptr, first + requests)
    book = tl.arange(0, BOOKS_BLOCK)[None, :]
    for start in range(0, requests, ROWS):
        row = start + tl.arange(0, ROWS)
        here = row < requests
        both = here[:, None] & (book < BOOKS)
        code = tl.load(drawn_ptr + row[:, None] * BOOKS + book, mask=both, other=0)
        broken = tl.max((code == WIDTH).to(tl.int32), 1) > 0
        saved_ptr = before_ptr + row * (2 + LOOK_BACK)
        started = tl.load(saved_ptr, mask=here, other=0)
        over = tl.load(saved_ptr + 1, mask=here, other=0)
        started = tl.minimum(started + 1, BOOKS)
        # if several codebooks say EOC the last one counts, and those below it end with it
        said = tl.max(tl.where(both & (code == EOC), book + 1, 0), 1)
        said = tl.where(over > 0, 0, said)
        code = tl.where(book < said[:, None], EOC, code)
        over = tl.where(over > 0, tl.minimum(over + 1, BOOKS), said)

        counter = first + row
        cell = cells_ptr + (counter & (SLOTS - 1)) * (BOOKS + 3)
        epoch = (counter >> SHIFT) % EPOCHS + 1
        # the request fails, but steps until then embed this row
        stored = tl.minimum(code, WIDTH - 1)
        tl.store(cell[:, None] + book, stored.to(tl.int16), mask=both)
        tl.store(cell + BOOKS, started.to(tl.int16), mask=here)
        tl.store(cell + BOOKS + 1, over.to(tl.int16), mask=here)
        tl.store(cell + BOOKS + 2, epoch.to(tl.int16), mask=here)

        slot = tl.load(slots_ptr + row, mask=here, other=0).to(tl.int64)
        lost = tl.load(lost_ptr + slot, mask=here, other=0).to(tl.int32) != 0
        if LOOK_BACK > 0:
            lost = lost | (tl.load(saved_ptr + 2, mask=here, other=0) != 0)
            age = tl.arange(0, AGES)[None, :]
            linked = here[:, None] & (age < LOOK_BACK - 1)
            link = tl.load(saved_ptr[:, None] + 3 + age, mask=linked, other=0)
            link_ptr = links_ptr + (counter & (SLOTS - 1)) * (LOOK_BACK - 1)
            tl.store(link_ptr[:, None] + age, link, mask=linked)
        ends = lost | broken | (over == BOOKS)
        tl.store(ids_ptr + row, tl.where(ends, STOP, counter + BASE), mask=here)
        told = tl.where(broken[:, None], LOST_ROW + BOOKS + book, code + book * WIDTH)
        told = tl.where(lost[:, None], LOST_ROW + book, told)
        tl.store(codes_ptr + row[:, None] * BOOKS + book, told.to(tl.int32), mask=both)
        length = tl.load(lengths_ptr + row, mask=here, other=0)
        prompt = tl.load(prompts_ptr + slot, mask=here, other=0)
        tl.store(num_sampled_ptr + row, (length >= prompt).to(tl.int32), mask=here)


@triton.jit
def _embed_kernel(
    ids_ptr,
    cells_ptr,
    code_ptr,
    text_ptr,
    embeds_ptr,
    embeds_stride,
    stale_ptr,
    size,
    BOOKS: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    SHIFT: tl.constexpr,
    BASE: tl.constexpr,
    EPOCHS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Embed ``BLOCK`` columns of one token per program."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    id = tl.load(ids_ptr + token).to(tl.int64)
    is_stale = id != id
    if id >= BASE:
        counter = id - BASE
        cell = cells_ptr + (counter & (SLOTS - 1)) * (BOOKS + 3)
        epoch = tl.load(cell + BOOKS + 2).to(tl.int64)
        is_stale = epoch != (counter >> SHIFT) % EPOCHS + 1
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for book in range(BOOKS):
            code = tl.load(cell + book).to(tl.int64) + book * WIDTH
            total += tl.load(code_ptr + code * size + column, mask=inside, other=0.0).to(tl.float32)
    else:
        total = tl.load(text_ptr + id * size + column, mask=inside, other=0.0).to(tl.float32)
    told = total.to(embeds_ptr.dtype.element_ty)
    tl.store(embeds_ptr + token * embeds_stride + column, told, mask=inside)
    if tl.program_id(1) == 0:
        tl.store(stale_ptr + token, is_stale)
