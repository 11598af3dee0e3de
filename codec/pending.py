"""Windows and clips in progress at the codec worker, and their callers.

A decode is a pure function of its window, so every window is kept until it is answered. When a
worker dies, its windows go to the others, or to the next one, most urgent first. A worker reports
which windows it is about to decode. A window that was being decoded when a worker died gets a
strike and is decoded alone next time. One with two strikes is given up, since it is probably what
kills the workers. A clip that was being encoded when the worker died is given up at once, since it
may be the cause; the other clips go to the next worker.

Of several workers a window goes to the one that soonest gets to it. The windows of a stream whose
decoder keeps a state go to the worker that has the state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codec.messages import (
    Cancel,
    Decode,
    Decoded,
    Decoding,
    Encode,
    Encoded,
    Encoding,
    clip_of,
    decode_message,
    samples_of,
)
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.lru_cache import LruCache
from streaming.ports import DecodeStats, EncodedClip
from streaming.spec import Samples
from streaming.window import DecodeWindow

log = logging.getLogger(__name__)
#: Number of deaths during its decoding after which a window is not tried again.
MAX_STRIKES = 2
#: A window whose stream does not play yet yields to listeners who run out of audio within this many
#: seconds, since a later start is better than a gap.
BEGIN_S = 0.25
#: Streams whose worker is remembered.
_STREAMS = 1024
#: Seconds after its last window for which a stream counts as its worker's. Clients' lead is 10 s by
#: default.
_STREAM_S = 15.0
_RETRY_AFTER_MS = 2000


@dataclass(slots=True)
class _PendingWindow:
    """A window whose caller waits, and the number of samples expected."""

    id: int
    window: DecodeWindow
    samples: int
    deadline_s: float
    requested_s: float
    answer: asyncio.Future[tuple[Samples, DecodeStats]]
    request_id: str
    strikes: int = 0
    #: Number of the worker that has it; None while none has.
    worker: int | None = None

    @property
    def begins(self) -> bool:
        """Whether its stream does not play yet."""
        return self.window.is_first and self.deadline_s <= self.requested_s

    @property
    def turn_s(self) -> float:
        """Time by which windows are ordered for decoding."""
        return self.requested_s + BEGIN_S if self.begins else self.deadline_s

    @property
    def frames(self) -> int:
        """Its length with contexts, as a measure of its cost."""
        return int(self.window.codes.shape[1])


class WorkerChoice:
    """Chooses a worker for each window. ``keeps_streams``: the decoder keeps states of streams."""

    def __init__(self) -> None:
        self.keeps_streams = False
        #: Numbers of the workers that take windows.
        self.workers: Sequence[int] = (0,)
        #: Frames given to each worker, so that idle ones take turns.
        self._given = Counter[int]()
        #: By request: the worker that has the stream's state, and when it got the last window.
        self._streams: LruCache[str, tuple[int, float]] = LruCache(_STREAMS)

    def choose(self, new: _PendingWindow, pending: Iterable[_PendingWindow]) -> int | None:
        """Return the number of the worker for a window, beside those in progress; None while no
        worker is up.
        """
        if len(self.workers) < 2:
            return self.workers[0] if self.workers else None
        now = new.requested_s
        is_kept = self.keeps_streams and bool(new.request_id)
        if is_kept and (kept := self._streams.get(new.request_id, (-1, now))[0]) in self.workers:
            chosen = kept
        else:
            chosen = min(self.workers, key=self._loads(new, pending, is_kept).__getitem__)
        self._given[chosen] += new.frames
        if is_kept and new.window.is_last:
            self._streams.pop(new.request_id, None)
        elif is_kept:
            self._streams[new.request_id] = chosen, now
        return chosen

    def _loads(
        self, new: _PendingWindow, pending: Iterable[_PendingWindow], is_kept: bool
    ) -> dict[int, tuple[int, int, int]]:
        """Return for each worker what decides, smaller is better: its streams, if this one stays;
        the frames that it decodes before the window; and those that it has been given so far.
        """
        streams, ahead = Counter[int](), Counter[int]()
        for other in pending:
            if other.worker is not None and other.turn_s <= new.turn_s:
                ahead[other.worker] += other.frames
        if is_kept:
            since = new.requested_s - _STREAM_S
            streams.update(worker for worker, at in self._streams.values() if at >= since)
        return {n: (streams[n], ahead[n], self._given[n]) for n in self.workers}

    def on_up(self, worker: int) -> None:
        """Record that a worker takes windows. It shall not make up for the time before."""
        self._given[worker] = max((self._given[one] for one in self.workers), default=0)


class PendingDecodes:
    """Windows in progress, at most ``max_pending``. ``send`` gives a message to the worker of a
    number, and must not raise. ``choice``: of the worker; without it there is one.
    """

    def __init__(
        self,
        send: Callable[[Decode | Cancel, int], None],
        max_pending: int,
        choice: WorkerChoice | None = None,
    ) -> None:
        self._send = send
        self._max_pending = max_pending
        self._choice = choice or WorkerChoice()
        self._pending: dict[int, _PendingWindow] = {}
        #: By worker: windows that it decodes, or did last; answered ones are no longer pending.
        self._in_hand: dict[int, frozenset[int]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    async def decode(
        self,
        id: int,
        window: DecodeWindow,
        hop_length: int,
        deadline_s: float,
        timeout_s: float,
        request_id: str = "",
    ) -> tuple[Samples, DecodeStats]:
        """Return the samples of the new frames, ``[new_frames * hop_length]``, and their cost. If
        the window fails, the log names it by ``request_id``. Cancelling drops the work. Raises
        CapacityError, BackendError.
        """
        if len(self._pending) >= self._max_pending:
            raise CapacityError(ErrorCode.OVERLOADED, "The speech decoder is at its limit.")
        answer: asyncio.Future[tuple[Samples, DecodeStats]]
        answer = asyncio.get_running_loop().create_future()
        samples = window.new_frames * hop_length
        now = time.monotonic()
        pending = _PendingWindow(id, window, samples, deadline_s, now, answer, request_id)
        self._pending[id] = pending
        try:
            self._send_off(pending)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise _failed("The speech decoder did not answer in time.") from None
        finally:
            if self._pending.pop(id, None) is not None and pending.worker is not None:
                self._send(Cancel(id), pending.worker)

    def on_message(self, message: Decoding | Decoded, worker: int = 0) -> None:
        """Process a worker's message about windows."""
        if isinstance(message, Decoding):
            self._in_hand[worker] = frozenset(message.ids)
        elif pending := self._pending.get(message.id):
            samples = samples_of(message)
            if len(samples) != pending.samples:
                self._fail(pending, "The speech decoder returned audio of the wrong length.")
                return
            if not np.isfinite(samples).all():  # LAME would abort, and filters never recover
                self._fail(pending, "The speech decoder returned samples that are not finite.")
                return
            del self._pending[pending.id]
            if not pending.answer.done():
                stats = DecodeStats(
                    message.frames,
                    pending.window.new_frames,
                    message.queue_s,
                    message.decode_s,
                    message.batch,
                    pending.deadline_s - pending.requested_s,
                    message.busy_s,
                    pending.window.lookahead,
                )
                pending.answer.set_result((samples, stats))

    def on_failed(self, id: int, detail: str) -> None:
        """Fail a window that failed alone, if it is one of these."""
        pending = self._pending.get(id)
        if pending is not None:
            log.error("a window failed: %s", detail, extra={"request_id": pending.request_id})
            self._fail(pending, "The speech decoder could not decode this audio.")

    def on_ready(self) -> None:
        """Send the windows that no worker has, most urgent first."""
        waiting = [one for one in self._pending.values() if one.worker is None]
        for pending in sorted(waiting, key=lambda p: (p.turn_s, p.id)):
            self._send_off(pending)

    def on_down(self, worker: int = 0) -> None:
        """Record that a worker died: none has its windows, until ``on_ready``."""
        for pending in self._pending.values():
            if pending.worker == worker:
                pending.worker = None
        for id in self._in_hand.pop(worker, frozenset()) & self._pending.keys():
            pending = self._pending[id]
            pending.strikes += 1
            if pending.strikes >= MAX_STRIKES:
                extra = {"window": id, "request_id": pending.request_id}
                log.error("a window is given up: workers died of it", extra=extra)
                self._fail(pending, "The speech decoder failed on this audio.")

    def stop(self) -> None:
        """Fail all windows, since there will be no other worker."""
        for pending in list(self._pending.values()):
            self._fail(pending, "The speech decoder is shutting down.")

    def _send_off(self, pending: _PendingWindow) -> None:
        pending.worker = self._choice.choose(pending, self._pending.values())
        if pending.worker is None:
            return
        alone = pending.strikes > 0
        message = decode_message(
            pending.id, pending.window, pending.turn_s, alone=alone, begins=pending.begins
        )
        self._send(message, pending.worker)

    def _fail(self, pending: _PendingWindow, message: str) -> None:
        self._pending.pop(pending.id, None)
        if not pending.answer.done():
            pending.answer.set_exception(_failed(message))


