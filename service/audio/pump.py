"""An encoder pump: encodes a context's audio in a thread, and keeps later messages behind it.

An encoder that is ``inline`` is called at once, without a task; for the others jobs wait in a
queue, and a task that lives as long as there are any hands them to a thread one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from service.audio.encoder import AudioEncoder, Packet
from streaming.errors import CapacityError, ErrorCode, TalkwireError, internal_error
from streaming.spec import Samples

log = logging.getLogger(__name__)

#: The codec's samples that may wait for the encoder: a minute at 24 kHz, 6 MB.
MAX_WAITING_SAMPLES = 60 * 24_000


class _Audio(NamedTuple):
    samples: Samples
    flush: bool
    then: Callable[[list[Packet]], None]


class EncoderPump:
    """Owns the encoder of one context.

    ``broke`` is called once, from the event loop and never from within a call of ours, when
    audio cannot be encoded; from then on audio is dropped, messages are not.
    """

    def __init__(
        self,
        encoder: AudioEncoder,
        tasks: asyncio.TaskGroup,
        broke: Callable[[TalkwireError], None],
        max_waiting_samples: int = MAX_WAITING_SAMPLES,
    ) -> None:
        self._encoder, self._tasks, self._broke = encoder, tasks, broke
        self._max_waiting = max_waiting_samples
        self._jobs: deque[_Audio | Callable[[], None]] = deque()
        self._waiting_samples = 0
        self._encoded = asyncio.Event()
        #: Whether audio is being encoded, or messages wait behind it.
        self.is_busy = False
        self._is_dropped = False
        #: Why audio is dropped since then.
        self.failure: TalkwireError | None = None

    def encode(
        self, samples: Samples, then: Callable[[list[Packet]], None], *, flush: bool
    ) -> None:
        """Encode, and ``flush`` after it where that is asked for; ``then`` takes the packets."""
        if self._is_dropped or self.failure is not None:
            return
        job = _Audio(samples, flush, then)
        if self._encoder.inline:
            then(self._encode(job))
            return
        self._waiting_samples += len(samples)
        if self._waiting_samples > self._max_waiting:
            message = "The server cannot encode audio fast enough."
            self._fail(CapacityError(ErrorCode.OVERLOADED, message))
        else:
            self._put(job)

    def after(self, then: Callable[[], None]) -> None:
        """Call ``then`` when all audio so far has been handed on; at once if it has been."""
        if self.is_busy:
            self._put(then)
        else:
            then()

    async def room(self) -> None:
        """Until no more than half of what may wait is waiting."""
        while self._waiting_samples > self._max_waiting // 2 and self.failure is None:
            self._encoded.clear()
            await self._encoded.wait()

    def drop(self) -> None:
        """Forget all that waits, messages too, and what a thread is still working on."""
        self._is_dropped = True
        self._jobs.clear()

    def _put(self, job: _Audio | Callable[[], None]) -> None:
        self._jobs.append(job)
        if not self.is_busy:
            self.is_busy = True
            self._tasks.create_task(self._run())

    async def _run(self) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            if not isinstance(job, _Audio):
                job()
                continue
            try:
                packets = await asyncio.to_thread(self._encode, job)
            except Exception:
                log.exception("encoding broke")
                self._fail(internal_error())
            else:
                self._waiting_samples -= len(job.samples)
                if not self._is_dropped:
                    job.then(packets)
            self._encoded.set()
        self.is_busy = False

    def _encode(self, job: _Audio) -> list[Packet]:
        packets = self._encoder.encode(job.samples)
        return packets + self._encoder.flush() if job.flush else packets

    def _fail(self, error: TalkwireError) -> None:
        """Drop the audio; the messages stay, and the context's end will come after them."""
        if self._is_dropped or self.failure is not None:
            return
        self.failure = error
        self._jobs = deque(job for job in self._jobs if not isinstance(job, _Audio))

        def report() -> None:
            if not self._is_dropped:
                self._broke(error)

        asyncio.get_running_loop().call_soon(report)
