"""The Higgs codec's decoder: codes to samples, with each layer only on the range that is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from codec import layer_ranges
from codec.batching import in_groups
from codec.families.higgs.config import CodecConfig
from codec.family import check_codes
from codec.layer_ranges import DILATIONS, Layer, Plan, without_lookahead
from codec.layers import Edge, NamedWeights, Residual, Upsample
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

Shape = tuple[int, int, int]


class HiggsDecoder:
    """Implements ``streaming.ports.CodecDecoder`` on torch. Stateless, so thread-safe.

    On a CPU with one thread the samples of a frame are the same bits in every window and batch, as
    long as the contexts cover the receptive field or reach the end of the stream. ``tensors`` are
    those of ``tensors.decoder_shapes``.
    """

    def __init__(
        self,
        config: CodecConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.fingerprint = _fingerprint(tensors)
        self._layers, tensors = _without_lookahead(config.layers, tensors, len(config.ratios))
        self._device = torch.device(device)
        placed = {name: t.to(self._device, dtype) for name, t in tensors.items()}
        self._stages = build_stages(placed, len(config.ratios))
        tables, constant = _fold_lookup(config, tensors)
        left, right = layer_ranges.receptive_field(self._layers)
        self._spec = replace(
            config.spec(), left_frames=left, right_frames=right, inert_codebooks=_inert(tables)
        )
        # UNKNOWN is the index of the last row, which is zero: an unknown code adds nothing
        tables = torch.cat([tables, torch.zeros_like(tables[:, :1])], dim=1)
        self._tables = tables.to(placed["fc2.bias"])
        self._constant = constant.to(placed["fc2.bias"])

    @property
    def spec(self) -> CodecSpec:
        """Properties of the loaded codec."""
        return self._spec

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences: ``[K, T_i]`` int16 -> ``[T_i * hop]`` float32 each."""
        for sequence in codes:
            check_codes(self._spec, sequence)
        return self._decode([(sequence, (0, sequence.shape[1], 0)) for sequence in codes])

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode windows to the samples of their new frames, ``[new_frames * hop]`` each.

        Windows of equal shape run as one batch; the caller limits their number. Raises CodesError
        before anything is decoded.
        """
        for window in windows:
            check_codes(self._spec, window.codes, window.lookahead)
        return self._decode(
            [(w.codes, (w.left_context, w.new_frames, w.lookahead)) for w in windows]
        )

    def _decode(self, work: Sequence[tuple[Codes, Shape]]) -> list[Samples]:
        return in_groups(work, lambda one: one[1], self._run)

    @torch.inference_mode()
    def _run(self, shape: Shape, work: Sequence[tuple[Codes, Shape]]) -> Sequence[Samples]:
        """Decode windows of one shape together."""
        codes = torch.from_numpy(np.stack([codes for codes, _ in work]))
        plan = layer_ranges.plan(self._layers, *shape)
        return list(self._compute(codes.to(self._device), plan).cpu().numpy())

    def decode_laid_out(self, laid_out: Tensor, new_frames: int) -> Tensor:
        """Decode rows of ``codec.buckets.lay_out``, ``[B, K * T + 2]`` int16 on the device, to
        ``[B, new_frames * hop]``.

        Positions outside a row's stream are set to zero before every layer, as padding is. Special
        codes there would not do, since biases leak past the edge. The positions are computed on the
        device, so that the work can be a CUDA graph.
        """
        spec = self._spec
        books = self._spec.num_codebooks
        plan = layer_ranges.plan(self._layers, spec.left_frames, new_frames, spec.right_frames)
        codes = laid_out[:, :-2].view(len(laid_out), books, -1)
        return self._compute(codes, plan, laid_out[:, -2:].long())

    def decode_interior(self, codes: Tensor, new_frames: int, lookahead: int) -> Tensor:
        """Decode ``[B, K, T]`` int16 on the device, which begin with the full left context and end
        with ``lookahead`` frames, to ``[B, new_frames * hop]``.

        No mask is needed: the layers pad with zeros, as at the edges of any window.
        """
        plan = layer_ranges.plan(self._layers, self._spec.left_frames, new_frames, lookahead)
        return self._compute(codes, plan)

    def _compute(self, codes: Tensor, plan: Plan, bounds: Tensor | None = None) -> Tensor:
        """Decode codes ``[B, K, T]`` of any integer type to the samples of a plan, ``[B, n]``.
        ``bounds`` ``[B, 2]``: the frames at which each row's stream begins and ends.
        """
        x = self._look_up(codes[:, :, plan.first_frame : plan.end_frame].long())
        for stage, step, layer, first in zip(
            self._stages, plan.steps, self._layers, plan.firsts, strict=True
        ):
            if bounds is not None:
                at = torch.arange(first, first + x.shape[1], device=x.device)
                edges = bounds * layer.rate
                outside = (at < edges[:, :1]) | (at >= edges[:, 1:])
                x = x.masked_fill_(outside[:, :, None], 0)
            x = stage(x, step)
        return x[:, :, 0].float()

    def _look_up(self, codes: Tensor) -> Tensor:
        """Return the decoder's input for codes ``[B, K, T]``, ``[B, T, latent]``.

        The sum runs codebook by codebook, so that its order does not depend on the shape.
        """
        total = self._constant.expand(codes.shape[0], codes.shape[2], -1)
        for index in range(codes.shape[1]):
            total = total + self._tables[index][codes[:, index]]
        return total


Stage = Edge | Residual | Upsample
_DECODER = "acoustic_decoder"


def _kernels(blocks: int) -> list[str]:
    """Return the names of the kernels, one for each layer of ``layer_ranges.architecture``."""
    names = ["conv1"]
    for index in range(blocks):
        units = [f"res_unit{number}.conv1" for number in range(1, len(DILATIONS) + 1)]
        names += [f"block.{index}.{name}" for name in ("conv_t1", *units)]
    return [f"{_DECODER}.{name}.weight" for name in (*names, "conv2")]


def _without_lookahead(
    layers: Sequence[Layer], tensors: Mapping[str, Tensor], blocks: int
) -> tuple[tuple[Layer, ...], dict[str, Tensor]]:
    """Remove the taps that would look ahead and are all zero from layers and tensors.

    The format has no causal convolutions, but a decoder may have been trained to be causal.
    Removing such taps saves their share of the work, and windows need no frames for them.
    """
    kept = dict(tensors)
    found = []
    for layer, name in zip(layers, _kernels(blocks), strict=True):
        kernel = tensors[name]
        taps = kernel.abs().amax((0, 1)).nonzero().flatten()
        if layer.stride > 1:
            cropped = without_lookahead(layer, int(taps[0]) if len(taps) else 0)
            first = layer.cut - cropped.cut
            kernel = torch.cat([kernel[:, :, first:], kernel[:, :, :first]], 2)
        else:
            zeros = kernel.shape[2] - 1 - int(taps[-1]) if len(taps) else 0
            zeros = min(zeros, kernel.shape[2] // 2)
            cropped = without_lookahead(layer, zeros)
            kernel = kernel[:, :, : kernel.shape[2] - zeros]
        kept[name] = kernel.contiguous()
        found.append(cropped)
    return tuple(found), kept


def build_stages(tensors: Mapping[str, Tensor], blocks: int) -> list[Stage]:
    """Build the DAC decoder in order, one stage for each layer of ``layer_ranges.architecture``."""
    by_name = NamedWeights(tensors)
    stages: list[Stage] = [Edge(*by_name.conv(f"{_DECODER}.conv1"))]
    for index in range(blocks):
        name = f"{_DECODER}.block.{index}"
        snake = by_name.snake(f"{name}.snake1")
        conv = by_name.conv(f"{name}.conv_t1")
        stages.append(Upsample(snake, *conv))
        for number, dilation in enumerate(DILATIONS, 1):
            parts = ("snake1", "conv1", "snake2", "conv2")
            unit = [f"{name}.res_unit{number}.{part}" for part in parts]
            stages.append(by_name.residual(unit, dilation))
    last = by_name.conv(f"{_DECODER}.conv2")
    return [*stages, Edge(*last, by_name.snake(f"{_DECODER}.snake1"))]


def _inert(tables: Tensor) -> int:
    """Return the number of last codebooks that have the same vector for every code."""
    audible = len(tables)
    while audible > 1 and torch.equal(
        tables[audible - 1], tables[audible - 1, :1].expand_as(tables[0])
    ):
        audible -= 1
    return len(tables) - audible


def _fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of the tensors that give codes a meaning: codebooks and their projections."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        if name.startswith(("quantizer.", "fc2.")):
            digest.update(name.encode())
            digest.update(tensors[name].float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _fold_lookup(config: CodecConfig, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Fold ``project_out`` and ``fc2`` into one table per codebook ``[K, size, latent]``.

    Both are linear, so ``fc2(sum_k(project_out_k(embed_k[code])))`` is a sum of looked-up rows and
    a constant. They are folded in float64, so that only one rounding is left.
    """
    tables = []
    bias = torch.zeros(config.quantizer_dim, dtype=torch.float64)
    fc2 = tensors["fc2.weight"].double()
    for index in range(config.num_codebooks):
        name = f"quantizer.quantizers.{index}"
        project = tensors[f"{name}.project_out.weight"].double()
        tables.append(tensors[f"{name}.codebook.embed"].double() @ (fc2 @ project).T)
        bias += tensors[f"{name}.project_out.bias"].double()
    return torch.stack(tables), fc2 @ bias + tensors["fc2.bias"].double()
