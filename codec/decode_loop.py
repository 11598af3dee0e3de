"""The loop of the codec worker: windows come in, are chosen by deadline, decoded and answered.

    receive -> queue -> choose a batch -> decode -> answer, for ever

It keeps no state between windows that it could not recompute from a window, so the gateway can
start another worker and ask again. Nothing here depends on torch: a decoder does.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from codec.batching import BatchLimits, DeadlineQueue, DecodeCost, Job, QueueFull
from codec.clips import ClipThread
from codec.family import CheckpointError, CodesError, Encoder, FoundCodec, StatefulDecoder
from codec.memory import HeapTrimmer
from codec.messages import (
    Cancel,
    Decode,
    Decoded,
    Decoding,
    Encode,
    Failed,
    FailureReason,
    Ready,
    ToWorker,
    window_of,
)
from codec.precision import Precision
from codec.warmup import grouping_of, later_windows, measure_cost, meet_first_windows
from ipc.child import ChildLink, LinkClosed
from streaming.ports import CodecDecoder
from streaming.spec import Codes, SpeakerVector
from streaming.window import DecodeWindow

log = logging.getLogger(__name__)
Link = ChildLink[ToWorker]
#: Windows that fail one after another, without one that is decoded, until the process ends.
_MAX_FAILURES = 3


class DecoderBroken(Exception):
    """Window after window fails, so the cause is this process: memory that it cannot get, say."""


def serve(
    link: Link,
    codec: FoundCodec,
    decoder: CodecDecoder,
    load_encoder: Callable[[], Encoder[Codes]],
    limits: BatchLimits,
    fatal: tuple[type[Exception], ...] = (),
    busy_clock: Callable[[], float] | None = None,
    speakers: Encoder[SpeakerVector] | None = None,
    fingerprint: str | None = None,
    precision: Precision | None = None,
    settings: Mapping[str, str | int] | None = None,
) -> None:
    """Warm the decoder up, tell the gateway that it is ready, and decode until the link closes.

    Args:
        link: to the gateway.
        codec: the codec that the decoder belongs to.
        decoder: decodes windows.
        load_encoder: called in the clips' thread, with the first clip.
        limits: of a batch, before the decoder's speed is known.
        fatal: errors after which the decoder cannot be used; they end the process.
        busy_clock: see ``DecodeLoop``.
        speakers: makes the vectors of clips' speakers, for talkers that need them.
        fingerprint: of decoder and ``speakers``; the decoder's own by default.
        precision: of the process; float32 by default.
        settings: see ``codec.messages.Ready``.

    Raises:
        LinkClosed: the gateway has gone.
        DecoderBroken: no window can be decoded any more.
    """
    link.progress("warm up")
    precision = precision or Precision()
    with precision.decoding():
        meet_first_windows(decoder)
        cost = measure_cost(decoder, grouping_of(decoder), limits)
    clips = ClipThread(link.send, load_encoder, speakers, precision) if _can_encode(codec) else None
    link.send(
        Ready(
            decoder.spec,
            cost,
            clips is not None,
            fingerprint or decoder.fingerprint,
            codec.family.licence,
            {"max_batch": limits.rows, **(settings or {})},
        )
    )
    limits = limits.affordable(cost, decoder.spec)
    unmet = later_windows(decoder, limits.piece_frames)
    DecodeLoop(link, decoder, cost, limits, clips, unmet, fatal, busy_clock, precision).run()


def _can_encode(codec: FoundCodec) -> bool:
    """Whether clips can be encoded. Without a known encoder the codec still decodes, but voices
    cannot be cloned.
    """
    try:
        return codec.can_encode()
    except CheckpointError as error:
        log.warning("voices cannot be cloned: %s", error)
        return False


class DecodeLoop:
    """The queue and the decoder. Errors of ``fatal`` end the process; see ``serve``."""

    def __init__(
        self,
        link: Link,
        decoder: CodecDecoder,
        cost: DecodeCost,
        limits: BatchLimits,
        clips: ClipThread | None = None,
        unmet: Sequence[DecodeWindow] = (),
        fatal: tuple[type[Exception], ...] = (),
        busy_clock: Callable[[], float] | None = None,
        precision: Precision | None = None,
    ) -> None:
        #: To the gateway.
        self._link = link
        self._decoder = decoder
        #: Encodes clips in another thread; None if the codec has no encoder.
        self._clips = clips
        #: Returns the seconds that the decoder has been on the processor, if that is known.
        self._busy_clock = busy_clock
        #: How a GPU multiplies.
        self._precision = precision or Precision()
        #: Errors that no window has caused.
        self._fatal: tuple[type[Exception], ...] = (*fatal, LinkClosed)
        #: Windows that have failed since the last one that was decoded. Each is of another context,
        #: since it ends its own.
        self._failures = 0
        #: Returns freed memory to the kernel.
        self._heap = HeapTrimmer()
        #: Windows to decode once while there is no work, for warm-up (codec/warmup.py).
        self._unmet = deque(unmet)
        #: Windows that wait.
        self._queue = DeadlineQueue(decoder.spec, cost, limits, grouping_of(decoder))

    def run(self) -> None:
        """Serve until the link closes. Raises LinkClosed, and DecoderBroken."""
        while True:
            for message in self._link.receive(wait=not (len(self._queue) or self._unmet)):
                self._take_in(message)
            if batch := self._queue.take(time.monotonic()):
                self._decode(batch)
                self._heap.check()
            elif self._unmet:
                with self._precision.decoding():
                    self._decoder.decode_windows([self._unmet.popleft()])

    def _take_in(self, message: ToWorker) -> None:
        if isinstance(message, Cancel):
            self._queue.cancel(message.id)
            if self._clips is not None:
                self._clips.cancel(message.id)
        elif isinstance(message, Encode):
            if self._clips is not None:
                self._clips.add(message)
        elif isinstance(message, Decode):
            now = time.monotonic()
            try:
                window = window_of(message)
                self._queue.add(
                    message.id,
                    window,
                    message.deadline_s,
                    now,
                    alone=message.alone,
                    begins=message.begins,
                )
            except ValueError as error:
                self._fail(message.id, "bad_window", error)
            except QueueFull as error:
                self._fail(message.id, "decode_failed", error)

    def _decode(self, batch: list[Job]) -> None:
        self._link.send(Decoding([job.id for job in batch]))
        now = time.monotonic()
        for job in batch:
            if job.started_s is None:
                job.started_s = now
        try:
            with self._precision.decoding():
                if not (batch := self._catch_up(batch)):
                    return
                # a lost state says nothing of what later windows will cost
                began = time.monotonic()
                was_busy_s = self._busy_clock() if self._busy_clock else 0.0
                rows = self._decoder.decode_windows([job.next_piece for job in batch])
        except self._fatal:
            raise
        except Exception as error:
            self._find_the_bad_one(batch, error)
            return
        self._failures = 0
        seconds = (now := time.monotonic()) - began
        busy_s = self._busy_clock() - was_busy_s if self._busy_clock else 0.0
        for job, samples in zip(batch, rows, strict=True):
            job.decode_s += seconds
            job.busy_s += busy_s
            job.batch = max(job.batch, len(batch))
            if self._queue.finish(job, samples, now):
                self._answer(job)

    def _catch_up(self, batch: list[Job]) -> list[Job]:
        """Recompute lost states. This takes seconds on a CPU, so meanwhile tell the gateway that
        this process is alive, and accept new work. Returns the jobs not cancelled meanwhile.
        """
        if not isinstance(self._decoder, StatefulDecoder):
            return batch
        for job in batch:
            for _ in self._decoder.catch_up(job.next_piece):
                for message in self._link.receive(wait=False):
                    self._take_in(message)
                if job not in self._queue:
                    break
        return [job for job in batch if job in self._queue]

    def _find_the_bad_one(self, batch: list[Job], error: Exception) -> None:
        """Handle a failed batch: fail its window if there is only one, else try them one by one.

        The last window before the process ends is not answered: the next worker tries it again.
        """
        if len(batch) > 1:
            for job in batch:
                self._decode([job])
            return
        self._queue.cancel(batch[0].id)
        reason: FailureReason = "bad_window" if isinstance(error, CodesError) else "decode_failed"
        if reason == "decode_failed":
            log.exception("a window could not be decoded", exc_info=error)
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                raise DecoderBroken(f"{self._failures} windows in a row have failed") from error
        self._fail(batch[0].id, reason, error)

    def _answer(self, job: Job) -> None:
        samples = job.samples[0] if len(job.samples) == 1 else np.concatenate(job.samples)
        started = job.received_s if job.started_s is None else job.started_s
        self._link.send(
            Decoded(
                job.id,
                np.ascontiguousarray(samples, "<f4").data.cast("B"),
                queue_s=started - job.received_s,
                decode_s=job.decode_s,
                batch=job.batch,
                frames=job.frames,
                busy_s=job.busy_s if self._busy_clock else None,
            )
        )

    def _fail(self, id: int, reason: FailureReason, error: Exception) -> None:
        self._link.send(Failed(id, reason, f"{type(error).__name__}: {error}"))
