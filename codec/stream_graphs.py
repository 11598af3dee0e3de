"""Decoding streams with exact state in CUDA graphs: the states are copied into a graph's buffers.

A graph needs fixed shapes and addresses, but a batch has whatever streams are due, each with its
own number of new frames. So ``StreamDecoder.compute`` is recorded for the buckets of
``codec.buckets``, rows times new frames, on buffers for the states::

    states of the streams -> buffers -> graph: codes, states -> samples, new states -> new tensors

A window with fewer frames than its bucket is padded at the end. All layers are causal, so padding
changes no sample before it, and each row's new state ends with its own last frame. The alternative,
a graph for each length up to the longest piece, has no padding, but needs 200 graphs of each kind
for eight rows instead of 44. Rows without a window have the state of whatever stream was there
before; nothing of it is visible to them, and nothing of them is kept.

At a stream's beginning fewer frames than the receptive field come before the new ones. Such windows
have buckets of their own with masks; ``Bucket.interior`` marks the others, without. Nothing here is
specific to CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from codec.batching import BatchLimits
from codec.buckets import Bucket, Buckets
from codec.graphs import BucketGraphs, Recorder, if_captured, in_buckets
from codec.stream_decoder import StateTensors, StreamDecoder, StreamState, new_codes
from codec.window_transformer import BatchPositions
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

#: Values of a row after its codes: position of the first frame, known frames before it, new frames.
_NUMBERS = 3


class StreamGraphDecoder:
    """Implements ``codec.family.StatefulDecoder``. For one thread.

    Whole sequences, windows longer than every bucket, and lost states are computed by ``decoder``
    itself, whose cache has the states. Raises RuntimeError if a capture fails.
    """

    def __init__(self, decoder: StreamDecoder, buckets: Buckets, recorder: Recorder) -> None:
        self._decoder = decoder
        self.buckets = buckets
        rows = buckets.rows[-1]
        #: The states of a bucket's rows, before its graph runs and after it.
        self._states = tuple(
            one.new_zeros(rows, *one.shape).to(recorder.device) for one in decoder.begin().tensors
        )
        self._graphs = BucketGraphs(
            buckets,
            recorder,
            self._decode_bucket,
            lambda bucket: self._codes_size(bucket) + _NUMBERS,
            decoder.spec.hop_length,
            torch.int32,
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

    def catch_up(self, window: DecodeWindow) -> Iterator[None]:
        """See ``codec.family.StatefulDecoder``."""
        return self._decoder.catch_up(window)

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Decode windows to the samples of their new frames, ``[new_frames * hop]`` each.

        Raises CodesError before anything is decoded.
        """
        for window in windows:
            self._decoder.check(window)
        return in_buckets(self.buckets, windows, self._run, self._decoder.decode_windows)

    def _codes_size(self, bucket: Bucket) -> int:
        return self.spec.num_codebooks * bucket.new_frames

    def _decode_bucket(self, laid_out: Tensor, bucket: Bucket) -> Tensor:
        """Decode a bucket's rows, and leave the states after them in the buffers."""
        values = laid_out.long()
        codes = values[:, :-_NUMBERS].reshape(bucket.rows, -1, bucket.new_frames)
        states = tuple(one[: bucket.rows] for one in self._states)
        samples, after = self._decoder.compute(
            codes,
            states,
            BatchPositions(*values[:, -_NUMBERS:].unbind(1)),
            self.buckets.left,
            with_edges=not bucket.interior,
        )
        for buffer, new in zip(states, after, strict=True):
            buffer.copy_(new)
        return samples

    @torch.inference_mode()
    def _run(self, bucket: Bucket, windows: Sequence[DecodeWindow]) -> list[Samples]:
        befores = [self._decoder.state_before(window) for window in windows]
        self._lay_out(bucket, windows, befores)
        tensors = list(zip(*(before.tensors for before in befores), strict=True))
        # row by row; the last window of a stream leaves no state
        afters: list[StateTensors] = []

        def gather() -> None:
            for buffer, of_rows in zip(self._states, tensors, strict=True):
                torch.stack(of_rows, out=buffer[: len(windows)])

        def scatter() -> None:
            sources: list[Tensor] = []
            for row, window in enumerate(windows):
                own = [] if window.is_last else [buffer[row] for buffer in self._states]
                sources += own
                afters.append(tuple(map(torch.empty_like, own)))
            if copies := [copy for after in afters for copy in after]:
                torch._foreach_copy_(copies, sources)

        samples = self._graphs.play(bucket, gather, scatter).numpy()
        for window, before, after in zip(windows, befores, afters, strict=True):
            self._decoder.keep(window, before.after(window.new_frames, after))
        hop = self.spec.hop_length
        return [
            np.array(samples[row, : window.new_frames * hop]) for row, window in enumerate(windows)
        ]

    def _lay_out(
        self, bucket: Bucket, windows: Sequence[DecodeWindow], befores: Sequence[StreamState]
    ) -> None:
        """Write the windows into the inputs of a bucket; rows without one are empty."""
        rows = self._graphs.inputs(bucket).numpy()
        rows[:] = 0
        for row, window, before in zip(rows, windows, befores, strict=False):
            codes = row[:-_NUMBERS].reshape(-1, bucket.new_frames)
            codes[:, : window.new_frames] = new_codes(window)
            row[-_NUMBERS:] = before.position, before.known, window.new_frames


def stream_graphed(
    decoder: StreamDecoder, limits: BatchLimits, recorder: Recorder
) -> StreamDecoder | StreamGraphDecoder:
    """Return ``decoder`` with graphs for the windows that occur under ``limits``; see
    ``codec.graphs.graphed``.
    """
    buckets = Buckets.of(limits, decoder.spec, 0)
    return if_captured(lambda: StreamGraphDecoder(decoder, buckets, recorder), decoder)
