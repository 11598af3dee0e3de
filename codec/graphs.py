"""Decoding with CUDA graphs: the work of a batch is recorded once for each bucket, then replayed.

A decode is some hundreds of small kernels, and launching them from Python takes longer than running
them. A graph is one launch. Each batch has one copy to the device, one launch, one copy back and
one wait, all on one stream; both copies use pinned memory.

``BucketGraphs`` is the same on any device. The part specific to CUDA is ``CudaRecorder``; the tests
replace it with a recorder that replays on a CPU. ``GraphDecoder`` is for decoders without state,
``codec.stream_graphs`` for those with one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from codec.batching import BatchLimits, in_groups
from codec.buckets import Bucket, Buckets
from codec.family import DeviceError, Encoder, check_codes
from codec.snake import use_kernel
from streaming.ports import CodecDecoder
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

log = logging.getLogger(__name__)
_Encoded = TypeVar("_Encoded")
_Decoder = TypeVar("_Decoder")
_Other = TypeVar("_Other")
#: Runs before a capture, since libraries choose their kernels and allocate in the first.
_WARM_UPS = 2
#: Priority of a CUDA stream that goes before others.
_HIGH_PRIORITY = -1
#: The lowest priority of a CUDA stream.
_LOW_PRIORITY = 0


@runtime_checkable
class LaidOutDecoder(CodecDecoder, Protocol):
    """A decoder whose work on a laid-out batch can be recorded: it runs on the device alone."""

    def decode_laid_out(self, laid_out: Tensor, new_frames: int) -> Tensor:
        """Decode rows of ``Buckets.lay_out``, ``[B, K * T + 2]`` int16 on the device, to
        ``[B, new_frames * hop]``.
        """


@runtime_checkable
class InteriorDecoder(LaidOutDecoder, Protocol):
    """A decoder that needs no masks for windows away from their stream's edges."""

    def decode_interior(self, codes: Tensor, new_frames: int, lookahead: int) -> Tensor:
        """Decode ``[B, K, T]`` int16 on the device, with the full left context before the new
        frames and ``lookahead`` frames after them, to ``[B, new_frames * hop]``.
        """


class Recorder(Protocol):
    """A device on which work can be recorded and replayed."""

    @property
    def device(self) -> torch.device:
        """Device on which the work runs."""

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return zeros in pinned host memory, which the device copies from and to by itself."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work``; return a call that repeats it on the device, at the same addresses.

        ``work`` runs several times and must not wait. Raises RuntimeError.
        """

    def play(self, *steps: Callable[[], object]) -> None:
        """Run ``steps`` (copies and replays) in order, after all earlier work of this thread, and
        wait once until all are done.
        """


class CudaRecorder:
    """CUDA graphs that share one stream and one pool of memory.

    They can share it because none keeps data in it between replays, and they are replayed one at a
    time. The stream has a high priority, so that other work of this process on the device, above
    all clips, yields to it.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            self._device, priority=_HIGH_PRIORITY
        )
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
        # states of streams may have been computed outside graphs just before
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for step in steps:
                step()
        self._stream.synchronize()


