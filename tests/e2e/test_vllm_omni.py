"""The real service with a client that follows vLLM-Omni's public example."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from training.evaluation.metrics import intelligibility
from training.evaluation.recogniser import Recogniser

TEXTS = [sentence.capitalize() for sentence in SENTENCES[1:4]]


async def converse(service: Service, config: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Send TEXTS word by word; return each sentence with its audio."""
    url = f"ws://127.0.0.1:{service.port}/v1/audio/speech/stream"
    spoken: list[tuple[str, bytes]] = []
    async with connect(url, max_size=1 << 24) as socket:

        async def send(kind: str, **fields: Any) -> None:
            await socket.send(json.dumps({"type": kind, **fields}))

        await send("session.config", voice="default", **config)
        for word in " ".join(TEXTS).split():
            await send("input.text", text=word + " ")
        await send("input.done")
        sentence, data = "", b""
        async with asyncio.timeout(240):
            while True:
                message = await socket.recv()
                if isinstance(message, bytes):
                    data += message
                    continue
                event = json.loads(message)
                match event["type"]:
                    case "audio.start":
                        sentence, data = event["sentence_text"], b""
                    case "audio.done":
                        assert (event["error"], event["total_bytes"]) == (False, len(data))
                        spoken.append((sentence, data))
                    case "session.done":
                        assert event["total_sentences"] == len(spoken)
                        break
                    case other:
                        pytest.fail(f"{other}: {event}")
        await send("session.close")
        await socket.wait_closed()
        assert socket.close_code == 1000
    return spoken


@pytest.mark.long
async def test_vllm_omni_streams_pcm_sentences_and_returns_whole_wav(
    speaking: Service, ears: Recogniser
) -> None:
    streamed = await converse(
        speaking,
        {
            "response_format": "pcm",
            "stream_audio": True,
            "split_granularity": "sentence",
            "temperature": 0,
        },
    )
    assert [sentence for sentence, _ in streamed] == TEXTS
    whole = await converse(speaking, {"response_format": "wav", "temperature": 0})
    assert [sentence for sentence, _ in whole] == [" ".join(TEXTS)]
    with wave.open(io.BytesIO(whole[0][1])) as file:
        rate, in_one = file.getframerate(), file.readframes(1 << 30)
    in_pieces = b"".join(data for _, data in streamed)
    for pcm in (in_one, in_pieces):
        samples = (np.frombuffer(pcm, "<i2") / 32768).astype(np.float32)
        heard = ears.hear([samples], rate)
        assert intelligibility([" ".join(TEXTS)], heard).word_error_rate < 0.6, heard
    speaking.until("the places are free", "tts_contexts_active ", 0)
