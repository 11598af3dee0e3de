"""The batched sampler and the frame table, against the rules for a single request."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.reference_talker import uniform
from talker.families.delayed import DelayedShape
from talker.frames import FRAME_BASE, FRAME_SPAN, FrameTable, lost_requests, slots_for
from talker.noise import NOISE_BITS, log_uniform
from talker.sampler import (
    RAS_KEY,
    CodeMask,
    DelayedRowSampler,
    Draw,
    Repetition,
    TextTrack,
    choose_codes,
    draw_of,
)
from talker.shape import BackboneShape
from training.scripts import Utterance, write

BOOKS, CODES, STOP = 4, 10, 3
BOC, EOC = 8, 9
TEXT_ID = 7
NO_STATES = torch.zeros(1, 2).long()
SHAPE = DelayedShape(
    num_codebooks=BOOKS,
    codebook_size=CODES - 2,
    codebook_rows=CODES,
    boc=BOC,
    eoc=EOC,
    stop_id=STOP,
    backbone=BackboneShape(16, 8, 8, 1, 1, 1, 8, 64, 1e4, 1e-6),
)


def greedy(batch: int) -> Draw:
    ones = torch.ones(batch)
    return Draw(ones, ones.long(), ones, ones.long(), 1, True)


def sampler(slots: int = 64) -> DelayedRowSampler:
    return DelayedRowSampler(FrameTable(slots, BOOKS), CODES, BOC, EOC, STOP)


def logits_for(rows: list[list[int]]) -> torch.Tensor:
    """Logits whose best codes are ``rows``, followed by EOC, BOC and 0 in every codebook."""
    logits = torch.zeros(len(rows), BOOKS, CODES)
    logits[..., EOC], logits[..., BOC], logits[..., 0] = 5.0, 4.0, 3.0
    for at, row in enumerate(rows):
        for book, code in enumerate(row):
            logits[at, book, code] = 9.0
    return logits.view(len(rows), -1)


def step(
    rows: DelayedRowSampler, wanted: list[list[int]], last: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    batch = len(wanted)
    return rows.step(
        logits_for(wanted),
        last,
        torch.zeros(batch).long(),
        torch.zeros(batch).bool(),
        greedy(batch),
    )


def expected(wanted: list[list[int]]) -> list[list[int]]:
    """Rows of one request by the delay rules, until its stop."""
    out: list[list[int]] = []
    eoc_at = None
    for at, row in enumerate(wanted):
        made = []
        for book, code in enumerate(row):
            if eoc_at is not None and book < at - eoc_at:
                code = EOC
            elif book > at:
                code = BOC
            elif code in (BOC, EOC):
                code = EOC if book == 0 else 0  # masked: the next best allowed code
            made.append(code)
        if eoc_at is None and made[0] == EOC:
            eoc_at = at
        out.append(made)
        if eoc_at is not None and at == eoc_at + BOOKS - 1:
            break
    return out


@settings(max_examples=200, deadline=None)
@given(
    streams=st.lists(
        st.lists(
            st.lists(st.integers(0, CODES - 1), min_size=BOOKS, max_size=BOOKS),
            min_size=14, max_size=14,
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_sampler_applies_delay_rules_to_each_stream(streams: list[list[list[int]]]) -> None:
    rows = sampler()
    last = torch.full((len(streams),), TEXT_ID)
    wanted = [expected(stream) for stream in streams]
    for at in range(14):
        ids, codes = step(rows, [stream[at] for stream in streams], last)
        real = (codes - torch.arange(BOOKS) * CODES).tolist()
        for number, stream in enumerate(wanted):
            if at < len(stream):
                assert real[number] == stream[at]
                ends = at >= BOOKS - 1 and stream[at - BOOKS + 1][0] == EOC
                assert (int(ids[number]) == STOP) == ends
        last = torch.where(ids == STOP, TEXT_ID, ids)  # a new request takes the free place


def test_stream_end_matches_training_rows_of_embedded_voice() -> None:
    """In the row after its last frame, each codebook but the first has a code and not yet EOC."""
    frames, books, boc, eoc = 3, 8, 1024, 1025
    said = Utterance("abc", np.full((frames, books), 5), np.arange(frames, dtype=np.float32))
    random = np.random.default_rng(0)
    script = write([said], reference=None, transcript=False, random=random, corruption=0.0)
    learned = script.rows[script.is_row]
    rows = DelayedRowSampler(FrameTable(64, books), eoc + 1, boc, eoc, STOP)
    ids = torch.tensor([TEXT_ID])
    for at, wanted in enumerate(learned):
        logits = torch.zeros(1, books, eoc + 1)
        logits[..., 5], logits[:, 0, eoc] = 5.0, 9.0 if at == frames else 0.0
        place, lost = torch.zeros(1).long(), torch.zeros(1).bool()
        ids, codes = rows.step(logits.view(1, -1), ids, place, lost, greedy(1))
        made = (codes[0] - rows.offsets).numpy()
        assert np.array_equal(made >= boc, wanted >= boc)
        assert np.array_equal(made[made >= boc], wanted[wanted >= boc])


def test_frame_ids_increase_and_wrap_before_int32_limit() -> None:
    rows = sampler()
    rows.counter.fill_(FRAME_SPAN - 2)
    ids, _ = step(rows, [[1, 1, 1, 1]] * 2, torch.full((2,), TEXT_ID))
    assert ids.tolist() == [FRAME_BASE + FRAME_SPAN - 2, FRAME_BASE + FRAME_SPAN - 1]
    ids, _ = step(rows, [[1, 1, 1, 1]] * 2, ids)
    assert ids.tolist() == [FRAME_BASE, FRAME_BASE + 1]
    assert FRAME_BASE + FRAME_SPAN < 2**31


def test_lost_request_gets_lost_row_and_stop_id() -> None:
    rows = sampler()
    lost = torch.tensor([False, True])
    ids, codes = rows.step(
        logits_for([[1, 2, 3, 4]] * 2), torch.full((2,), TEXT_ID), torch.zeros(2).long(), lost,
        greedy(2),
    )  # fmt: skip
    assert (int(ids[1]), int(codes[1, 0])) == (STOP, rows.lost_row)
    assert int(ids[0]) != STOP
    assert int(codes[0].max()) < rows.lost_row
    assert len(set(codes[1].tolist())) == BOOKS, "the channel may be a dictionary by code"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("code", [0, BOC, EOC])
def test_logits_that_are_not_finite_are_reported_for_their_request_alone(
    bad: float, code: int
) -> None:
    rows, whole = sampler(), sampler()
    given = logits_for([[1, 2, 3, 4]] * 3)
    last, at, lost = torch.full((3,), TEXT_ID), torch.zeros(3).long(), torch.zeros(3).bool()
    wanted_ids, wanted = whole.step(given.clone(), last, at, lost, greedy(3))
    given[1, 2 * CODES + code] = bad
    ids, codes = rows.step(given, last, at, lost, greedy(3))
    assert (int(ids[1]), int(codes[1, 0])) == (STOP, rows.broken_row)
    assert len({rows.lost_row, *codes[1].tolist()}) == BOOKS + 1
    assert torch.equal(ids[[0, 2]], wanted_ids[[0, 2]])
    assert torch.equal(codes[[0, 2]], wanted[[0, 2]])


def test_logits_of_minus_infinity_exclude_codes_but_not_all_of_a_codebook() -> None:
    given = logits_for([[1, 2, 3, 4]] * 2).view(2, BOOKS, CODES)
    given[0, :, 5:BOC] = -math.inf
    given[1, 3] = -math.inf
    assert sampler().find_broken(given.flatten(1)).tolist() == [False, True]


def test_stream_whose_earlier_rows_are_lost_gets_lost_row() -> None:
    """Its last row is still in the table, but a repeated code could no longer be seen."""
    rows = DelayedRowSampler.from_rules(8, SHAPE, {"look_back": 3})
    last, others = torch.tensor([TEXT_ID]), torch.tensor([TEXT_ID])
    for _ in range(3):
        last, _ = step(rows, [[1, 2, 3, 4]], last)
    for _ in range(6):  # the ninth row overwrites the first
        others, _ = step(rows, [[1, 2, 3, 4]], others)
        assert int(others) != STOP
    ids, codes = step(rows, [[1, 2, 3, 4]], last)
    assert (int(ids), int(codes[0, 0])) == (STOP, rows.lost_row)


def test_sampler_rules_limit_codebooks_that_end_a_stream() -> None:
    assert DelayedRowSampler.from_rules(8, SHAPE, {}).table.look_back_rows == 0
    assert DelayedRowSampler.from_rules(8, SHAPE, {"end_codebooks": BOOKS}).end_codebooks == BOOKS
    for wrong in (0, BOOKS + 1):
        with pytest.raises(ValueError, match=f"from 1 to {BOOKS}"):
            DelayedRowSampler.from_rules(8, SHAPE, {"end_codebooks": wrong})


def test_overwritten_slot_is_stale() -> None:
    table = FrameTable(8, BOOKS)
    for counter in range(9):
        table.write(torch.tensor([counter]), torch.full((1, BOOKS), counter), NO_STATES)
    found = table.look_up(torch.tensor([TEXT_ID, FRAME_BASE, FRAME_BASE + 1, FRAME_BASE + 8]))
    assert found.is_stale.tolist() == [False, True, False, False]
    assert found.codes[2:, 0].tolist() == [1, 8]


def test_request_that_begins_has_state_of_no_row() -> None:
    table, count = FrameTable(8, BOOKS), torch.arange(8)
    table.write(count, torch.ones(8, BOOKS, dtype=torch.long), torch.full((8, 2), 3))
    ids = torch.tensor([TEXT_ID, FRAME_BASE, FRAME_BASE + 7])
    assert table.states(ids).tolist() == [[0, 0], [3, 3], [3, 3]]


@pytest.mark.parametrize("slots", [0, -8, 3, 12])
def test_frame_table_needs_power_of_two(slots: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        FrameTable(slots, BOOKS)


def test_unwritten_slot_is_stale() -> None:
    found = FrameTable(8, BOOKS).look_up(torch.tensor([FRAME_BASE, FRAME_BASE + 8, TEXT_ID]))
    assert found.is_stale.tolist() == [True, True, False]


def test_epoch_of_last_id_fits_column() -> None:
    table = FrameTable(1 << 16, BOOKS)
    table.write(torch.tensor([FRAME_SPAN - 1]), torch.ones(1, BOOKS).long(), NO_STATES)
    last = torch.tensor([FRAME_SPAN - 1 + FRAME_BASE], dtype=torch.int32)
    assert not table.look_up(last).is_stale.any()


def test_states_follow_rows_and_are_zero_for_text() -> None:
    table = FrameTable(8, BOOKS)
    table.write(torch.tensor([21, 22]), torch.ones(2, BOOKS).long(), torch.tensor([[1, 0], [4, 2]]))
    ids = torch.tensor([TEXT_ID, FRAME_BASE + 22, FRAME_BASE + 21, FRAME_BASE - 1])
    for kind in (torch.int32, torch.int64):
        assert table.states(ids.to(kind)).tolist() == [[0, 0], [4, 2], [1, 0], [0, 0]]


def test_ring_wraparound_within_step_keeps_newest_rows() -> None:
    rows, last = sampler(slots=8), torch.full((3,), TEXT_ID)
    seen: list[int] = []
    for number in range(7):
        last, _ = step(rows, [[number, 1, 2, 3]] * 3, last)
        assert not rows.table.look_up(last).is_stale.any()
        seen += last.tolist()
    assert len(set(seen)) == len(seen) == 21
    assert rows.table.look_up(torch.tensor(seen[:-8])).is_stale.all()
    assert not rows.table.look_up(torch.tensor(seen[-8:])).is_stale.any()


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("mixed", [False, True])
def test_sampler_step_reads_no_value_from_device(batch: int, mixed: bool) -> None:
    """Fake tensors have shapes but no values: reading a value raises."""
    with FakeTensorMode():
        rows = sampler()
        ones = torch.ones(batch)
        draw = Draw(ones, ones.long(), ones, ones.long(), 6, not mixed)
        last = torch.empty(batch, dtype=torch.int32)
        lost = torch.empty(batch, dtype=torch.bool)
        ids, codes = rows.step(torch.empty(batch, BOOKS * CODES), last, ones.long(), lost, draw)
        rows.table.look_up(ids)
    assert (ids.shape, codes.shape) == ((batch,), (batch, BOOKS))
    assert codes.dtype == torch.int32


def test_draw_keeps_parameters_of_each_request() -> None:
    """vLLM drops the top-k of greedy requests; its warm-up requests have neither it nor a seed."""

    def params(*values: object, extra: dict[str, object] | None = None) -> SimpleNamespace:
        names = ("temperature", "top_k", "top_p", "seed")
        return SimpleNamespace(**dict(zip(names, values, strict=True)), extra_args=extra)

    asked = [
        params(0.5, 7, 0.9, 11, extra={RAS_KEY: (6, 2)}),
        params(0.0, 0, 1.0, 12, extra={"other": 1}),
        params(1.5, -1, 0.8, None),
        params(1.0, 0, 1.0, 0),
    ]
    draw = draw_of(asked, CODES, watches_repetition=True)
    assert draw.temperature.tolist() == [0.5, 1.0, 1.5, 1.0]
    assert draw.top_k.tolist() == [7, 1, CODES, CODES]
    assert draw.top_p.tolist() == pytest.approx([0.9, 1.0, 0.8, 1.0])
    assert draw.seed.tolist() == [11, 12, 0, 0]
    assert (draw.widest, draw.same_width) == (CODES, False)
    assert draw.repetition is not None
    assert draw.repetition.window.tolist() == [6, 0, 0, 0]
    assert draw.repetition.max_repeat.tolist() == [2, 1, 1, 1]
    alike = draw_of(asked[:1] * 2, CODES, watches_repetition=False)
    assert (alike.widest, alike.same_width, alike.repetition) == (7, True, None)


def test_move_changes_every_tensor_of_draw() -> None:
    extra = {RAS_KEY: (6, 2)}
    one = SimpleNamespace(temperature=1.0, top_k=3, top_p=0.5, seed=1, extra_args=extra)
    for watches in (False, True):
        draw = draw_of([one], CODES, watches_repetition=watches)
        moved = draw.moved(lambda column: column + 10)
        for name in ("temperature", "top_k", "top_p", "seed"):
            assert getattr(moved, name).item() == getattr(draw, name).item() + 10
        assert (moved.widest, moved.same_width) == (draw.widest, draw.same_width)
        if not watches:
            assert moved.repetition is None
        else:
            assert moved.repetition is not None
            assert (moved.repetition.window.item(), moved.repetition.max_repeat.item()) == (16, 12)


@pytest.mark.parametrize(
    ("window", "most", "repeats"),
    [(0, 1, False), (1, 1, False), (2, 1, True), (3, 2, False), (4, 2, True), (4, 3, False)],
)
def test_code_repeats_if_it_occurs_often_enough_within_window(
    window: int, most: int, repeats: bool
) -> None:
    """Code 5 is in the second and the fourth row before, and in another codebook."""
    recent = torch.tensor([[[1, 5], [5, 1], [2, 5], [5, 1]]])
    watched = Repetition(torch.tensor([window]), torch.tensor([most]))
    assert watched.repeats(recent, torch.tensor([[5, 7]])).tolist() == [[repeats, False]]


def test_lost_requests_are_those_with_stale_tokens() -> None:
    stale = torch.tensor([0, 0, 1, 0, 0, 1, 1, 0]).bool()
    ends = torch.tensor([0, 2, 5, 6, 8])
    assert lost_requests(stale, ends).tolist() == [False, True, True, True]
    assert lost_requests(stale[:2], ends[:2]).tolist() == [False]


@pytest.mark.parametrize(("seqs", "frames"), [(1, 1), (16, 2048), (3, 100)])
def test_table_size_is_power_of_two_and_eight_times_live_frames(seqs: int, frames: int) -> None:
    slots = slots_for(seqs, frames)
    assert slots & (slots - 1) == 0
    assert 8 * seqs * frames <= slots < 16 * seqs * frames


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 40_000), code=st.integers(0, 1025))
def test_noise_matches_oracle_and_is_finite(seed: int, position: int, code: int) -> None:
    codes = torch.full((1, 8, 1), code)
    books = torch.arange(1, 9)
    noise = log_uniform(torch.tensor([seed]), torch.tensor([position]), books, codes)[0, :, 0]
    own = [math.log(float(uniform(seed, position, book, code, 8))) for book in range(8)]
    assert np.allclose(noise.numpy(), own, rtol=1e-4, atol=1e-9)
    assert torch.isfinite(noise).all()
    assert (noise < 0).all()


def test_largest_uniform_is_below_one() -> None:
    """With one more bit it would be 1 in float32, and its noise infinite."""
    top = (1 << NOISE_BITS) - 1
    assert np.float32(top + 0.5) * np.float32(2.0**-NOISE_BITS) < 1
    assert np.float32((top * 2 + 1) + 0.5) * np.float32(2.0 ** -(NOISE_BITS + 1)) == 1


def test_draws_follow_softmax_probabilities() -> None:
    """Gumbel-max over many positions reproduces the softmax probabilities."""
    count = 20_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(count, 1, 4).contiguous()
    ones = torch.ones(count)
    draw = Draw(ones, ones.long() * 4, ones, ones.long() * 11, 4, True)
    codes = choose_codes(logits, torch.arange(count), torch.ones(1).long(), draw)
    shares = torch.bincount(codes.view(-1), minlength=4) / count
    assert torch.allclose(shares, logits[0, 0].softmax(-1), atol=0.015)


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"), [(2, 1.0, {0, 1}), (4, 0.6, {0}), (4, 0.7, {0, 1})]
)
def test_top_k_and_top_p_keep_most_likely_codes(top_k: int, top_p: float, kept: set[int]) -> None:
    count = 5_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(count, 1, 4).contiguous()
    ones = torch.ones(count)
    # one greedy row of another width shows that each row keeps its own parameters
    wide = torch.full((count,), top_k)
    wide[0] = 1
    draw = Draw(ones, wide, ones * top_p, ones.long() * 5, 4, False)
    codes = choose_codes(logits, torch.arange(count), torch.ones(1).long(), draw)
    assert set(codes.view(-1).tolist()) == kept
    assert int(codes[0]) == 0


def _slow_choice(logits: np.ndarray, position: int, book: int, draw: tuple) -> tuple[int, float]:
    """One code by the definition, in float64, and its lead over the second best."""
    temperature, top_k, top_p, seed = draw
    order = sorted(range(len(logits)), key=lambda code: -logits[code])[:top_k]
    heat = np.array([logits[code] for code in order], np.float64) / temperature
    odds = np.exp(heat - heat[0])
    odds /= odds.sum()
    scores, before = [], 0.0
    for code, warm, share in zip(order, heat, odds, strict=True):
        if before < top_p:
            noise = -math.log(-math.log(float(uniform(seed, position, book, code, BOOKS))))
            scores.append((warm + noise, code))
        before += share
    scores.sort(reverse=True)
    return scores[0][1], scores[0][0] - scores[1][0] if len(scores) > 1 else 1.0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_choose_codes_matches_definition(data: st.DataObject) -> None:
    """Mixed batches: each row with its own temperature, top_k, top_p, seed and position."""
    one = st.tuples(
        st.floats(0.05, 2.0), st.integers(1, 12), st.floats(0.3, 1.0), st.integers(0, 2**63 - 1)
    )
    draws = data.draw(st.lists(one, min_size=1, max_size=4))
    positions = data.draw(st.lists(st.integers(0, 40_000), min_size=4, max_size=4))[: len(draws)]
    seed = data.draw(st.integers(0, 1000))
    logits = np.random.default_rng(seed).normal(0, 3, (len(draws), BOOKS, 12)).astype(np.float32)
    temperature, top_k, top_p, seeds = zip(*draws, strict=True)
    draw = Draw(
        torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p), torch.tensor(seeds),
        max(top_k), min(top_k) == max(top_k),
    )  # fmt: skip
    books = torch.arange(1, BOOKS + 1)
    got = choose_codes(torch.from_numpy(logits.copy()), torch.tensor(positions), books, draw)
    for row, (position, own) in enumerate(zip(positions, draws, strict=True)):
        for book in range(BOOKS):
            code, margin = _slow_choice(logits[row, book], position, book, own)
            if margin > 1e-4 and _is_clear(logits[row, book], own):
                assert int(got[row, book]) == code


def _is_clear(logits: np.ndarray, draw: tuple) -> bool:
    """Whether float32 rounding cannot move a code across the top_p threshold."""
    heat = np.sort(logits.astype(np.float64) / draw[0])[::-1][: draw[1]]
    odds = np.exp(heat - heat[0])
    before = np.cumsum(odds / odds.sum()) - odds / odds.sum()
    return bool(np.abs(before - draw[2]).min() > 1e-5)


def test_text_track_gives_each_frame_its_id_and_then_ends() -> None:
    track = TextTrack.of([(10, 5, 6, 7), (), (3, 8)])
    ids, has_ended = track.at(torch.tensor([11, 11, 3]), after=99)
    assert ids.tolist() == [6, 99, 8]
    assert has_ended.tolist() == [False, True, False]
    ids, has_ended = track.at(torch.tensor([13, 0, 4]), after=99)
    assert ids.tolist() == [99, 99, 99]
    assert has_ended.tolist() == [True, True, True]


def test_code_mask_marks_codes_of_first_frames_only() -> None:
    mask = CodeMask.of([(2, 0, 3), (), (1, 1)])
    marks = mask.marks(torch.tensor([1, 0, 1]), 4)
    assert marks.nonzero().tolist() == [[0, 0], [0, 3]]
    assert mask.marks(torch.tensor([2, 0, 0]), 4).nonzero().tolist() == [[2, 1]]
