"""One utterance before the first client: loads caches, proves the path, teaches the pace."""

from __future__ import annotations

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
_FRAMES = 75


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the first utterance showed."""

    frames: int
    seconds: float


async def warm_up(
    talker: TalkerEngine, codec: CodecEngine, pace: PaceEstimator, voice: str
) -> WarmUp:
    """Speak twice through talker and codec; the first time is cold and teaches nothing.

    Raises BackendError if no audio comes of it: a service that cannot speak is not ready.
    """
    await _speak(talker, codec, None, voice, "warm-up-1")
    return await _speak(talker, codec, pace, voice, "warm-up-2")


async def _speak(
    talker: TalkerEngine,
    codec: CodecEngine,
    pace: PaceEstimator | None,
    voice: str,
    request_id: str,
) -> WarmUp:
    began = time.monotonic()
    spec = codec.spec
    reverter = DelayReverter(spec.num_codebooks, spec.codebook_size)
    chunker = SlidingWindowChunker(spec.receptive_field_frames)
    observer = pace.open() if pace is not None else None
    request = SpeechRequest(
        request_id, _TEXT, voice, sampling=Sampling(temperature=0.0), max_frames=_FRAMES
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
