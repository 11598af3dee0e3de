"""ElevenLabs' sockets as their clients use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from streaming.spec import Samples
from streaming.word_timing import WordTiming
from tests.service.dialects.vendor_talk import VendorTalk, vendor
from tests.service.live import Gateway

EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
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
    """End a turn as agents do."""
    await talk.send(context_id=context, flush=True)
    await talk.send(context_id=context, close_context=True)


SLOW: dict[str, Any] = {"row_s": 0.002, "frames_per_character": 20}

TEXT = "Hello there, how are you? I am fine."


def words_in(text: str, ms: int = 100, pause_ms: int = 20) -> list[WordTiming]:
    """Return timings with ``ms`` per character and a pause before each word."""
    timings, at, now = [], 0, 0
    for word in text.split():
        at = text.index(word, at)
        begin, now = now + pause_ms, now + pause_ms + ms * len(word)
        timings.append(WordTiming(word, at, at + len(word), begin, now))
        at += len(word)
    return timings


#: Silence that a decoder outputs before an MP3 file's speech (docs/reference/audio.md).
MP3_DELAY_MS = {"mp3_22050_32": 1105 / 22.05}


def check_words(
    words: list[tuple[str, int]], text: str, frame_ms: float = 40.0, late_ms: float = 0.0
) -> None:
    assert [word for word, _ in words] == text.split()
    at, spaces = 0, 0
    for number, (word, begin) in enumerate(words):
        at = text.index(word, at)
        before = words[number - 1][0] if number else ""
        spaces += before[-1:] in (".", "?")  # the space between two sentences is not spoken
        assert begin == pytest.approx(late_ms + (at - spaces) * 2 * frame_ms, abs=30)
        at += len(word)
