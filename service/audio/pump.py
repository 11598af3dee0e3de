"""The encoder pump: encodes a context's audio in a thread, and keeps messages in order with it.

An ``inline`` encoder is called directly. For others, jobs wait in a queue, and a task that exists
while there are any passes them to a thread one by one.
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

#: With this many of the codec's samples, a minute at 24 kHz or 6 MB, the encoder takes no more. One
#: chunk may be longer, since the mode ``whole`` decodes an utterance as one.
MAX_WAITING_SAMPLES = 60 * 24_000


class _Audio(NamedTuple):
    samples: Samples
    ends_utterance: bool
    flush: bool
    then: Callable[[list[Packet]], None]


class EncoderPump:
    """Owns the encoder of one context.

    If audio cannot be encoded, or cannot be sent, ``broke`` is called once, by the event loop and
    never inside a method of this class. From then on audio is dropped, but messages are not. Logs
    name the ``request_id``.
    """

    def __init__(
        self,
        encoder: AudioEncoder,
        tasks: asyncio.TaskGroup,
        broke: Callable[[TalkwireError], None],
        max_waiting_samples: int = MAX_WAITING_SAMPLES,
        *,
        request_id: str | None = None,
    ) -> None:
        self._encoder, self._tasks, self._broke = encoder, tasks, broke
        self._max_waiting, self._request_id = max_waiting_samples, request_id
        self._jobs: deque[_Audio | Callable[[], None]] = deque()
        self._waiting_samples = 0
        self._encoded = asyncio.Event()
        #: Whether audio is being encoded or messages wait for it.
        self.is_busy = False
        self._is_dropped = False
        #: The error since which audio is dropped.
        self.failure: TalkwireError | None = None

    def encode(
        self,
        samples: Samples,
        then: Callable[[list[Packet]], None],
        *,
        ends_utterance: bool = False,
        flush: bool,
    ) -> None:
        """Encode samples, then flush the encoder if ``flush``, or its filters alone if
        ``ends_utterance``, and pass the packets to ``then``. It may raise TalkwireError.
        """
        if self._is_dropped or self.failure is not None:
            return
        job = _Audio(samples, ends_utterance, flush, then)
        if self._encoder.inline:
            self._pass(job, self._encode(job))
            return
        if self._waiting_samples >= self._max_waiting:
            message = "The server cannot encode audio fast enough."
            self._fail(CapacityError(ErrorCode.OVERLOADED, message))
        else:
            self._waiting_samples += len(samples)
            self._put(job)

    def after(self, then: Callable[[], None]) -> None:
        """Call ``then`` after all earlier audio has been encoded, possibly at once."""
        if self.is_busy:
            self._put(then)
        else:
            then()

    async def room(self) -> None:
        """Wait until at most half of the allowed samples are waiting."""
        while self._waiting_samples > self._max_waiting // 2 and self.failure is None:
            self._encoded.clear()
            await self._encoded.wait()

    def drop(self) -> None:
        """Drop all waiting audio and messages, and the result of a running thread."""
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
                log.exception("encoding broke", extra={"request_id": self._request_id})
                self._fail(internal_error())
            else:
                self._waiting_samples -= len(job.samples)
                if not self._is_dropped:
                    self._pass(job, packets)
            self._encoded.set()
        self.is_busy = False

    def _encode(self, job: _Audio) -> list[Packet]:
        packets = self._encoder.encode(job.samples)
        if job.flush:
            return packets + self._encoder.flush()
        return packets + self._encoder.end_utterance() if job.ends_utterance else packets

    def _pass(self, job: _Audio, packets: list[Packet]) -> None:
        try:
            job.then(packets)
        except TalkwireError as error:
            self._fail(error)

    def _fail(self, error: TalkwireError) -> None:
        """Drop waiting audio. Messages stay, and the context ends after them."""
        if self._is_dropped or self.failure is not None:
            return
        self.failure = error
        self._jobs = deque(job for job in self._jobs if not isinstance(job, _Audio))

        def report() -> None:
            if not self._is_dropped:
                self._broke(error)

        asyncio.get_running_loop().call_soon(report)
