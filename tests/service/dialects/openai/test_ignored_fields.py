"""Fields of OpenAI's API without effect here, headers of responses, and names of the model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.memory import served

PATH = "/v1/audio/speech"
SPEAK = {"input": "Hello there.", "response_format": "pcm"}
#: Fields that Open WebUI, LibreChat, LiteLLM and Kokoro's clients send beside the text.
STRANGE: dict[str, Any] = {
    "instructions": "Whisper.", "lang_code": "a", "user": "u1", "backend": "x", "language": "en",
}  # fmt: skip


async def test_unknown_fields_are_ignored_and_named_in_header() -> None:
    async with served() as service:
        answer = await service.http.post(PATH, json=SPEAK | STRANGE)
        assert answer.status_code == 200
        assert set(answer.headers["x-talkwire-ignored"].split(", ")) == set(STRANGE)
        plain = await service.http.post(PATH, json=SPEAK)
        assert "x-talkwire-ignored" not in plain.headers
        assert plain.content == answer.content


async def test_replaced_voice_is_named_in_header() -> None:
    async with served() as service:
        answer = await service.http.post(PATH, json=SPEAK | {"voice": "af_bella"})
        assert answer.headers["x-talkwire-ignored"] == "voice"
        for known in ("alloy", "default", {"id": "default"}):
            answer = await service.http.post(PATH, json=SPEAK | {"voice": known})
            assert "x-talkwire-ignored" not in answer.headers


async def test_ignored_header_has_at_most_32_safe_names() -> None:
    async with served() as service:
        hostile = {"a\r\nset-cookie: x": 1, "caf\u00e9": 1, "x" * 65: 1, "": 1, "fine": 1}
        answer = await service.http.post(PATH, json=SPEAK | hostile)
        assert answer.headers["x-talkwire-ignored"] == "fine"
        many = {f"f{n}": 1 for n in range(1000)}
        answer = await service.http.post(PATH, json=SPEAK | many)
        assert len(answer.headers["x-talkwire-ignored"].split(", ")) == 32


@pytest.mark.parametrize("name", STRANGE)
async def test_unknown_field_is_refused_by_strict_server(name: str) -> None:
    async with served(unknown_fields="refuse") as service:
        answer = await service.http.post(PATH, json=SPEAK | {name: STRANGE[name]})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name)
        assert name in error["message"]


async def test_misspelt_field_error_suggests_correct_name() -> None:
    async with served(unknown_fields="refuse") as service:
        answer = await service.http.post(PATH, json=SPEAK | {"respnse_format": "wav"})
        assert "did you mean response_format?" in answer.json()["error"]["message"]


async def test_unknown_fields_of_batch_are_ignored_or_refused() -> None:
    batch = {"items": [{"input": "Hello.", "user": "u"}, {"input": "Bye."}], "backend": "x"}
    batch["mode"] = "chunked"
    async with served() as service:
        answer = await service.http.post(PATH + "/batch", json=batch)
        assert answer.json()["succeeded"] == 2
        assert set(answer.headers["x-talkwire-ignored"].split(", ")) == {"user", "backend", "mode"}
    async with served(unknown_fields="refuse") as service:
        answer = await service.http.post(PATH + "/batch", json=batch | {"backend": None})
        assert answer.status_code == 400


async def test_header_of_batch_names_no_voice_of_a_refused_item() -> None:
    batch = {"items": [{"input": "Hello.", "voice": "nobody"}, {"input": "Bye.", "user": "u"}]}
    async with served(unknown_voice="error") as service:
        answer = await service.http.post(PATH + "/batch", json=batch)
        assert [one.get("code") for one in answer.json()["results"]] == ["unknown_voice", None]
        assert answer.headers["x-talkwire-ignored"] == "user"


async def test_default_response_format_is_configurable() -> None:
    async with served() as service:
        answer = await service.http.post(PATH, json={"input": "Hello."})
        assert answer.headers["content-type"] == "audio/mpeg"
    async with served(default_response_format="wav") as service:
        answer = await service.http.post(PATH, json={"input": "Hello."})
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.content[:4] == b"RIFF"


async def test_pcm_response_headers_describe_samples() -> None:
    async with served() as service:
        told = (await service.http.post(PATH, json=SPEAK)).headers
        names = ("x-sample-rate", "x-channels", "x-bit-depth")
        assert [told[name] for name in names] == ["24000", "1", "16"]
        other = await service.http.post(PATH, json=SPEAK | {"response_format": "wav"})
        assert "x-sample-rate" not in other.headers


@pytest.mark.parametrize("named", ["other", 5, {"id": "x"}])
async def test_model_of_batch_item_is_ignored_whatever_its_value(named: object) -> None:
    batch = {"items": [{"input": "Hello.", "model": named}]}
    async with served() as service:
        answer = await service.http.post(PATH + "/batch", json=batch)
        assert answer.status_code == 200
        assert answer.headers["x-talkwire-ignored"] == "model"
        assert answer.json()["succeeded"] == 1


async def test_all_model_names_are_listed_and_accepted() -> None:
    names = ["higgs", "bosonai/higgs-audio-v3-tts-4b", "bosonai/higgs-tts-3-4b", "house", "tts-1"]
    settings: dict[str, Any] = {
        "model": "bosonai/higgs-audio-v3-tts-4b",
        "served_model_name": "higgs",
    }
    async with served(**settings, served_model_names="house") as service:
        listed = (await service.http.get("/v1/models")).json()["data"]
        assert {one["id"] for one in listed} >= set(names)
        assert listed[0]["id"] == "higgs"
        for name in names:
            assert (await service.http.get(f"/v1/models/{name}")).json()["id"] == name
            answer = await service.http.post(PATH, json=SPEAK | {"model": name})
            assert answer.status_code == 200, name
        other = await service.http.post(PATH, json=SPEAK | {"model": "other"})
        assert other.status_code == 404
        assert "house" in other.json()["error"]["message"]
