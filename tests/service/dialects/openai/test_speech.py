"""OpenAI's speech API with the unmodified official client, against a live gateway."""

from __future__ import annotations

import base64
import io
from typing import Any

import av
import httpx
import msgspec
import numpy as np
import openai
import pytest

from loadtest.fakes.talker import FakeTalker
from service.dialects.openai.request import OPENAI_VOICES, SpeechBody
from streaming.protocol import messages as wire
from tests.service.audio.listening import PADDING, decoded, likeness
from tests.service.dialects.openai.talk import (
    EXACT,
    SENTENCES,
    SPEAK,
    TEXT,
    official,
    parsed,
    whole,
)
from tests.service.dialects.vendor_talk import s16
from tests.service.live import SPEC, client, gateway


@pytest.mark.parametrize("mode", ["chunked", "whole"])
async def test_pcm_equals_audio_of_native_protocol(mode: str) -> None:
    async with gateway(**EXACT) as server, client(server.url) as talk, official(server) as api:
        spoken = await api.audio.speech.create(
            **SPEAK, response_format="pcm", extra_body={"seed": 5, "mode": mode}
        )
        native = await talk.say(TEXT, sampling={"seed": 5}, mode=mode)
        assert spoken.content == s16(native) == s16(whole(server, 5))
        assert spoken.response.headers["content-type"] == "audio/pcm"
        await server.until_free()


@pytest.mark.parametrize(
    ("name", "media_type", "rate"),
    [
        ("mp3", "audio/mpeg", 24_000),
        ("opus", "audio/ogg", 48_000),
        ("aac", "audio/aac", 24_000),
        ("flac", "audio/flac", 24_000),
        ("wav", "audio/wav", 24_000),
    ],
)
async def test_speech_has_requested_format(name: Any, media_type: str, rate: int) -> None:
    async with gateway(**EXACT) as server, official(server) as api:
        spoken = await api.audio.speech.create(**SPEAK, response_format=name)
        assert spoken.response.headers["content-type"] == media_type
        got, its_rate = decoded(spoken.content)
        want = whole(server)
        assert its_rate == rate
        if name in ("wav", "flac"):
            assert np.array_equal(np.rint(got * 32768), np.rint(want * np.float32(32767)))
            return
        assert 0 <= len(got) - len(want) <= PADDING
        # All audio of the fakes has the same envelope of frames, and noise, which Opus drops.
        assert likeness(got, want) > likeness(got, whole(server, seed=9)) + 0.2


async def test_mp3_is_default_format() -> None:
    async with gateway() as server, official(server) as api:
        spoken = await api.audio.speech.create(**SPEAK)
        assert spoken.response.headers["content-type"] == "audio/mpeg"
        with av.open(io.BytesIO(spoken.content)) as file:
            assert file.format.name == "mp3"


async def test_audio_is_streamed_while_generated() -> None:
    talker = FakeTalker(row_s=0.005, frames_per_character=10)
    async with gateway(talker, **EXACT) as server, official(server) as api:
        speaking = api.audio.speech.with_streaming_response
        async with speaking.create(**SPEAK, response_format="pcm") as spoken:
            pieces = spoken.iter_bytes()
            data = await anext(pieces)
            assert server.talker.outstanding == 1
            async for piece in pieces:
                data += piece
        assert data == s16(whole(server))
        assert spoken.headers["transfer-encoding"] == "chunked"
        assert len(spoken.headers["x-request-id"]) == 32


async def test_events_carry_audio_and_end_with_usage() -> None:
    async with gateway(**EXACT) as server, official(server) as api:
        speaking = api.audio.speech.with_streaming_response
        async with speaking.create(
            **SPEAK, response_format="pcm", stream_format="sse", extra_body={"stream": True}
        ) as spoken:
            assert spoken.headers["content-type"].startswith("text/event-stream")
            events = parsed("".join([text async for text in spoken.iter_text()]))
        deltas, done = events[:-1], events[-1]
        assert {event["type"] for event in deltas} == {"speech.audio.delta"}
        audio = b"".join(base64.b64decode(event["audio"], validate=True) for event in deltas)
        assert audio == s16(whole(server))
        frames = len(audio) // 2 // SPEC.hop_length
        assert done == {
            "type": "speech.audio.done",
            "usage": {
                "input_tokens": len(TEXT),
                "output_tokens": frames,
                "total_tokens": len(TEXT) + frames,
            },
            "finish_reason": "stop",
        }


