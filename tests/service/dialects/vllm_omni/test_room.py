"""vLLM-Omni's socket: text and audio that wait for a client are bounded, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from service.contexts.outbox import Outbox
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import gateway
from tests.service.memory import served


async def test_spoken_flushes_do_not_count_towards_limit() -> None:
    text = "Nearly a full flush of characters, no more."
    async with gateway(max_text_chars=50) as server, speaking(server, **STREAM) as talk:
        for flush in range(8):
            await talk.say(text)
            await talk.sentence(flush, 0, text)
            await talk.done(flush, 1)


async def test_unread_files_pause_the_codec_instead_of_filling_the_outbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [f"Sentence number {number} is here." for number in range(12)]
    config = {"type": "session.config", "split_granularity": "sentence", "sample_rate": 8000}
    most, waiting, room = 128 * 1024, asyncio.Event(), Outbox.room

    async def watched(box: Outbox) -> None:
        if box.queued_bytes > most // 4:
            waiting.set()
        await room(box)

    monkeypatch.setattr(Outbox, "room", watched)
    address = "/v1/audio/speech/stream"
    async with served(max_outbox_bytes=most) as service, service.socket(address) as socket:
        socket.reading.clear()
        socket.send(config)
        socket.send({"type": "input.text", "text": " ".join(texts)})
        socket.send({"type": "input.done"})
        async with asyncio.timeout(60):
            await waiting.wait()
        socket.reading.set()
        spoken, size = list[str](), 0
        while (message := await socket.next()) is not None:
            if isinstance(message, bytes):
                size += len(message)
            elif message["type"] == "audio.start":
                spoken.append(message["sentence_text"])
            elif message["type"] == "session.done":
                break
        assert spoken == texts
        assert size > most
        await service.until_free()
