"""ElevenLabs' sockets as their clients use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from streaming.spec import Samples
from tests.service.live import Gateway
from tests.service.vendor_talk import VendorTalk, vendor

EXACT = {"first_lookahead_frames": 3, "lookahead_frames": 3}
ONE, TWO = "A sentence to say.", "And a second one, which is longer than the first."
MULTI, SINGLE = "multi-stream-input", "stream-input"


def address(server: Gateway, path: str, voice: str = "default", **query: Any) -> str:
    query.setdefault("output_format", "pcm_24000")
    params = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{server.http}/v1/text-to-speech/{voice}/{path}?{params}"


@asynccontextmanager
async def multi(server: Gateway, **query: Any) -> AsyncIterator[VendorTalk]:
    async with vendor(address(server, MULTI, **query)) as talk:
        yield talk


@asynccontextmanager
async def single(server: Gateway, **query: Any) -> AsyncIterator[VendorTalk]:
    async with vendor(address(server, SINGLE, **query)) as talk:
        yield talk


def whole(server: Gateway, *texts: str) -> Samples:
    return np.concatenate([server.whole(text) for text in texts])


def is_final(context: str) -> Any:
    return lambda message: message.get("isFinal") and message.get("contextId") == context


async def open_context(talk: VendorTalk, context: str, *texts: str) -> None:
    await talk.send(text=" ", context_id=context, voice_settings={"stability": 0.5})
    for text in texts:
        await talk.send(text=text, context_id=context)


async def finish(talk: VendorTalk, context: str) -> None:
    """As agents do at the end of a turn."""
    await talk.send(context_id=context, flush=True)
    await talk.send(context_id=context, close_context=True)


SLOW: dict[str, Any] = {"row_s": 0.002, "frames_per_character": 20}
