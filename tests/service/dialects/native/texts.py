"""Texts and helpers for tests of the native protocol."""

from __future__ import annotations

from typing import Any

import httpx

from streaming.protocol.binary import AudioHeader
from tests.service.live import SPEC

TEXT = "A sentence to say. And a second one, which is longer than the first."
SENTENCES = ("A sentence to say.", "And a second one, which is longer than the first.")
EXACT: dict[str, Any] = {"lookahead_frames": SPEC.right_frames}


async def get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.get(url)


def is_done(message: dict[str, Any] | AudioHeader) -> bool:
    return isinstance(message, dict) and message["type"] == "context.done"
