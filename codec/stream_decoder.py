"""Causal decoders that decode streams with exact state: a network per frame, then convolutions.

    codes -> network, with a state -> latents -> convolutions -> samples

A window's latents are computed once, from the network's state after the frames before it. The
convolutions after it see a few earlier latents, and compute in each layer only what the new frames
depend on (``codec.layer_ranges``).

The state is only a cache. Its key is a digest of the codes that it was computed from, which each
window brings as its left context and history. So decoding is a pure function of the window,
whatever was decoded before. If the state is missing (another worker, or too many streams), it is
recomputed from the history.

``StreamDecoder.compute`` is the work of a batch on the device alone. Here it runs with the windows'
own shapes; ``codec.stream_graphs`` records it for the fixed shapes of buckets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from codec import layer_ranges
from codec.batching import in_groups
from codec.family import check_codes
from codec.layer_ranges import DILATIONS, Layer
from codec.layers import ConvNeXt, Edge, FrameUpsample, NamedWeights, Residual, Upsample
from codec.state_cache import StateCache
from codec.window_transformer import BatchPositions
from streaming.gpu_limits import CPU_CODEC
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

#: Memory for streams' states, if no other is chosen.
CACHE_BYTES = CPU_CODEC.cache_bytes
#: Frames of a history that are computed before the caller can do other work.
_SLICE_FRAMES = 128


#: The tensors of a stream's state, or of a batch of states with the batch as first dimension.
StateTensors = tuple[Tensor, ...]


class FrameNetwork(Protocol):
    """The layers from codes to latents: whatever depends on frames further back.

    ``no_latents``: the latents ``[0, dim]`` of no frames, on the device.
    """

    no_latents: Tensor

    def begin(self) -> StateTensors:
        """Return the state of a stream of which nothing is known. All states have its shapes."""

    def run(
        self, codes: Tensor, states: StateTensors, at: BatchPositions
    ) -> tuple[Tensor, StateTensors]:
        """Compute the latents ``[B, T, dim]`` of codes ``[B, K, T]`` int64, the frames ``at`` of B
        streams; return their new states, ``[B, ...]`` each.
        """


class CodeVectors:
    """The sum of a code vector of each codebook. ``tables``: for each ``[size, dim]``."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self._tables = tables

    def __call__(self, codes: Tensor) -> Tensor:
        """Return ``[B, T, dim]`` for codes ``[B, K, T]``."""
        total = self._tables[0][codes[:, 0]]
        for index, table in enumerate(self._tables[1:], 1):
            total = total + table[codes[:, index]]
        return total


@dataclass(frozen=True, slots=True)
class StreamState:
    """State of a stream after ``position`` frames. It is never modified.

    ``known`` is the number of frames before that it was computed from. ``tensors`` are those of the
    network, and the last latents ``[left_frames, dim]``, zeros where there was no frame.
    """

    position: int
    known: int
    tensors: StateTensors

    @property
    def size_bytes(self) -> int:
        """Memory in use, in bytes."""
        return sum(one.numel() * one.element_size() for one in self.tensors)

    def after(self, frames: int, tensors: StateTensors) -> StreamState:
        """Return the state ``frames`` later, with these tensors."""
        return StreamState(self.position + frames, self.known + frames, tensors)


Stage = FrameUpsample | ConvNeXt | Edge | Upsample | Residual


@dataclass(frozen=True, slots=True)
class Convolutions:
    """The layers from latents to samples: ranges for ``codec.layer_ranges``, and a stage for each.

    ``limit`` maps the last layer's output to samples within [-1, 1].
    """

    layers: tuple[Layer, ...]
    stages: Sequence[Stage]
    limit: Callable[[Tensor], Tensor]


