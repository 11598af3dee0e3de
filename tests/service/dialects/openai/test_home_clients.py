"""Requests of Open WebUI and Home Assistant, as their sources make them.

The sources were read, not copied, in these versions:

- Open WebUI 0.7.0 (open-webui/open-webui at 6adde203cd29, ``backend/open_webui/routers/audio.py``):
  its server requests lists by ``requests`` and without a key, and speech by aiohttp, from the
  page's ``input`` and ``voice``, its setting for the model and an administrator's parameters.
- Home Assistant by the custom integration OpenAI TTS 3.7 (sfortis/openai_tts at 5c8b3bebe5f4,
  ``config_flow.py`` and ``openaitts_engine.py``): its setup requests a full stop as a trial. Later
  it uses urllib for whole files and aiohttp for streams.
- Home Assistant by Wyoming, through wyoming_openai 0.4.1 (roryeckel/wyoming_openai at
  614b6dfa0915, ``compatibility.py`` and ``handler.py``): OpenAI's client, after probes that detect
  other servers. The first 2048 bytes of a WAV must contain its whole header.
"""

from __future__ import annotations

import asyncio
import io
import json
import urllib.error
import urllib.request
import wave
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.audio.listening import PADDING, decoded, likeness
from tests.service.auth.keyring import entry, write_keys
from tests.service.dialects.openai.talk import EXACT, TEXT, official, whole
from tests.service.dialects.vendor_talk import s16
from tests.service.live import Gateway, gateway

AIOHTTP = {
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "Python/3.11 aiohttp/3.13.2",
}


def assert_is_spoken(mp3: bytes, server: Gateway) -> None:
    heard, rate = decoded(mp3)
    meant = whole(server)
    assert rate == 24_000
    assert 0 <= len(heard) - len(meant) <= PADDING
    assert likeness(heard, meant) > likeness(heard, whole(server, seed=9)) + 0.2


# -- Open WebUI


async def post_as_open_webui(
    base: str, key: str, params: dict[str, Any] | None = None
) -> tuple[int, str, bytes]:
    """Return the status, media type and body. Uses urllib, since httpx sends no empty key."""
    payload = {"input": TEXT, "voice": "alloy", "model": "tts-1", **(params or {})}
    headers = {
        **AIOHTTP,
        "Content-Type": "application/json",
        "Authorization": f"Bearer {key}",
        # With ENABLE_FORWARD_USER_INFO_HEADERS.
        "X-OpenWebUI-User-Name": "Ada%20Example",
        "X-OpenWebUI-User-Id": "0b8f5e5e-2f6c-4c5b-9d3e-6a5b1f0a7c11",
        "X-OpenWebUI-User-Email": "ada%40example.org",
        "X-OpenWebUI-User-Role": "user",
    }
    data = json.dumps(payload).encode()
    request = urllib.request.Request(f"{base}/v1/audio/speech", data, headers, method="POST")

    def post() -> tuple[int, str, bytes]:
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            return answer.status, answer.headers["content-type"], answer.read()

    return await asyncio.to_thread(post)


# Many leave the setting for the key empty.
@pytest.mark.parametrize("key", ["sk-any", ""])
async def test_open_webui_receives_mp3(key: str) -> None:
    async with gateway(**EXACT) as server:
        status, kind, mp3 = await post_as_open_webui(server.http, key)
        assert (status, kind) == (200, "audio/mpeg")
        assert_is_spoken(mp3, server)  # Open WebUI stores and serves it as NAME.mp3


async def test_open_webui_administrator_parameters_are_applied() -> None:
    async with gateway(**EXACT) as server:
        more = {"speed": 0.5, "response_format": "mp3", "lang_code": "a"}
        _, _, slow = await post_as_open_webui(server.http, "any", more)
        heard, _ = decoded(slow)
        assert abs(len(heard) - 2 * len(whole(server))) <= PADDING


async def test_open_webui_lists_models_and_voices_without_key() -> None:
    requests = {"User-Agent": "python-requests/2.32.5", "Accept-Encoding": "gzip, deflate"}
    async with (
        gateway() as server,
        httpx.AsyncClient(timeout=60, base_url=f"{server.http}/v1", headers=requests) as http,
    ):
        models = (await http.get("/audio/models")).raise_for_status().json()["models"]
        assert "tts-1" in [model["id"] for model in models]
        voices = (await http.get("/audio/voices")).raise_for_status().json()["voices"]
        assert "default" in {voice["id"]: voice["name"] for voice in voices}