async def test_load_generator_request_is_accepted() -> None:
    body = {
        "model": "embedded",
        "input": TEXT,
        "voice": "default",
        "stream": True,
        "stream_format": "audio",
        "response_format": "pcm",
    }
    async with gateway(**EXACT) as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(server.http + "/v1/audio/speech", json=body)
        assert answer.content == s16(whole(server))


@pytest.mark.parametrize("voice", [*sorted(OPENAI_VOICES), "default", {"id": "default"}, None])
async def test_openai_voice_names_use_default_voice(voice: Any) -> None:
    body = {"input": SENTENCES[0], "voice": voice, "response_format": "pcm"}
    async with gateway(**EXACT) as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(server.http + "/v1/audio/speech", json=body)
        assert answer.content == s16(server.whole(SENTENCES[0]))


async def test_models_and_voices_are_listed() -> None:
    settings: dict[str, Any] = {
        "served_model_name": "org/voice",
        "openai_model_aliases": ("tts-1", "x"),
    }
    async with gateway(**settings) as server, official(server) as api:
        listed = [model.id async for model in await api.models.list()]
        assert listed == ["org/voice", "tts-1", "x"]
        assert (await api.models.retrieve("x")).owned_by == "talkwire"
        async with httpx.AsyncClient(timeout=60) as http:
            answer = await http.get(server.http + "/v1/models/org/voice")
            assert answer.json()["id"] == "org/voice"
            answer = await http.get(server.http + "/v1/audio/voices")
            assert answer.json()["voice_names"] == ["default"]
        for name in listed:
            spoken = await api.audio.speech.create(**{**SPEAK, "model": name})
            assert spoken.content
        with pytest.raises(openai.NotFoundError):
            await api.audio.speech.create(**{**SPEAK, "model": "gpt-4o-mini-tts"})
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("y")


async def test_openapi_describes_every_field() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        schema = (await http.get(server.http + "/openapi.json")).json()
    operation = schema["paths"]["/v1/audio/speech"]["post"]
    assert set(operation["responses"]) == {"200", "4XX", "5XX"}
    assert {"audio/mpeg", "text/event-stream"} <= set(operation["responses"]["200"]["content"])
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = schema["components"]["schemas"][reference.rsplit("/", 1)[1]]["properties"]
    assert set(fields) == set(SpeechBody.model_fields)
    assert all(field["description"] for field in fields.values())


def test_sampling_options_have_ranges_of_native_protocol() -> None:
    mine = SpeechBody.model_json_schema()["properties"]
    native = msgspec.json.schema(wire.SamplingOptions)["$defs"]["SamplingOptions"]["properties"]
    for name in wire.SamplingOptions.__struct_fields__:
        assert bounds(mine[name]) == bounds(native[name]), name


def bounds(schema: dict[str, Any]) -> dict[str, Any]:
    (choice,) = [choice for choice in schema["anyOf"] if choice["type"] != "null"]
    return {key: value for key, value in choice.items() if key != "title"}


