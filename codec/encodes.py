"""The gateway's side of encoding: which clips are out, and who waits for their codes.

A clip that was being encoded when the worker died is given up, since it may be what killed
it; the others go to the next worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from codec.messages import Cancel, Encode, Encoded, Encoding, codes_of
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.spec import Codes, Samples

_RETRY_AFTER_MS = 2000


@dataclass(slots=True)
class _Pending:
    clip: Encode
    frames: int
    answer: asyncio.Future[Codes]


class Encodes:
    """Clips that are out, ``most`` at once. ``send`` must not raise."""

    def __init__(self, send: Callable[[Encode | Cancel], None], most: int) -> None:
        self._send, self._most = send, most
        self._pending: dict[int, _Pending] = {}
        self._in_hand: int | None = None

    async def encode(self, id: int, samples: Samples, hop_length: int, patience_s: float) -> Codes:
        """Codes ``[K, T]`` of ``[n]`` samples. Cancelling drops the work.

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
        self._pending[id] = _Pending(clip, -(-len(samples) // hop_length), answer)
        try:
            self._send(clip)
            async with asyncio.timeout(patience_s):
                return await answer
        except TimeoutError:
            raise _failed("The voice encoder did not answer in time.") from None
        finally:
            if self._pending.pop(id, None) is not None:
                self._send(Cancel(id))

    def on_message(self, message: Encoding | Encoded) -> None:
        """The worker said something about a clip."""
        if isinstance(message, Encoding):
            self._in_hand = message.id
        elif pending := self._pending.get(message.id):
            codes = codes_of(message)
            if codes.shape[1] != pending.frames:
                self.fail(message.id, _failed("The voice encoder made something else of it."))
                return
            del self._pending[message.id]
            if not pending.answer.done():
                pending.answer.set_result(codes)

    def on_failed(self, id: int, *, bad_clip: bool) -> bool:
        """A clip failed alone; say whether it was one of these."""
        if id not in self._pending:
            return False
        error: TalkwireError = _failed("The voice encoder failed on this audio.")
        if bad_clip:
            error = RequestError(ErrorCode.INVALID_AUDIO, "The audio cannot be encoded.")
        self.fail(id, error)
        return True

    def on_ready(self) -> None:
        """A new worker takes work: it gets what the last one left."""
        for pending in list(self._pending.values()):
            self._send(pending.clip)

    def on_down(self) -> None:
        """The worker died."""
        if self._in_hand is not None:
            self.fail(self._in_hand, _failed("The voice encoder failed on this audio."))
        self._in_hand = None

    def stop(self) -> None:
        """No worker will come any more."""
        for id in list(self._pending):
            self.fail(id, _failed("The voice encoder is shutting down."))

    def fail(self, id: int, error: TalkwireError) -> None:
        """Tell who waits for this clip, if anybody does."""
        pending = self._pending.pop(id, None)
        if pending is not None and not pending.answer.done():
            pending.answer.set_exception(error)


def _failed(message: str) -> BackendError:
    return BackendError(ErrorCode.CODEC_FAILED, message)
