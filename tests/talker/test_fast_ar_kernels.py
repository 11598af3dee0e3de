"""The fast AR's Triton kernels, in Triton's interpreter, against its PyTorch form.

They need Triton, which is not in the project's environment: ``make test-v2`` runs them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton's interpreter: make test-v2", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter

from talker import fast_ar_kernels
from talker.checkpoint import open_checkpoint
from talker.families.fast_ar import FastAR
from talker.families.fish_s2 import FishS2Shape
from talker.families.fish_s2.fast_ar import FishFastAR
from talker.families.frame_graphs import FrameDrawer
from talker.families.qwen3_tts import Qwen3TTSShape
from talker.families.qwen3_tts.predictor import CodePredictor
from talker.fast_ar_kernels import adopt, fits, run_layers
from talker.frames import RowEmbedding
from talker.sampler import Draw
from talker.shape import BackboneShape
from tests.talker import tiny_fish, tiny_qwen3_tts

CODES = 40


class Books(FastAR):
    """A fast AR with a table and a head; ``width`` is the slow AR's, narrowed if it differs."""

    def __init__(
        self,
        part: BackboneShape,
        books: int,
        rows: int,
        dtype: torch.dtype,
        width: int,
        norms: bool,
    ) -> None:
        super().__init__(part, books, rows, dtype, qk_norms=norms, rounds_angles=norms)
        self.table = nn.Embedding(CODES, width)
        self.head = nn.Linear(part.hidden_size, CODES)
        self.project: nn.Module = nn.Identity()
        if width != part.hidden_size:
            self.project = nn.Linear(width, part.hidden_size)

    def embed(self, codes: Tensor, book: int) -> Tensor:
        return self.table(codes).roll(book, -1)

    def narrow(self, x: Tensor) -> Tensor:
        return self.project(x)

    def logits(self, x: Tensor, book: int) -> Tensor:
        return self.head(x).roll(book, -1)


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    size: int
    norms: bool
    #: The slow AR's width beside the layers' 48.
    width: int
    books: int
    rows: int
    dtype: torch.dtype

    def make(self) -> FastAR:
        part = BackboneShape(
            vocab_size=CODES,
            hidden_size=48,
            intermediate_size=1100,
            num_layers=2,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.size,
            max_positions=self.books,
            rope_theta=1e4,
            rms_norm_eps=1e-6,
        )
        fast = Books(part, self.books, self.rows + 1, self.dtype, self.width, self.norms)
        return random(fast.to(self.dtype))


def random(fast: FastAR, seed: int = 0) -> FastAR:
    """Draw weights of the size at which each layer changes its input about as much as it keeps."""
    dice = torch.Generator().manual_seed(seed)
    for name, weight in fast.named_parameters():
        drawn = torch.randn(weight.shape, generator=dice)
        drawn = 1 + 0.3 * drawn if "norm" in name else drawn * weight.shape[-1] ** -0.5
        weight.data = drawn.to(weight.dtype)
    # RoPE's tables stay in float32, as in a model that is made in its type
    fast.cos, fast.sin = fast.cos.float(), fast.sin.float()
    return fast.eval()


@pytest.fixture(autouse=True)
def rounds_to_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts float32 off where a GPU rounds it."""
    convert = interpreter._convert_float

    def rounded(data: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(data, source, target, mode)
        floats = torch.from_numpy(data.view(np.float32).copy())
        return floats.bfloat16().view(torch.uint16).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)


FLOAT, HALF = torch.float32, torch.bfloat16
#: Both ways to share keys, with and without norms of queries and keys, and a projection.
CASES = [
    Case(4, 2, 64, norms=True, width=48, books=5, rows=3, dtype=FLOAT),
    Case(4, 1, 64, norms=False, width=56, books=4, rows=1, dtype=FLOAT),
    Case(2, 2, 128, norms=True, width=56, books=16, rows=1, dtype=FLOAT),
    Case(4, 2, 128, norms=False, width=48, books=5, rows=1, dtype=FLOAT),
    Case(2, 1, 32, norms=True, width=48, books=3, rows=16, dtype=FLOAT),
    Case(4, 2, 64, norms=True, width=56, books=4, rows=3, dtype=HALF),
    Case(4, 2, 128, norms=False, width=48, books=10, rows=1, dtype=HALF),
    Case(2, 1, 32, norms=True, width=48, books=3, rows=16, dtype=HALF),
]


def frame(fast: FastAR, hidden: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The logits ``[K - 1, B, V]`` of a frame that is fed ``codes``, and the cache after it."""
    seen = []

    def choose(logits: Tensor, book: int) -> Tensor:
        seen.append(logits)
        return codes[:, book]

    fast.cache.fill_(float("nan"))  # what is not yet written must not be read
    fast(hidden, codes[:, 0], choose)
    return torch.stack(seen), fast.cache.clone()


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_match_torch_at_every_position(case: Case) -> None:
    fast = case.make()
    assert fits(fast)
    dice = torch.Generator().manual_seed(1)
    hidden = torch.randn(case.rows, case.width, generator=dice).to(case.dtype)
    codes = torch.randint(CODES, (case.rows, case.books), generator=dice)
    wanted, cache = frame(fast, hidden, codes)
    fast.kernels = run_layers
    found, kept = frame(fast, hidden, codes)
    # float32 sums in another order; in bfloat16 each rounding may fall to the other side
    error = 2e-5 if case.dtype is FLOAT else 0.04
    assert wanted.std() > 0.1
    assert torch.allclose(found, wanted, rtol=error, atol=error)
    assert torch.allclose(kept, cache, rtol=error, atol=error, equal_nan=True)
    # of the rows that are not run nothing is written, and of the others everything
    assert kept[:, :, -1].isnan().all()
    assert not kept[:, :, :-1].isnan().any()


