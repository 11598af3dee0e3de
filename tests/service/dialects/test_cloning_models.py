"""Models that only clone: task types, vectors alone, and the start without any voice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from streaming.ports import RowGenerator, SpeechRequest
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import gateway
from tests.service.voices import clips

BODY = {"input": "Hello.", "response_format": "pcm"}
SPEECH = "/v1/audio/speech"
CLIP = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.5)))
VECTOR_ONLY = {"ref_audio": CLIP, "ref_text": "A tone.", "x_vector_only_mode": True}


class Cloning(FakeTalker):
    """Needs references with vectors. Records requests."""

    def __init__(self, **options: Any) -> None:
        super().__init__(spec=replace(FAKE_SPEC, needs_reference=True, vector_size=4), **options)
        self.heard: list[SpeechRequest] = []

    async def generate(self, request: SpeechRequest) -> RowGenerator:
        self.heard.append(request)
        async for piece in super().generate(request):
            yield piece


async def post(server: Any, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(server.http + SPEECH, json=BODY | fields)


async def test_model_without_voice_is_warmed_up_with_stand_in() -> None:
    talker = Cloning()
    async with gateway(talker):
        assert talker.heard
        for request in talker.heard:
            assert request.reference is not None
            assert request.reference.vector is not None
            assert request.reference.vector.shape == (4,)


async def test_only_task_type_is_base() -> None:
    async with gateway(Cloning()) as server:
        assert (await post(server, task_type="Base", ref_audio=CLIP)).status_code == 200
        for fields in ({}, {"voice": "default"}):
            error = (await post(server, task_type="Base", **fields)).json()["error"]
            assert (error["code"], error["param"]) == ("invalid_parameter", "voice")
        for task_type in ("CustomVoice", "VoiceDesign"):
            refused = await post(server, task_type=task_type)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (400, "unsupported")
            assert error["param"] == "task_type"
            assert f"no task_type {task_type}" in error["message"]


async def test_vector_alone_has_no_text_and_no_warning() -> None:
    talker = Cloning()
    async with gateway(talker) as server:
        answer = await post(server, **VECTOR_ONLY)
        assert answer.status_code == 200
        assert not {"x-talkwire-ignored", "x-talkwire-warning"} & set(answer.headers)
        assert talker.heard[-1].reference is not None
        assert talker.heard[-1].reference.text is None
        await post(server, **VECTOR_ONLY | {"x_vector_only_mode": False})
        assert talker.heard[-1].reference is not None
        assert talker.heard[-1].reference.text == "A tone."
        async with speaking(server, **STREAM, **VECTOR_ONLY) as talk:
            await talk.say("Hello.")
            await talk.sentence(0, 0, "Hello.")
        assert talker.heard[-1].reference is not None
        assert talker.heard[-1].reference.text is None


@pytest.mark.parametrize("fields", [VECTOR_ONLY, {"x_vector_only_mode": True}])
async def test_other_models_name_vector_only_as_ignored_or_refuse_it(
    fields: dict[str, Any],
) -> None:
    async with gateway(FakeTalker()) as server:
        answer = await post(server, **fields)
        assert answer.status_code == 200
        assert "x_vector_only_mode" in answer.headers["x-talkwire-ignored"]
        async with speaking(server, **STREAM, **fields) as talk:
            error = await talk.next()
            assert (error["code"], error["param"]) == ("unsupported", "x_vector_only_mode")
