"""Fakes for tests and load tests: a codec without weights, and an engine around it. Not speech."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from codec.batching import BatchLimits, DecodeCost
from codec.decode_loop import Link, serve
from codec.family import CheckpointError, ClipEncoder, CodecFamily, check_codes
from codec.messages import ToWorker
from ipc.child import LinkClosed
from streaming.ports import CodecDecoder, DecodeStats, EncodedClip
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

#: float32 holds every integer up to here, so sums below it are exact in any order.
_EXACT = 1 << 24


class FakeDecoder:
    """A fake ``CodecDecoder``: every sample depends on every code within its receptive field,
    history included.

    Sample ``j`` of frame ``t`` is ``sum over d, k of weight[d, j, k] * (code[k, t + d] + 1)``
    scaled by ``2 ** -24``, for ``d`` from ``-(history + left)`` to ``right`` frames, and 0 outside
    the sequence and where the code is UNKNOWN. Weights are positive integers from a hash, and the
    sums stay below 2 ** 24. So float32 holds them exactly and tests can require equality: a window
    that lost a frame, shifted a seam or swapped a stream has other samples.
    """

    def __init__(self, spec: CodecSpec) -> None:
        self._spec = spec
        self._left = spec.history_frames + spec.left_frames
        reach = self._left + 1 + spec.right_frames
        largest = (_EXACT - 1) // (reach * spec.num_codebooks * max(spec.codebook_sizes))
        if largest < 2:
            raise ValueError("the spec is too large for exact sums in float32")
        shape = (reach, spec.hop_length, spec.num_codebooks)
        index = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(1)
        hashed = (index * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        weights = (1 + hashed % np.uint64(largest)).reshape(shape).transpose(0, 2, 1)
        # [reach, K, hop]; scaling by a power of two stays exact
        self._weights = np.ascontiguousarray(weights, np.float32) / np.float32(_EXACT)

    @property
    def spec(self) -> CodecSpec:
        """The spec that it was made with."""
        return self._spec

    @property
    def fingerprint(self) -> str:
        """The same for all fakes of the same sizes."""
        return f"fake-{self._spec.num_codebooks}x{max(self._spec.codebook_sizes)}"

    def encode(self, samples: Samples) -> Codes:
        """Return codes ``[K, T]`` that depend on each frame's samples alone: not an inverse."""
        hop = self._spec.hop_length
        frames = np.pad(samples, (0, -len(samples) % hop)).reshape(-1, hop)
        steps = np.rint(np.clip(frames, -1, 1) * 32767).astype(np.int64)
        weights = np.arange(1, hop + 1)[:, None] * np.arange(1, self._spec.num_codebooks + 1)
        sizes = np.array(self._spec.codebook_sizes)
        codes: Codes = ((steps @ weights) % sizes).T.astype(np.int16)
        return codes

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences: a batch of ``[K, T_i]`` -> ``[T_i * hop_length]`` each."""
        return [self._decode(sequence) for sequence in codes]

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode each window whole, its history too, and trim it."""
        return [self._decode_window(window) for window in windows]

    def _decode_window(self, window: DecodeWindow) -> Samples:
        if window.history is None:
            return window.trim(self._decode(window.codes, window.lookahead))
        codes = np.concatenate([window.history, window.codes], axis=1)
        samples = self._decode(codes, window.lookahead)
        return window.trim(samples[window.history.shape[1] * self._spec.hop_length :])

    def _decode(self, codes: Codes, lookahead: int = 0) -> Samples:
        check_codes(self._spec, codes, lookahead)
        frames = codes.shape[1]
        left = self._left
        right = self._spec.right_frames
        padded = np.zeros((left + frames + right, self._spec.num_codebooks), np.float32)
        np.add(codes.T, 1, out=padded[left : left + frames])
        sums = padded[:frames] @ self._weights[0]
        for offset, weights in enumerate(self._weights[1:], 1):
            sums += padded[offset : offset + frames] @ weights
        samples: Samples = sums.reshape(-1)
        return samples