class BucketGraphs:
    """The graphs of all buckets, and the buffers that they share: rows of inputs and of samples, on
    the device and in pinned memory. For one thread. Raises RuntimeError if a capture fails.

    Args:
        buckets: the shapes.
        recorder: records and replays.
        decode: decodes a bucket's rows of inputs ``[rows, n]`` on the device to samples ``[rows,
            new_frames * hop]``.
        row_size: number of values in a bucket's row of inputs.
        hop: samples of a frame.
        dtype: of the inputs.
    """

    def __init__(
        self,
        buckets: Buckets,
        recorder: Recorder,
        decode: Callable[[Tensor, Bucket], Tensor],
        row_size: Callable[[Bucket], int],
        hop: int,
        dtype: torch.dtype,
    ) -> None:
        self._recorder = recorder
        self._decode = decode
        self._row_size = row_size
        self._hop = hop
        every = buckets.all()
        most_in = max(bucket.rows * row_size(bucket) for bucket in every)
        most_out = max(bucket.rows * bucket.new_frames * hop for bucket in every)
        self._host_in = recorder.pinned(most_in, dtype)
        self._host_out = recorder.pinned(most_out, torch.float32)
        self._in = torch.zeros(most_in, dtype=dtype, device=recorder.device)
        self._out = torch.zeros(most_out, dtype=torch.float32, device=recorder.device)
        self._replays = {bucket: self._capture(bucket) for bucket in every}

    def inputs(self, bucket: Bucket) -> Tensor:
        """Return the bucket's rows of inputs in pinned memory, to be written before ``play``."""
        return self._views(bucket, self._host_in, self._host_out)[0]

    def play(
        self,
        bucket: Bucket,
        before: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> Tensor:
        """Decode the inputs; return the bucket's rows of samples in pinned memory, which the next
        call overwrites. ``before`` and ``after`` are the caller's own copies on the device.
        """
        host_in, host_out = self._views(bucket, self._host_in, self._host_out)
        device_in, device_out = self._views(bucket, self._in, self._out)
        steps = [
            lambda: device_in.copy_(host_in, non_blocking=True),
            before,
            self._replays[bucket],
            after,
            lambda: host_out.copy_(device_out, non_blocking=True),
        ]
        self._recorder.play(*(step for step in steps if step is not None))
        return host_out

    @torch.inference_mode()
    def _capture(self, bucket: Bucket) -> Callable[[], None]:
        laid_out, samples = self._views(bucket, self._in, self._out)

        def work() -> None:
            samples.copy_(self._decode(laid_out, bucket))

        return self._recorder.record(work)

    def _views(self, bucket: Bucket, inputs: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return a bucket's part of the shared buffers: the front, ``[rows, ...]`` each."""
        row_in, row_out = self._row_size(bucket), bucket.new_frames * self._hop
        return (
            inputs[: bucket.rows * row_in].view(bucket.rows, row_in),
            samples[: bucket.rows * row_out].view(bucket.rows, row_out),
        )


Kind = tuple[int | None, bool]


def in_buckets(
    buckets: Buckets,
    windows: Sequence[DecodeWindow],
    run: Callable[[Bucket, list[DecodeWindow]], list[Samples]],
    run_longer: Callable[[list[DecodeWindow]], list[Samples]],
) -> list[Samples]:
    """Decode windows in as few buckets as they fit into, and those that are longer than all with
    ``run_longer``; return their samples in order.
    """

    def kind(window: DecodeWindow) -> Kind:
        return buckets.length(window.new_frames), buckets.is_interior(window)

    def run_kind(kind: Kind, some: list[DecodeWindow]) -> list[Samples]:
        length, interior = kind
        most = buckets.rows[-1]
        batches = [some[first : first + most] for first in range(0, len(some), most)]
        if length is None:
            return [samples for batch in batches for samples in run_longer(batch)]
        fits = [buckets.fit(len(batch), length, interior) for batch in batches]
        pairs = zip(fits, batches, strict=True)
        return [samples for bucket, batch in pairs for samples in run(bucket, batch)]

    return in_groups(windows, kind, run_kind)


class GraphDecoder:
    """Implements ``streaming.ports.CodecDecoder``. For one thread, since its buffers are its own.

    Whole sequences, and windows longer than every bucket, are decoded by ``decoder`` itself. Raises
    RuntimeError if a capture fails.
    """

    def __init__(self, decoder: LaidOutDecoder, buckets: Buckets, recorder: Recorder) -> None:
        self._decoder = decoder
        self.buckets = buckets
        spec = decoder.spec
        self._graphs = BucketGraphs(
            buckets,
            recorder,
            self._decode_bucket,
            lambda bucket: buckets.row_size(bucket, spec.num_codebooks),
            spec.hop_length,
            torch.int16,
        )

    @property
    def spec(self) -> CodecSpec:
        """Properties of the loaded codec."""
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
        for window in windows:
            check_codes(self._decoder.spec, window.codes, window.lookahead)
        return in_buckets(self.buckets, windows, self._run, self._decoder.decode_windows)

    def _decode_bucket(self, laid_out: Tensor, bucket: Bucket) -> Tensor:
        if not bucket.interior:
            return self._decoder.decode_laid_out(laid_out, bucket.new_frames)
        assert isinstance(self._decoder, InteriorDecoder)
        assert self.buckets.lookahead is not None
        codes = laid_out.view(len(laid_out), self.spec.num_codebooks, -1)
        return self._decoder.decode_interior(codes, bucket.new_frames, self.buckets.lookahead)

    @torch.inference_mode()
    def _run(self, bucket: Bucket, windows: Sequence[DecodeWindow]) -> list[Samples]:
        self.buckets.lay_out(windows, self._graphs.inputs(bucket).numpy(), bucket.interior)
        samples: list[Samples] = []
        for row, window in zip(self._graphs.play(bucket).numpy(), windows, strict=False):
            count = window.new_frames * self.spec.hop_length
            samples.append(np.array(row[-count:] if bucket.interior else row[:count]))
        return samples


def choose_device(name: str) -> str:
    """Return ``name``, or for ``auto`` a GPU if torch finds one, else the CPU.

    Raises DeviceError unless torch can use the device.
    """
    found = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if found else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"the codec is to run on {name}, which torch does not know") from error
    if device.type == "cuda" and found <= (device.index or 0):
        raise DeviceError(f"the codec is to run on {name}, but torch finds {found} GPUs here")
    return name


def recorder_for(device: str) -> Recorder | None:
    """Return the recorder for ``device``; None if work cannot be recorded there."""
    return CudaRecorder(device) if torch.device(device).type == "cuda" else None


class BackgroundEncoder(Generic[_Encoded]):
    """An encoder of clips on a CUDA stream of the lowest priority. For one thread."""

    def __init__(self, encoder: Encoder[_Encoded], device: str) -> None:
        self._encoder = encoder
        self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            torch.device(device), priority=_LOW_PRIORITY
        )

    def encode(self, samples: Samples) -> _Encoded:
        """See Encoder."""
        with torch.cuda.stream(self._stream):
            return self._encoder.encode(samples)


