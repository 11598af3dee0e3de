"""Decoding by CUDA graphs: what a batch runs is recorded once for each bucket, then replayed.

A decode is some hundreds of small kernels, and launching them from Python takes longer than
running them. A graph is launched at once. Per batch there are one copy to the device, one
launch, one copy back and one wait, all on one stream; both copies go through pinned memory.

``GraphDecoder`` is the same on any device. What is CUDA's own is ``CudaRecorder``; the tests
put a recorder in its place that plays on a CPU what it recorded there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from codec.batching import BatchLimits
from codec.buckets import Bucket, Buckets, lay_out
from codec.decoder import HiggsDecoder
from codec.errors import DeviceError
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

log = logging.getLogger(__name__)
#: Runs before a capture: libraries choose their kernels and allocate in the first.
_WARM_UPS = 2


class Recorder(Protocol):
    """What a device must offer for work to be recorded and replayed on it."""

    @property
    def device(self) -> torch.device:
        """Where the work runs."""

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        """Zeros in the host's memory that the device copies from and to by itself."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a call that does on the device what ``work`` did, at the same addresses.

        ``work`` runs several times and must wait for nothing. Raises RuntimeError.
        """

    def play(self, *steps: Callable[[], object]) -> None:
        """Do ``steps`` (copies and replays) in order, and wait once until all is done."""


class CudaRecorder:
    """CUDA graphs that share one stream and one pool of memory.

    They may share it because none keeps anything in it between replays, and they are replayed
    one at a time.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def device(self) -> torch.device:
        """See Recorder."""
        return self._device

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        """See Recorder."""
        return torch.zeros(count, dtype=dtype, pin_memory=True)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Recorder."""
        torch.cuda.synchronize(self._device)
        with torch.cuda.device(self._device):
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    work()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
        replay: Callable[[], None] = graph.replay
        return replay

    def play(self, *steps: Callable[[], object]) -> None:
        """See Recorder."""
        with torch.cuda.stream(self._stream):
            for step in steps:
                step()
        self._stream.synchronize()


class GraphDecoder:
    """Implements ``streaming.ports.CodecDecoder``. For one thread: buffers are its own.

    Whole sequences, and windows longer than every bucket, are decoded by ``decoder`` itself.
    Raises RuntimeError if a capture fails.
    """

    def __init__(self, decoder: HiggsDecoder, buckets: Buckets, recorder: Recorder) -> None:
        self._decoder, self.buckets, self._recorder = decoder, buckets, recorder
        every, hop = buckets.all(), decoder.spec.hop_length
        books, device = decoder.spec.num_codebooks, recorder.device
        most_in = max(bucket.rows * buckets.row_size(bucket, books) for bucket in every)
        most_out = max(bucket.rows * bucket.new_frames * hop for bucket in every)
        self._host_in = recorder.pinned(most_in, torch.int16)
        self._host_out = recorder.pinned(most_out, torch.float32)
        self._in = torch.zeros(most_in, dtype=torch.int16, device=device)
        self._out = torch.zeros(most_out, dtype=torch.float32, device=device)
        self._replays = {bucket: self._capture(bucket) for bucket in every}

    @property
    def spec(self) -> CodecSpec:
        """The loaded codec's facts."""
        return self._decoder.spec

    @property
    def fingerprint(self) -> str:
        """See ``CodecDecoder``."""
        return self._decoder.fingerprint

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences, without graphs."""
        return self._decoder.decode(codes)

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode windows to the samples of their new frames, ``[new_frames * hop]`` each.

        Raises CodesError before anything is decoded.
        """
        groups: dict[int | None, list[int]] = {}
        for index, window in enumerate(windows):
            self._decoder.check(window.codes, window.lookahead)
            groups.setdefault(self.buckets.length(window.new_frames), []).append(index)
        results: dict[int, Samples] = {}
        most = self.buckets.rows[-1]
        for length, indices in groups.items():
            for first in range(0, len(indices), most):
                some = indices[first : first + most]
                rows = self._run(length, [windows[index] for index in some])
                results.update(zip(some, rows, strict=True))
        return [results[index] for index in range(len(windows))]

    @torch.inference_mode()
    def _capture(self, bucket: Bucket) -> Callable[[], None]:
        laid_out, samples = self._views(bucket, self._in, self._out)

        def work() -> None:
            samples.copy_(self._decoder.decode_laid_out(laid_out, bucket.new_frames))

        return self._recorder.record(work)

    @torch.inference_mode()
    def _run(self, length: int | None, windows: Sequence[DecodeWindow]) -> list[Samples]:
        if length is None:
            return self._decoder.decode_windows(windows)
        bucket = self.buckets.fit(len(windows), length)
        host_in, host_out = self._views(bucket, self._host_in, self._host_out)
        device_in, device_out = self._views(bucket, self._in, self._out)
        lay_out(windows, self.buckets.reach, host_in.numpy())
        self._recorder.play(
            lambda: device_in.copy_(host_in, non_blocking=True),
            self._replays[bucket],
            lambda: host_out.copy_(device_out, non_blocking=True),
        )
        rows, hop = host_out.numpy(), self.spec.hop_length
        return [
            np.array(row[: window.new_frames * hop])
            for row, window in zip(rows, windows, strict=False)
        ]

    def _views(self, bucket: Bucket, codes: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """A bucket's part of the buffers that all share: the front, ``[rows, ...]`` each."""
        row_in = self.buckets.row_size(bucket, self.spec.num_codebooks)
        row_out = bucket.new_frames * self.spec.hop_length
        return (
            codes[: bucket.rows * row_in].view(bucket.rows, row_in),
            samples[: bucket.rows * row_out].view(bucket.rows, row_out),
        )


def check_device(name: str) -> None:
    """Raise DeviceError unless torch can use the device."""
    device = torch.device(name)
    found = torch.cuda.device_count() if device.type == "cuda" else 1
    if found <= (device.index or 0):
        raise DeviceError(f"the codec is to run on {name}, but torch finds {found} GPUs here")


def recorder_for(device: str) -> Recorder | None:
    """How work is recorded on ``device``; None where it cannot be."""
    return CudaRecorder(device) if torch.device(device).type == "cuda" else None


def graphed(
    decoder: HiggsDecoder, limits: BatchLimits, recorder: Recorder
) -> HiggsDecoder | GraphDecoder:
    """``decoder`` by graphs, for the windows that come under ``limits``.

    Where a capture fails (too little memory, say) a warning is logged, and the decoder goes on
    without graphs: slower, and right.
    """
    buckets = Buckets.of(limits, decoder.spec.receptive_field_frames)
    try:
        return GraphDecoder(decoder, buckets, recorder)
    except RuntimeError as error:
        log.warning("no CUDA graphs, decoding goes on without: %s", error)
        return decoder
