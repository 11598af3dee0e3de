"""The Fish codec's decoder: codes to samples, causal, in a stream with exact state.

A window's latents are computed once, from the transformer's state after the frames before it. The
convolutions after it see a few earlier latents, and compute in each layer only what the new frames
depend on (``codec.layer_ranges``).

The state is only a cache. Its key is a digest of the codes that it was computed from, which each
window brings as its left context and history. So decoding is a pure function of the window,
whatever was decoded before. If the state is missing (another worker, or too many streams), it is
recomputed from the history.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from codec import layer_ranges
from codec.batching import in_groups
from codec.families.fish.config import FishConfig, codebooks
from codec.families.fish.transformer import AttentionState, WindowTransformer
from codec.family import check_codes
from codec.layer_ranges import DILATIONS, Step
from codec.layers import Conv, Edge, NamedWeights, Residual, Upsample
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

#: Enough for 120 streams of the published size.
_CACHE_BYTES = 1 << 30
_LAYER_NORM_EPS = 1e-6
#: Frames of a history that are computed before the caller can do other work.
_SLICE_FRAMES = 128


@dataclass(frozen=True, slots=True)
class StreamState:
    """State of a stream: that of the transformer and its last outputs ``[n, dim]``, n at most the
    convolutions' receptive field.
    """

    attention: AttentionState
    latents: Tensor

    @property
    def size_bytes(self) -> int:
        """Memory in use, in bytes."""
        return self.attention.size_bytes + self.latents.numel() * self.latents.element_size()


class FishDecoder:
    """Implements ``streaming.ports.CodecDecoder`` on torch. For one thread: it owns its cache.

    ``tensors`` are those of ``config.decoder_shapes``. ``cache_bytes`` limits the memory for
    streams' states; the least recently used ones are dropped first.
    """

    def __init__(
        self,
        config: FishConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self.fingerprint = _fingerprint(config, tensors)
        self._spec, self._layers = config.spec(), config.conv_layers
        self._device = torch.device(device)
        placed = {name: tensor.to(self._device, dtype) for name, tensor in tensors.items()}
        self._tables = [_table(tensors, name).to(self._device, dtype) for name in codebooks(config)]
        self._transformer = WindowTransformer(config.transformer, placed, "quantizer.post_module")
        self._stages = _build_stages(config, placed)
        self._cache = StateCache(cache_bytes)

    @property
    def spec(self) -> CodecSpec:
        """Properties of the loaded codec."""
        return self._spec

    @property
    def cache(self) -> StateCache:
        """The streams' states."""
        return self._cache

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
            self._check_window(window)

        def lengths(window: DecodeWindow) -> tuple[int, int]:
            return min(_before(window).shape[1], self._spec.left_frames), window.new_frames

        return in_groups(windows, lengths, lambda _, equal: self._decode_equal(equal))

    def catch_up(self, window: DecodeWindow) -> Iterator[None]:
        """See ``codec.family.StatefulDecoder``."""
        self._check_window(window)
        before = self._kept(_before(window))
        key = _key(before, window.first_frame)
        if before.shape[1] and self._cache.find(key) is None:
            self._cache.keep(key, (yield from self._rebuild(before, window.first_frame)))

    @torch.inference_mode()
    def _decode_whole(self, codes: Codes) -> Samples:
        latents, _ = self._transformer.run(self._look_up(codes[None]), [self._transformer.begin()])
        samples: Samples = self._samples(latents, 0, codes.shape[1])[0]
        return samples

    @torch.inference_mode()
    def _decode_equal(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode windows with equal numbers of new frames and of latents before them."""
        befores = [_before(window) for window in windows]
        states = [
            self._state_after(before, window.first_frame)
            for before, window in zip(befores, windows, strict=True)
        ]
        new = [
            window.codes[:, window.left_context : window.left_context + window.new_frames]
            for window in windows
        ]
        latents, attention = self._transformer.run(
            self._look_up(np.stack(new)), [state.attention for state in states]
        )
        latents = torch.cat([torch.stack([state.latents for state in states]), latents], 1)
        left = latents.shape[1] - windows[0].new_frames
        samples = self._samples(latents, left, windows[0].new_frames)
        for row, window in enumerate(windows):
            self._cache.drop(_key(self._kept(befores[row]), window.first_frame))
            if not window.is_last:
                done = self._kept(np.concatenate([befores[row], new[row]], axis=1))
                key = _key(done, window.first_frame + window.new_frames)
                last = latents[row, -self._spec.left_frames :].clone()
                self._cache.keep(key, StreamState(attention[row], last))
        return list(samples)

    def _state_after(self, before: Codes, position: int) -> StreamState:
        """Return a stream's state at ``position``, after the codes ``[K, n]``."""
        before = self._kept(before)
        found = self._cache.find(_key(before, position)) if before.shape[1] else None
        if found is not None:
            return found
        rebuilding = self._rebuild(before, position)
        while True:
            try:
                next(rebuilding)
            except StopIteration as made:
                state: StreamState = made.value
                return state

    def _rebuild(self, before: Codes, position: int) -> Generator[None, None, StreamState]:
        """Compute a state from the codes before it, ``[K, n]``, slice by slice."""
        states = [self._transformer.begin(position - before.shape[1])]
        latents = self._tables[0].new_zeros(0, self._tables[0].shape[1])
        for first in range(0, before.shape[1], _SLICE_FRAMES):
            if first:
                yield
            with torch.inference_mode():
                codes = before[None, :, first : first + _SLICE_FRAMES]
                made, states = self._transformer.run(self._look_up(codes), states)
                latents = torch.cat([latents, made[0]])[-self._spec.left_frames :]
        return StreamState(states[0], latents)

    def _kept(self, before: Codes) -> Codes:
        """Return the codes before a frame on which its samples depend."""
        return before[:, -(self._spec.left_frames + self._spec.history_frames) :]

    def _samples(self, latents: Tensor, left: int, new: int) -> Samples:
        """Decode latents ``[B, left + new, dim]`` to the new frames' samples ``[B, new * hop]``."""
        plan = layer_ranges.plan(self._layers, left, new, 0)
        x = latents[:, plan.first_frame : plan.end_frame]
        for stage, step in zip(self._stages, plan.steps, strict=True):
            x = stage(x.contiguous(), step)
        samples: Samples = torch.tanh(x[:, :, 0]).float().cpu().numpy()
        return samples

    def _look_up(self, codes: Codes) -> Tensor:
        """Return the sum of the projected vectors of codes ``[B, K, T]``, ``[B, T, dim]``."""
        placed = torch.from_numpy(codes.astype(np.int64)).to(self._device)
        total = self._tables[0][placed[:, 0]]
        for index, table in enumerate(self._tables[1:], 1):
            total = total + table[placed[:, index]]
        return total

    def _check_window(self, window: DecodeWindow) -> None:
        check_codes(self._spec, window.codes, window.lookahead)
        if window.history is not None:
            check_codes(self._spec, window.history)


class StateCache:
    """States by key, at most ``most_bytes`` in all; the least recently used is dropped first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._states: OrderedDict[bytes, StreamState] = OrderedDict()
        self._bytes = 0
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def size_bytes(self) -> int:
        """Memory of all states, in bytes."""
        return self._bytes

    def find(self, key: bytes) -> StreamState | None:
        """Return a state; None if it is not cached."""
        state = self._states.get(key)
        if state is None:
            self.misses += 1
        else:
            self.hits += 1
            self._states.move_to_end(key)
        return state

    def keep(self, key: bytes, state: StreamState) -> None:
        """Cache a state, unless it alone is too large."""
        self.drop(key)
        if state.size_bytes > self._most_bytes:
            return
        self._states[key] = state
        self._bytes += state.size_bytes
        while self._bytes > self._most_bytes:
            _, oldest = self._states.popitem(last=False)
            self._bytes -= oldest.size_bytes

    def drop(self, key: bytes) -> None:
        """Drop a state, if it is cached."""
        state = self._states.pop(key, None)
        if state is not None:
            self._bytes -= state.size_bytes

    def clear(self) -> None:
        """Drop all states."""
        self._states.clear()
        self._bytes = 0


class FrameUpsample:
    """A transposed convolution with kernel and stride equal: each position becomes ``stride``."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        # [in, out, stride] -> [stride * out, in, 1]
        self._stride = weight.shape[2]
        self._conv = Conv(
            weight.permute(2, 1, 0).flatten(0, 1)[:, :, None], bias.repeat(self._stride)
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range."""
        y = self._conv(x)
        y = y.reshape(len(y), y.shape[1] * self._stride, -1)
        return y[:, step.skip : step.skip + step.length].contiguous()


class ConvNeXt:
    """Depthwise convolution, LayerNorm, a wide GELU layer, plus the input."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        self._depthwise = tensors[f"{name}.dwconv.conv.weight"][:, 0].T.contiguous()  # [taps, dim]
        self._depthwise_bias = tensors[f"{name}.dwconv.conv.bias"]
        self._norm = tensors[f"{name}.norm.weight"], tensors[f"{name}.norm.bias"]
        self._wide = tensors[f"{name}.pwconv1.weight"], tensors[f"{name}.pwconv1.bias"]
        gamma = tensors[f"{name}.gamma"]
        self._narrow = (
            tensors[f"{name}.pwconv2.weight"] * gamma[:, None],
            tensors[f"{name}.pwconv2.bias"] * gamma,
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Compute the step's range of ``[B, n, dim]``."""
        padded = F.pad(x, (0, 0, step.pad_left, step.pad_right))
        y = self._depthwise_bias.expand(len(x), step.length, -1)
        for tap, weight in enumerate(self._depthwise):
            y = y + padded[:, tap : tap + step.length] * weight
        y = F.layer_norm(y, y.shape[-1:], *self._norm, _LAYER_NORM_EPS)
        y = F.linear(F.gelu(F.linear(y, *self._wide)), *self._narrow)
        return x[:, step.skip : step.skip + step.length] + y


Stage = FrameUpsample | ConvNeXt | Edge | Upsample | Residual


def _build_stages(config: FishConfig, tensors: Mapping[str, Tensor]) -> list[Stage]:
    """Build the layers after the transformer, one stage for each of ``FishConfig.conv_layers``."""
    by_name = NamedWeights(tensors, ".conv")
    stages: list[Stage] = []
    for index in range(len(config.upsample)):
        stages.append(FrameUpsample(*by_name.conv(f"quantizer.upsample.{index}.0")))
        stages.append(ConvNeXt(tensors, f"quantizer.upsample.{index}.1"))
    stages.append(Edge(*by_name.conv("decoder.model.0")))
    for index in range(1, len(config.decoder_rates) + 1):
        block = f"decoder.model.{index}.block"
        stages.append(Upsample(by_name.alpha(f"{block}.0"), *by_name.conv(f"{block}.1")))
        for number, dilation in enumerate(DILATIONS, 2):
            unit = [f"{block}.{number}.block.{part}" for part in range(4)]
            stages.append(by_name.residual(unit, dilation))
    end = len(config.decoder_rates) + 1
    last = by_name.conv(f"decoder.model.{end + 1}")
    return [*stages, Edge(*last, by_name.alpha(f"decoder.model.{end}"))]


def _table(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a codebook's projected vectors, ``[size, dim]``, computed in float64."""
    project = tensors[f"{name}.out_proj.weight"][:, :, 0].double()
    vectors = tensors[f"{name}.codebook.weight"].double()
    return vectors @ project.T + tensors[f"{name}.out_proj.bias"].double()


def _fingerprint(config: FishConfig, tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of the tensors that give codes a meaning: codebooks and their projections."""
    digest = hashlib.sha256()
    for name in codebooks(config):
        for part in ("codebook.weight", "out_proj.weight", "out_proj.bias"):
            digest.update(tensors[f"{name}.{part}"].float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _before(window: DecodeWindow) -> Codes:
    """Return the codes of a window before its new frames, history first."""
    context = window.codes[:, : window.left_context]
    return context if window.history is None else np.concatenate([window.history, context], axis=1)


def _key(before: Codes, position: int) -> bytes:
    """Return the key of a state: its position in the stream, and the codes before it."""
    digest = hashlib.blake2b(position.to_bytes(8, "little"), digest_size=16)
    digest.update(np.ascontiguousarray(before).tobytes())
    return digest.digest()
