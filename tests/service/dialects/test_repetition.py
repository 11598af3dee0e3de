"""Options of repetition-aware sampling (RAS) reach the talker or are refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from loadtest.fakes.talker import FakeTalker
from streaming.ports import RowGenerator, SpeechRequest
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import client, gateway

ASKED = {"ras_win_len": 3, "ras_max_repeat": 2}
BODY = {"input": "Hello.", "response_format": "pcm"}
SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"


class Listening(FakeTalker):
    """Records the requested RAS options."""

    def __init__(self) -> None:
        super().__init__(watches_repetition=True)
        self.asked: list[tuple[int | None, int | None]] = []

    def generate(self, request: SpeechRequest) -> RowGenerator:
        self.asked.append((request.sampling.ras_win_len, request.sampling.ras_max_repeat))
        return super().generate(request)


async def test_ras_options_reach_talker_from_native_openai_and_vllm_omni() -> None:
    talker = Listening()
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        talker.asked.clear()  # requests of the warm-up
        async with client(server.url) as native:
            await native.say("Hello.", sampling=ASKED)
            await native.say("Hello.")
        assert (await http.post(server.http + SPEECH, json=BODY | ASKED)).status_code == 200
        shared: dict[str, Any] = {"items": [BODY, BODY | {"ras_win_len": 0}], **ASKED}
        assert (await http.post(server.http + BATCH, json=shared)).json()["succeeded"] == 2
        async with speaking(server, **STREAM, **ASKED) as talk:
            await talk.say("Hello.")
            await talk.hear()
    assert talker.asked[:3] == [(3, 2), (None, None), (3, 2)]
    assert sorted(talker.asked[3:5]) == [(0, 2), (3, 2)]
    assert talker.asked[5:] == [(3, 2)]


async def test_ras_options_are_refused_if_model_does_not_support_them() -> None:
    async with gateway() as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(server.http + SPEECH, json=BODY | ASKED)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "unsupported")
        assert error["param"] == "ras_win_len"
        async with client(server.url) as native:
            await native.send("context.create", context_id="c", sampling=ASKED)
            error = await native.error()
            assert (error["code"], error["param"]) == ("unsupported", "sampling.ras_win_len")


@pytest.mark.parametrize(
    "asked", [{"ras_win_len": 65}, {"ras_win_len": -1}, {"ras_max_repeat": 0}], ids=str
)
async def test_ras_options_out_of_range_are_refused(asked: dict[str, int]) -> None:
    name = next(iter(asked))
    async with gateway(Listening()) as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(server.http + SPEECH, json=BODY | asked)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        async with client(server.url) as native:
            await native.send("context.create", context_id="c", sampling=asked)
            assert name in (await native.error())["param"]
