"""Speech through the service's own components: segmenter, front end, talker process, codec."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from codec.families.higgs.decoder import HiggsDecoder
from streaming.delay import DelayReverter
from streaming.ports import Sampling, SpeechRequest
from streaming.spec import Codes, Samples
from talker.engine import TalkerProcessEngine
from text.segmenter import Segmenter, SegmentSettings


@dataclass(frozen=True, slots=True)
class Speech:
    """A spoken text: its utterances' codes ``[K, T]`` and joined samples.

    ``ran_away``: an utterance was cut off at the maximum length. ``seconds``: wall time.
    """

    codes: tuple[Codes, ...]
    samples: Samples
    ran_away: bool
    seconds: float


class Narrator:
    """Speaks with a running talker and a decoder."""

    def __init__(
        self, talker: TalkerProcessEngine, decoder: HiggsDecoder, sampling: Sampling
    ) -> None:
        self._talker, self._decoder, self._sampling = talker, decoder, sampling
        limits = SegmentSettings(spoken_lengths=talker.spec.spoken_lengths)
        chars = talker.spec.segment_chars or limits.max_chars
        self._segments = replace(limits, max_chars=chars)

    async def speak_all(self, texts: Sequence[str], voice: str, streams: int) -> list[Speech]:
        """Speak each text, ``streams`` at a time."""
        gate = asyncio.Semaphore(streams)

        async def one(text: str) -> Speech:
            async with gate:
                return await self.speak(text, voice)

        return list(await asyncio.gather(*map(one, texts)))

    async def speak(self, text: str, voice: str) -> Speech:
        """Speak one text; RequestError if the talker refuses it."""
        began = time.monotonic()
        segmenter = Segmenter(self._segments)
        codes, ran_away = [], False
        for utterance in segmenter.push(text) + segmenter.flush():
            frames, finish = await self._frames(utterance, voice)
            codes.append(frames)
            ran_away = ran_away or finish == "length"
        spoken = tuple(frames for frames in codes if frames.shape[1])
        parts = self._decoder.decode(spoken)
        samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        return Speech(spoken, samples, ran_away, time.monotonic() - began)

    async def _frames(self, text: str, voice: str) -> tuple[Codes, str | None]:
        spec = self._decoder.spec
        reverter = DelayReverter(spec.num_codebooks, spec.codebook_size)
        request = SpeechRequest("evaluation", text, voice=voice, sampling=self._sampling)
        frames, finish = [], None
        async for rows in self._talker.generate(request):
            frames.append(reverter.push_rows(rows.rows))
            finish = rows.finish
        return np.ascontiguousarray(np.concatenate(frames).T), finish
