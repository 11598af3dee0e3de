"""Text that cannot be spoken, such as an ellipsis or an emoji from a language model."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from tests.service.memory import Served, served

UNSPEAKABLE = [".", "...", "\N{PARTY POPPER}"]
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
#: 200 ms at 24 kHz, 16 bits.
SILENCE = bytes(2 * 4800)


async def openai(service: Served, text: str) -> bytes:
    body = {"input": text, "response_format": "pcm"}
    return await posted(service, "/v1/audio/speech", body)


async def elevenlabs(service: Served, text: str) -> bytes:
    return await posted(
        service, "/v1/text-to-speech/default?output_format=pcm_24000", {"text": text}
    )


async def cartesia(service: Served, text: str) -> bytes:
    return await posted(
        service, "/tts/bytes", {"transcript": text, "voice": "default", "output_format": RAW}
    )


async def deepgram(service: Served, text: str) -> bytes:
    address = "/v1/speak?encoding=linear16&container=none&sample_rate=24000"
    return await posted(service, address, {"text": text})


async def posted(service: Served, address: str, body: dict[str, Any]) -> bytes:
    answer = await service.http.post(address, json=body)
    assert answer.status_code == 200, answer.text
    return answer.content


async def elevenlabs_socket(service: Served, text: str) -> bytes:
    address = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000"
    async with service.socket(address) as socket:
        for message in (
            {"text": " ", "context_id": "a"},
            {"text": text, "context_id": "a"},
            {"context_id": "a", "flush": True},
            {"context_id": "a", "close_context": True},
        ):
            socket.send(message)
        audio = b""
        while "isFinal" not in (said := await socket.next()):  # type: ignore[operator]
            assert isinstance(said, dict)
            assert "error" not in said, said
            audio += base64.b64decode(said["audio"])
        return audio


async def cartesia_socket(service: Served, text: str) -> bytes:
    async with service.socket("/tts/websocket") as socket:
        request = {"context_id": "a", "voice": "default", "output_format": RAW}
        socket.send({**request, "transcript": text, "continue": True})
        socket.send({**request, "transcript": "", "continue": False})
        audio = b""
        while True:
            said = await socket.next()
            assert isinstance(said, dict)
            if said["type"] == "done":
                return audio
            assert said["type"] == "chunk", said
            audio += base64.b64decode(said["data"])


async def deepgram_socket(service: Served, text: str) -> bytes:
    """Return the audio before ``Flushed``, after which LiveKit's plugin stops listening."""
    async with service.socket("/v1/speak") as socket:
        socket.send({"type": "Speak", "text": text})
        socket.send({"type": "Flush"})
        audio = b""
        while True:
            said = await socket.next()
            if isinstance(said, bytes):
                audio += said
                continue
            assert said is not None
            assert said["type"] in ("Metadata", "Flushed"), said
            if said["type"] == "Flushed":
                return audio


LENIENT = [
    openai, elevenlabs, cartesia, deepgram, elevenlabs_socket, cartesia_socket, deepgram_socket,
]  # fmt: skip


@pytest.mark.parametrize("text", UNSPEAKABLE)
@pytest.mark.parametrize("speak", LENIENT)
async def test_unspeakable_text_becomes_200_ms_of_silence(speak: Any, text: str) -> None:
    async with served() as service:
        assert await speak(service, text) == SILENCE
        await service.until_free()
        figures = service.runtime.metrics.render().decode()
        assert re.findall(r"tts_errors_total\{.*\} [1-9]", figures) == []


async def test_silence_is_not_added_to_speakable_text() -> None:
    async with served() as service:
        assert SILENCE not in await openai(service, "Hello. ... And more. \N{PARTY POPPER}")


@pytest.mark.parametrize("text", ["", " ", "\n"])
async def test_empty_text_is_refused(text: str) -> None:
    async with served() as service:
        body = {"input": text, "response_format": "pcm"}
        answer = await service.http.post("/v1/audio/speech", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_text")


async def test_unspeakable_text_is_refused_with_setting_error() -> None:
    async with served(unspeakable_text="error") as service:
        answer = await service.http.post("/v1/audio/speech", json={"input": "..."})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_text")


async def test_native_protocol_refuses_unspeakable_text() -> None:
    async with served() as service, service.socket("/v1/tts/stream") as socket:
        socket.send({"type": "context.create", "context_id": "a"})
        socket.send({"type": "text.append", "context_id": "a", "text": "..."})
        socket.send({"type": "context.end", "context_id": "a"})
        while (said := await socket.next()) is not None:
            assert isinstance(said, dict), "there is no audio"
            if said["type"] == "error":
                assert said["code"] == "invalid_text"
                return
        pytest.fail("the socket was closed without an error")
