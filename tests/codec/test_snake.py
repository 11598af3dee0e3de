"""Snake: the PyTorch form against the formula, and the choice of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from codec import snake
from codec.layer_ranges import Step
from codec.snake import Snake, use_kernel


@pytest.fixture(autouse=True)
def _no_kernel_stays() -> Iterator[None]:
    yield
    snake._kernel = None


def formula(
    x: Tensor, alpha: Tensor | None, ratio: Tensor | None, left: int = 0, right: int = 0
) -> Tensor:
    """The kernel's results, but for roundings; in place without ``alpha``."""
    u = (x if alpha is None else x * alpha).double()
    bent = u + u.sin().square() * (1 if ratio is None else ratio)
    if alpha is None:
        return x.copy_(bent)
    batch, length, channels = x.shape
    padded = torch.zeros(batch, left + length + right, channels)
    padded[:, left : left + length] = bent
    return padded


def kernel_of(compute: Callable[..., Tensor]) -> Any:
    calls: list[tuple[int, ...]] = []

    def counted(x: Tensor, *rest: Any) -> Tensor:
        calls.append(tuple(x.shape))
        return compute(x, *rest)

    return SimpleNamespace(fits=lambda x: x.shape[2] > 1, snake=counted, calls=calls)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (4, 0), (0, 3), (18, 18)])
def test_torch_form_equals_formula(learned: bool, left: int, right: int) -> None:
    dice = torch.Generator().manual_seed(1)
    x = 5 * torch.randn(2, 9, 6, generator=dice)
    alpha, beta = 0.2 + torch.rand(2, 6, generator=dice)
    layer = Snake(alpha, beta if learned else None)
    whole = x.double() + (alpha * x.double()).sin().square() / (beta if learned else alpha)
    padded = layer(x, Step(left, right, 0, 9))
    assert padded.shape == (2, left + 9 + right, 6)
    assert torch.allclose(padded[:, left : left + 9].double(), whole * alpha, atol=1e-5)
    assert not padded[:, :left].any()
    assert not padded[:, left + 9 :].any()
    u = x * alpha
    assert layer.bend(u) is u
    assert torch.allclose(u.double(), whole * alpha, atol=1e-5)


def test_kernel_with_equal_results_is_used() -> None:
    kernel = kernel_of(formula)
    assert use_kernel("cpu", lambda: kernel)
    proved = len(kernel.calls)
    assert proved >= 8
    layer = Snake(torch.rand(6) + 0.1)
    layer(torch.randn(2, 9, 6), Step(1, 0, 0, 9))
    layer.bend(torch.randn(2, 9, 6))
    assert kernel.calls[proved:] == [(2, 9, 6)] * 2
    Snake(torch.rand(1) + 0.1).bend(torch.randn(2, 9, 1))  # does not fit
    assert len(kernel.calls) == proved + 2


def without_padding(x: Tensor, alpha: Tensor | None, *rest: Any) -> Tensor:
    made = formula(x, alpha, *rest)
    return made if alpha is None else made.roll(1, 1)


def with_plain_ratio(x: Tensor, alpha: Tensor | None, ratio: Any, *rest: Any) -> Tensor:
    return formula(x, alpha, None, *rest)


def not_a_number(x: Tensor, alpha: Tensor | None, *rest: Any) -> Tensor:
    made = formula(x, alpha, *rest)
    made[0, -1] = torch.nan
    return made


def fails(*arguments: Any) -> Tensor:
    raise RuntimeError("no C compiler")


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (without_padding, "is off by"),
        (with_plain_ratio, "is off by"),
        (not_a_number, "is off by inf"),
        (fails, "no C compiler"),
    ],
)
def test_kernel_with_other_results_is_refused_with_one_warning(
    compute: Callable[..., Tensor], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not use_kernel("cpu", lambda: kernel_of(compute))
    assert len(caplog.records) == 1
    assert reason in caplog.text
    x = torch.randn(2, 9, 6)
    layer = Snake(torch.ones(6))
    assert torch.allclose(layer(x, Step(0, 0, 0, 9)), x + x.sin().square())


def test_machine_without_triton_gets_warning(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Any:
        raise ModuleNotFoundError("No module named 'triton'")

    assert not use_kernel("cpu", load)
    assert "triton" in caplog.text


def test_cpu_has_no_kernel(caplog: pytest.LogCaptureFixture) -> None:
    assert not use_kernel("cpu")
    assert not caplog.records
