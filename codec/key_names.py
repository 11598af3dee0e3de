"""The names that a codec's tensors have had, and weight norm undone.

- layers: ``acoustic_decoder.block.{n}.conv_t1`` or, in the older descript layout,
  ``acoustic_decoder.model.{n + 1}.block.1``, and so for the encoder; the semantic encoder's
  convolutions had a module of their own, ``conv.conv``;
- weights: ``weight``, or weight-normed ``weight_g`` and ``weight_v``, or
  ``parametrizations.weight.original0`` and ``original1``;
- codebooks: ``codebook.embed`` or ``codebook.weight``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor


def stored_names(key: str, blocks: int) -> Iterator[tuple[str, ...]]:
    """The names under which ``key`` may be stored, each as the tensors to merge. ``blocks``:
    how many the acoustic encoder and decoder have.
    """
    for name in (key, _older_name(key, blocks)):
        yield (name,)
        if name.endswith(".codebook.embed"):
            yield (name.removesuffix("embed") + "weight",)
        if name.endswith(".weight"):
            stem = name.removesuffix("weight")
            yield (f"{stem}weight_g", f"{stem}weight_v")
            stem += "parametrizations.weight."
            yield (f"{stem}original0", f"{stem}original1")


def _older_name(key: str, blocks: int) -> str:
    """``key`` in the older layout, which numbers layers instead of naming them."""
    part, _, rest = key.partition(".")
    if part in ("acoustic_decoder", "acoustic_encoder"):
        return f"{part}.{_descript_name(part, rest, blocks)}"
    if part == "encoder_semantic":
        return re.sub(r"(\.conv[12]?)\.(weight|bias)$", r"\1.conv.\2", key)
    return key


def _descript_name(part: str, rest: str, blocks: int) -> str:
    """Descript's name of a layer of the acoustic encoder or decoder."""
    decodes = part == "acoustic_decoder"
    top = "model" if decodes else "block"
    outer = {"conv1": 0, "snake1": blocks + 1, "conv2": blocks + 2}
    parts = rest.split(".")
    if parts[0] != "block":
        return f"{top}.{outer[parts[0]]}.{parts[1]}"
    name = f"{top}.{int(parts[1]) + 1}.block"
    if not parts[2].startswith("res_unit"):
        own = {"snake1": 0, "conv_t1": 1} if decodes else {"snake1": 3, "conv1": 4}
        return f"{name}.{own[parts[2]]}.{parts[3]}"
    inner = ("snake1", "conv1", "snake2", "conv2").index(parts[3])
    unit = int(parts[2].removeprefix("res_unit")) + (1 if decodes else -1)
    return f"{name}.{unit}.block.{inner}.{parts[4]}"


def merged(parts: list[Tensor]) -> Tensor:
    """One stored tensor, or weight norm undone: ``g * v / |v|``, norms over all dimensions
    but the one that ``g`` has (the first, unless its shape says otherwise).
    """
    if len(parts) == 1:
        return parts[0]
    scale, direction = (part.double() for part in parts)
    if scale.ndim != direction.ndim:
        scale = scale.reshape(-1, *[1] * (direction.ndim - 1))
    over = [dim for dim, size in enumerate(scale.shape) if size == 1]
    norms = direction.square().sum(over, keepdim=True).sqrt()
    weight: Tensor = direction * (scale / norms)
    return weight.float()
