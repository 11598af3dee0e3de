"""The fast AR as CUDA graphs: nine passes of some three hundred kernels each, launched as one.

Graphs are recorded for numbers of rows and widths of top-k that are powers of two. Those of the
checkpoint's own top-k are recorded before the first step, since all streams wait while one is
recorded; others when their size first occurs. All graphs read and write the same buffers, so a step
copies its rows in and the codes out; nothing waits for the device. Rows beyond a step's own are
computed and ignored.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from talker.families.fish_s2.fast_ar import ChooseCode, FastAR
from talker.frames import power_of_two
from talker.sampler import Draw, choose_codes

#: Records a function on the device, and returns its replay at the same addresses.
Record = Callable[[Callable[[], None]], Callable[[], None]]
#: Runs before a capture, since libraries choose their kernels and allocate in the first ones.
_WARM_UPS = 2


def record_cuda(work: Callable[[], None]) -> Callable[[], None]:
    """Record ``work`` on its own stream, and return its replay on the current one."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # other threads of the process may use the device meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


def drawing(positions: Tensor, draw: Draw, stride: int) -> ChooseCode:
    """Return the function that draws codes at ``positions`` ``[B]``; each codebook has its own
    noise.
    """

    def choose(logits: Tensor, book: int) -> Tensor:
        books = torch.full((1,), book + 1, device=logits.device)
        return choose_codes(logits[:, None], positions, books, draw, stride)[:, 0]

    return choose


class FrameGraphs:
    """``FastAR`` for up to ``most_rows`` rows of hidden states of ``like``'s type and device.

    ``stride``: see ``talker.noise.log_uniform``. ``usual_top_k``: the checkpoint's own, for which
    all graphs are recorded at once. ``record`` makes a graph on the device.
    """

    def __init__(
        self,
        fast: FastAR,
        most_rows: int,
        like: Tensor,
        stride: int,
        usual_top_k: int = 1,
        record: Record = record_cuda,
    ) -> None:
        self._fast, self._most, self._stride, self._record = fast, most_rows, stride, record
        device = like.device
        self._hidden = torch.zeros(most_rows, like.shape[1], dtype=like.dtype, device=device)
        self._semantic = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._draw = Draw(
            temperature=torch.ones(most_rows, device=device),
            top_k=torch.ones(most_rows, dtype=torch.int64, device=device),
            top_p=torch.ones(most_rows, device=device),
            seed=torch.zeros(most_rows, dtype=torch.int64, device=device),
            widest=1,
            same_width=False,
        )
        self._codes = torch.zeros(most_rows, fast.num_codebooks, dtype=torch.int64, device=device)
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}
        rows = 1
        while rows < 2 * most_rows:
            self._replay_of(rows, usual_top_k)
            rows *= 2

    def __call__(self, hidden: Tensor, semantic: Tensor, positions: Tensor, draw: Draw) -> Tensor:
        """Return codes ``[B, K]`` for hidden states ``[B, D]`` and semantic codes ``[B]``."""
        rows = hidden.shape[0]
        mine = self._draw
        for buffer, value in (
            (self._hidden, hidden),
            (self._semantic, semantic),
            (self._positions, positions),
            (mine.temperature, draw.temperature),
            (mine.top_k, draw.top_k),
            (mine.top_p, draw.top_p),
            (mine.seed, draw.seed),
        ):
            buffer[:rows].copy_(value)
        self._replay_of(rows, draw.widest)()
        return self._codes[:rows].clone()  # the next step overwrites the buffer

    def _replay_of(self, rows: int, widest: int) -> Callable[[], None]:
        """Return the graph for so many rows and so wide a top-k. It is recorded if necessary."""
        size = min(power_of_two(rows), self._most), power_of_two(widest)
        if size not in self._replays:
            self._replays[size] = self._record(self._work(*size))
        return self._replays[size]

    def _work(self, rows: int, widest: int) -> Callable[[], None]:
        mine = self._draw
        draw = Draw(
            mine.temperature[:rows],
            mine.top_k[:rows],
            mine.top_p[:rows],
            mine.seed[:rows],
            widest,
            same_width=False,
        )
        choose = drawing(self._positions[:rows], draw, self._stride)

        def work() -> None:
            codes = self._fast(self._hidden[:rows], self._semantic[:rows], choose)
            self._codes[:rows].copy_(codes)

        return work
