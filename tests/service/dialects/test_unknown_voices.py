"""Unknown voices, deleted voices and aliases, in every protocol."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.fakes.talker import FakeTalker
from service import protocols
from service.settings import Settings
from tests.service.dialects.fish.talk import event
from tests.service.dialects.wyoming.talk import talking
from tests.service.live import gateway
from tests.service.memory import Refused, Served, served

#: Default voices of the vendors' clients.
RACHEL, CARTESIA, ASTERIA = (
    "21m00Tcm4TlvDq8ikWAM",
    "a0e99841-438c-4a64-b679-ae501e7d6091",
    "aura-asteria-en",
)
TEXT = "Hello there."
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}

#: Speaks with a voice, and returns the status and the error, or "" without one.
Speak = Callable[[Served, str], Coroutine[Any, Any, tuple[int, str]]]


async def posted(service: Served, address: str, body: dict[str, Any]) -> tuple[int, str]:
    answer = await service.http.post(address, json=body)
    return answer.status_code, answer.text if answer.is_error else ""


async def opened(service: Served, address: str, *messages: Any) -> tuple[int, str]:
    try:
        async with service.socket(address) as socket:
            for message in messages:
                socket.send(message)
            while True:
                said = await socket.next()
                if isinstance(said, bytes) and b"\xa6reason\xa5error" in said:
                    return 400, said.decode(errors="replace")
                if isinstance(said, bytes) or said is None or "audio" in said or "data" in said:
                    return 101, ""
                if "error" in said or said.get("type") == "error":
                    return 400, str(said)
    except Refused as refused:
        return refused.status, str(refused.body)


async def wyoming(service: Served, voice: str) -> tuple[int, str]:
    async with talking(service.runtime) as talk:
        talk.send("synthesize", text=TEXT, voice={"name": voice})
        while (event := await talk.next()) is not None and event.type != "audio-stop":
            if event.type == "error":
                return 400, str(event.data)
        return 200, ""


PROTOCOLS: dict[str, Speak] = {
    "wyoming": wyoming,
    "openai": lambda s, v: posted(s, "/v1/audio/speech", {"input": TEXT, "voice": v}),
    "openai batch": lambda s, v: posted(
        s, "/v1/audio/speech/batch", {"items": [{"input": TEXT}], "voice": v}
    ),
    "elevenlabs": lambda s, v: posted(s, f"/v1/text-to-speech/{v}", {"text": TEXT}),
    "elevenlabs socket": lambda s, v: opened(
        s,
        f"/v1/text-to-speech/{v}/multi-stream-input?output_format=pcm_24000",
        {"text": TEXT, "context_id": "a", "flush": True},
    ),
    "elevenlabs dialogue": lambda s, v: posted(
        s, "/v1/text-to-dialogue", {"inputs": [{"text": TEXT, "voice_id": v}]}
    ),
    "elevenlabs dialogue socket": lambda s, v: opened(
        s,
        "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000",
        {"context_id": "a", "voices": [v]},
        {"context_id": "a", "inputs": [{"text": TEXT, "voice_id": v}], "flush": True},
    ),
    "cartesia": lambda s, v: posted(
        s, "/tts/bytes", {"transcript": TEXT, "voice": v, "output_format": RAW}
    ),
    "cartesia socket": lambda s, v: opened(
        s,
        "/tts/websocket",
        {"transcript": TEXT, "voice": v, "output_format": RAW, "context_id": "a"},
    ),
    "deepgram": lambda s, v: posted(s, f"/v1/speak?model={v}", {"text": TEXT}),
    "deepgram socket": lambda s, v: opened(
        s, f"/v1/speak?model={v}", {"type": "Speak", "text": TEXT}, {"type": "Flush"}
    ),
    "deepgram flux": lambda s, v: opened(
        s, f"/v2/speak?model={v}", {"type": "Speak", "text": TEXT}, {"type": "Flush"}
    ),
    "vapi": lambda s, v: posted(
        s,
        f"/v1/vapi?voice={v}",
        {"message": {"type": "voice-request", "text": TEXT, "sampleRate": 24000}},
    ),
    "fish": lambda s, v: posted(s, "/v1/tts", {"text": TEXT, "reference_id": v}),
    "fish socket": lambda s, v: opened(
        s,
        "/v1/tts/live",
        event("start", request={"text": TEXT, "reference_id": v, "format": "pcm"}),
        event("stop"),
    ),
    "livekit": lambda s, v: opened(
        s,
        "/tts?model=cartesia/sonic-3",
        {"type": "session.create", "voice": v},
        {"type": "input_transcript", "transcript": TEXT},
        {"type": "session.flush"},
    ),
    "native": lambda s, v: opened(
        s,
        "/v1/tts/stream",
        {"type": "context.create", "context_id": "a", "voice": v},
        {"type": "text.append", "context_id": "a", "text": TEXT},
        {"type": "context.end", "context_id": "a"},
    ),
    "vllm-omni": lambda s, v: opened(
        s,
        "/v1/audio/speech/stream",
        {"type": "session.config", "voice": v},
        {"type": "input.text", "text": TEXT},
        {"type": "input.done"},
    ),
}


def test_table_has_every_protocol() -> None:
    assert {name.partition(" ")[0] for name in PROTOCOLS} == set(protocols.PROTOCOLS)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("voice", [RACHEL, CARTESIA, ASTERIA])
async def test_voices_of_other_vendors_are_accepted_by_default(name: str, voice: str) -> None:
    async with served() as service:
        status, said = await PROTOCOLS[name](service, voice)
        assert status in (101, 200), said
        assert "unknown_voice" not in said


@pytest.mark.parametrize("voice", [RACHEL, "default", None])
async def test_native_protocol_warns_that_the_default_voice_speaks(voice: str | None) -> None:
    async with served() as service, service.socket("/v1/tts/stream") as socket:
        socket.send({"type": "context.create", "context_id": "a", "voice": voice})
        created: Any = {"type": ""}
        while created["type"] != "context.created":
            created = await socket.next()
        told = f'There is no voice "{RACHEL}", so the default one speaks; there is default.'
        assert created.get("warning") == (told if voice == RACHEL else None)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "openai batch"])
async def test_deleted_voice_id_is_refused(name: str) -> None:
    async with served() as service:
        status, said = await PROTOCOLS[name](service, "voice_0123456789abcdef")
        assert status in (400, 404)
        assert "voice_0123456789abcdef" in said


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "openai batch"])
async def test_unknown_voice_error_lists_existing_voices(name: str) -> None:
    talker = FakeTalker()
    talker.voices = ("default", "anna")
    async with served(talker, unknown_voice="error") as service:
        status, said = await PROTOCOLS[name](service, RACHEL)
        assert status in (400, 404)
        assert RACHEL in said
        assert "default, anna" in said


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_voice_aliases_apply_to_every_protocol(name: str) -> None:
    talker = Listening()
    talker.voices = ("default", "anna")
    settings: dict[str, Any] = {"unknown_voice": "error", "voice_aliases": {RACHEL: "anna"}}
    async with served(talker, **settings) as service:
        talker.spoken.clear()
        status, said = await PROTOCOLS[name](service, RACHEL)
        assert status in (101, 200), said
        await service.until_free()
        assert set(talker.spoken) == {"anna"}


async def test_voice_alias_overrides_openai_voice_name() -> None:
    talker = Listening()
    talker.voices = ("default", "anna")
    async with served(talker, voice_aliases={"alloy": "anna"}) as service:
        talker.spoken.clear()
        assert (await PROTOCOLS["openai"](service, "alloy"))[0] == 200
        assert (await PROTOCOLS["openai"](service, "nova"))[0] == 200
        assert list(dict.fromkeys(talker.spoken)) == ["anna", "default"]


class Listening(FakeTalker):
    """Records the requested voices."""

    def __init__(self) -> None:
        super().__init__()
        self.spoken: list[str] = []

    def check(self, request: Any) -> None:
        self.spoken.append(request.voice)
        super().check(request)


def test_accepts_unknown_voices_depends_on_model_and_setting(tmp_path: Path) -> None:
    assert Settings().accepts_unknown_voices
    assert not Settings(model=str(tmp_path)).accepts_unknown_voices
    assert Settings(model=str(tmp_path), unknown_voice="default").accepts_unknown_voices
    assert not Settings(unknown_voice="error").accepts_unknown_voices


@pytest.mark.parametrize(
    ("settings", "said"), [({}, "default"), ({"unknown_voice": "error"}, "refused")]
)
async def test_startup_log_reports_unknown_voice_policy(
    settings: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="service.runtime"):
        async with served(**settings):
            pass
    (ready,) = [record for record in caplog.records if record.getMessage() == "ready"]
    assert vars(ready)["unknown_voices"] == said


async def test_unknown_model_is_the_served_one_if_the_settings_say_so() -> None:
    """Such as the names of OpenAI that have a date."""
    body = {"model": "gpt-4o-mini-tts-2025-12-15", "input": "Hello."}
    for policy, status in (("error", 404), ("default", 200)):
        async with (
            gateway(unknown_model=policy) as server,
            httpx.AsyncClient(base_url=server.http) as http,
        ):
            answer = await http.post("/v1/audio/speech", json=body)
            assert answer.status_code == status
            assert (await http.get(f"/v1/models/{body['model']}")).status_code == 404
            if status == 200:
                assert "model" in answer.headers["x-talkwire-ignored"]
                known = await http.post("/v1/audio/speech", json={**body, "model": "tts-1"})
                assert "model" not in known.headers.get("x-talkwire-ignored", "")


def test_accepts_unknown_models_depends_on_model_and_setting(tmp_path: Path) -> None:
    assert Settings().accepts_unknown_models
    assert not Settings(model=str(tmp_path)).accepts_unknown_models
    assert Settings(model=str(tmp_path), unknown_model="default").accepts_unknown_models
    assert not Settings(unknown_model="error").accepts_unknown_models
