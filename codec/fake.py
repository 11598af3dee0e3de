"""Fakes for tests and load tests: a codec without weights, and an engine around it. Not speech."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import numpy as np

from codec.batching import DecodeCost
from codec.decodes import DecodeStats
from codec.errors import CodesError
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow, are_codes

#: float32 holds every integer up to here, so sums below it are exact in any order.
_EXACT = 1 << 24
#: How a LiteralDecoder shares the 15 bits of a sample: 2 ** 10 codes, 2 ** 5 places.
_CODES, _PLACES = 1 << 10, 1 << 5


class FakeDecoder:
    """A fake ``CodecDecoder``: every sample depends on every code within its receptive field.

    Sample ``j`` of frame ``t`` is ``sum over d, k of weight[d, j, k] * (code[k, t + d] + 1)``
    scaled by ``2 ** -24``, for ``d`` in ``-rf .. rf``, and 0 outside the sequence and where the
    code is UNKNOWN. Weights are
    positive integers from a hash and the sums stay below 2 ** 24, so float32 holds them
    exactly and tests may ask for equality: a window that lost a frame, shifted a seam or
    swapped a stream shows in the samples.
    """

    def __init__(self, spec: CodecSpec) -> None:
        self._spec = spec
        reach = 2 * spec.receptive_field_frames + 1
        largest = (_EXACT - 1) // (reach * spec.num_codebooks * spec.codebook_size)
        if largest < 2:
            raise ValueError("the spec is too large for exact sums in float32")
        shape = (reach, spec.hop_length, spec.num_codebooks)
        index = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(1)
        hashed = (index * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        weights = (1 + hashed % np.uint64(largest)).reshape(shape).transpose(0, 2, 1)
        # [reach, K, hop], scaled: a power of two changes nothing of exactness
        self._weights = np.ascontiguousarray(weights, np.float32) / np.float32(_EXACT)

    @property
    def spec(self) -> CodecSpec:
        """The facts it was made with."""
        return self._spec

    @property
    def fingerprint(self) -> str:
        """One for all fakes of the same sizes."""
        return f"fake-{self._spec.num_codebooks}x{self._spec.codebook_size}"

    def encode(self, samples: Samples) -> Codes:
        """Codes ``[K, T]`` that follow from each frame's samples alone: not an inverse."""
        hop = self._spec.hop_length
        frames = np.pad(samples, (0, -len(samples) % hop)).reshape(-1, hop)
        steps = np.rint(np.clip(frames, -1, 1) * 32767).astype(np.int64)
        weights = np.arange(1, hop + 1)[:, None] * np.arange(1, self._spec.num_codebooks + 1)
        codes: Codes = ((steps @ weights) % self._spec.codebook_size).T.astype(np.int16)
        return codes

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences: a batch of ``[K, T_i]`` -> ``[T_i * hop_length]`` each."""
        return [self._decode(sequence) for sequence in codes]

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode each window whole and trim it."""
        return [window.trim(self._decode(window.codes, window.lookahead)) for window in windows]

    def _decode(self, codes: Codes, lookahead: int = 0) -> Samples:
        if codes.ndim != 2 or codes.shape[0] != self._spec.num_codebooks or not codes.shape[1]:
            raise CodesError(f"codes of shape {codes.shape} fit no [K, T]")
        if not are_codes(codes, self._spec.codebook_size, lookahead):
            raise CodesError(f"a code is not within 0..{self._spec.codebook_size - 1}")
        frames, reach = codes.shape[1], self._spec.receptive_field_frames
        padded = np.zeros((reach + frames + reach, self._spec.num_codebooks), np.float32)
        np.add(codes.T, 1, out=padded[reach : reach + frames])
        sums = padded[:frames] @ self._weights[0]
        for offset, weights in enumerate(self._weights[1:], 1):
            sums += padded[offset : offset + frames] @ weights
        samples: Samples = sums.reshape(-1)
        return samples


