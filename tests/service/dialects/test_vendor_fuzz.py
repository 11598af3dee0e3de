"""Random messages on vendors' sockets, in random order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from talker.fake import FakeTalker
from tests.service.dialects.cartesia.talk import asking
from tests.service.dialects.elevenlabs.talk import MULTI, SINGLE, address
from tests.service.dialects.vendor_talk import vendor
from tests.service.live import gateway

IDS = ("a", "b", "c", None, "", "x" * 200)
TEXTS = ("One. ", "Two three", "", " ", "\N{PARTY POPPER}", "!fail now. ", "w" * 300, None, 5, [])
ODD: tuple[Any, ...] = ("{", "[]", "null", '"x"', b"\x00", '{"text":', "{}", '{"a":' * 500)


def elevenlabs(rng: random.Random) -> str | bytes:
    if rng.random() < 0.02:
        return rng.choice(ODD)  # type: ignore[no-any-return]
    message: dict[str, Any] = {}
    for name, values in (
        ("text", TEXTS),
        ("context_id", IDS),
        ("flush", (True, False, None)),
        ("close_context", (True, False)),
        ("voice_settings", ({"speed": 1.5}, {"stability": 1}, None)),
    ):
        chance = {"text": 0.8, "context_id": 0.9, "flush": 0.3}.get(name, 0.1)
        if rng.random() < chance:
            weights = [20, 20, *([1] * (len(values) - 2))] if len(values) > 3 else None
            message[name] = rng.choices(values, weights)[0]
    return json.dumps(message)


def cartesia(rng: random.Random) -> str | bytes:
    if rng.random() < 0.1:
        return rng.choice(ODD)  # type: ignore[no-any-return]
    if rng.random() < 0.1:
        return json.dumps({"context_id": rng.choice(IDS), "cancel": rng.choice((True, False))})
    message = asking("", "") | {
        "context_id": rng.choice(IDS),
        "transcript": rng.choice(TEXTS),
        "continue": rng.random() < 0.7,
    }
    for name, values in (
        ("flush", (True, False, None)),
        ("max_buffer_delay_ms", (0, 1, 50, 5000, -1, None)),
        ("add_timestamps", (True, None)),
        ("voice", ("default", "nobody", None, {"id": "default"}, 7)),
        ("output_format", ({}, {"container": "raw", "sample_rate": 8000}, None)),
        ("generation_config", ({"speed": 2}, {"speed": "x"}, {"emotion": []})),
    ):
        if rng.random() < 0.15:
            message[name] = rng.choice(values)
    return json.dumps(message)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))]
)
@pytest.mark.parametrize(
    ("path", "make"), [(MULTI, elevenlabs), (SINGLE, elevenlabs), ("", cartesia)]
)
async def test_vendor_sockets_survive_random_messages_without_leaks(
    path: str,
    make: Callable[[random.Random], str | bytes],
    seed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = random.Random(f"{path}{seed}")
    talker = FakeTalker(row_s=rng.choice((0.0, 0.001)), has_word_timings=rng.random() < 0.5)
    names = ("pcm_24000", "mp3_22050_32", "opus_48000_32", "ulaw_8000")
    async with gateway(talker, max_contexts=4, max_text_chars=250) as server:
        where = server.http + "/tts/websocket"
        if path:
            query = {"output_format": rng.choice(names), "auto_mode": rng.choice(("true", "false"))}
            where = address(server, path, **query)
        for _ in range(3):
            async with vendor(where) as talk:
                talk.patience_s = 0.05  # often there is no answer
                try:
                    for _ in range(rng.randrange(60)):
                        await talk.socket.send(make(rng))
                        while rng.random() < 0.4:
                            with suppress(TimeoutError):
                                await talk.next()
                except ConnectionClosed:
                    pass
                if rng.random() < 0.5:
                    talk.socket.transport.abort()
            assert talk.socket.close_code in (None, 1000, 1006, 1008, 1011)
            if talk.socket.close_code == 1011:  # the engine failed, not a handler
                assert talk.messages[-1]["error"] == "engine_failed"
            await server.until_free()
        assert server.runtime.admission.active == 0
        assert server.talker.outstanding == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
