"""Random messages on vendors' sockets, in random order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from loadtest.fakes.talker import FAKE_SPEC, TIMED_SPEC, FakeTalker
from tests.service.dialects.cartesia.talk import asking
from tests.service.dialects.elevenlabs.talk import MULTI, SINGLE, address
from tests.service.dialects.vendor_talk import vendor
from tests.service.live import gateway

IDS = ("a", "b", "c", None, "", "x" * 200)
TEXTS = ("One. ", "Two three", "", " ", "\N{PARTY POPPER}", "!fail now. ", "w" * 300, None, 5, [])
ODD: tuple[Any, ...] = ("{", "[]", "null", '"x"', b"\x00", '{"text":', "{}", '{"a":' * 500)


def elevenlabs(rng: random.Random) -> str | bytes:
    if rng.random() < 0.02:
        return rng.choice(ODD)
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
        return rng.choice(ODD)
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


VOICES = ("default", "default", "default", "nobody", "", None)


def dialogue(rng: random.Random) -> str | bytes:
    if rng.random() < 0.02:
        return rng.choice(ODD)
    message: dict[str, Any] = {"context_id": rng.choices(IDS, [9, 9, 9, 0.1, 0.1, 0.1])[0]}
    if rng.random() < 0.03:
        message["voices"] = ["default"] if rng.random() < 0.9 else rng.choice(([], 5, VOICES))
    if rng.random() < 0.6:
        texts = rng.choices(TEXTS, [20, 20, 9, 9, 9, 1, 1, 0.1, 0.1, 0.1], k=rng.randrange(4))
        message["inputs"] = [
            {"text": text, "voice_id": "default", "new_turn": rng.choice((True, False, None))}
            if rng.random() < 0.98
            else {"text": text, "voice_id": rng.choice(VOICES)}
            for text in texts
        ]
    for name in ("flush", "close_context", "keep_alive"):
        if rng.random() < 0.15:
            message[name] = rng.choice((True, False, None))
    if rng.random() < 0.01:
        message["close_socket"] = True
    return json.dumps(message)


def flux(rng: random.Random) -> str | bytes:
    if rng.random() < 0.02:
        return rng.choice(ODD)
    kinds = ("Speak", "Flush", "Interrupt", "Configure", "Close", "Clear", None)
    message: dict[str, Any] = {"type": rng.choices(kinds, [60, 30, 15, 5, 1, 0.3, 0.3])[0]}
    for name, values, weights in (
        ("text", TEXTS, [20, 20, 9, 9, 9, 1, 5, 0.2, 0.2, 0.2]),
        ("speed", (0.5, 1, 2, None, 9, "x"), [9, 9, 9, 9, 9, 0.2]),
    ):
        if rng.random() < 0.95:
            message[name] = rng.choices(values, weights)[0]
    if message["type"] == "Configure":
        message.pop("text", None)
    if rng.random() < 0.5:
        value = rng.choices((0, 10, 500, 9000, 1.5, -1, None), [9, 9, 9, 9, 9, 0.2, 0.2])[0]
        message["playback_offset"] = {"type": "time_ms", "value": value}
    return json.dumps(message)


def fish(rng: random.Random) -> str | bytes:
    if rng.random() < 0.02:
        return rng.choice((*ODD, b"", b"\x81\xa1a" * 500))
    kinds = ("start", "text", "flush", "stop", "cancel", 5)
    message: dict[str, Any] = {"event": rng.choices(kinds, [9, 60, 20, 9, 0.1, 0.1])[0]}
    for name, values, weights in (
        ("text", TEXTS, [20, 20, 9, 9, 9, 1, 5, 0.2, 0.2, 0.2]),
        ("request", ({"text": ""}, {"text": "One. ", "format": "wav"}, {"text": 5}), [9, 9, 0.2]),
    ):
        if rng.random() < 0.98:
            message[name] = rng.choices(values, weights)[0]
    return msgspec.msgpack.encode(message)


def livekit(rng: random.Random) -> str | bytes:
    if rng.random() < 0.02:
        return rng.choice(ODD)
    kinds = ("session.create", "input_transcript", "session.flush", "session.close", "cancel", 5)
    message: dict[str, Any] = {"type": rng.choices(kinds, [20, 60, 20, 1, 0.1, 0.1])[0]}
    for name, values, weights in (
        ("transcript", TEXTS, [20, 20, 9, 9, 9, 1, 5, 0.2, 0.2, 0.2]),
        ("extra", ({}, {"speed": 2}, {"add_timestamps": True}, {"speed": "x"}), [9, 9, 9, 0.2]),
        ("generation_config", ({}, {"voice": "default"}, {"voice": 5}), [9, 9, 0.2]),
    ):
        if rng.random() < 0.98:
            message[name] = rng.choices(values, weights)[0]
    if message["type"] == "session.create":
        message.pop("transcript", None)
    return json.dumps(message)


DIALOGUE, FLUX, FISH, LIVEKIT = "/v1/text-to-dialogue/", "/v2/speak", "/v1/tts/live", "/tts"


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))]
)
@pytest.mark.parametrize(
    ("path", "make"),
    [
        (MULTI, elevenlabs),
        (SINGLE, elevenlabs),
        (DIALOGUE + MULTI, dialogue),
        (DIALOGUE + SINGLE, dialogue),
        (FLUX, flux),
        (FISH, fish),
        (LIVEKIT, livekit),
        ("", cartesia),
    ],
)
async def test_vendor_sockets_survive_random_messages_without_leaks(
    path: str,
    make: Callable[[random.Random], str | bytes],
    seed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rng = random.Random(f"{path}{seed}")
    talker = FakeTalker(row_s=rng.choice((0.0, 0.001)), spec=rng.choice((FAKE_SPEC, TIMED_SPEC)))
    names = ("pcm_24000", "mp3_22050_32", "opus_48000_32", "ulaw_8000")
    async with gateway(talker, max_contexts=4, max_text_chars=250) as server:
        where = server.http + "/tts/websocket"
        if path in (FLUX, FISH, LIVEKIT):
            where = server.http + path
        elif path.startswith(DIALOGUE):
            where = f"{server.http}{path}?output_format={rng.choice(names)}&sync_alignment=true"
        elif path:
            query = {"output_format": rng.choice(names), "auto_mode": rng.choice(("true", "false"))}
            where = address(server, path, **query)
        for _ in range(3):
            async with vendor(where) as talk:
                talk.patience_s = 0.05  # often there is no answer
                try:
                    if path.startswith(DIALOGUE):
                        for context in IDS[: 3 if path.endswith(MULTI) else 1]:
                            await talk.send(context_id=context, voices=["default"])
                    if path == LIVEKIT:
                        await talk.send(type="session.create")
                    for _ in range(rng.randrange(60)):
                        await talk.socket.send(make(rng))
                        while rng.random() < 0.4:
                            with suppress(TimeoutError):
                                await talk.next()
                except ConnectionClosed:
                    pass
                if rng.random() < 0.5:
                    talk.socket.transport.abort()
            assert talk.socket.close_code in (None, 1000, 1003, 1006, 1008, 1011, 1013)
            if talk.socket.close_code == 1011 and path != FISH:  # the engine failed, not a handler
                last = talk.messages[-1]
                assert str(last.get("error", last.get("code"))).lower() == "engine_failed"
            await server.until_free()
        assert server.runtime.admission.active == 0
        assert server.talker.outstanding == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
