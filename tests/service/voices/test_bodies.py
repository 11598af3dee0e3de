"""Request bodies that add a voice: JSON and forms, valid and invalid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.auth.caller import ANYBODY
from service.transport import http_routes as http_route
from tests.service.voices import clips
from tests.service.voices.voice_server import (
    CLIP,
    CONSENT,
    OTHER,
    PATH,
    VOICE,
    error,
    server,
)


async def test_add_voice_accepts_form() -> None:
    async with server() as s:
        fields = {
            "name": "Bert 2",
            "ref_text": "  Another tone. ",
            "consent_by": "Bert",
            "consent_statement": "Yes.",
            "consent_at": "2026-11-20T10:00:00+00:00",
        }
        files = {"audio_sample": ("../../etc/passwd", OTHER, "text/html")}
        added = await s.http.post(PATH, data=fields, files=files)
        assert added.status_code == 201, added.text
        voice = added.json()
        assert (voice["name"], voice["text"], voice["duration_s"]) == (
            "Bert 2", "Another tone.", 1.52,
        )  # fmt: skip
        assert voice["consent"] == {
            "by": "Bert", "statement": "Yes.", "at": "2026-11-20T10:00:00+00:00",
        }  # fmt: skip
        assert (await s.http.get(f"{PATH}/Bert 2")).json() == voice


async def test_add_voice_accepts_form_of_openai_client() -> None:
    """It always sends ``consent``, and the rest of the consent as ``extra_body``."""
    async with server() as s:
        fields = {"name": "Bert", "type": "audio_sample", "consent": "cons_1"}
        files = {"audio_sample": ("a.wav", OTHER)}
        given = {"consent_by": "Bert", "consent_statement": "Yes."}
        added = await s.http.post(PATH, data=fields | given, files=files)
        assert added.status_code == 201, added.text
        assert (added.json()["type"], added.json()["consent"]["by"]) == ("audio_sample", "Bert")
        prompt = {"name": "Carl", "type": "prompt", "prompt": "A low voice."}
        refused = await s.http.post(PATH, json=prompt)
        assert error(refused) == (400, "invalid_message", "type")


async def test_add_voice_form_needs_separate_consent_fields() -> None:
    async with server() as s:
        fields = {"name": "Bert", "consent": "yes", "consent_by": "Bert"}
        added = await s.http.post(PATH, data=fields, files={"audio_sample": ("a", OTHER)})
        assert error(added) == (400, "invalid_message", "consent_statement")


async def test_add_voice_form_names_the_fields_of_missing_consent() -> None:
    """OpenAI's ``consent``, the id of a recording, is not enough."""
    async with server() as s:
        fields = {"name": "Bert", "consent": "cons_1"}
        added = await s.http.post(PATH, data=fields, files={"audio_sample": ("a", OTHER)})
        assert error(added) == (400, "consent_required", "consent")
        assert "consent_by and consent_statement" in added.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"consent": None}, 400, "consent_required", "consent"),
        ({"consent": {"by": " ", "statement": "Yes."}}, 400, "invalid_message", "consent.by"),
        ({"consent": {"by": "A", "statement": " \n"}}, 400, "invalid_message", "consent.statement"),
        ({"consent": {"by": "A"}}, 400, "invalid_message", "consent.statement"),
        ({"consent": {"by": "", "statement": "Yes."}}, 400, "invalid_message", "consent.by"),
        ({"consent": CONSENT | {"at": "today"}}, 400, "invalid_message", "consent.at"),
        ({"consent": "yes"}, 400, "invalid_message", "consent"),
        ({"name": ""}, 400, "invalid_message", "name"),
        ({"name": "../anna"}, 400, "invalid_message", "name"),
        ({"name": "anna\n"}, 400, "invalid_message", "name"),
        ({"name": "<|audio|>"}, 400, "invalid_message", "name"),
        ({"name": "a" * 65}, 400, "invalid_message", "name"),
        ({"name": "default"}, 409, "voice_exists", "name"),
        ({"audio_sample": None}, 400, "invalid_message", "audio_sample"),
        ({"audio_sample": ""}, 400, "invalid_audio", "audio_sample"),
        ({"audio_sample": "?"}, 400, "invalid_audio", "audio_sample"),
        ({"audio_sample": "https://example.org/anna.wav"}, 400, "unsupported", "audio_sample"),
        ({"audio_sample": clips.as_base64(b"<html>")}, 400, "invalid_audio", "audio_sample"),
        ({"ref_text": "x" * 4001}, 400, "invalid_message", "ref_text"),
        ({"colour": "red"}, 400, "invalid_message", "colour"),
    ],
)
async def test_add_voice_refuses_bad_fields(
    fields: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with server() as s:
        assert error(await s.add(**fields)) == (status, code, param)
        assert (await s.http.get(PATH)).json()["voice_names"] == ["default"]


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [({"name": "Zoë"}, "A-Za-z0-9"), ({"consent": CONSENT | {"at": "today"}}, "ISO 8601")],
)
async def test_add_voice_says_which_values_are_allowed(
    fields: dict[str, Any], allowed: str
) -> None:
    async with server() as s:
        assert allowed in (await s.add(**fields)).json()["error"]["message"]


