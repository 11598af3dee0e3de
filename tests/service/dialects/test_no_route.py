"""Addresses and methods without a route: errors have the format of the client's vendor."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.memory import Refused, Served, served

ELEVENLABS, CARTESIA, DEEPGRAM, OPENAI = (
    ("detail", "status"),
    ("error_code",),
    ("err_code",),
    ("error", "code"),
)
XI, VERSION, TOKEN = (
    {"xi-api-key": "any"},
    {"cartesia-version": "2026-03-01"},
    {"authorization": "Token any"},
)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("GET", "/v1/history", XI, 404, ELEVENLABS),
        ("GET", "/v1/text-to-speech/a/b/c", {}, 404, ELEVENLABS),
        ("PUT", "/v1/voices", {}, 405, ELEVENLABS),
        ("GET", "/datasets", VERSION, 404, CARTESIA),
        ("POST", "/voices/default", {}, 405, CARTESIA),
        ("GET", "/tts/nothing", {}, 404, CARTESIA),
        ("GET", "/v1/projects", TOKEN, 404, DEEPGRAM),
        ("DELETE", "/v1/speak", {}, 405, DEEPGRAM),
        ("POST", "/v1/audio/transcriptions", {}, 404, OPENAI),
        ("PUT", "/v1/audio/speech", {"authorization": "Bearer any"}, 405, OPENAI),
        ("GET", "/v1/nothing", {}, 404, OPENAI),
        ("GET", "/nothing", {}, 404, OPENAI),
        ("GET", "/v1/tts/nothing", {}, 404, ("error", "code")),
    ],
)
async def test_missing_route_is_told_in_format_of_vendor(
    method: str, path: str, headers: dict[str, str], status: int, code: tuple[str, ...]
) -> None:
    async with served() as service:
        answer = await service.http.request(method, path, headers=headers)
        assert answer.status_code == status
        told: Any = answer.json()
        if code == CARTESIA:
            assert told["status_code"] == status
        for name in code:
            told = told[name]
        assert told.lower() == "unsupported"
        assert ("allow" in answer.headers) is (status == 405)


async def test_handshake_without_route_is_told_in_format_of_vendor() -> None:
    async with served() as service:
        assert await refusal(service, "/v1/text-to-speech/a/nothing") == (404, "detail")


async def refusal(service: Served, path: str) -> tuple[int, str]:
    """Return the status of a refused handshake, and the first field of its body."""
    with pytest.raises(Refused) as refused:
        async with service.socket(path) as socket:
            await socket.next()
    return refused.value.status, next(iter(refused.value.body))
