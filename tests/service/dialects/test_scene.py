"""A client's scene reaches the talker, or is refused if the model takes none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from loadtest.fakes.talker import FakeTalker
from service.cli import app
from streaming.ports import RowGenerator, SpeechRequest
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import client, gateway

SCENE = "A street at night."
BODY = {"input": "Hello.", "response_format": "pcm", "scene": SCENE}
SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"


class Listening(FakeTalker):
    """Records the requested scenes."""

    def __init__(self) -> None:
        super().__init__(takes_scene=True)
        self.scenes: list[str | None] = []

    def generate(self, request: SpeechRequest) -> RowGenerator:
        self.scenes.append(request.scene)
        return super().generate(request)


async def test_scene_is_refused_by_native_protocol_if_model_takes_none() -> None:
    async with gateway() as server, client(server.url) as native:
        await native.send("context.create", context_id="c", scene=SCENE)
        error = await native.error()
        assert (error["code"], error["param"]) == ("unsupported", "scene")
        await native.create("c", scene=None)


async def test_scene_is_refused_over_http_if_model_takes_none() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        refused = await http.post(server.http + SPEECH, json=BODY)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "unsupported")
        assert error["param"] == "scene"
        batch = await http.post(server.http + BATCH, json={"items": [BODY]})
        assert batch.json()["results"][0]["code"] == "unsupported"


async def test_scene_reaches_talker_from_native_openai_and_vllm_omni() -> None:
    talker = Listening()
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        talker.scenes.clear()  # requests of the warm-up
        async with client(server.url) as native:
            await native.say("Hello.", scene=SCENE)
        assert (await http.post(server.http + SPEECH, json=BODY)).status_code == 200
        shared: dict[str, Any] = {"items": [{"input": "Hello."}, BODY], "scene": "Elsewhere."}
        assert (await http.post(server.http + BATCH, json=shared)).json()["succeeded"] == 2
        async with speaking(server, **STREAM, scene=SCENE) as talk:
            await talk.say("Hello.")
            await talk.hear()
    assert talker.scenes[:2] == [SCENE, SCENE]
    assert sorted(map(str, talker.scenes[2:4])) == [SCENE, "Elsewhere."]
    assert talker.scenes[4:] == [SCENE]


async def test_scene_reaches_talker_from_command_line(tmp_path: Path) -> None:
    talker, texts = Listening(), tmp_path / "texts.txt"
    texts.write_text("Hello.\n")
    async with gateway(talker) as server:
        talker.scenes.clear()
        out = ["--out", str(tmp_path / "out.wav"), "--url", server.url, "--scene", SCENE]
        said = await asyncio.to_thread(CliRunner().invoke, app, ["say", "Hello.", *out])
        assert said.exit_code == 0, said.output
        out = ["--out", str(tmp_path / "out"), "--url", server.http, "--scene", SCENE]
        made = await asyncio.to_thread(CliRunner().invoke, app, ["batch", str(texts), *out])
        assert made.exit_code == 0, made.output
    assert talker.scenes == [SCENE, SCENE]


@pytest.mark.parametrize("scene", ["", "x" * 2001, 3])
async def test_scene_of_invalid_type_or_length_is_refused(scene: Any) -> None:
    async with (
        gateway(FakeTalker(takes_scene=True)) as server,
        httpx.AsyncClient(timeout=60) as http,
    ):
        answer = await http.post(server.http + SPEECH, json=BODY | {"scene": scene})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "scene")
        async with client(server.url) as native:
            await native.send("context.create", context_id="c", scene=scene)
            assert "scene" in (await native.error())["param"]
