"""Cartesia's socket as its clients use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from streaming.spec import Samples
from tests.service.dialects.vendor_talk import VendorTalk, vendor
from tests.service.live import Gateway

EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
ONE, TWO = "A sentence to say.", "And a second one, which is longer than the first."


@asynccontextmanager
async def cartesia(server: Gateway) -> AsyncIterator[VendorTalk]:
    address = server.http + "/tts/websocket?cartesia_version=2025-04-16"
    async with vendor(address, audio="data", context="context_id") as talk:
        yield talk


def asking(context: str, transcript: str, **more: Any) -> dict[str, Any]:
    return {
        "context_id": context,
        "model_id": "sonic-3",
        "transcript": transcript,
        "voice": {"mode": "id", "id": "default"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        "language": "en",
        **more,
    }


async def say(talk: VendorTalk, context: str, *texts: str, end: bool = True, **more: Any) -> None:
    for text in texts:
        await talk.send(**asking(context, text, **{"continue": True, **more}))
    if end:
        await talk.send(**asking(context, "", **{"continue": False}))


def whole(server: Gateway, *texts: str) -> Samples:
    return np.concatenate([server.whole(text) for text in texts])


def is_(kind: str, context: str) -> Any:
    return lambda message: (message["type"], message["context_id"]) == (kind, context)


def words_of(talk: VendorTalk, context: str) -> list[tuple[str, float, float]]:
    found: list[tuple[str, float, float]] = []
    for message in talk.messages:
        if message["type"] == "timestamps" and message["context_id"] == context:
            times = message["word_timestamps"]
            found += zip(times["words"], times["start"], times["end"], strict=True)
    return found


RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"voice": "nobody"}, 404, "unknown_voice"),
    ({"voice": None}, 400, "invalid_message"),
    ({"voice": {"mode": "embedding", "embedding": [0.1]}}, 400, "unsupported"),
    ({"transcript": 5}, 400, "invalid_message"),
    ({"output_format": None}, 400, "invalid_message"),
    ({"output_format": {**RAW, "container": "wav"}}, 400, "unsupported"),
    ({"output_format": {**RAW, "encoding": "mp3"}}, 400, "invalid_message"),
    ({"output_format": {**RAW, "sample_rate": 12345}}, 400, "unsupported"),
    ({"generation_config": {"speed": 9}}, 400, "invalid_message"),
    ({"generation_config": {"volume": 2.5}}, 400, "invalid_message"),
    ({"generation_config": {"emotion": ["happy"]}}, 400, "invalid_message"),
    ({"speed": "fast"}, 400, "unsupported"),
    ({"pronunciation_dict_id": "x"}, 404, "unknown_pronunciations"),
    ({"add_phoneme_timestamps": True}, 400, "unsupported"),
    ({"max_buffer_delay_ms": 6000}, 400, "invalid_message"),
    ({"transcript": "x" * 101}, 413, "text_too_long"),
]
