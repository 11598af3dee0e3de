"""vLLM layers that use its C++ kernels on a CPU, instead of one PyTorch operator after another.

vLLM expects a CPU's elementwise steps to be compiled. That needs a compiler, half a minute for the
first start and ten seconds for each later one, so the talker runs uncompiled. RMSNorm then takes
six PyTorch operators and SwiGLU three, and with one stream each costs more than its arithmetic. The
kernels are in vLLM's CPU builds, but its layers do not use them there (0.32).
"""

from __future__ import annotations

from torch import Tensor, empty, ops
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.platforms import current_platform

_KERNELS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")


class CPURMSNorm(RMSNorm):  # type: ignore[misc]  # untyped base
    """RMSNorm as one kernel, with or without a residual that is added first."""

    def forward_cpu(
        self, x: Tensor, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As ``RMSNorm.forward_native``; with a residual both tensors are overwritten."""
        weight = self.weight
        if not self.has_weight or self.variance_size_override or weight.dtype != x.dtype:
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