async def test_blank_texts_about_voice_are_the_same_before_and_after_restart(
    tmp_path: Path,
) -> None:
    async with server(voices_dir=tmp_path) as s:
        made = (await s.add(language="", description="")).json()
    async with server(voices_dir=tmp_path) as s:
        assert (await s.http.get(f"{PATH}/anna")).json() == made


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"--x",
        b"--x\r\n\r\n\r\n--x--",
        b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--",
    ],
)
async def test_add_voice_refuses_broken_forms(content: bytes) -> None:
    async with server() as s:
        for kind in ("multipart/form-data; boundary=x", "multipart/form-data"):
            answer = await s.http.post(PATH, content=content, headers={"content-type": kind})
            assert error(answer)[:2] == (400, "invalid_message")
        two = [("audio_sample", ("a", CLIP)), ("audio_sample", ("b", CLIP))]
        assert error(await s.http.post(PATH, files=two))[1] == "invalid_message"
        wrong = {"other": ("a", CLIP)}
        assert error(await s.http.post(PATH, files=wrong)) == (400, "invalid_message", "other")


async def test_voices_cannot_be_changed_from_foreign_origin() -> None:
    async with server() as s:
        s.http.headers["origin"] = "https://evil.example"
        assert error(await s.add()) == (403, "forbidden_origin", None)
        assert error(await s.http.delete(f"{PATH}/anna")) == (403, "forbidden_origin", None)
        s.http.headers["origin"] = s.live.http
        assert (await s.add()).status_code == 201


async def test_large_uploads_are_limited_in_size_and_number() -> None:
    async with server() as s:
        large = clips.as_base64(bytes(11 << 20))
        assert error(await s.add(audio_sample=large))[:2] == (413, "text_too_long")
        uploads = s.live.runtime.uploads
        leases = [uploads.acquire(replace(ANYBODY, network=f"net{n}")) for n in range(8)]
        answer = await s.add(clips.wav(clips.tone(25.0)))
        assert error(answer)[:2] == (429, "overloaded")
        assert "retry-after" in answer.headers
        assert (await s.add(CLIP[:60_000])).status_code == 201  # not a large body
        for lease in leases:
            lease.release()
        assert (await s.add(clips.wav(clips.tone(25.0)), name="b")).status_code == 201
        assert s.live.runtime.uploads.active == 0


async def test_upload_has_longer_deadline_than_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_route, "_BODY_S", 3.0)
    sample = clips.as_base64(clips.wav(clips.tone(25.0)))
    body = json.dumps(VOICE | {"audio_sample": sample}).encode()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:-100]
        await asyncio.sleep(4.2)
        yield body[-100:]

    async with server() as s:
        json_type = {"content-type": "application/json"}
        answer = await s.http.post(PATH, content=slowly(), headers=json_type)
        assert answer.status_code == 201, answer.text


async def test_openapi_documents_json_and_form_bodies() -> None:
    async with server() as s:
        document = (await s.http.get("/openapi.json")).json()
        content = document["paths"][PATH]["post"]["requestBody"]["content"]
        assert set(content) == {"application/json", "multipart/form-data"}
        assert "consent" in content["application/json"]["schema"]["required"]
        form = content["multipart/form-data"]["schema"]
        assert form["properties"]["audio_sample"]["format"] == "binary"
        assert "consent_statement" in form["required"]
        assert "$ref" not in json.dumps(content)
        assert set(document["paths"][PATH + "/{id}"]) == {"get", "delete"}
