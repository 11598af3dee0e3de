"""INT8 quantisation while a checkpoint loads: vLLM's online methods have only FP8 for linear
layers.

The backbone's linear layers become 8 bits with one scale per output channel, rounded to the
nearest. Their inputs are quantised to 8 bits in each step, with one scale per token (W8A8). The
product is vLLM's: oneDNN on a CPU, CUTLASS or Triton on a GPU. Text and code embeddings, an audio
head tied to the code embedding, the norms and the frame table stay as they are, because only vLLM's
linear layers are quantised.

Registered with vLLM by ``talker.plugin`` under ``INT8_METHOD``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.kernels.linear import init_int8_linear_kernel
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from talker.settings import INT8_METHOD

_MOST = 127
#: A channel of zeros needs a scale above 0.
_LEAST_SCALE = 1e-12


class Int8Config(QuantizationConfig):  # type: ignore[misc]  # untyped base
    """The quantisation config for ``quantization=INT8_METHOD``: linear layers become Int8Linear."""

    def get_name(self) -> Any:
        """The name under which it is registered."""
        return INT8_METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Types that the layers' inputs and outputs may have."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Turing, the first to have INT8 tensor cores."""
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        """No files: nothing is read from the checkpoint."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Int8Config:
        """Raise ValueError, since the checkpoint is quantised already."""
        raise ValueError("the checkpoint is quantised already")

    def get_quant_method(self, layer: nn.Module, prefix: str) -> LinearMethodBase | None:
        """Int8Linear for linear layers, else None."""
        return Int8Linear() if isinstance(layer, LinearBase) else None


class Int8Linear(LinearMethodBase):  # type: ignore[misc]  # untyped base
    """A linear layer whose weight is loaded as it is stored and then quantised to INT8."""

    def __init__(self) -> None:
        self._loading = UnquantizedLinearMethod()
        self._kernel = init_int8_linear_kernel(
            is_channelwise=True,
            is_static_input_scheme=False,
            input_symmetric=True,
            module_name=type(self).__name__,
        )

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *args: Any,
        **attributes: Any,
    ) -> None:
        """Create the parameters that the checkpoint fills and those that the kernel reads."""
        layer.logical_widths = output_partition_sizes
        self._loading.create_weights(
            layer, input_size_per_partition, output_partition_sizes, *args, **attributes
        )
        for name in ("input_scale", "input_zero_point", "azp_adj"):
            layer.register_parameter(name, None)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Quantise the weight, then let the kernel pack it."""
        inputs = layer.weight.dtype
        codes, scale = quantise(layer.weight.data)
        replace_parameter(layer, "weight", nn.Parameter(codes, requires_grad=False))
        layer.register_parameter("weight_scale", nn.Parameter(scale, requires_grad=False))
        if inputs is torch.float32 and current_platform.is_cpu():
            # vLLM (0.32) would choose its product for AMX, which takes 16-bit inputs only
            self._kernel.process_weights_for_onednn(layer)
            self._kernel.linear_method = self._kernel._apply_weights_onednn
            return
        self._kernel.process_weights_after_loading(layer)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply the layer: ``[..., in]`` to ``[..., out]``."""
        result: Tensor = self._kernel.apply_weights(layer, x, bias)
        return result


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise ``[out, in]`` floats to INT8 of the same shape and ``[out, 1]`` float32 scales.

    Under tensor parallelism each rank scales its own part. The products are added up after scaling,
    so the scales need not agree.
    """
    weight = weight.float()
    scale = (weight.abs().amax(1, keepdim=True) / _MOST).clamp_min(_LEAST_SCALE)
    codes = (weight / scale).round_().clamp_(-_MOST, _MOST).to(torch.int8)
    return codes, scale
