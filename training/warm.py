"""Initialisation of a training run from a checkpoint: its codebooks are kept, its weights are the
first ones. The talker's training and the codes of stored voices stay valid, since no code changes
its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from training.export import ANALYSIS, CODEC, talker_names
from training.pitch import PITCH_CODES
from training.quantise import COMPONENTS, LATENT, PITCH_BOOK, Quantiser
from training.talker import LETTERS, ROWS, SPECIALS, TalkerNet

_LAYER = "quantizer.quantizers.{}."


class NotOurs(ValueError):
    """The folder has no checkpoint that can be trained further; the text names what is missing."""


def quantiser_of(folder: Path) -> Quantiser:
    """Return its codebooks as the codec rounds them, and the analysis that they were fitted with.

    Raises NotOurs if the checkpoint does not contain that analysis.
    """
    if not (folder / ANALYSIS).exists():
        raise NotOurs(f"{folder} has no {ANALYSIS}: only what `export` wrote can be trained on")
    codec = _codec_tensors(folder)
    count = sum(name.endswith("codebook.embed") for name in codec)
    layers = map(_LAYER.format, range(count))
    books = torch.stack(
        [codec[f"{n}codebook.embed"] @ codec[f"{n}project_out.weight"].T for n in layers]
    )
    return Quantiser(**load_file(folder / ANALYSIS), books=books)


def fill_codec(model: Any, folder: Path) -> None:
    """Load the weights of the codec in ``folder`` into ``model``, without its codebooks. A wider
    ``model`` computes the same as that codec at first. NotOurs if shapes differ otherwise.
    """
    found = _codec_tensors(folder).items()
    kept = {k: v for k, v in found if not k.startswith("quantizer.")}
    _fill(model, _widened(model, kept), folder)


def fill_talker(net: TalkerNet, folder: Path) -> None:
    """Load the weights of the talker in ``folder`` into ``net``. NotOurs if their shapes differ."""
    found, names = load_file(folder / "model.safetensors"), talker_names(net)
    _fill(net, {ours: found[theirs] for ours, theirs in names.items() if theirs in found}, folder)


def fill_decoder(model: Any, folder: Path, table: Quantiser) -> None:
    """Load the decoder in ``folder`` into ``model``, although its codebooks differ from ``table``.
    The affine map from this table's latents to the decoder's own is merged into its first layer. It
    is exact but for what the principal components leave out. ``model`` may be wider. NotOurs if
    shapes differ otherwise.
    """
    known = quantiser_of(folder)
    found = _codec_tensors(folder)
    kept = {k: v for k, v in found.items() if k.startswith(("acoustic_decoder.", "fc2."))}
    matrix, offset = torch.eye(LATENT), torch.zeros(LATENT)
    both = (table.basis * table.scale).T @ known.basis / known.scale
    matrix[:COMPONENTS, :COMPONENTS] = both
    offset[:COMPONENTS] = (table.mean - known.mean) @ known.basis / known.scale
    weight = kept["fc2.weight"]
    kept["fc2.bias"] = kept["fc2.bias"] + weight @ offset
    kept["fc2.weight"] = weight @ matrix.T
    _fill(model, _widened(model, kept), folder)


def fill_encoder(model: Any, folder: Path) -> None:
    """Load the encoder in ``folder`` into ``model``, whose codebooks may differ, without its last
    layer: its features are worth keeping, but its outputs are new. ``model`` may be wider. NotOurs
    if shapes differ otherwise.
    """
    parts = ("acoustic_encoder.", "encoder_semantic.", "semantic_model.")
    kept = {k: v for k, v in _codec_tensors(folder).items() if k.startswith(parts)}
    _fill(model, _widened(model, kept), folder)


def fill_reader(net: TalkerNet, folder: Path) -> None:
    """Load into ``net`` the part of the talker in ``folder`` that reads text, although its codes
    stand for other sounds: its layers, the letters, and the rows of the pitch codes, which have the
    same numbers. The rows of spectral codes stay as they are. NotOurs if shapes differ.
    """
    found, names = load_file(folder / "model.safetensors"), talker_names(net)
    known = {ours: found[theirs].float() for ours, theirs in names.items() if theirs in found}
    rows = slice(PITCH_BOOK * ROWS, PITCH_BOOK * ROWS + PITCH_CODES)
    if known["audio"].shape == net.audio.shape:
        letters, text = len(LETTERS) + len(SPECIALS), net.text.weight.detach().clone()
        text[:letters] = known["text.weight"][:letters]  # newer signs stay untrained
        known["text.weight"] = text
        fresh = net.audio.detach().clone()
        fresh[rows] = known["audio"][rows]
        known["audio"] = fresh
    _fill(net, known, folder)


@torch.no_grad()
def blend(module: torch.nn.Module, before: Mapping[str, torch.Tensor], share: float) -> None:
    """Set the weights of ``module`` to a mean: this ``share`` of them, and the rest of those that
    it had ``before``.
    """
    for name, weight in module.state_dict().items():
        weight.lerp_(before[name], 1 - share)


def _codec_tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    return {
        name.removeprefix(CODEC): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in found.items()
        if name.startswith(CODEC)
    }


def _widened(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``weights``, made as wide as those of ``model`` where these are wider. The additional
    channels keep the weights that ``model`` has there, but the known ones do not listen to them.
    """
    made, own = dict(weights), model.state_dict()
    for name, known in weights.items():
        wide = own.get(name)
        if wide is None or wide.shape == known.shape or not _fits(known, wide):
            continue
        made[name] = grown = wide.clone()
        if known.dim() > 1 and not name.endswith("alpha"):  # Snake's are [1, channels, 1]
            layer = model.get_submodule(name.rpartition(".")[0])
            transposed = isinstance(layer, torch.nn.ConvTranspose1d)  # [inputs, outputs, taps]
            outputs, inputs = (1, 0) if transposed else (0, 1)
            heard, more = known.shape[inputs], wide.shape[inputs] - known.shape[inputs]
            grown.narrow(outputs, 0, known.shape[outputs]).narrow(inputs, heard, more).zero_()
        grown[tuple(map(slice, known.shape))] = known
    return made


def _fits(known: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether a tensor is a part of a larger one, with as many taps."""
    return (
        known.dim() == wide.dim()
        and known.shape[2:] == wide.shape[2:]
        and all(a <= b for a, b in zip(known.shape, wide.shape, strict=True))
    )


def _fill(module: torch.nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Load ``weights`` into ``module``. Parts without weights in it stay as they are."""
    try:
        missing, unexpected = module.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # its message lists every tensor that does not fit
        raise NotOurs(f"{folder} has other networks than this recipe's: {error}") from error
    parts = {name.split(".", 1)[0] for name in weights}
    wrong = [*unexpected, *(name for name in missing if name.split(".", 1)[0] in parts)]
    if wrong:
        raise NotOurs(f"{folder} has other networks than this recipe's: {', '.join(wrong)}")