async def test_open_webui_gets_message_of_refusal(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("ours", "acme"))
    async with gateway(api_keys_file=keys, **EXACT) as server:
        status, _, told = await post_as_open_webui(server.http, "theirs")
        assert status == 401
        assert json.loads(told)["error"]["message"]  # shown as "External: ..."
        # Open WebUI requests lists without a key. If refused, it shows OpenAI's names, which work.
        async with httpx.AsyncClient(timeout=60, base_url=server.http) as http:
            assert (await http.get("/v1/audio/voices")).status_code == 401
        assert (await post_as_open_webui(server.http, "ours"))[0] == 200


# -- Home Assistant: the integration OpenAI TTS


def request_as_home_assistant(base: str, key: str, **more: Any) -> urllib.request.Request:
    payload = {
        "model": "tts-1", "input": TEXT, "voice": "shimmer", "response_format": "mp3",
        "speed": 1.0, **more,
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "User-Agent": "HomeAssistant-OpenAI-TTS"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = json.dumps(payload).encode()
    return urllib.request.Request(f"{base}/v1/audio/speech", data, headers, method="POST")


def read(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


async def test_home_assistant_setup_request_succeeds() -> None:
    trial = {"model": "tts-1", "input": ".", "voice": "alloy", "response_format": "mp3"}
    headers = {**AIOHTTP, "Content-Type": "application/json", "Authorization": "Bearer any"}
    async with gateway() as server, httpx.AsyncClient(timeout=10, headers=headers) as http:
        answer = await http.post(f"{server.http}/v1/audio/speech", json=trial)
        assert answer.status_code < 400


async def test_home_assistant_gets_401_for_wrong_key(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("ours", "acme"))
    async with gateway(api_keys_file=keys) as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(read, request_as_home_assistant(server.http, "theirs"))
        with refused.value as answer:
            assert answer.code == 401


@pytest.mark.parametrize("more", [{}, {"instructions": "Whisper.", "chunk_size": 400}])
async def test_home_assistant_reads_whole_file(more: dict[str, Any]) -> None:
    async with gateway(**EXACT) as server:
        request = request_as_home_assistant(server.http, "", **more)
        assert_is_spoken(await asyncio.to_thread(read, request), server)


async def test_home_assistant_streams_file() -> None:
    async with gateway(**EXACT) as server:
        request = request_as_home_assistant(server.http, "any")
        headers = {**AIOHTTP, **dict(request.header_items())}
        assert isinstance(request.data, bytes)
        async with (
            httpx.AsyncClient(timeout=60) as http,
            http.stream("POST", request.full_url, content=request.data, headers=headers) as answer,
        ):
            assert answer.status_code == 200
            pieces = [piece async for piece in answer.aiter_bytes(8192)]
        assert len(pieces) > 1
        assert_is_spoken(b"".join(pieces), server)


# -- Home Assistant: Wyoming


async def test_wyoming_openai_detects_openai_backend() -> None:
    """Its probes must not find Kokoro-FastAPI, LocalAI or Speaches, which get other requests."""
    async with (
        gateway() as server,
        httpx.AsyncClient(timeout=60, base_url=f"{server.http}/v1/") as http,
    ):
        kokoro, localai = await http.get("/test"), await http.get("/readyz")
        assert (kokoro.is_error, localai.is_error) == (True, True)
        assert (await http.get("../../health")).text != "OK"


async def test_wyoming_openai_gets_wav_header_in_first_2048_bytes() -> None:
    async with gateway(**EXACT) as server, official(server) as api:
        async with api.audio.speech.with_streaming_response.create(
            model="tts-1", voice="nova", input=TEXT, response_format="wav"
        ) as answer:
            pieces = [piece async for piece in answer.iter_bytes(chunk_size=2048)]
        head = io.BytesIO(pieces[0])
        with wave.open(head) as file:
            form = (file.getframerate(), file.getnchannels(), file.getsampwidth())
            offset = head.tell()
        assert form == (24_000, 1, 2)
        pcm = b"".join(pieces)[offset:]
        assert np.array_equal(np.frombuffer(pcm, "<i2"), np.frombuffer(s16(whole(server)), "<i2"))