def in_background(encoder: Encoder[_Encoded], device: str) -> Encoder[_Encoded]:
    """Return ``encoder``, on a GPU with a lower priority than all decoding."""
    on_gpu = torch.device(device).type == "cuda"
    return BackgroundEncoder(encoder, device) if on_gpu else encoder


def graphed(
    decoder: LaidOutDecoder,
    limits: BatchLimits,
    recorder: Recorder,
    lookahead: int | None = None,
) -> LaidOutDecoder | GraphDecoder:
    """Return ``decoder`` with graphs for the windows that occur under ``limits``. If it supports
    this, windows with this ``lookahead`` away from their stream's edges have graphs without masks.

    If a capture fails (for lack of memory, say) a warning is logged, and the decoder works without
    graphs: slower, but correctly.
    """
    steady = lookahead if isinstance(decoder, InteriorDecoder) else None
    buckets = Buckets.of(limits, decoder.spec, steady)
    return if_captured(lambda: GraphDecoder(decoder, buckets, recorder), decoder)


def if_captured(capture: Callable[[], _Decoder], otherwise: _Other) -> _Decoder | _Other:
    """Return what ``capture`` returns; if it fails, log a warning and return ``otherwise``. Unless
    memory was short, Snakes run in PyTorch from then on, since their kernel may have failed.
    """
    try:
        return capture()
    except Exception as error:  # of the device, or of Triton and its compilers
        log.warning("no CUDA graphs, decoding goes on without: %s", error)
        if not isinstance(error, torch.OutOfMemoryError):
            use_kernel("cpu")
        return otherwise
