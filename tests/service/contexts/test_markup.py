"""Markup in a client's text, through the gateway: what is spoken, and what the client is told."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from service.audio.filters import TimeStretch
from talker.families.higgs_v3.prompts import RENDERING
from tests.service.contexts.recording_talker import RecordingTalker
from tests.service.live import Client, client, gateway

TEXT = "[excited] We won! <noise/> [excited] Really. <|emotion:anger|>No."


async def told(talk: Client, text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Speak a text; return the warnings about it, and the last message."""
    await talk.create()
    await talk.send("text.append", context_id="c", text=text)
    await talk.send("context.end", context_id="c")
    warnings = []
    while True:
        message = await talk.next()
        if isinstance(message, dict):
            if message["type"] == "warning":
                warnings.append(message)
            if message["type"] == "context.done":
                return warnings, message


async def test_native_client_is_warned_once_of_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.contexts.speech_context")
    async with gateway() as server, client(server.url) as talk:
        warnings, done = await told(talk, TEXT)
    assert done["reason"] == "complete"
    assert [(w["context_id"], w["kind"]) for w in warnings] == [("c", "emotion"), ("c", "tag")]
    assert warnings[0]["message"] == "The voice has no emotion 'excited'; it is left out."
    logged = [r.getMessage() for r in caplog.records if "markup" in r.getMessage()]
    assert logged == ["markup without effect: emotion", "markup without effect: tag"]


async def test_family_speaks_its_own_marks() -> None:
    talker = RecordingTalker()
    talker.spec = replace(talker.spec, rendering=RENDERING)
    async with gateway(talker) as server, client(server.url) as talk:
        talker.spoken.clear()
        warnings, _ = await told(
            talk, "[excited] We won! [laughs] <prosody rate='slow'>Slowly now.</prosody> Next one."
        )
    assert warnings == []
    assert talker.spoken == [
        (
            "",
            "<|emotion:enthusiasm|> We won! <|sfx:laughter|>Haha <|prosody:speed_slow|>Slowly now.",
        ),
        ("<|emotion:enthusiasm|>", "Next one."),
    ]


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/text-to-speech/default/stream"])
async def test_http_response_has_warnings_in_a_header(path: str) -> None:
    body = {"input": TEXT, "response_format": "pcm", "text": TEXT}
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        field = "text" if "text-to-speech" in path else "input"
        body = {field: TEXT} | ({"response_format": "pcm"} if field == "input" else {})
        answer = await http.post(f"{server.http}{path}", json=body)
        assert answer.status_code == 200
        assert answer.headers["x-talkwire-warning"] == (
            "The voice has no emotion 'excited'; it is left out. The tag <noise> is unknown."
        )
        body[field] = "Nothing to warn of. <break time='1s'/>"
        answer = await http.post(f"{server.http}{path}", json=body)
        assert "x-talkwire-warning" not in answer.headers


async def test_pause_is_silence_of_its_length() -> None:
    text = "One is this. [pause:1.5s] Two is that."
    async with gateway(FakeTalker()) as server, client(server.url) as talk:
        samples = await talk.say(text, timestamps=False)
        first, second = server.whole("One is this."), server.whole("Two is that.")
        assert len(samples) == len(first) + 36_000 + len(second)
        assert not np.any(samples[len(first) :][:36_000])
        assert np.any(samples[len(first) + 36_000 :][:960])


async def test_speed_and_volume_change_the_samples_of_their_text() -> None:
    one, two = "One is this.", "Two is that."
    text = f'{one} <prosody rate="80%" volume="50%">{two}</prosody> {one}'
    exact: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
    async with gateway(FakeTalker(), **exact) as server, client(server.url) as talk:
        samples = await talk.say(text, timestamps=False)
        plain, slow = server.whole(one), server.whole(two)
        stretch = TimeStretch(24_000, 0.8)
        quiet = 0.5 * np.concatenate([stretch.push(slow), stretch.finish()])
        expected = np.concatenate([plain, quiet, plain])
        assert len(samples) == len(expected)
        assert np.abs(samples - expected).max() < 1e-3
