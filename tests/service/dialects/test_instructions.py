"""A client's instructions reach the talker, or the client learns that they cannot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.cli import app
from streaming.ports import RowGenerator, SpeechRequest
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import client, gateway

WORDS = "Whisper, as if it were a secret."
BODY = {"input": "Hello.", "response_format": "pcm"}
ASKED = BODY | {"instructions": WORDS}
SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"
HEADER = "x-talkwire-ignored"


class Led(FakeTalker):
    """Follows instructions, or with ``designs`` needs them. Records them."""

    def __init__(self, *, designs: bool = False) -> None:
        super().__init__(
            spec=replace(FAKE_SPEC, takes_instructions=True, needs_instructions=designs)
        )
        self.heard: list[str | None] = []

    def generate(self, request: SpeechRequest) -> RowGenerator:
        self.heard.append(request.instructions)
        return super().generate(request)


async def test_instructions_are_refused_by_native_protocol_if_model_takes_none() -> None:
    async with gateway() as server, client(server.url) as native:
        await native.send("context.create", context_id="c", instructions=WORDS)
        error = await native.error()
        assert (error["code"], error["param"]) == ("unsupported", "instructions")
        await native.create("c", instructions=None)


async def test_instructions_reach_talker_from_native_openai_and_vllm_omni() -> None:
    talker = Led()
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        talker.heard.clear()  # requests of the warm-up
        async with client(server.url) as native:
            await native.say("Hello.", instructions=WORDS)
        plain = await http.post(server.http + SPEECH, json=BODY | {"instructions": ""})
        answer = await http.post(server.http + SPEECH, json=ASKED | {"task_type": "CustomVoice"})
        assert (plain.status_code, answer.status_code) == (200, 200)
        assert HEADER not in plain.headers
        assert HEADER not in answer.headers
        assert plain.content != answer.content
        shared: dict[str, Any] = {"items": [{"input": "Hello."}, ASKED], "instructions": "Sing."}
        assert (await http.post(server.http + BATCH, json=shared)).json()["succeeded"] == 2
        async with speaking(server, **STREAM, instructions=WORDS) as talk:
            await talk.say("Hello.")
            await talk.hear()
    assert talker.heard[:3] == [WORDS, None, WORDS]
    assert sorted(map(str, talker.heard[3:5])) == ["Sing.", WORDS]
    assert talker.heard[5:] == [WORDS]


async def test_instructions_reach_talker_from_command_line(tmp_path: Path) -> None:
    talker, texts = Led(), tmp_path / "texts.txt"
    texts.write_text("Hello.\n")
    async with gateway(talker) as server:
        talker.heard.clear()
        out = ["--out", str(tmp_path / "out.wav"), "--url", server.url, "--instructions", WORDS]
        said = await asyncio.to_thread(CliRunner().invoke, app, ["say", "Hello.", *out])
        assert said.exit_code == 0, said.output
        out = ["--out", str(tmp_path / "out"), "--url", server.http, "--instructions", WORDS]
        made = await asyncio.to_thread(CliRunner().invoke, app, ["batch", str(texts), *out])
        assert made.exit_code == 0, made.output
    assert talker.heard == [WORDS, WORDS]


@pytest.mark.parametrize("instructions", ["", "x" * 4097, 3])
async def test_instructions_of_invalid_type_or_length_are_refused_by_native_protocol(
    instructions: Any,
) -> None:
    async with gateway(Led()) as server, client(server.url) as native:
        await native.send("context.create", context_id="c", instructions=instructions)
        assert "instructions" in (await native.error())["param"]


async def test_model_that_designs_voices_starts_and_names_missing_instructions() -> None:
    talker = Led(designs=True)
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        assert talker.heard  # the warm-up has described a voice
        assert None not in talker.heard
        design = {"task_type": "VoiceDesign"}
        assert (await http.post(server.http + SPEECH, json=ASKED | design)).status_code == 200
        for body in (BODY, BODY | design):
            refused = await http.post(server.http + SPEECH, json=body)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "instructions")
        other = await http.post(server.http + SPEECH, json=ASKED | {"task_type": "CustomVoice"})
        assert "VoiceDesign with none" in other.json()["error"]["message"]
        async with client(server.url) as native:
            await native.send("context.create", context_id="c")
            assert (await native.error())["param"] == "instructions"
            await native.say("Hello.", instructions=WORDS)
        async with speaking(server, **STREAM) as talk:
            error = await talk.next()
            assert (error["code"], error["param"]) == ("invalid_parameter", "instructions")


async def test_other_models_design_no_voices() -> None:
    async with gateway(Led()) as server, httpx.AsyncClient(timeout=60) as http:
        body = ASKED | {"task_type": "VoiceDesign"}
        error = (await http.post(server.http + SPEECH, json=body)).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported", "task_type")
