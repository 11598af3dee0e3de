"""A requested language is refused or named as ignored, since no served model accepts one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.dialects.cartesia.talk import asking
from tests.service.dialects.elevenlabs.talk import multi, single
from tests.service.dialects.vendor_talk import vendor
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import client, gateway

HEADER = "x-talkwire-ignored"
CARTESIA: dict[str, Any] = {
    "model_id": "sonic-3", "transcript": "Hello.", "voice": {"mode": "id", "id": "default"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
}  # fmt: skip
ELEVENLABS: dict[str, Any] = {"text": "Hello."}
OPENAI: dict[str, Any] = {"input": "Hello."}


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/v1/audio/speech", OPENAI, ["language"]),
        ("/v1/audio/speech/batch", {"items": [OPENAI]}, ["language"]),
        ("/tts/bytes", CARTESIA, ["language", "locale"]),
        ("/tts/sse", CARTESIA, ["language", "locale"]),
        ("/v1/text-to-speech/default", ELEVENLABS, ["language_code"]),
        ("/v1/text-to-speech/default/stream", ELEVENLABS, ["language_code"]),
        ("/v1/text-to-speech/default/with-timestamps", ELEVENLABS, ["language_code"]),
        ("/v1/text-to-speech/default/stream/with-timestamps", ELEVENLABS, ["language_code"]),
    ],
)
async def test_language_is_named_as_ignored_over_http(
    path: str, body: dict[str, Any], fields: list[str]
) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        plain = await http.post(server.http + path, json=body)
        asked = await http.post(server.http + path, json=body | dict.fromkeys(fields, "de"))
        assert plain.status_code == asked.status_code == 200
        assert HEADER not in plain.headers
        assert asked.headers[HEADER] == ", ".join(fields)


async def test_language_is_named_as_ignored_on_cartesia_socket() -> None:
    async with gateway() as server, vendor(f"{server.http}/tts/websocket", "data") as talk:
        response = talk.socket.response
        assert response is not None
        assert response.headers[HEADER] == "language, locale"
        await talk.send(**asking("c", "Hello.", language="de"))
        await talk.until(lambda message: message["type"] == "done")


async def test_language_is_named_as_ignored_on_elevenlabs_sockets() -> None:
    async with gateway() as server:
        for connected in (multi, single):
            async with connected(server, language_code="de") as talk:
                assert talk.socket.response is not None
                assert talk.socket.response.headers[HEADER] == "language_code"
            async with connected(server) as talk:
                assert talk.socket.response is not None
                assert HEADER not in talk.socket.response.headers


async def test_language_is_refused_by_native_protocol() -> None:
    async with gateway() as server, client(server.url) as native:
        await native.send("context.create", context_id="c", language="de")
        error = await native.error()
        assert (error["code"], error["param"]) == ("unsupported", "language")
        await native.create("c", language=None)


@pytest.mark.parametrize("language", ["Auto", None])
async def test_language_auto_or_null_is_accepted_on_vllm_omni_socket(language: str | None) -> None:
    async with gateway() as server, speaking(server, **STREAM, language=language) as talk:
        await talk.say("Hello.")
        await talk.sentence(0, 0, "Hello.")


async def test_language_is_refused_on_vllm_omni_socket() -> None:
    async with gateway() as server, speaking(server, **STREAM, language="German") as talk:
        error = await talk.next()
        assert (error["code"], error["param"]) == ("unsupported", "language")