def fish(folder: Path) -> tuple[FastAR, int]:
    shape = open_checkpoint(str(tiny_fish.write_checkpoint(folder))).shape
    assert isinstance(shape, FishS2Shape)
    return random(FishFastAR(shape, 4, FLOAT)), shape.backbone.hidden_size


def qwen(folder: Path, width: int) -> tuple[FastAR, int]:
    shape = open_checkpoint(str(tiny_qwen3_tts.write_checkpoint(folder, width=width))).shape
    assert isinstance(shape, Qwen3TTSShape)
    tables = RowEmbedding(shape.num_codebooks, shape.codebook_rows, width)
    return random(CodePredictor(shape, tables, 4, FLOAT)), width


FAMILIES: dict[str, Callable[[Path], tuple[FastAR, int]]] = {
    "fish": fish,
    "qwen": lambda folder: qwen(folder, 64),
    "qwen without projection": lambda folder: qwen(folder, 48),
}


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_frames_of_both_families_have_codes_of_torch(tmp_path: Path, family: str) -> None:
    """Greedy and sampled rows, drawn as the samplers do."""
    fast, width = FAMILIES[family](tmp_path)
    rows = 3
    dice = torch.Generator().manual_seed(2)
    draw = Draw(
        temperature=torch.tensor([1.0, 0.9, 0.7]),
        top_k=torch.tensor([1, 20, 50]),
        top_p=torch.tensor([1.0, 1.0, 0.8]),
        seed=torch.tensor([0, 5, 6]),
        widest=50,
        same_width=False,
    )
    hidden = torch.randn(rows, width, generator=dice)
    first = torch.randint(tiny_fish.SIZE, (rows,), generator=dice)
    given = hidden, first, torch.arange(rows), draw
    plain, fused = (
        FrameDrawer(fast, fast.num_codebooks, 50, 0, uses_kernels=uses) for uses in (False, True)
    )
    wanted = plain(*given)
    assert fast.kernels is None
    assert torch.equal(fused(*given), wanted)
    assert fast.kernels is run_layers
    assert len(wanted.unique()) > fast.num_codebooks


def spoilt(name: str, spoil: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace a launch by ``spoil``, which is called with it and with its arguments."""
    right = getattr(fast_ar_kernels, name)

    def wrong(*given: Any) -> Any:
        return spoil(right, *given)

    return lambda patch: patch.setattr(fast_ar_kernels, name, wrong)


def fail(*given: Any) -> Any:
    raise RuntimeError("no such instruction")


def forget_residual(right: Any, x: Tensor, added: Tensor | None, *rest: Any) -> Any:
    return right(x if added is None else added, None, *rest)


def turn_too_far(right: Any, fast: FastAR, layer: Any, fused: Tensor, *rest: Any) -> Any:
    cache, at, count = rest
    return right(fast, layer, fused, cache, min(at + 1, fast.num_codebooks - count), count)


def keep_no_keys(right: Any, fast: FastAR, layer: Any, fused: Tensor, *rest: Any) -> Any:
    cache, *where = rest
    return right(fast, layer, fused, cache.clone(), *where)


#: What a wrong kernel may do.
SPOILT = {
    "norm forgets residual": spoilt("_add_norm", forget_residual),
    "norm drops weight": spoilt(
        "_add_norm", lambda right, x, added, weight, eps: right(x, added, weight * 0 + 1, eps)
    ),
    "attention turns too far": spoilt("_attend", turn_too_far),
    "attention keeps no keys": spoilt("_attend", keep_no_keys),
    "gate and product swapped": spoilt("_gate", lambda right, x: right(x.roll(x.shape[1] // 2, 1))),
    "one value not a number": spoilt(
        "_gate", lambda right, x: right(x).index_fill(1, torch.tensor([3]), float("nan"))
    ),
    "last row wrong": spoilt(
        "_gate", lambda right, x: right(x).index_fill(0, torch.tensor([x.shape[0] - 1]), 0.0)
    ),
    "launch fails": spoilt("_gate", fail),
}


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
@pytest.mark.parametrize("what", SPOILT)
def test_spoilt_kernel_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str, dtype: torch.dtype
) -> None:
    fast = Case(2, 1, 32, norms=True, width=48, books=4, rows=2, dtype=dtype).make()
    SPOILT[what](monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert not adopt(fast, torch.empty(1, 48, dtype=dtype))
    assert fast.kernels is None
    assert [record.name for record in caplog.records] == ["talker.fast_ar_kernels"]


@pytest.mark.parametrize(
    "change", [{"head_dim": 48}, {"head_dim": 8}, {"hidden_size": 1 << 15}, {"num_kv_heads": 3}]
)
def test_kernels_refuse_other_shapes(change: dict[str, int]) -> None:
    fast = CASES[0].make()
    fast.part = replace(fast.part, **change)
    assert not fits(fast)
    assert not adopt(fast, torch.empty(1, 48))
    assert fast.kernels is None
