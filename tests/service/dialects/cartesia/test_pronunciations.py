"""Cartesia's pronunciation dictionaries; the official client is in tests/official."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.service.contexts.recording_talker import RecordingTalker
from tests.service.live import Gateway, gateway
from text.pronunciation.in_band import SOUNDED
from text.registry import FRONT_ENDS

DICTS = "/pronunciation-dicts"
ITEMS = [
    {"text": "k8s", "alias": "kubernetes"},
    {"text": "Worcester", "alias": "<<ˈ|w|ʊ|s|t|ə|ɹ>>", "case_sensitive": True},
]
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


async def ask(server: Gateway, method: str, path: str = "", **options: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60, headers={"x-api-key": "any"}) as http:
        return await http.request(method, f"{server.http}{DICTS}{path}", **options)


@pytest.mark.parametrize("slash", ["", "/"])
async def test_dictionary_is_added_changed_listed_and_deleted(slash: str) -> None:
    async with gateway() as server:
        made = (await ask(server, "POST", slash, json={"name": "names", "items": ITEMS})).json()
        assert [item["alias"] for item in made["items"]] == ["kubernetes", "<<ˈwʊstəɹ>>"]
        assert [item["case_sensitive"] for item in made["items"]] == [False, True]
        empty = (await ask(server, "POST", slash, json={"name": "empty"})).json()
        assert empty["items"] == []
        first = (await ask(server, "GET", slash, params={"limit": 1})).json()
        assert [one["id"] for one in first["data"]] == [made["id"]]
        assert first["has_more"]
        after = {"limit": 1, "starting_after": made["id"]}
        second = (await ask(server, "GET", slash, params=after)).json()
        assert [one["name"] for one in second["data"]] == ["empty"]
        assert not second["has_more"]
        path = f"/{made['id']}"
        changed = await ask(server, "PATCH", path, json={"items": ITEMS[:1], "name": "new"})
        assert (await ask(server, "GET", path)).json() == changed.json()
        assert changed.json()["name"] == "new"
        assert len(changed.json()["items"]) == 1
        assert (await ask(server, "DELETE", path)).status_code == 204
        gone = await ask(server, "GET", path)
        assert gone.status_code == 404
        assert "there is empty." in gone.text


async def test_speech_uses_a_dictionary() -> None:
    talker = RecordingTalker()
    signs_of = FRONT_ENDS["english-sounds"].signs_of
    talker.spec = replace(talker.spec, rendering=replace(talker.spec.rendering, signs_of=signs_of))
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        made = (await ask(server, "POST", json={"name": "names", "items": ITEMS})).json()
        talker.spoken.clear()
        body = {
            "transcript": "K8S in Worcester.", "voice": "default", "output_format": RAW,
            "pronunciation_dict_id": made["id"],
        }  # fmt: skip
        for path in ("/tts/bytes", "/tts/sse"):
            assert (await http.post(server.http + path, json=body)).status_code == 200
    said = [SOUNDED.sub(r"/\g<sounds>/", text) for _, text in talker.spoken]
    assert said == ["kubernetes in /wˈʊstər/."] * 2


async def test_wrong_items_are_refused() -> None:
    async with gateway() as server:
        items = [{"text": " ", "alias": "b"}]
        refused = await ask(server, "POST", json={"name": "a", "items": items})
        assert refused.status_code == 400
        assert "items.0.text: 1 to 100 characters" in refused.text
