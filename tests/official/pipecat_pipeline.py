"""A real Pipecat pipeline with one TTS service, and a record of its frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

_PATIENCE_S = 120


class End(FrameProcessor):
    """One end of the pipeline: records the frames that reach it in ``direction``."""

    def __init__(self, frames: list[Frame], direction: FrameDirection, came: asyncio.Event) -> None:
        super().__init__(enable_direct_mode=True)
        self._frames, self._direction, self._came = frames, direction, came

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is self._direction:
            self._frames.append(frame)
            self._came.set()
        await self.push_frame(frame, direction)


class Conversation:
    """A running pipeline; ``down`` and ``up`` are the service's frames in each direction."""

    def __init__(self, service: FrameProcessor, rate: int) -> None:
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self._came = asyncio.Event()
        ends = (
            End(self.up, FrameDirection.UPSTREAM, self._came),
            End(self.down, FrameDirection.DOWNSTREAM, self._came),
        )
        self.worker = PipelineWorker(
            Pipeline([ends[0], service, ends[1]]),
            cancel_on_idle_timeout=False,
            enable_rtvi=False,
            params=PipelineParams(
                audio_out_sample_rate=rate, enable_metrics=True, enable_usage_metrics=True
            ),
        )

    async def queue(self, *frames: Frame) -> None:
        for frame in frames:
            await self.worker.queue_frame(frame)

    async def say(self, *pieces: str) -> None:
        """Queue a whole LLM response."""
        await self.queue(LLMFullResponseStartFrame())
        await self.queue(*(LLMTextFrame(piece) for piece in pieces), LLMFullResponseEndFrame())

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the recorded frames fulfil a condition; ``what`` describes it."""
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():
                self._came.clear()
                await self._came.wait()
        assert condition(), what

    async def until_stopped(self, turns: int) -> None:
        await self.until(lambda: len(self.of(TTSStoppedFrame)) >= turns, f"{turns} turns spoken")

    def of(self, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.down if isinstance(frame, kind)]

    def contexts(self) -> list[str]:
        """The ids of the spoken contexts, in order."""
        return [frame.context_id for frame in self.of(TTSStartedFrame)]

    def errors(self) -> list[str]:
        return [frame.error for frame in self.up if isinstance(frame, ErrorFrame)]

    def pcm(self, context_id: str | None = None) -> bytes:
        """The audio of one context or of all."""
        frames: list[TTSAudioRawFrame] = self.of(TTSAudioRawFrame)
        return b"".join(f.audio for f in frames if context_id in (None, f.context_id))

    def pcm_after(self, kind: type[Frame]) -> bytes:
        """The audio after the first frame of a type."""
        (at, *_) = [i for i, frame in enumerate(self.down) if isinstance(frame, kind)]
        return b"".join(f.audio for f in self.down[at:] if isinstance(f, TTSAudioRawFrame))

    def text(self) -> str:
        return "".join(f"{frame.text} " for frame in self.of(TTSTextFrame)).strip()

    def kinds(self) -> list[str]:
        """The type names of the speech frames in order, without consecutive repeats."""
        names: list[str] = []
        for frame in self.down:
            speech = type(frame).__name__.startswith("TTS") or isinstance(frame, InterruptionFrame)
            if speech and names[-1:] != [type(frame).__name__]:
                names.append(type(frame).__name__)
        return names

    def metrics(self, kind: type[Any]) -> list[Any]:
        """The metrics data of one type."""
        data = [data for frame in self.of(MetricsFrame) for data in frame.data]
        return [one for one in data if isinstance(one, kind)]


@asynccontextmanager
async def conversation(service: FrameProcessor, rate: int = 24_000) -> AsyncIterator[Conversation]:
    """Run a pipeline; at the end of the block, finish the queued speech and stop."""
    running = Conversation(service, rate)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(running.worker)
    task = asyncio.create_task(runner.run())
    try:
        await running.until(lambda: bool(running.of(StartFrame)), "the pipeline started")
        yield running
        await running.queue(EndFrame())
        async with asyncio.timeout(_PATIENCE_S):
            await task
    finally:
        if not task.done():
            await runner.cancel()
            await asyncio.wait([task])
