"""The Fish codec's transformers, by their names in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from codec.window_transformer import (
    RmsNorm,
    SwiGlu,
    TransformerLayer,
    TransformerSizes,
    WindowTransformer,
)

_NORM_EPS = 1e-5


def build_transformer(
    sizes: TransformerSizes, weights: Mapping[str, Tensor], name: str
) -> WindowTransformer:
    """Build the transformer whose tensors are under ``name``. The model was trained with rotary
    tables rounded to bfloat16.
    """

    def layer(at: str) -> TransformerLayer:
        gate, down, up = (weights[f"{at}.feed_forward.w{n}.weight"] for n in (1, 2, 3))
        return TransformerLayer(
            RmsNorm(weights[f"{at}.attention_norm.weight"], _NORM_EPS),
            weights[f"{at}.attention.wqkv.weight"],
            weights[f"{at}.attention.wo.weight"],
            weights[f"{at}.attention_layer_scale.gamma"],
            RmsNorm(weights[f"{at}.ffn_norm.weight"], _NORM_EPS),
            SwiGlu(gate, up, down),
            weights[f"{at}.ffn_layer_scale.gamma"],
        )

    layers = [layer(f"{name}.layers.{number}") for number in range(sizes.layers)]
    norm = RmsNorm(weights[f"{name}.norm.weight"], _NORM_EPS)
    return WindowTransformer(sizes, layers, norm, rotates_pairs=True)