class NoiseDecoder(FakeDecoder):
    """A fake ``CodecDecoder`` for load tests, which measure the code around it. It ignores the
    codes: each sequence is the beginning of the same noise.
    """

    def __init__(self, spec: CodecSpec) -> None:
        self._spec = spec
        self._noise = np.empty(0, np.float32)

    def _decode(self, codes: Codes, lookahead: int = 0) -> Samples:
        size = codes.shape[1] * self._spec.hop_length
        if size > len(self._noise):
            self._noise = np.random.default_rng(0).uniform(-0.5, 0.5, size).astype(np.float32)
        return self._noise[:size]


@dataclass(frozen=True)
class FakeCodec:
    """A fake ``codec.family.FoundCodec`` that "loads" the decoder and encoder it was given."""

    decoder: CodecDecoder
    encoder: ClipEncoder | None = None
    family: CodecFamily = CodecFamily("fake", "nothing real", lambda *_: None)  # noqa: RUF009

    def can_encode(self) -> bool:
        """Whether it was given an encoder."""
        return self.encoder is not None

    def load_decoder(self, device: str = "cpu") -> CodecDecoder:
        """The decoder that it was given."""
        return self.decoder

    def load_encoder(self, device: str = "cpu") -> ClipEncoder:
        """The encoder that it was given."""
        if self.encoder is None:
            raise CheckpointError("a fake without an encoder")
        return self.encoder


def run_worker(find: Callable[[str], FakeCodec]) -> None:
    """Run as a codec worker's process, with the fake codec that ``find`` returns for the model. It
    is ready sooner than a real one, since it does not need torch.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--model", required=True)
    options, _ = parser.parse_known_args()
    codec = find(options.model)
    with Link(options.socket, ToWorker) as link, contextlib.suppress(LinkClosed):
        serve(link, codec, codec.load_decoder(), codec.load_encoder, BatchLimits())


class FakeCodecEngine:
    """A fake ``CodecEngine``: decodes in the caller's process, after ``delay_s``.

    ``decoder`` is a FakeDecoder of ``spec`` by default. Each answer has the statistics of the real
    engine, for a batch of one.
    """

    def __init__(
        self,
        spec: CodecSpec,
        delay_s: float = 0.0,
        decoder: FakeDecoder | None = None,
    ) -> None:
        self._decoder = decoder or FakeDecoder(spec)
        #: Time that a window or a clip takes.
        self.delay_s = delay_s
        #: Raised instead of an answer while it is set.
        self.fail_with: Exception | None = None
        #: Windows answered.
        self.decoded = 0
        #: Windows whose caller was cancelled.
        self.cancelled = 0
        #: Restarts of a worker, which a fake does not have.
        self.restarts = 0
        #: Windows in progress.
        self.outstanding = 0
        self.is_ready = False
        self.has_spare_ready: bool | None = None
        #: Number of workers that it seems to have.
        self.workers = 1
        #: Takeovers by a spare, which a fake does not have.
        self.takeovers = 0
        self.can_encode = True
        #: Clips encoded.
        self.encoded = 0
        self.cost = DecodeCost(delay_s, 0.0)

    @property
    def spec(self) -> CodecSpec:
        """The spec that it was made with."""
        return self._decoder.spec

    @property
    def fingerprint(self) -> str:
        """See FakeDecoder."""
        return self._decoder.fingerprint

    async def encode(self, samples: Samples) -> EncodedClip:
        """Encode as FakeDecoder does, counted in ``encoded``. Raises ``fail_with`` if it is set."""
        await asyncio.sleep(self.delay_s)
        if self.fail_with is not None:
            raise self.fail_with
        self.encoded += 1
        return EncodedClip(self._decoder.encode(samples))

    async def start(self) -> None:
        """Become ready."""
        self.is_ready = True

    async def stop(self) -> None:
        """Stop being ready."""
        self.is_ready = False

    async def decode(
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ) -> tuple[Samples, DecodeStats]:
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
        frames = window.codes.shape[1]
        delay_s = self.delay_s
        stats = DecodeStats(frames, window.new_frames, 0.0, delay_s, 1, slack_s)
        return self._decoder.decode_windows([window])[0], stats
