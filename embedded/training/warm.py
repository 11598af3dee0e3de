"""A training run that goes on from a checkpoint: its codebooks as they are, its weights to begin
with. What a talker has learned and the codes of stored voices stay valid, since no code changes
its meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from embedded.training.export import ANALYSIS, CODEC, talker_names
from embedded.training.quantise import Quantiser
from embedded.training.talker import TalkerNet

_BOOK = "quantizer.quantizers.{}.codebook.embed"


class NotOurs(ValueError):
    """The folder has no checkpoint that can be trained further; the text says what is missing."""


def quantiser_of(folder: Path) -> Quantiser:
    """Its codebooks, as the codec rounds them, and what they were worked out with.

    Raises NotOurs if the checkpoint does not say how spectra became latents.
    """
    if not (folder / ANALYSIS).exists():
        raise NotOurs(f"{folder} has no {ANALYSIS}: only what `export` wrote can be trained on")
    codec = _codec_tensors(folder)
    count = sum(name.endswith("codebook.embed") for name in codec)
    books = torch.stack([codec[_BOOK.format(number)] for number in range(count)])
    return Quantiser(**load_file(folder / ANALYSIS), books=books)


def fill_codec(model: Any, folder: Path) -> None:
    """Give ``model`` the weights of the codec in ``folder``. NotOurs if their shapes differ."""
    _fill(model, _codec_tensors(folder), folder)


def fill_talker(net: TalkerNet, folder: Path) -> None:
    """Give ``net`` the weights of the talker in ``folder``. NotOurs if their shapes differ."""
    found, names = load_file(folder / "model.safetensors"), talker_names(net)
    _fill(net, {ours: found[theirs] for ours, theirs in names.items() if theirs in found}, folder)


def _codec_tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    return {
        name.removeprefix(CODEC): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in found.items()
        if name.startswith(CODEC)
    }


def _fill(module: torch.nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:  # its message lists every tensor that does not fit
        raise NotOurs(f"{folder} has other networks than this recipe's: {error}") from error
