"""Transcripts of voice clips by a real recogniser."""

from __future__ import annotations

import asyncio

from service.voices.shipped import SHIPPED, read_list
from streaming.spec import Samples
from tests.service.voices.voice_server import server
from training.evaluation.metrics import intelligibility
from training.evaluation.recogniser import Recogniser


class Listener:
    """Replaces the service's recogniser by that of the evaluation."""

    def __init__(self, ears: Recogniser) -> None:
        self._ears = ears

    async def prepare(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def transcribe(self, samples: Samples, sample_rate: int) -> str:
        (heard,) = await asyncio.to_thread(self._ears.hear, [samples], sample_rate)
        return heard


async def test_clip_without_text_gets_recognised_transcript(ears: Recogniser) -> None:
    shipped = read_list()
    async with server(transcriber=Listener(ears)) as s:
        made = []
        for clip in shipped:
            audio = (SHIPPED / clip.file).read_bytes()
            answer = await s.add(audio, name=clip.name, ref_text=None)
            assert answer.status_code == 201, answer.text
            made.append(answer.json())
        assert [voice["text_source"] for voice in made] == ["recognised"] * len(shipped)
        assert len({voice["text"] for voice in made}) == len(shipped)
        said, heard = [clip.text for clip in shipped], [voice["text"] for voice in made]
        assert intelligibility(said, heard).word_error_rate < 0.15, heard
