"""Weights are packed once: after the first call of its size, oneDNN only convolves.

Reordered at each call they make the time of a window jump by its size (codec/layers.py). oneDNN's
own log is read, since times cannot be asserted. ``benchmarks.codec_cost`` measures them.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import Counter

import pytest
import torch

from codec.layers import Conv, _layout
from tests.codec.onednn_calls import CLIP_FRAMES, SIZES

DECODERS = ("higgs-causal-decoder", "higgs-decoder", "fish-decoder", "qwen3-tts-decoder")
ENCODERS = ("higgs-encoder", "fish-encoder", "qwen3-tts-encoder")
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="oneDNN's kernels and their names are those of x86-64"
)


@pytest.fixture(scope="module", params=["", "AVX2"])
def log(request: pytest.FixtureRequest) -> dict[tuple[str, str], Counter[str]]:
    """Operations of oneDNN in each call, as ``kind implementation``, by part and size."""
    settings = {"ONEDNN_VERBOSE": "profile_exec"}
    if request.param:
        settings["ONEDNN_MAX_CPU_ISA"] = request.param
    child = subprocess.run(
        [sys.executable, "-m", "tests.codec.onednn_calls"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    calls: dict[tuple[str, str], Counter[str]] = {}
    call: Counter[str] = Counter()
    for line in child.stdout.splitlines():
        if line.startswith("CALL"):
            _, part, size = line.split()
            call = calls[part, size] = Counter()
        elif line == "END":
            call = Counter()
        elif "primitive,exec,cpu," in line:
            kind, implementation = line.split("primitive,exec,cpu,")[1].split(",")[:2]
            call[f"{kind} {implementation}"] += 1
    assert len(calls) == len(DECODERS) * len(SIZES) + len(ENCODERS) * len(CLIP_FRAMES)
    return calls


def test_decoders_reorder_nothing_after_first_window_of_size(
    log: dict[tuple[str, str], Counter[str]],
) -> None:
    for (part, size), operations in log.items():
        if part in DECODERS:
            kinds = {operation.split()[0] for operation in operations}
            assert "convolution" in kinds, (part, size)
            assert "reorder" not in kinds, (part, size, operations)


def test_encoders_reorder_only_with_fast_kernels(
    log: dict[tuple[str, str], Counter[str]],
) -> None:
    """A clip is encoded once, so weights need not be kept packed."""
    for (part, size), operations in log.items():
        if part in ENCODERS:
            reorders = [name for name in operations if name.startswith("reorder")]
            assert all(name.split()[1].startswith("jit") for name in reorders), (part, size)


def test_convolution_keeps_one_packing_for_each_layout() -> None:
    weight = torch.randn(192, 200, 4)
    conv = Conv(weight, torch.zeros(192), dilation=3)
    assert conv._packed is not None
    wanted: list[set[int]] = [set(), set()]
    for batch in (1, 2, 3):
        for length in range(10, 90):
            conv(torch.randn(batch, length, 200))
            for slice, inputs in enumerate((128, 72)):
                shape = torch.Size((192, inputs, 1, 4))
                wanted[slice].add(_layout(shape, 3, batch, length))
    assert [set(packed) for packed in conv._packed._packed] == wanted
    assert max(map(len, wanted)) <= 6


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("channels", [128, 192, 256])
def test_convolution_is_exact_at_all_lengths(channels: int, dilation: int) -> None:
    """A kernel for another length must not sum in another order."""
    kernel, longest = 7, 100
    conv = Conv(torch.randn(channels, channels, kernel), torch.randn(channels), dilation)
    reach = (kernel - 1) * dilation
    x = torch.randn(1, longest + reach, channels)
    whole = conv(x)
    different = [
        length
        for length in range(1, longest)
        if not torch.equal(conv(x[:, : length + reach]), whole[:, :length])
    ]
    assert different == []


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_convolution_with_equal_weights_is_right_at_all_lengths(value: float) -> None:
    """Layouts are told apart by the positions of weights, which does not need different ones."""
    weight, bias = torch.full((48, 40, 2), value), torch.arange(48.0)
    conv = Conv(weight, bias)
    for length in range(2, 40):
        y = conv(torch.ones(1, length, 40))
        assert torch.equal(y, (bias + 80 * value).expand(1, length - 1, 48))
