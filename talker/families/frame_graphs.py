"""The fast AR as CUDA graphs: a pass for each codebook, of hundreds of kernels, launched as one.

Graphs are recorded for numbers of rows that are powers of two, before the first step, since all
streams wait while one is recorded. Their top-k has one width, so that no request can cause another
recording. All graphs read and write the same buffers, so a step copies its rows in and the codes
out; nothing waits for the device. Rows beyond a step's own are computed and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from talker.families.fast_ar import ChooseCode, FastAR
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


def narrowed(draw: Draw, width: int) -> Draw:
    """Return ``draw`` with no ``top_k`` above ``width``."""
    return replace(draw, top_k=draw.top_k.clamp(max=width), widest=min(draw.widest, width))


class FrameGraphs:
    """``FastAR`` for up to ``max_rows`` rows of hidden states of ``like``'s type and device.

    ``stride``: see ``talker.noise.log_uniform``. ``width``: the greatest ``top_k`` of any row.
    ``record`` makes a graph on the device.
    """

    def __init__(
        self,
        fast: FastAR,
        max_rows: int,
        like: Tensor,
        stride: int,
        width: int,
        record: Record = record_cuda,
    ) -> None:
        self._fast = fast
        self._max_rows = max_rows
        self._stride = stride
        self._width = width
        #: Records a graph on the device.
        self._record = record
        device = like.device
        # the graphs' inputs, at fixed addresses
        self._hidden = torch.zeros(max_rows, like.shape[1], dtype=like.dtype, device=device)
        self._first = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._draw = Draw(
            temperature=torch.ones(max_rows, device=device),
            top_k=torch.ones(max_rows, dtype=torch.int64, device=device),
            top_p=torch.ones(max_rows, device=device),
            seed=torch.zeros(max_rows, dtype=torch.int64, device=device),
            widest=1,
            same_width=False,
        )
        #: The graphs' output.
        self._codes = torch.zeros(max_rows, fast.num_codebooks, dtype=torch.int64, device=device)
        #: Graphs by number of rows.
        self._replays: dict[int, Callable[[], None]] = {}
        rows = 1
        while rows < 2 * max_rows:
            size = min(rows, max_rows)
            self._replays[size] = self._record(self._work(size))
            rows *= 2

    def __call__(self, hidden: Tensor, first: Tensor, positions: Tensor, draw: Draw) -> Tensor:
        """Return codes ``[B, K]`` for hidden states ``[B, D]`` and first codes ``[B]``."""
        rows = hidden.shape[0]
        buffers = self._draw
        for buffer, value in (
            (self._hidden, hidden),
            (self._first, first),
            (self._positions, positions),
            (buffers.temperature, draw.temperature),
            (buffers.top_k, draw.top_k),
            (buffers.top_p, draw.top_p),
            (buffers.seed, draw.seed),
        ):
            buffer[:rows].copy_(value)
        self._replays[min(power_of_two(rows), self._max_rows)]()
        return self._codes[:rows].clone()  # the next step overwrites the buffer

    def _work(self, rows: int) -> Callable[[], None]:
        buffers = self._draw
        draw = Draw(
            buffers.temperature[:rows],
            buffers.top_k[:rows],
            buffers.top_p[:rows],
            buffers.seed[:rows],
            self._width,
            same_width=False,
        )
        choose = drawing(self._positions[:rows], draw, self._stride)

        def work() -> None:
            codes = self._fast(self._hidden[:rows], self._first[:rows], choose)
            self._codes[:rows].copy_(codes)

        return work


class FrameDrawer:
    """Draws the frames of a sampler's rows.

    Args:
        fast: Draws all codes but the first.
        stride: See ``talker.noise.log_uniform``.
        width: The greatest ``top_k`` of any row.
        max_rows: On a GPU ``fast`` runs as CUDA graphs, for up to that many rows; 0: never.
        uses_kernels: Whether Triton kernels run its layers, if they can.
    """

    def __init__(
        self, fast: FastAR, stride: int, width: int, max_rows: int, *, uses_kernels: bool
    ) -> None:
        self._fast = fast
        self._stride = stride
        self._width = width
        self._max_rows = max_rows
        self._uses_kernels = uses_kernels
        self._has_begun = False
        self._graphs: FrameGraphs | None = None

    def __call__(self, hidden: Tensor, first: Tensor, positions: Tensor, draw: Draw) -> Tensor:
        """Return codes ``[B, K]`` for hidden states ``[B, D]`` and first codes ``[B]``."""
        if not self._has_begun:
            self._has_begun = True
            self._begin(hidden)
        if self._graphs is not None:
            return self._graphs(hidden, first, positions, draw)
        codes: Tensor = self._fast(hidden, first, drawing(positions, draw, self._stride))
        return codes

    def _begin(self, hidden: Tensor) -> None:
        """Choose the kernels and record the graphs, in vLLM's first step, before any stream's."""
        if self._uses_kernels:
            # vLLM, which knows whether Triton can be used, takes seconds to be imported
            from talker.fast_ar_kernels import adopt

            adopt(self._fast, hidden)
        if self._max_rows and hidden.is_cuda:
            self._graphs = FrameGraphs(
                self._fast, self._max_rows, hidden, self._stride, self._width
            )