@dataclass(slots=True)
class _PendingClip:
    clip: Encode
    frames: int
    answer: asyncio.Future[EncodedClip]


class PendingEncodes:
    """Clips in progress, at most ``max_pending``. ``send`` must not raise."""

    def __init__(self, send: Callable[[Encode | Cancel], None], max_pending: int) -> None:
        self._send = send
        self._max_pending = max_pending
        self._pending: dict[int, _PendingClip] = {}
        #: The clip that the worker encodes, or did last.
        self._in_hand: int | None = None

    async def encode(
        self, id: int, samples: Samples, hop_length: int, timeout_s: float
    ) -> EncodedClip:
        """Return the codes ``[K, T]`` of ``[n]`` samples and their speaker's vector. Cancelling
        drops the work.

        Raises RequestError for a clip that cannot be encoded, CapacityError, BackendError.
        """
        if len(self._pending) >= self._max_pending:
            raise CapacityError(
                ErrorCode.OVERLOADED,
                "Too many voices are being cloned just now.",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        clip = Encode(id, samples.astype("<f4", copy=False).tobytes())
        answer: asyncio.Future[EncodedClip] = asyncio.get_running_loop().create_future()
        self._pending[id] = _PendingClip(clip, -(-len(samples) // hop_length), answer)
        try:
            self._send(clip)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise _failed("The voice encoder did not answer in time.") from None
        finally:
            if self._pending.pop(id, None) is not None:
                self._send(Cancel(id))

    def on_message(self, message: Encoding | Encoded) -> None:
        """Process a worker's message about a clip."""
        if isinstance(message, Encoding):
            self._in_hand = message.id
        elif pending := self._pending.get(message.id):
            clip = clip_of(message)
            if clip.codes.shape[1] != pending.frames:
                self._fail(message.id, _failed("The voice encoder made something else of it."))
                return
            del self._pending[message.id]
            if not pending.answer.done():
                pending.answer.set_result(clip)

    def on_failed(self, id: int, *, bad_clip: bool) -> bool:
        """Fail a clip that failed alone; return whether it is one of these."""
        if id not in self._pending:
            return False
        error: TalkwireError = _failed("The voice encoder failed on this audio.")
        if bad_clip:
            error = RequestError(ErrorCode.INVALID_AUDIO, "The audio cannot be encoded.")
        self._fail(id, error)
        return True

    def on_ready(self) -> None:
        """Send the pending clips to a new worker."""
        for pending in list(self._pending.values()):
            self._send(pending.clip)

    def on_down(self) -> None:
        """Record that the worker died."""
        if self._in_hand is not None:
            self._fail(self._in_hand, _failed("The voice encoder failed on this audio."))

    def stop(self) -> None:
        """Fail all clips, since there will be no other worker."""
        for id in list(self._pending):
            self._fail(id, _failed("The voice encoder is shutting down."))

    def _fail(self, id: int, error: TalkwireError) -> None:
        """Fail a clip, if it is still pending."""
        pending = self._pending.pop(id, None)
        if pending is not None and not pending.answer.done():
            pending.answer.set_exception(error)


def _failed(message: str) -> BackendError:
    return BackendError(ErrorCode.CODEC_FAILED, message)
