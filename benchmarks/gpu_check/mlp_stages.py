"""Higgs Audio v2's two MLPs: both for all rows, as its layers compute them on a GPU, against vLLM's
fused MoE with the text MLP and the audio MLP as experts, which reads only those that rows need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


def has_cpu_operator() -> bool:
    """Whether vLLM's fused MoE for CPUs runs on this one."""
    import vllm._custom_ops  # noqa: F401  (loads vLLM's compiled operators)

    return hasattr(torch.ops._C, "cpu_fused_moe")


@dataclass(frozen=True, slots=True)
class TwoMLPs:
    """The weights of a layer, first text, then audio: gate and up ``[2, 2 * I, D]``, down
    ``[2, D, I]``.
    """

    up: Tensor
    down: Tensor

    @classmethod
    def random(cls, hidden: int, inner: int, dtype: torch.dtype, device: str) -> TwoMLPs:
        """Draw weights that keep the size of their inputs."""
        up = torch.randn(2, 2 * inner, hidden, dtype=dtype, device=device) * hidden**-0.5
        down = torch.randn(2, hidden, inner, dtype=dtype, device=device) * inner**-0.5
        return cls(up, down)

    def both(self, x: Tensor, is_audio: Tensor) -> Tensor:
        """Compute both MLPs for ``x`` ``[N, D]`` and select by ``is_audio`` ``[N]``, as
        ``talker.families.higgs_v2.dual_ffn`` does.
        """
        text, audio = (self._mlp(x, number) for number in range(2))
        return torch.where(is_audio[:, None], audio, text)

    def experts(self, x: Tensor, is_audio: Tensor) -> Tensor:
        """Compute the same with vLLM's fused MoE: on a GPU its Triton kernels, on a CPU its
        operator.
        """
        chosen = is_audio.int()[:, None]
        gains = torch.ones(len(x), 1, device=x.device)
        if x.device.type == "cpu":
            from vllm import _custom_ops as ops

            out = torch.empty_like(x)
            up, down = (ops.cpu_prepack_moe_weight(one, "vec") for one in (self.up, self.down))
            ops.cpu_fused_moe(out, x, up, down, None, None, gains, chosen, "silu", "vec")
            return out
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

        computed: Tensor = fused_experts(x, self.up, self.down, gains, chosen)
        return computed

    def _mlp(self, x: Tensor, number: int) -> Tensor:
        gate_up = functional.linear(x, self.up[number])
        if x.device.type == "cpu":
            gate, up = gate_up.chunk(2, -1)
            inner = functional.silu(gate) * up
        else:
            import vllm._custom_ops  # noqa: F401  (loads vLLM's compiled operators)

            inner = torch.empty_like(gate_up[:, : gate_up.shape[1] // 2])
            torch.ops._C.silu_and_mul(inner, gate_up)
        return functional.linear(inner, self.down[number])
