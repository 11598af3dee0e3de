"""``chunk_ms`` and ``fade_in_ms``, as clients request them."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.live import client, gateway

TEXT = "Hello there, you all."
SPEECH = "/v1/audio/speech"
BODY: dict[str, Any] = {"input": TEXT, "response_format": "pcm", "seed": 0}
FADED = {"encoding": "pcm_f32le", "fade_in_ms": 20}
EXACT = {"lookahead_frames": 10}


async def test_fade_in_changes_only_first_audio_of_context() -> None:
    async with gateway() as server, client(server.url) as native:
        whole = server.whole(TEXT)
        heard = await native.say(TEXT, audio=FADED, chunking=EXACT, sampling={"seed": 0})
        rise = np.minimum(np.arange(len(whole)) / 480, 1)
        assert np.allclose(heard, whole * rise, atol=1e-6)
        assert not np.allclose(heard, whole, atol=1e-3)


async def test_chunk_ms_leaves_audio_unchanged() -> None:
    async with gateway() as server, client(server.url) as native:
        wish = {"chunk_ms": 200, **EXACT}
        heard = await native.say(TEXT, chunking=wish, sampling={"seed": 0})
        assert np.array_equal(heard, server.whole(TEXT))


async def test_chunk_ms_and_fade_in_ms_are_accepted_over_http() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        plain = await http.post(server.http + SPEECH, json=BODY)
        asked = await http.post(
            server.http + SPEECH, json=BODY | {"chunk_ms": 200, "fade_in_ms": 20}
        )
        assert plain.status_code == asked.status_code == 200
        assert "x-talkwire-ignored" not in asked.headers
        before, after = (np.frombuffer(a.content, "<i2") for a in (plain, asked))
        assert len(before) == len(after)
        assert after[0] == 0
        assert not np.array_equal(before[:480], after[:480])


@pytest.mark.parametrize(
    "wrong", [{"chunk_ms": 0}, {"chunk_ms": 4001}, {"fade_in_ms": -1}, {"fade_in_ms": 1001}]
)
async def test_chunk_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(server.http + SPEECH, json=BODY | wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, *wrong)


async def test_chunk_ms_is_refused_in_whole_mode() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        body = BODY | {"chunk_ms": 200, "mode": "whole"}
        answer = await http.post(server.http + SPEECH, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mode")
