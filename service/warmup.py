"""One utterance before the first client: loads caches, proves the path, teaches the pace."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from streaming.delay import DelayReverter
from streaming.errors import BackendError, ErrorCode
from streaming.pace import PaceEstimator
from streaming.ports import CodecEngine, Sampling, SpeechRequest, TalkerEngine
from streaming.window import SlidingWindowChunker

_TEXT = "Hello there, this is a first sentence."
_FRAMES, _FRAMES_TOGETHER = 75, 40


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the first utterance showed."""

    frames: int
    seconds: float


async def warm_up(
    talker: TalkerEngine, codec: CodecEngine, pace: PaceEstimator, voice: str, together: int = 1
) -> WarmUp:
    """Speak twice through talker and codec; the first time is cold and teaches nothing. Then
    speak ``together`` times at once, if that is more than once: what several streams cost
    cannot be known from one.

    Raises BackendError if no audio comes of it: a service that cannot speak is not ready.
    """
    await _speak(talker, codec, None, voice, "warm-up-1")
    alone = await _speak(talker, codec, pace, voice, "warm-up-2")
    if together > 1:
        async with asyncio.TaskGroup() as tasks:
            for number in range(together):
                name = f"warm-up-3-{number}"
                tasks.create_task(_speak(talker, codec, pace, voice, name, _FRAMES_TOGETHER))
    return alone


async def _speak(
    talker: TalkerEngine,
    codec: CodecEngine,
    pace: PaceEstimator | None,
    voice: str,
    request_id: str,
    frames: int = _FRAMES,
) -> WarmUp:
    began = time.monotonic()
    spec = codec.spec
    reverter = DelayReverter(spec.num_codebooks, spec.codebook_size, spec.inert_codebooks)
    chunker = SlidingWindowChunker(spec.receptive_field_frames)
    observer = pace.open() if pace is not None else None
    request = SpeechRequest(
        request_id, _TEXT, voice, sampling=Sampling(temperature=0.0), max_frames=frames
    )
    async with aclosing(talker.generate(request)) as batches:
        async for batch in batches:
            if observer is not None:
                observer.observe(len(batch.rows), time.monotonic())
            chunker.push(reverter.push_rows(batch.rows))
    if observer is not None:
        observer.close()
    chunker.finish()
    samples = 0
    while chunker.pending:
        window = chunker.take(min(10, chunker.pending), 4)
        pcm = await codec.decode(window, time.monotonic())
        if not np.isfinite(pcm).all():
            raise BackendError(ErrorCode.CODEC_FAILED, "The codec made something else than audio.")
        samples += len(pcm)
    if not samples:
        raise BackendError(ErrorCode.ENGINE_FAILED, "The talker did not speak.")
    return WarmUp(samples // spec.hop_length, time.monotonic() - began)