class StreamDecoder:
    """Implements ``streaming.ports.CodecDecoder`` on torch. For one thread: it owns its cache.

    Args:
        spec: of the codec; its ``left_frames`` are the receptive field of ``convolutions``, its
            ``history_frames`` that of ``network``.
        network: from codes to latents.
        convolutions: from latents to samples.
        fingerprint: digest of the tensors that give codes a meaning.
        device: on which codes are decoded.
        cache_bytes: limits the memory for streams' states (``codec.state_cache``).
    """

    def __init__(
        self,
        spec: CodecSpec,
        network: FrameNetwork,
        convolutions: Convolutions,
        *,
        fingerprint: str,
        device: torch.device,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.fingerprint = fingerprint
        self._spec = spec
        self._network = network
        self._convolutions = convolutions
        self._device = device
        self._cache = StateCache[StreamState](cache_bytes)

    @property
    def spec(self) -> CodecSpec:
        """Properties of the loaded codec."""
        return self._spec

    @property
    def cache(self) -> StateCache[StreamState]:
        """The streams' states."""
        return self._cache

    @property
    def state_bytes(self) -> int:
        """Memory for the state of one stream, in bytes."""
        return self.begin().size_bytes

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences: ``[K, T_i]`` int16 -> ``[T_i * hop]`` float32 each."""
        for sequence in codes:
            check_codes(self._spec, sequence)
        return [self._decode_whole(sequence) for sequence in codes]

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode windows to the samples of their new frames, ``[new_frames * hop]`` each.

        Windows of equal length run as one batch; the caller limits their number. Raises CodesError
        before anything is decoded.
        """
        for window in windows:
            self.check(window)

        def lengths(window: DecodeWindow) -> tuple[int, int]:
            return min(_before(window).shape[1], self._spec.left_frames), window.new_frames

        return in_groups(windows, lengths, lambda key, equal: self._decode_equal(key[0], equal))

    def catch_up(self, window: DecodeWindow) -> Iterator[None]:
        """See ``codec.family.StatefulDecoder``."""
        self.check(window)
        before = self._kept(_before(window))
        key = _key(before, window.first_frame)
        if before.shape[1] and not self._cache.has(key):
            self._cache.hold(key, (yield from self._rebuild(before, window.first_frame)))

    # -- the parts of decoding a batch

    def check(self, window: DecodeWindow) -> None:
        """Raise CodesError for a window that can never be decoded."""
        check_codes(self._spec, window.codes, window.lookahead)
        if window.history is not None:
            check_codes(self._spec, window.history)

    def begin(self, position: int = 0) -> StreamState:
        """Return the state of a stream of which nothing is known before frame ``position``."""
        none = self._network.no_latents
        latents = none.new_zeros(self._spec.left_frames, none.shape[1])
        return StreamState(position, 0, (*self._network.begin(), latents))

    def state_before(self, window: DecodeWindow) -> StreamState:
        """Return the state that a window continues from, recomputed if it is not cached."""
        before = self._kept(_before(window))
        found = self._cache.find(_key(before, window.first_frame)) if before.shape[1] else None
        if found is not None:
            return found
        rebuilding = self._rebuild(before, window.first_frame)
        while True:
            try:
                next(rebuilding)
            except StopIteration as finished:
                state: StreamState = finished.value
                return state

    def compute(
        self,
        codes: Tensor,
        states: StateTensors,
        at: BatchPositions,
        left: int,
        *,
        with_edges: bool = False,
    ) -> tuple[Tensor, StateTensors]:
        """Decode the next T frames of B streams, on the device alone.

        Args:
            codes: ``[B, K, T]`` int64.
            states: the streams' states before these frames, ``[B, ...]`` each.
            at: where the frames are in their streams.
            left: number of frames before them that all streams have, at most ``left_frames``.
            with_edges: whether streams may have fewer. Positions before a stream's first frame are
                then set to zero before every layer, as padding is.

        Returns:
            The samples ``[B, T * hop]``, and the states after the frames.
        """
        latents, after = self._advance(codes, states, at)
        latents = latents[:, self._spec.left_frames - left :]
        begins = (left - at.known).clamp(min=0) if with_edges else None
        return self._convolve(latents, left, codes.shape[2], begins), after

    def keep(self, window: DecodeWindow, after: StreamState) -> None:
        """Cache the state after a window in place of the one before it."""
        self._cache.end_batch()
        before = _before(window)
        self._cache.pop(_key(self._kept(before), window.first_frame), None)
        if not window.is_last:
            done = self._kept(np.concatenate([before, new_codes(window)], axis=1))
            self._cache[_key(done, after.position)] = after

    # -- without graphs

    @torch.inference_mode()
    def _decode_whole(self, codes: Codes) -> Samples:
        at, states = self._placed([self.begin()])
        samples, _ = self.compute(self._codes(codes[None]), states, at, 0)
        whole: Samples = samples[0].cpu().numpy()
        return whole

    @torch.inference_mode()
    def _decode_equal(self, left: int, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode windows with equal numbers of new frames, and of ``left`` frames before them."""
        befores = [self.state_before(window) for window in windows]
        at, states = self._placed(befores)
        codes = self._codes(np.stack([new_codes(window) for window in windows]))
        samples, afters = self.compute(codes, states, at, left)
        for row, (window, before) in enumerate(zip(windows, befores, strict=True)):
            if window.is_last:
                kept: StateTensors = ()
            else:
                kept = tuple(one[row].clone() for one in afters)
            self.keep(window, before.after(window.new_frames, kept))
        return list(samples.cpu().numpy())

    def _rebuild(self, before: Codes, position: int) -> Generator[None, None, StreamState]:
        """Compute a state from the codes before it, ``[K, n]``, slice by slice."""
        state = self.begin(position - before.shape[1])
        for first in range(0, before.shape[1], _SLICE_FRAMES):
            if first:
                yield
            with torch.inference_mode():
                codes = before[None, :, first : first + _SLICE_FRAMES]
                at, states = self._placed([state])
                _, after = self._advance(self._codes(codes), states, at)
                state = state.after(codes.shape[2], tuple(one[0].clone() for one in after))
        return state

    def _kept(self, before: Codes) -> Codes:
        """Return the codes before a frame on which its samples depend."""
        return before[:, -(self._spec.left_frames + self._spec.history_frames) :]

    def _placed(self, states: Sequence[StreamState]) -> tuple[BatchPositions, StateTensors]:
        """Return the states as a batch."""
        numbers = torch.tensor([(s.position, s.known) for s in states], device=self._device)
        tensors = zip(*(state.tensors for state in states), strict=True)
        return BatchPositions(*numbers.unbind(1)), tuple(torch.stack(one) for one in tensors)

    def _codes(self, codes: Codes) -> Tensor:
        return torch.from_numpy(codes.astype(np.int64)).to(self._device)

    # -- on the device

    def _advance(
        self, codes: Tensor, states: StateTensors, at: BatchPositions
    ) -> tuple[Tensor, StateTensors]:
        """Return the remembered and the new latents, ``[B, left_frames + T, dim]``, and the states
        after the frames. See ``compute``.
        """
        *network, remembered = states
        latents, after = self._network.run(codes, tuple(network), at)
        latents = torch.cat([remembered, latents], 1)
        return latents, (*after, at.last_of(latents, 1, self._spec.left_frames))

    def _convolve(self, latents: Tensor, left: int, new: int, begins: Tensor | None) -> Tensor:
        """Decode latents ``[B, left + new, dim]`` to the new frames' samples ``[B, new * hop]``.
        ``begins`` ``[B]``: the first frame of each row's stream, if some begin after the first.
        """
        layers = self._convolutions.layers
        plan = layer_ranges.plan(layers, left, new, 0)
        x = latents[:, plan.first_frame : plan.end_frame]
        for stage, step, layer, first in zip(
            self._convolutions.stages, plan.steps, layers, plan.firsts, strict=True
        ):
            if begins is not None:
                position = torch.arange(first, first + x.shape[1], device=x.device)
                x = x.masked_fill((position < begins[:, None] * layer.rate)[:, :, None], 0)
            x = stage(x.contiguous(), step)
        return self._convolutions.limit(x[:, :, 0]).float()


def build_stages(
    tensors: Mapping[str, Tensor],
    layers: tuple[int, int],
    *,
    upsample: str,
    decoder: str,
    unit: Sequence[str],
) -> list[Stage]:
    """Build the layers of ``layer_ranges.causal_architecture`` from a checkpoint's tensors.

    Args:
        tensors: by name; a convolution's are under its layer's name and ``.conv``.
        layers: number of upsamplings with a ConvNeXt block, and of rates.
        upsample: name of the list of the first.
        decoder: name of the list of all other layers.
        unit: names of Snake, convolution, Snake, convolution in a residual unit.
    """
    by_name = NamedWeights(tensors, ".conv")
    upsamplings, rates = layers
    stages: list[Stage] = []
    for index in range(upsamplings):
        stages.append(FrameUpsample(*by_name.conv(f"{upsample}.{index}.0")))
        stages.append(ConvNeXt(tensors, f"{upsample}.{index}.1"))
    stages.append(Edge(*by_name.conv(f"{decoder}.0")))
    for index in range(1, rates + 1):
        block = f"{decoder}.{index}.block"
        stages.append(Upsample(by_name.snake(f"{block}.0"), *by_name.conv(f"{block}.1")))
        for number, dilation in enumerate(DILATIONS, 2):
            parts = [f"{block}.{number}.{part}" for part in unit]
            stages.append(by_name.residual(parts, dilation))
    last = by_name.conv(f"{decoder}.{rates + 2}")
    return [*stages, Edge(*last, by_name.snake(f"{decoder}.{rates + 1}"))]


def new_codes(window: DecodeWindow) -> Codes:
    """Return the codes of a window's new frames, ``[K, T]``."""
    return window.codes[:, window.left_context : window.left_context + window.new_frames]


def _before(window: DecodeWindow) -> Codes:
    """Return the codes of a window before its new frames, history first."""
    context = window.codes[:, : window.left_context]
    return context if window.history is None else np.concatenate([window.history, context], axis=1)


def _key(before: Codes, position: int) -> bytes:
    """Return the key of a state: its position in the stream, and the codes before it."""
    digest = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=16)
    digest.update(np.ascontiguousarray(before).tobytes())
    return digest.digest()