async def test_vllm_omni_max_new_tokens_equals_max_frames() -> None:
    """Includes the other fields that vLLM-Omni's benchmark sends."""
    body = {"input": "One sentence to say.", "response_format": "pcm", "voice": "alloy", "seed": 1}
    theirs = {"task_type": "CustomVoice", "language": "English", "stream_format": "audio"}
    async with (
        gateway(**EXACT) as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):
        path = "/v1/audio/speech"
        cut = await http.post(path, json=body | {"max_frames": 20})
        same = await http.post(path, json=body | theirs | {"max_new_tokens": 20})
        whole = await http.post(path, json=body | {"max_new_tokens": 10**6})
    assert cut.status_code == same.status_code == whole.status_code == 200
    assert same.content == cut.content
    assert len(cut.content) == 20 * SPEC.hop_length * 2
    assert whole.content[: len(cut.content) // 2] == cut.content[: len(cut.content) // 2]
    assert len(whole.content) > len(cut.content)


@pytest.mark.parametrize(("max_frames", "reason"), [(3, "length"), (8000, "stop")])
async def test_cut_text_has_finish_reason_length(max_frames: int, reason: str) -> None:
    body = {"input": "One sentence to say.", "max_frames": max_frames}
    async with (
        gateway() as server,
        httpx.AsyncClient(timeout=60, base_url=server.http) as http,
    ):
        events = await http.post("/v1/audio/speech", json=body | {"stream_format": "sse"})
        batch = {"items": [body, {"input": "Hi.", "max_frames": 8000}, {"input": ""}]}
        results = (await http.post("/v1/audio/speech/batch", json=batch)).json()["results"]
    assert parsed(events.text)[-1]["finish_reason"] == reason
    assert [result.get("finish_reason") for result in results] == [reason, "stop", None]


async def test_vllm_omni_stream_format_null_is_plain_audio() -> None:
    """Its own default, which clients that send every field of its model send too."""
    body = {"input": SENTENCES[0], "response_format": "pcm", "stream_format": None}
    async with gateway(**EXACT) as server, httpx.AsyncClient() as http:
        answer = await http.post(server.http + "/v1/audio/speech", json=body)
        assert answer.content == s16(server.whole(SENTENCES[0]))
        assert (answer.headers["content-type"], answer.headers["x-sample-rate"]) == (
            "audio/pcm",
            "24000",
        )


async def test_vllm_omni_sample_rate_is_rate_of_audio() -> None:
    body = {"input": SENTENCES[0], "response_format": "pcm", "sample_rate": 48_000}
    batch = {"items": [{"input": SENTENCES[0]}], "sample_rate": 16_000}
    async with gateway(**EXACT) as server, httpx.AsyncClient() as http:
        path = server.http + "/v1/audio/speech"
        answer = await http.post(path, json=body)
        assert answer.headers["x-sample-rate"] == "48000"
        assert "x-talkwire-ignored" not in answer.headers
        whole = server.whole(SENTENCES[0])
        assert len(answer.content) == 2 * 2 * len(whole)
        (result,) = (await http.post(f"{path}/batch", json=batch)).json()["results"]
        spoken, rate = decoded(base64.b64decode(result["audio_data"]))
        assert (rate, len(spoken)) == (16_000, len(whole))
        wrong = (await http.post(path, json={**body, "sample_rate": 7})).json()["error"]
        assert (wrong["code"], wrong["param"]) == ("unsupported", "sample_rate")


async def test_vllm_omni_speaker_is_another_name_for_voice() -> None:
    body = {"input": SENTENCES[0], "response_format": "pcm"}
    batches: list[dict[str, Any]] = [
        {"items": [{"input": SENTENCES[0], "speaker": "nobody"}]},
        {"items": [{"input": SENTENCES[0]}], "speaker": "nobody"},
    ]
    async with gateway() as server, httpx.AsyncClient(base_url=server.http) as http:
        path = "/v1/audio/speech"
        spoken = await http.post(path, json=body | {"speaker": "default"})
        assert spoken.content
        assert "x-talkwire-ignored" not in spoken.headers
        for wrong in (
            await http.post(path, json=body | {"speaker": "nobody"}),
            await http.get(path, params=body | {"speaker": "nobody"}),
        ):
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "unknown_voice")
        for batch in batches:
            (result,) = (await http.post(path + "/batch", json=batch)).json()["results"]
            assert result["code"] == "unknown_voice"