class LiteralDecoder(FakeDecoder):
    """A fake ``CodecDecoder`` whose samples tell where they come from.

    A frame's samples are its codes, over and over: sample ``j`` is code ``j % K`` in the lower
    ten bits and ``j // K``, its place in the frame, in the five above, over 32767. So 16-bit
    audio holds it exactly, and any K samples in a row prove whose they are and which.
    """

    def __init__(self, spec: CodecSpec) -> None:
        groups, rest = divmod(spec.hop_length, spec.num_codebooks)
        if rest or groups > _PLACES or spec.codebook_size > _CODES:
            raise ValueError("a frame must be at most 32 times its codes, of ten bits each")
        self._spec = spec

    def _decode(self, codes: Codes, lookahead: int = 0) -> Samples:
        groups = self._spec.hop_length // self._spec.num_codebooks
        places = np.arange(groups, dtype=np.float32)[None, :, None] * _CODES
        samples: Samples = (places + codes.T[:, None, :].astype(np.float32)) / np.float32(32767)
        return samples.reshape(-1)


class NoiseDecoder(FakeDecoder):
    """A fake ``CodecDecoder`` for load tests, which measure what is around it: codes are neither
    looked at nor heard, and each sequence is the beginning of the same noise.
    """

    def __init__(self, spec: CodecSpec) -> None:
        self._spec = spec
        self._noise = np.empty(0, np.float32)

    def _decode(self, codes: Codes, lookahead: int = 0) -> Samples:
        size = codes.shape[1] * self._spec.hop_length
        if size > len(self._noise):
            self._noise = np.random.default_rng(0).uniform(-0.5, 0.5, size).astype(np.float32)
        return self._noise[:size]


class FakeCodecEngine:
    """A fake ``CodecEngine``: decodes at once, in the caller's process, after ``delay_s``.

    ``decoder`` is a FakeDecoder of ``spec`` if none is given. ``decoded`` counts windows answered
    and ``cancelled`` those whose caller went away. ``fail_with`` is raised instead of an answer
    while it is set. ``on_decoded`` is told of each answer what the real engine would tell, as
    batches of one.
    """

    def __init__(
        self,
        spec: CodecSpec,
        delay_s: float = 0.0,
        on_decoded: Callable[[DecodeStats], None] = lambda stats: None,
        decoder: FakeDecoder | None = None,
    ) -> None:
        self._decoder, self._on_decoded = decoder or FakeDecoder(spec), on_decoded
        self.delay_s = delay_s
        self.fail_with: Exception | None = None
        self.decoded = self.cancelled = self.restarts = self.outstanding = 0
        self.is_ready = False
        self.can_encode = True
        self.encoded = 0
        self.cost = DecodeCost(delay_s, 0.0)

    @property
    def spec(self) -> CodecSpec:
        """The facts it was made with."""
        return self._decoder.spec

    @property
    def fingerprint(self) -> str:
        """See FakeDecoder."""
        return self._decoder.fingerprint

    async def encode(self, samples: Samples) -> Codes:
        """See FakeDecoder; ``encoded`` counts them. ``fail_with`` is raised while it is set."""
        await asyncio.sleep(self.delay_s)
        if self.fail_with is not None:
            raise self.fail_with
        self.encoded += 1
        return self._decoder.encode(samples)

    async def start(self) -> None:
        """Be ready."""
        self.is_ready = True

    async def stop(self) -> None:
        """Be ready no more."""
        self.is_ready = False

    async def decode(self, window: DecodeWindow, deadline_s: float) -> Samples:
        """See ``streaming.ports.CodecEngine``."""
        self.outstanding += 1
        slack_s = deadline_s - time.monotonic()
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.outstanding -= 1
        if self.fail_with is not None:
            raise self.fail_with
        self.decoded += 1
        frames, delay_s = window.codes.shape[1], self.delay_s
        stats = DecodeStats(frames, window.new_frames, 0.0, delay_s, 1, slack_s, window)
        self._on_decoded(stats)
        return self._decoder.decode_windows([window])[0]
