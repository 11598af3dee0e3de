"""Vapi's custom voice: the fields of its request, and its secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.auth.keyring import entry, write_keys
from tests.service.memory import served

TEXT = "Hello there."
#: What Vapi sends besides, as in its documentation.
ASIDE = {
    "timestamp": 1_720_000_000_000,
    "call": {"id": "c", "orgId": "o", "type": "webCall", "status": "in-progress"},
    "assistant": {"name": "A", "voice": {"provider": "custom-voice"}},
    "customer": {"number": "+15551234"},
}


def body(**fields: Any) -> dict[str, Any]:
    return {"message": {"type": "voice-request", "text": TEXT, "sampleRate": 24000, **fields}}


async def test_vapi_gets_samples_at_its_rate() -> None:
    async with served() as service:
        answers = [
            await service.http.post("/v1/vapi", json=body(**ASIDE, sampleRate=rate))
            for rate in (24_000, 8_000)
        ]
        samples = [np.frombuffer(one.content, "<i2") for one in answers]
        length = len(service.whole(TEXT))
    assert [one.headers["content-type"] for one in answers] == ["application/octet-stream"] * 2
    assert [len(one) for one in samples] == [length, -(-length // 3)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"type": "status-update"}, "message.type"),
        ({"text": None}, "message.text"),
        ({"sampleRate": 24_001}, "message.sampleRate"),
        ({"sampleRate": "fast"}, "message.sampleRate"),
    ],
)
async def test_vapi_error_names_its_field(fields: dict[str, Any], param: str) -> None:
    async with served() as service:
        answer = await service.http.post("/v1/vapi", json=body(**fields))
    assert answer.status_code == 400
    assert param in answer.json()["error"]["message"]


async def test_vapi_secret_is_a_key(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("good", "acme"))
    async with served(api_keys_file=keys) as service:
        statuses = [
            (await service.http.post("/v1/vapi", json=body(), headers=headers)).status_code
            for headers in ({}, {"x-vapi-secret": "bad"}, {"x-vapi-secret": "good"})
        ]
    assert statuses == [401, 401, 200]
