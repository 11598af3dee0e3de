"""vLLM's C++ kernels for its CPU layers, against the PyTorch code that defines them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

EPSILON = {torch.float32: 2e-6, torch.bfloat16: 2**-6}
dtypes = pytest.mark.parametrize("dtype", EPSILON, ids=str)


@pytest.fixture(scope="module", autouse=True)
def vllm_config() -> Iterator[None]:
    """As the talker sets it: uncompiled. By default vLLM would compile the definitions, which takes
    minutes beside other work and a C++ compiler, and would run those instead of our layers.
    """
    from vllm.config import CompilationConfig, CompilationMode, VllmConfig, set_current_vllm_config

    from talker.cpu_layers import use_cpu_kernels

    uncompiled = CompilationConfig(mode=CompilationMode.NONE)
    with set_current_vllm_config(VllmConfig(compilation_config=uncompiled)):
        use_cpu_kernels()
        use_cpu_kernels()  # as a second engine in the same process would
        yield


def own(layer: Any, kind: type) -> Any:
    """The layer, if it is ours and is what runs when it is called."""
    assert isinstance(layer, kind), "vLLM made its own"
    ours: Any = layer
    assert ours._forward_method == ours.forward_cpu, "vLLM runs another method"
    return ours


def norm(size: int, dtype: torch.dtype) -> Any:
    from vllm.model_executor.layers.layernorm import RMSNorm

    from talker.cpu_layers import CPURMSNorm

    layer = own(RMSNorm(size, 1e-6, dtype=dtype), CPURMSNorm)
    torch.nn.init.normal_(layer.weight)
    return layer


@dtypes
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("size", [8, 64, 100, 256])
def test_rms_norm_with_residual_matches_definition(
    rows: int, size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows + size)
    layer = norm(size, dtype)
    x, residual = torch.randn(2, rows, size).to(dtype)
    wanted, added = layer.forward_native(x.clone(), residual.clone())
    got, sums = layer(x.clone(), residual.clone())
    torch.testing.assert_close(got, wanted, rtol=EPSILON[dtype], atol=EPSILON[dtype])
    # vLLM's kernels for AVX2 truncate to bfloat16 where PyTorch rounds
    torch.testing.assert_close(sums, added, rtol=EPSILON[dtype], atol=EPSILON[dtype])


@dtypes
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_rms_norm_of_sliced_heads_matches_definition(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    layer = norm(16, dtype)
    projected = torch.randn(rows, 3 * 64).to(dtype)
    before = projected.clone()
    for part in torch.split(projected, 64, dim=-1):
        heads = part.view(rows, 4, 16)
        wanted = layer.forward_native(heads)
        torch.testing.assert_close(layer(heads), wanted, rtol=EPSILON[dtype], atol=EPSILON[dtype])
    assert torch.equal(projected, before)


def swiglu() -> Any:
    from vllm.model_executor.layers.activation import SiluAndMul

    from talker.cpu_layers import CPUSiluAndMul

    return own(SiluAndMul(), CPUSiluAndMul)


@dtypes
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_swiglu_matches_definition(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    layer = swiglu()
    x = torch.randn(rows, 2 * 40).to(dtype)
    wanted = layer.forward_native(x)
    torch.testing.assert_close(layer(x), wanted, rtol=EPSILON[dtype], atol=EPSILON[dtype])


def test_row_is_bit_identical_in_any_batch() -> None:
    torch.manual_seed(3)
    layer, product = norm(96, torch.float32), swiglu()
    x, residual = torch.randn(2, 19, 96)
    together, _ = layer(x.clone(), residual.clone())
    products = product(x)
    for i in range(len(x)):
        row = slice(i, i + 1)
        alone, _ = layer(x[row].clone(), residual[row].clone())
        assert torch.equal(together[row], alone)
        assert torch.equal(products[row], product(x[row]))


def test_rms_norm_of_other_dtype_falls_back() -> None:
    layer = norm(32, torch.float32)
    x = torch.randn(3, 32, dtype=torch.bfloat16)
    assert torch.equal(layer(x), layer.forward_native(x))


def test_use_cpu_kernels_registers_nothing_if_kernel_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.model_executor import custom_op

    from talker import cpu_layers

    registry: dict[str, type] = {}
    monkeypatch.setattr(custom_op, "op_registry_oot", registry)
    monkeypatch.setattr(cpu_layers, "op_registry_oot", registry)
    monkeypatch.setattr(cpu_layers, "_KERNELS", ("rms_norm", "there_is_no_such_kernel"))
    cpu_layers.use_cpu_kernels()
    assert not registry
    monkeypatch.undo()
    monkeypatch.setattr(custom_op, "op_registry_oot", registry)
    monkeypatch.setattr(cpu_layers, "op_registry_oot", registry)
    cpu_layers.use_cpu_kernels()
    assert set(registry) == {"RMSNorm", "SiluAndMul"}


@pytest.mark.parametrize(
    ("has_tiles", "is_allowed", "sees_tiles"),
    [(False, False, False), (True, True, True), (True, False, False)],
)
def test_vllm_sees_amx_if_kernel_allows_it(
    monkeypatch: pytest.MonkeyPatch, has_tiles: bool, is_allowed: bool, sees_tiles: bool
) -> None:
    from vllm.model_executor.kernels.linear.mixed_precision import cpu as packed
    from vllm.v1.attention.backends import cpu_attn

    from talker.cpu_layers import allow_amx

    asked = []

    def init() -> bool:
        asked.append(1)
        return is_allowed

    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: has_tiles)
    monkeypatch.setattr("torch.cpu._init_amx", init)
    allow_amx()
    assert len(asked) == has_tiles
    assert (cpu_attn._get_attn_isa(torch.bfloat16, 32, 64) == "amx") is sees_tiles
    assert (packed._get_isa_hint(torch.bfloat16) == "amx") is sees_tiles
    allow_amx()
    assert len(asked) == has_tiles + (has_tiles and is_allowed)
