"""vLLM layers that use its C++ kernels on a CPU, instead of one PyTorch operator after another.

vLLM expects a CPU's elementwise steps to be compiled. That needs a compiler, half a minute for the
first start and ten seconds for each later one, so the talker runs uncompiled. RMSNorm then takes
six PyTorch operators and SwiGLU three, and with one stream each costs more than its arithmetic. The
kernels are in vLLM's CPU builds, but its layers do not use them there (0.32).
"""

from __future__ import annotations

import logging

from torch import Tensor, cpu, empty, ops
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.platforms import current_platform

log = logging.getLogger(__name__)
#: The kernels of RMSNorm refuse widths that are no multiple of this.
_VECTOR = 8
_KERNELS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")


class CPURMSNorm(RMSNorm):  # type: ignore[misc]  # untyped base
    """RMSNorm as one kernel, with or without a residual that is added first."""

    def forward_cpu(
        self, x: Tensor, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As ``RMSNorm.forward_native``; with a residual both tensors are overwritten."""
        weight = self.weight
        is_plain = self.has_weight and not self.variance_size_override and weight.dtype == x.dtype
        if not is_plain or x.shape[-1] % _VECTOR:
            return self.forward_native(x, residual)  # type: ignore[no-any-return]
        x = x.contiguous()  # the kernel ignores strides; heads are slices of a projection
        if residual is None:
            out = empty(x.shape, dtype=x.dtype)
            ops._C.rms_norm(out, x, weight, self.variance_epsilon)
            return out
        ops._C.fused_add_rms_norm(x, residual, weight, self.variance_epsilon)
        return x, residual


class CPUSiluAndMul(SiluAndMul):  # type: ignore[misc]  # untyped base
    """SwiGLU's product as one kernel."""

    def forward_cpu(self, x: Tensor) -> Tensor:
        """``[N, 2 * D]`` -> ``[N, D]``."""
        out = empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype)
        ops._C.silu_and_mul(out, x.contiguous())
        return out


def use_cpu_kernels() -> None:
    """Make vLLM use these layers from now on, if its build has the kernels. May be called again."""
    current_platform.import_kernels()
    if not all(hasattr(ops._C, name) for name in _KERNELS):
        return
    for layer, own in ((RMSNorm, CPURMSNorm), (SiluAndMul, CPUSiluAndMul)):
        if layer.__name__ not in op_registry_oot:
            CustomOp.register_oot(name=layer.__name__)(own)


def allow_amx() -> None:
    """Ask Linux for the AMX tiles of this process, or keep vLLM from them. May be called again.

    The first AMX instruction of a process without that permission is a SIGILL. vLLM (0.32) chooses
    its AMX kernels by CPUID alone and never asks; oneDNN asks as soon as it makes a kernel of its
    own, and usually does before the first attention. With packed 4-bit weights it does not as long
    as all prompts have four positions at most: vLLM multiplies up to four rows without oneDNN, so
    its attention was the first to use a tile.

    Known: a packed talker with the warm-up's prompt of 4 positions died so in the first attention
    of its warm-up, one with a prompt of 8 did not, and in vLLM's binary only oneDNN makes the call.
    Inferred from this, without a processor to try it on: that the call was what was missing.
    """
    if not cpu._is_amx_tile_supported() or cpu._init_amx():
        return
    log.warning("the kernel does not let this process use AMX: vLLM goes on without it")
    cpu._is_amx_tile_supported = _has_no_amx


def _has_no_amx() -> bool:
    return False
