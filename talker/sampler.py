"""One sampling step: logits of all requests in, one row of codes per request out.

``RowSampler`` has what all families share: ids, the frame table and the output format. A subclass
draws the rows: ``DelayedRowSampler`` for families in the delay pattern.

The delay pattern, for four codebooks and a text that takes three frames ``a b c``; ``.`` is BOC,
``#`` is EOC, ``?`` is a code that belongs to no frame and is never decoded::

    row         0  1  2  3  4  5  6
    codebook 0  a  b  c  #  #  #  #
    codebook 1  .  a  b  c  ?  #  #
    codebook 2  .  .  a  b  c  ?  #
    codebook 3  .  .  .  a  b  c  ?
    started     1  2  3  4  4  4  4     codebooks that have started, including this row
    over        0  0  0  1  2  3  4     codebooks that have ended; at 4 the stream ends

From the row with the first EOC on, one more codebook ends in each row. The row that ends this ramp
carries the stop id in place of a frame id, so no extra step is needed.

A reference clip has EOC in the places of ``?`` (``streaming.delay.apply_delay``). Here a code is
drawn, as vLLM-Omni does for Higgs Audio v3. The embedded voice was trained on its own rows with
such codes (``training/scripts.py``), so it is fed rows like those of its training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from talker.families.delayed import DelayedShape
from talker.frames import FRAME_BASE, FRAME_SPAN, FrameTable, LookBack
from talker.noise import log_uniform

#: Key of a request's repetition-aware sampling in vLLM's ``SamplingParams.extra_args``: its window
#: and the maximum count of a code.
RAS_KEY = "talkwire_ras"
#: Key of the text that goes with a request's frames, in ``SamplingParams.extra_args``: the position
#: at which the frame with the first id is drawn, and the ids.
TRACK_KEY = "talkwire_track"
#: Key of the codes that a stream does not begin with: the number of its first frames that leave
#: them out, and the codes.
MASK_KEY = "talkwire_mask"
#: Mixed into a seed, so that the second draw has different noise.
REPETITION_MARK = 0x2545F4914F6CDD1D
#: In a CodeMask: no code.
NO_CODE = -1


@dataclass(frozen=True, slots=True)
class Repetition:
    """Repetition-aware sampling of each row of a batch; tensors are ``[B]``.

    A code that occurs ``max_repeat`` times or more among the last ``window`` codes of its codebook
    is drawn again. A window of 0 turns this off; no window exceeds the table's look-back. Rows
    before the stream's first are not counted.
    """

    window: Tensor
    max_repeat: Tensor

    def repeats(self, recent: Tensor, codes: Tensor) -> Tensor:
        """Mark the ``codes`` ``[B, K]`` that repeat, ``[B, K]`` bool; ``recent`` ``[B, W, K]`` are
        the rows before, newest first.
        """
        ages = torch.arange(recent.shape[1], device=codes.device)
        is_near = (ages < self.window[:, None])[..., None]
        return ((recent == codes[:, None]) & is_near).sum(1) >= self.max_repeat[:, None]


@dataclass(frozen=True, slots=True)
class TextTrack:
    """The text that goes into the model beside the frames of each row of a batch.

    ``first`` ``[B]`` is the position at which the frame is drawn that goes with the first of
    ``ids`` ``[B, L]``, of which ``count`` ``[B]`` are the row's own. After them the text has ended.
    """

    first: Tensor
    ids: Tensor
    count: Tensor

    @classmethod
    def of(cls, given: Sequence[Sequence[int]]) -> TextTrack:
        """Return the tracks of a batch, each the position and the ids; empty: it has none."""
        count = [max(0, len(one) - 1) for one in given]
        width = max(1, *count)
        padded = [[*one[1:], *[0] * (width - n)] for one, n in zip(given, count, strict=True)]
        first = [one[0] if one else 0 for one in given]
        return cls(torch.tensor(first), torch.tensor(padded), torch.tensor(count))

    def at(self, positions: Tensor, after: int) -> tuple[Tensor, Tensor]:
        """Return the ids ``[B]`` of the frames drawn at ``positions`` ``[B]``, ``after`` if the
        text has ended, and whether it has, ``[B]``.
        """
        place = positions - self.first
        has_ended = place >= self.count
        ids = self.ids.gather(1, place.clamp(0, self.ids.shape[1] - 1)[:, None]).squeeze(1)
        return ids.masked_fill(has_ended, after), has_ended


@dataclass(frozen=True, slots=True)
class CodeMask:
    """Codes of the first codebook that are left out in the first frames of each row's stream.

    ``frames`` ``[B]`` is the number of these frames, ``codes`` ``[B, L]`` the codes, NO_CODE after
    a row's own.
    """

    frames: Tensor
    codes: Tensor

    @classmethod
    def of(cls, given: Sequence[Sequence[int]]) -> CodeMask:
        """Return the masks of a batch, each the number of frames and the codes; empty: none."""
        width = max(1, *(len(one) - 1 for one in given))
        padded = [[*one[1:], *[NO_CODE] * (width - len(one[1:]))] for one in given]
        return cls(torch.tensor([one[0] if one else 0 for one in given]), torch.tensor(padded))

    def marks(self, made: Tensor, size: int) -> Tensor:
        """Mark the codes ``[B, size]`` that streams with ``made`` ``[B]`` frames leave out."""
        marks = torch.zeros(len(made), size + 1, dtype=torch.bool, device=made.device)
        marks.scatter_(1, torch.where(self.codes < 0, size, self.codes), True)
        return marks[:, :size] & (made < self.frames)[:, None]


@dataclass(frozen=True, slots=True)
class Draw:
    """Sampling parameters of each row of a batch; tensors are ``[B]``.

    A greedy row has ``top_k`` 1 and any temperature but 0. Two values known to the host save work
    on the device: the widest ``top_k``, and whether all are equal. ``repetition`` is for a sampler
    whose table looks back; None turns it off for all rows. ``track``: None if the text of all rows
    is in their prompts. ``mask``: None if no row leaves out codes.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    widest: int
    same_width: bool
    repetition: Repetition | None = None
    track: TextTrack | None = None
    mask: CodeMask | None = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> Draw:
        """Return a copy with ``move`` applied to each tensor."""
        repetition = self.repetition
        if repetition is not None:
            repetition = Repetition(move(repetition.window), move(repetition.max_repeat))
        track = self.track
        if track is not None:
            track = TextTrack(move(track.first), move(track.ids), move(track.count))
        mask = self.mask
        if mask is not None:
            mask = CodeMask(move(mask.frames), move(mask.codes))
        return replace(
            self,
            temperature=move(self.temperature),
            top_k=move(self.top_k),
            top_p=move(self.top_p),
            seed=move(self.seed),
            repetition=repetition,
            track=track,
            mask=mask,
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows of a step: ``codes`` ``[B, K]``, the states after them ``[B, S]``, and whether each is
    the last of its stream ``[B]``.
    """

    codes: Tensor
    states: Tensor
    is_over: Tensor


class RowSampler(nn.Module):
    """Draws rows and stores them in the frame table.

    The counter behind frame ids is on the device and advances by the batch size in every step, so
    it is equal on all ranks of a tensor-parallel group. No step depends on a number that the host
    would have to know, so a step can be captured as a CUDA graph.

    On a GPU the number of kernel launches limits a step. This implementation runs on CPUs and
    defines the results; ``python -m benchmarks.step_launches`` counts its kernels.
    """

    counter: Tensor

    books: Tensor
    indices: Tensor
    offsets: Tensor
    lost_codes: Tensor
    broken_codes: Tensor

    def __init__(self, table: FrameTable, codebook_rows: int, stop: int) -> None:
        super().__init__()
        self.table = table
        self.num_codebooks = table.num_codebooks
        self.codebook_rows = codebook_rows
        self.stop = stop
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64), persistent=False)
        books = torch.arange(1, self.num_codebooks + 1)
        self.register_buffer("books", books, persistent=False)
        self.register_buffer("indices", books - 1, persistent=False)
        self.register_buffer("offsets", (books - 1) * codebook_rows, persistent=False)
        self.register_buffer("lost_codes", self.lost_row + books - 1, persistent=False)
        self.register_buffer("broken_codes", self.broken_row + books - 1, persistent=False)

    @property
    def lost_row(self) -> int:
        """The first code that no codebook has. A row that starts with it (offsets included) reports
        that the request's frames are no longer in the table.
        """
        return self.num_codebooks * self.codebook_rows

    @property
    def broken_row(self) -> int:
        """The first code of a row (offsets included) that reports logits which are not finite."""
        return self.lost_row + self.num_codebooks

    def step(
        self, logits: Tensor, last_ids: Tensor, positions: Tensor, lost: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor]:
        """Draw one row per request.

        ``logits`` ``[B, ...]`` may be changed. ``last_ids`` and ``positions`` ``[B]`` are the input
        id that the logits belong to and its position; ``lost`` ``[B]`` marks requests whose input
        met a stale frame. Returns ids ``[B]`` and offset codes ``[B, K]`` int32: codebook k's code
        plus ``k * codebook_rows``, so that all codes of a row differ. A request that is lost, or
        whose logits are broken, gets the stop id, and codes that report it.
        """
        batch = logits.shape[0]
        broken = self.find_broken(logits)
        before = None
        if self.table.look_back_rows:
            before = self.table.look_back(last_ids)
            lost = lost | before.is_lost
        states = self.table.states(last_ids)
        drawn = self.draw_rows(logits, states, before, positions, draw)

        counters = self._count(batch)
        self.table.write(counters, drawn.codes, drawn.states, before)

        ids = counters + FRAME_BASE
        ids.masked_fill_(lost | broken | drawn.is_over, self.stop)
        codes = torch.where(broken[:, None], self.broken_codes, drawn.codes + self.offsets)
        codes = torch.where(lost[:, None], self.lost_codes, codes)
        return ids, codes.to(torch.int32)

    def find_broken(self, logits: Tensor) -> Tensor:
        """Mark the rows ``[B]`` that no code can be drawn from: one of the logits is not a number
        or infinite, or all are minus infinity. Minus infinity alone excludes a code.
        """
        return ~logits.flatten(1).amax(1).isfinite()

    def _count(self, batch: int) -> Tensor:
        """The counters of the step's rows, ``[B]``; they wrap before an id would exceed int32."""
        first = self.counter.masked_fill(self.counter > FRAME_SPAN - batch, 0)
        counters = torch.arange(batch, device=first.device) + first
        self.counter.copy_(first + batch)
        return counters

    def draw_rows(
        self,
        logits: Tensor,
        states: Tensor,
        before: LookBack | None,
        positions: Tensor,
        draw: Draw,
    ) -> Drawn:
        """Draw the rows of a step. ``states`` ``[B, S]`` are those after the previous rows;
        ``before`` are these rows themselves, for a table that looks back.
        """
        raise NotImplementedError


class DelayedRowSampler(RowSampler):
    """Draws rows of the delay pattern. ``logits`` are ``[B, K * codebook_rows]``.

    Each of the first ``end_codebooks`` codebooks may draw EOC. All codebooks below it then end in
    the same row; if several draw EOC, the last one counts. In the ramp none draws it again, so no
    frame that is played holds a special code. With a table that looks back, repeated codes are
    drawn again if their request asks for it.
    """

    def __init__(
        self,
        table: FrameTable,
        codebook_rows: int,
        boc: int,
        eoc: int,
        stop: int,
        end_codebooks: int = 1,
    ) -> None:
        super().__init__(table, codebook_rows, stop)
        if not 1 <= end_codebooks <= self.num_codebooks:
            raise ValueError(f"end_codebooks must be from 1 to {self.num_codebooks}")
        self.boc = boc
        self.eoc = eoc
        self.end_codebooks = end_codebooks

    @classmethod
    def from_rules(
        cls, n_slots: int, shape: DelayedShape, rules: Mapping[str, Any]
    ) -> DelayedRowSampler:
        """Create a sampler with its own table. ``rules``: ``end_codebooks``, and for
        repetition-aware sampling ``look_back``, the longest window.
        """
        assert shape.stop_id is not None
        table = FrameTable(n_slots, shape.num_codebooks, look_back=rules.get("look_back", 0))
        return cls(
            table,
            shape.codebook_rows,
            shape.boc,
            shape.eoc,
            shape.stop_id,
            rules.get("end_codebooks", 1),
        )

    def find_broken(self, logits: Tensor) -> Tensor:
        """See RowSampler. One codebook without logits is enough."""
        highest = logits.view(len(logits), self.num_codebooks, self.codebook_rows).amax(2)
        return ~highest.isfinite().all(1)

    def draw_rows(
        self,
        logits: Tensor,
        states: Tensor,
        before: LookBack | None,
        positions: Tensor,
        draw: Draw,
    ) -> Drawn:
        """See RowSampler. A state is the number of codebooks beyond the first that have started,
        and the number of those that have ended.
        """
        batch = logits.shape[0]
        started = states[:, :1]
        over = states[:, 1:]
        logits = logits.view(batch, self.num_codebooks, self.codebook_rows).float()
        # assigned in place: the logits may be changed
        logits[:, :, self.boc] = float("-inf")
        logits[:, self.end_codebooks :, self.eoc] = float("-inf")
        if self.end_codebooks > 1:  # in the ramp the codebooks that go on speak their last frames
            logits[:, :, self.eoc].masked_fill_(over > 0, float("-inf"))
        codes = choose_codes(logits, positions, self.books, draw)
        if before is not None and draw.repetition is not None:
            again = draw.repetition.repeats(before.codes, codes) & (codes < self.boc)
            codes = draw_again(logits, codes, again, positions, self.books, draw.seed)
        codes.masked_fill_(self.indices > started, self.boc)
        if self.end_codebooks > 1:
            reached = torch.where(codes == self.eoc, self.books, 0).amax(1, keepdim=True)
            over_after = torch.where(over > 0, (over + 1).clamp_(max=self.num_codebooks), reached)
            codes.masked_fill_(self.books <= torch.where(over > 0, over, reached), self.eoc)
            after = torch.cat([(started + 1).clamp_(max=self.num_codebooks), over_after], 1)
        else:
            codes.masked_fill_(self.books <= over, self.eoc)
            after = next_state(codes, states, self.eoc)
        return Drawn(codes, after, after[:, 1] == self.num_codebooks)


def draw_again(
    logits: Tensor, codes: Tensor, again: Tensor, positions: Tensor, books: Tensor, seed: Tensor
) -> Tensor:
    """Return ``codes`` ``[B, K]``, drawn from ``logits`` ``[B, K, V]``, with those marked in
    ``again`` ``[B, K]`` drawn again from all allowed codes (no top-k, no top-p) at temperature 1.

    The second draw has its own noise from the same seed, so it makes greedy speech reproducible
    too. On a CPU it is skipped if nothing repeats. On a GPU this test would wait for the device.
    """
    if not logits.is_cuda and not again.any():
        return codes
    every = torch.arange(logits.shape[-1], device=codes.device).expand_as(logits)
    noise = log_uniform(seed ^ REPETITION_MARK, positions, books, every)
    return torch.where(again, logits.softmax(-1).div_(noise).argmin(-1), codes)


def choose_codes(
    logits: Tensor, positions: Tensor, books: Tensor, draw: Draw, stride: int | None = None
) -> Tensor:
    """Draw codes ``[B, K]`` from logits ``[B, K, V]`` by top-k, top-p and Gumbel-max. ``stride``:
    see ``log_uniform``.

    Noise is computed only for the candidates that top-k leaves. The largest
    ``log(probability) + gumbel`` is the smallest ``probability / log(uniform)``, which takes two
    logarithms less, and a probability of 0 excludes a code.
    """
    if draw.widest == 1:
        return logits.argmax(-1)
    width = min(draw.widest, logits.shape[-1])
    value, code = logits.topk(width, -1)  # sorted: top-p reads the order
    value.div_(draw.temperature[:, None, None])
    if not draw.same_width:
        rank = torch.arange(width, device=logits.device)
        value.masked_fill_(rank >= draw.top_k[:, None, None], float("-inf"))
    chance = value.softmax(-1)
    ahead = chance.cumsum(-1).sub_(chance)
    chance.masked_fill_(ahead >= draw.top_p[:, None, None], 0.0)
    noise = log_uniform(draw.seed, positions, books, code, stride)
    best = chance.div_(noise).argmin(-1, keepdim=True)
    return code.gather(-1, best).squeeze(-1)


def draw_of(params: Sequence[Any], codebook_rows: int, watches_repetition: bool) -> Draw:
    """Read the sampling parameters of a batch from its requests' own SamplingParams, on a CPU.

    They are not read from the runner's metadata, since V1's clips top-k to the *text* vocabulary,
    which is smaller than a codebook in small checkpoints. V2's warm-up requests have neither a
    top-k nor a seed: they draw from all codes, with any seed.
    """
    # vLLM drops top_k if the temperature is 0; such a row needs only its best code
    top_k = [(p.top_k if p.top_k > 0 else codebook_rows) if p.temperature else 1 for p in params]
    repetition = None
    if watches_repetition:
        given = [(p.extra_args or {}).get(RAS_KEY, (0, 1)) for p in params]
        # contiguous, as a kernel reads them
        repetition = Repetition(*torch.tensor(given).T.contiguous().unbind(0))
    tracks = [(p.extra_args or {}).get(TRACK_KEY, ()) for p in params]
    masks = [(p.extra_args or {}).get(MASK_KEY, ()) for p in params]
    return Draw(
        temperature=torch.tensor([p.temperature or 1.0 for p in params]),
        top_k=torch.tensor(top_k),
        top_p=torch.tensor([p.top_p for p in params]),
        seed=torch.tensor([p.seed or 0 for p in params]),
        widest=max(top_k),
        same_width=min(top_k) == max(top_k),
        repetition=repetition,
        track=TextTrack.of(tracks) if any(tracks) else None,
        mask=CodeMask.of(masks) if any(masks) else None,
    )


def next_state(codes: Tensor, before: Tensor, eoc: int) -> Tensor:
    """Return the state ``[B, 2]`` after the row ``codes`` ``[B, K]``: the number of codebooks
    beyond the first that have started, and of those that have ended, one more if codebook 0 has
    EOC.
    """
    more = torch.stack([torch.ones_like(codes[:, 0]), codes[:, 0] == eoc], 1)
    return more.add_(before).clamp_(max=codes.shape[1])
