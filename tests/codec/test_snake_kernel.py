"""The Snake kernel in Triton's interpreter, against the PyTorch form.

It needs Triton, which is not in the project's environment: ``make test-v2`` runs it, and compiles
the kernel for a GPU (tests/talker/test_step_kernels.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton's interpreter: make test-v2", allow_module_level=True)

from codec import layers, snake, snake_kernel
from codec.families.fish.config import decoder_shapes as fish_shapes
from codec.families.fish.decoder import FishDecoder
from codec.families.qwen3_tts.config import decoder_shapes as qwen3_tts_shapes
from codec.families.qwen3_tts.decoder import Qwen3TTSDecoder
from codec.layer_ranges import Step
from codec.snake import Snake, use_kernel
from tests.codec import fish_checkpoint, qwen3_tts_checkpoint


@pytest.fixture(autouse=True)
def _no_kernel_stays() -> Iterator[None]:
    yield
    snake._kernel = None


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 6), (3, 61, 48), (1, 3, 1536), (2, 1024, 1)])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (5, 0), (0, 2), (27, 54)])
@pytest.mark.parametrize("learned", [False, True])
def test_kernel_equals_torch_form(
    shape: tuple[int, int, int], left: int, right: int, learned: bool
) -> None:
    dice = torch.Generator().manual_seed(sum(shape))
    x = 30 * torch.randn(shape, generator=dice)
    x[0, 0] = 0.0
    alpha, beta = 0.01 + 4 * torch.rand(2, shape[2], generator=dice)
    form = Snake(alpha, beta if learned else None)
    step = Step(left, right, 0, shape[1])
    before = x.clone()
    made = snake_kernel.snake(x, form.alpha, form._ratio, left, right)
    assert torch.equal(x, before)
    assert torch.allclose(made, form(x, step), rtol=1e-6, atol=1e-5)
    assert snake_kernel.snake(x, None, form._ratio) is x
    assert torch.allclose(x, form.bend(before), rtol=1e-6, atol=1e-5)


def test_kernel_refuses_what_it_cannot_compute() -> None:
    x = torch.randn(2, 5, 3)
    assert snake_kernel.fits(x)
    assert not snake_kernel.fits(x.double())
    assert not snake_kernel.fits(x.transpose(1, 2))
    assert not snake_kernel.fits(torch.empty(1, 1 << 21, 1 << 10, device="meta"))
    with pytest.raises(ValueError, match="in place"):
        snake_kernel.snake(x, None, None, 1)


@pytest.mark.parametrize("family", ["fish", "qwen3_tts"])
def test_decoder_with_kernel_equals_torch_form(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the convolutions for devices other than a CPU, and Snakes with and without beta."""
    monkeypatch.setattr(layers, "_has_onednn", lambda weight: False)
    if family == "fish":
        tensors = fish_checkpoint.random_tensors(fish_shapes(fish_checkpoint.TINY))
        decoder: FishDecoder | Qwen3TTSDecoder = FishDecoder(fish_checkpoint.TINY, tensors)
    else:
        shapes = qwen3_tts_shapes(qwen3_tts_checkpoint.TINY)
        tensors = qwen3_tts_checkpoint.random_tensors(shapes)
        decoder = Qwen3TTSDecoder(qwen3_tts_checkpoint.TINY, tensors)
    dice = np.random.default_rng(0)
    codes = np.stack([dice.integers(0, n, 20) for n in decoder.spec.codebook_sizes])
    plain = decoder.decode([codes.astype(np.int16)])[0]
    assert plain.std() > 0.03
    assert use_kernel("cpu", lambda: snake_kernel)
    made = decoder.decode([codes.astype(np.int16)])[0]
    assert np.abs(made - plain).max() < 1e-5
    assert not np.array_equal(made, 0 * made)
