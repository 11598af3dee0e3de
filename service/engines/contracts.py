"""The gateway's engines: their contracts beyond streaming.ports, and their common start and end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from codec.batching import DecodeCost
from streaming.ports import CodecEngine, TalkerEngine
from streaming.spec import Samples


class Running(Protocol):
    """A component with a lifecycle: a child process or a fake."""

    @property
    def is_ready(self) -> bool:
        """Whether it accepts work now."""

    @property
    def outstanding(self) -> int:
        """Number of utterances or windows that it has accepted and not finished."""

    @property
    def restarts(self) -> int:
        """Number of restarts."""

    async def start(self) -> None:
        """Start it, and return once it is ready."""

    async def stop(self) -> None:
        """Stop it."""


class RunningTalker(Running, TalkerEngine, Protocol):
    """A talker with a lifecycle."""

    @property
    def capacity(self) -> int:
        """Maximum number of utterances that it speaks at once."""

    @property
    def live(self) -> int:
        """Number of its utterances that are being spoken; the others wait."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of utterances that it gave up, by reason (``talker.messages.FailureReason``)."""

    @property
    def voices(self) -> Sequence[str]:
        """Names of its voices; the first is the default."""


class RunningCodec(Running, CodecEngine, Protocol):
    """A codec with a lifecycle."""

    @property
    def cost(self) -> DecodeCost:
        """Cost of decoding a window, measured at the start."""

    @property
    def has_spare_ready(self) -> bool | None:
        """Whether the spare could take over now; None if there is to be no spare."""

    @property
    def workers(self) -> int:
        """Number of workers that decode now, at least 1."""

    @property
    def takeovers(self) -> int:
        """Number of times that the spare took over from a worker that died."""


class Transcriber(Protocol):
    """A recogniser of the words in a clip. It may start with the first clip."""

    async def prepare(self) -> None:
        """Find the model. Raises BackendError if it cannot be used."""

    async def stop(self) -> None:
        """Stop it."""

    async def transcribe(self, samples: Samples, sample_rate: int) -> str:
        """Return the text, which may be empty. Raises CapacityError, BackendError."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a service, the recogniser being optional."""

    talker: RunningTalker
    codec: RunningCodec
    recogniser: Transcriber | None = None

    @property
    def are_ready(self) -> bool:
        """Whether talker and codec accept work now."""
        return self.talker.is_ready and self.codec.is_ready

    async def start(self) -> None:
        """Start all of them concurrently. Raises an ExceptionGroup."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.talker.start())
            tasks.create_task(self.codec.start())
            if self.recogniser is not None:
                tasks.create_task(self.recogniser.prepare())

    async def stop(self) -> None:
        """Stop all of them, also during their start."""
        if self.recogniser is not None:
            await self.recogniser.stop()
        await asyncio.gather(self.talker.stop(), self.codec.stop())
