"""Windows and clips in progress at the codec worker, and their callers.

A decode is a pure function of its window, so every window is kept until it is answered. When a
worker dies, all windows in progress go to the next one, most urgent first. The worker reports which
windows it is about to decode. A window that was being decoded when a worker died gets a strike and
is decoded alone next time. One with two strikes is given up, since it is probably what kills the
workers. A clip that was being encoded when the worker died is given up at once, since it may be the
cause; the other clips go to the next worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
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
    codes_of,
    decode_message,
    samples_of,
)
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.ports import DecodeStats
from streaming.spec import Codes, Samples
from streaming.window import DecodeWindow

log = logging.getLogger(__name__)
#: Number of deaths during its decoding after which a window is not tried again.
MAX_STRIKES = 2
#: A window whose stream does not play yet yields to listeners who run out of audio within this many
#: seconds, since a later start is better than a gap.
BEGIN_S = 0.25
_RETRY_AFTER_MS = 2000


@dataclass(slots=True)
class _PendingWindow:
    """A window whose caller waits, and the number of samples expected."""

    id: int
    window: DecodeWindow
    samples: int
    deadline_s: float
    asked_s: float
    answer: asyncio.Future[tuple[Samples, DecodeStats]]
    request_id: str
    strikes: int = 0

    @property
    def begins(self) -> bool:
        """Whether its stream does not play yet."""
        is_first = not (self.window.left_context or self.window.first_frame)
        return is_first and self.deadline_s <= self.asked_s

    @property
    def turn_s(self) -> float:
        """Time by which windows are ordered for decoding."""
        return self.asked_s + BEGIN_S if self.begins else self.deadline_s


class PendingDecodes:
    """Windows in progress, at most ``most``. ``send`` must not raise."""

    def __init__(self, send: Callable[[Decode | Cancel], None], most: int) -> None:
        self._send, self._most = send, most
        self._pending: dict[int, _PendingWindow] = {}
        #: Windows that the worker decodes, or did last; answered ones are no longer pending.
        self._in_hand: frozenset[int] = frozenset()

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
        if len(self._pending) >= self._most:
            raise CapacityError(ErrorCode.OVERLOADED, "The speech decoder is at its limit.")
        answer: asyncio.Future[tuple[Samples, DecodeStats]]
        answer = asyncio.get_running_loop().create_future()
        samples, now = window.new_frames * hop_length, time.monotonic()
        pending = _PendingWindow(id, window, samples, deadline_s, now, answer, request_id)
        self._pending[id] = pending
        try:
            self._send_off(pending)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise _failed("The speech decoder did not answer in time.") from None
        finally:
            if self._pending.pop(id, None) is not None:
                self._send(Cancel(id))

    def on_message(self, message: Decoding | Decoded) -> None:
        """Process a worker's message about windows."""
        if isinstance(message, Decoding):
            self._in_hand = frozenset(message.ids)
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
                    pending.deadline_s - pending.asked_s,
                )
                pending.answer.set_result((samples, stats))

    def on_failed(self, id: int, detail: str) -> None:
        """Fail a window that failed alone, if it is one of these."""
        pending = self._pending.get(id)
        if pending is not None:
            log.error("a window failed: %s", detail, extra={"request_id": pending.request_id})
            self._fail(pending, "The speech decoder could not decode this audio.")

    def on_ready(self) -> None:
        """Send the pending windows to a new worker, most urgent first."""
        for pending in sorted(self._pending.values(), key=lambda p: (p.turn_s, p.id)):
            self._send_off(pending)

    def on_down(self) -> None:
        """Record that the worker died."""
        in_hand, self._in_hand = self._in_hand, frozenset()
        for id in in_hand & self._pending.keys():
            pending = self._pending[id]
            pending.strikes += 1
            if pending.strikes >= MAX_STRIKES:
                told = {"window": id, "request_id": pending.request_id}
                log.error("a window is given up: workers died of it", extra=told)
                self._fail(pending, "The speech decoder failed on this audio.")

    def stop(self) -> None:
        """Fail all windows, since there will be no other worker."""
        for pending in list(self._pending.values()):
            self._fail(pending, "The speech decoder is shutting down.")

    def _send_off(self, pending: _PendingWindow) -> None:
        alone = pending.strikes > 0
        self._send(
            decode_message(
                pending.id, pending.window, pending.turn_s, alone=alone, begins=pending.begins
            )
        )

    def _fail(self, pending: _PendingWindow, message: str) -> None:
        self._pending.pop(pending.id, None)
        if not pending.answer.done():
            pending.answer.set_exception(_failed(message))


@dataclass(slots=True)
class _PendingClip:
    clip: Encode
    frames: int
    answer: asyncio.Future[Codes]


class PendingEncodes:
    """Clips in progress, at most ``most``. ``send`` must not raise."""

    def __init__(self, send: Callable[[Encode | Cancel], None], most: int) -> None:
        self._send, self._most = send, most
        self._pending: dict[int, _PendingClip] = {}
        #: The clip that the worker encodes, or did last.
        self._in_hand: int | None = None

    async def encode(self, id: int, samples: Samples, hop_length: int, timeout_s: float) -> Codes:
        """Return the codes ``[K, T]`` of ``[n]`` samples. Cancelling drops the work.

        Raises RequestError for a clip that cannot be encoded, CapacityError, BackendError.
        """
        if len(self._pending) >= self._most:
            raise CapacityError(
                ErrorCode.OVERLOADED,
                "Too many voices are being cloned just now.",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        clip = Encode(id, samples.astype("<f4", copy=False).tobytes())
        answer: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
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
            codes = codes_of(message)
            if codes.shape[1] != pending.frames:
                self._fail(message.id, _failed("The voice encoder made something else of it."))
                return
            del self._pending[message.id]
            if not pending.answer.done():
                pending.answer.set_result(codes)

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
