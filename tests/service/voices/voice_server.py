"""A gateway for tests of voices over HTTP, and clips for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from loadtest.fakes.codec import FakeDecoder
from service.voices.clip_reader import ClipReader
from streaming.ports import Sampling, SpeechRequest
from streaming.spec import Samples
from tests.service.live import SPEC, Gateway, gateway
from tests.service.voices import clips

PATH = "/v1/audio/voices"
CLIP = clips.wav(clips.tone(2.0))
OTHER = clips.encoded("flac", clips.tone(1.5, 300.0))
CONSENT = {"by": "Anna Example", "statement": "My voice may speak for the example."}
VOICE = {"name": "anna", "ref_text": "A tone.", "consent": CONSENT}
SPEAK: dict[str, Any] = {
    "input": "Hello there, you.",
    "response_format": "pcm",
    "mode": "whole",
    "seed": 7,
}
SEED = {"seed": 7}
EXACT: dict[str, Any] = {
    "first_lookahead_frames": 3,
    "lookahead_frames": 3,
    "left_context_frames": 3,
}


class Server:
    """A gateway and an HTTP client for it."""

    def __init__(self, live: Gateway, http: httpx.AsyncClient) -> None:
        self.live, self.http = live, http

    async def add(self, clip: bytes = CLIP, **fields: Any) -> httpx.Response:
        body = VOICE | {"audio_sample": clips.as_base64(clip)} | fields
        return await self.http.post(PATH, json=body)

    async def speak(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/audio/speech", json=SPEAK | fields)

    def expected(self, **voice: Any) -> bytes:
        """Return the fakes' audio of the text in that voice."""
        request = SpeechRequest("x", SPEAK["input"], sampling=Sampling(seed=7), **voice)
        frames = self.live.talker.frames_of(request)
        samples = FakeDecoder(SPEC).decode([np.ascontiguousarray(frames.T)])[0]
        return pcm(samples)


def pcm(samples: Samples) -> bytes:
    return np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes()


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[Server]:
    async with (
        gateway(**EXACT, **settings) as live,
        httpx.AsyncClient(base_url=live.http, timeout=60) as http,
    ):
        yield Server(live, http)


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    detail = answer.json()["error"]
    return answer.status_code, detail["code"], detail["param"]


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != ".lock"]


async def samples_of(clip: bytes) -> Samples:
    return await ClipReader(SPEC.sample_rate).read(clip)
