"""Requests to OpenAI's speech API, and their expected responses."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import openai

from streaming.spec import Samples
from tests.service.live import Gateway

TEXT = "A sentence to say. And a second one, which is longer than the first."

SENTENCES = ("A sentence to say.", "And a second one, which is longer than the first.")

#: With this lookahead, streamed audio equals whole audio for chunks of any length.
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}

SPEAK: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": TEXT}


def official(server: Gateway) -> openai.AsyncOpenAI:
    """Return the official client without retries, which would hide failures."""
    return openai.AsyncOpenAI(base_url=server.http + "/v1", api_key="any", max_retries=0)


def whole(server: Gateway, seed: int = 0) -> Samples:
    return np.concatenate([server.whole(sentence, seed) for sentence in SENTENCES])


def parsed(text: str) -> list[dict[str, Any]]:
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


BATCH_PATH = "/v1/audio/speech/batch"

BATCH_TEXTS = ["The first text.", "Another one, which is longer.", "Third."]


def batch_items(*texts: str) -> list[dict[str, Any]]:
    return [{"input": text} for text in texts]


async def post_batch(server: Gateway, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(server.http + BATCH_PATH, json=body)
