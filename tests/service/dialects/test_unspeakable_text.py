"""Text that cannot be spoken, such as an ellipsis or an emoji from a language model."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from tests.service.dialects.fish.talk import PCM, event, start, until_finish
from tests.service.dialects.wyoming.talk import talking
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


async def dialogue(service: Served, text: str) -> bytes:
    body = {"inputs": [{"text": text, "voice_id": "default"}]}
    return await posted(service, "/v1/text-to-dialogue?output_format=pcm_24000", body)


async def cartesia(service: Served, text: str) -> bytes:
    return await posted(
        service, "/tts/bytes", {"transcript": text, "voice": "default", "output_format": RAW}
    )


async def deepgram(service: Served, text: str) -> bytes:
    address = "/v1/speak?encoding=linear16&container=none&sample_rate=24000"
    return await posted(service, address, {"text": text})


async def vapi(service: Served, text: str) -> bytes:
    message = {"type": "voice-request", "text": text, "sampleRate": 24000}
    return await posted(service, "/v1/vapi", {"message": message})


async def fish(service: Served, text: str) -> bytes:
    return await posted(service, "/v1/tts", {"text": text, **PCM})


async def fish_socket(service: Served, text: str) -> bytes:
    async with service.socket("/v1/tts/live") as socket:
        for message in (start(), event("text", text=text), event("flush"), event("stop")):
            socket.send(message)
        audio, finish = await until_finish(socket)
        assert finish == {"event": "finish", "reason": "stop"}
        return audio


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
    return await deepgram_turn(service, text, "/v1/speak", "Flushed")


async def deepgram_flux(service: Served, text: str) -> bytes:
    return await deepgram_turn(service, text, "/v2/speak", "SpeechMetadata")


async def deepgram_turn(service: Served, text: str, address: str, end: str) -> bytes:
    """Return the audio before ``end``, after which LiveKit's plugins stop listening."""
    async with service.socket(address) as socket:
        socket.send({"type": "Speak", "text": text})
        socket.send({"type": "Flush"})
        audio = b""
        while True:
            said = await socket.next()
            if isinstance(said, bytes):
                audio += said
                continue
            assert said is not None
            assert said["type"] not in ("Warning", "Error"), said
            if said["type"] == end:
                return audio


async def wyoming(service: Served, text: str) -> bytes:
    async with talking(service.runtime) as talk:
        return await talk.speak(text)


async def livekit(service: Served, text: str) -> bytes:
    async with service.socket("/tts") as socket:
        socket.send({"type": "session.create"})
        socket.send({"type": "input_transcript", "transcript": text})
        socket.send({"type": "session.flush"})
        audio = b""
        while True:
            said = await socket.next()
            assert isinstance(said, dict)
            if said["type"] == "done":
                return audio
            assert said["type"] in ("session.created", "output_audio"), said
            audio += base64.b64decode(said.get("audio", ""))


async def native(service: Served, text: str) -> bytes | str:
    """Return the audio, or the code of the error."""
    async with service.socket("/v1/tts/stream") as socket:
        socket.send({"type": "context.create", "context_id": "a"})
        socket.send({"type": "text.append", "context_id": "a", "text": text})
        socket.send({"type": "context.end", "context_id": "a"})
        audio = b""
        while True:
            said = await socket.next()
            if isinstance(said, bytes):
                audio += said[12:]
                continue
            assert said is not None
            if said["type"] == "error":
                return str(said["code"])
            if said["type"] == "context.done":
                return audio


LENIENT = [
    openai, elevenlabs, cartesia, deepgram, vapi, elevenlabs_socket, cartesia_socket,
    deepgram_socket, deepgram_flux, dialogue, fish, fish_socket, livekit, native, wyoming,
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


async def test_native_protocol_refuses_unspeakable_text_with_setting_error() -> None:
    async with served(unspeakable_text="error") as service:
        assert await native(service, "...") == "invalid_text"
