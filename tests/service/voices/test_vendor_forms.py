"""Voices that ElevenLabs' and Cartesia's clients add: forms, consent, errors, deletion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.voices.voice_server import OTHER, PATH, server

GIVEN = {"consent_by": "Anna", "consent_statement": "My voice may speak here."}


class Vendor(NamedTuple):
    """Where a vendor's client sends a voice, the fields of its clip and of voices' ids."""

    address: str
    file: str
    voices: str
    id: str

    def form(self, consent: dict[str, Any], **fields: str) -> dict[str, str]:
        """Return the form's fields, with the consent where the client has a place for it."""
        if self.file == "files":
            return {"name": "Anna", "labels": json.dumps({"accent": "soft", **consent}), **fields}
        return {"name": "Anna", "language": "en", **consent, **fields}

    def status(self, code: str) -> int:
        """Return the status of a refusal; ElevenLabs has one of its own for malformed bodies."""
        return 422 if self.file == "files" and code.startswith("invalid") else 400

    def refusal(self, answer: httpx.Response) -> tuple[int, str, str]:
        """Return the status, code and message of an error in the vendor's format."""
        body = answer.json()
        inner = body["detail"] if self.file == "files" else body
        code = inner["code"] if self.file == "files" else inner["error_code"]
        return answer.status_code, code, inner["message"]


ELEVENLABS = Vendor("/v1/voices/add", "files", "/v1/voices", "voice_id")
CARTESIA = Vendor("/voices/clone", "clip", "/voices", "id")
VENDORS = [pytest.param(ELEVENLABS, id="elevenlabs"), pytest.param(CARTESIA, id="cartesia")]


@pytest.mark.parametrize("vendor", VENDORS)
async def test_voice_is_added_with_its_consent_and_deleted(vendor: Vendor) -> None:
    async with server() as s:
        form = vendor.form(GIVEN, description="A tone.")
        files = {vendor.file: ("a.flac", OTHER)}
        added = await s.http.post(vendor.address, data=form, files=files)
        assert added.status_code == 200, added.text
        voice_id = added.json()[vendor.id]
        stored = (await s.http.get(f"{PATH}/{voice_id}")).json()
        assert (stored["name"], stored["description"]) == ("Anna", "A tone.")
        assert stored["consent"]["by"] == GIVEN["consent_by"]
        assert stored["consent"]["statement"] == GIVEN["consent_statement"]
        listed = await s.http.get(f"{vendor.voices}/{voice_id}")
        assert listed.json()["name"] == "Anna"
        assert (await s.speak(voice=voice_id)).status_code == 200
        deleted = await s.http.delete(f"{vendor.voices}/{voice_id}")
        assert deleted.is_success, deleted.text
        gone = await s.http.delete(f"{vendor.voices}/{voice_id}")
        assert vendor.refusal(gone)[:2] == (404, "unknown_voice")


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize(
    ("consent", "code", "named"),
    [
        ({}, "consent_required", "consent_by and consent_statement"),
        ({"consent_by": "Anna"}, "invalid_message", "consent_statement"),
        ({"consent_statement": "Yes."}, "invalid_message", "consent_by"),
        (GIVEN | {"consent_by": " "}, "invalid_message", "consent_by"),
        (GIVEN | {"consent_at": "today"}, "invalid_message", "consent_at"),
    ],
)
async def test_error_tells_how_consent_is_sent(
    vendor: Vendor, consent: dict[str, str], code: str, named: str
) -> None:
    async with server() as s:
        files = {vendor.file: ("a.flac", OTHER)}
        answer = await s.http.post(vendor.address, data=vendor.form(consent), files=files)
        status, told, message = vendor.refusal(answer)
        assert (status, told) == (vendor.status(code), code), answer.text
        assert named in message
        if not consent:
            assert ("labels=" if vendor is ELEVENLABS else "extra_body=") in message
        assert (await s.http.get(PATH)).json()["data"] == []


@pytest.mark.parametrize(
    ("vendor", "fields", "code", "named"),
    [
        (ELEVENLABS, {"remove_background_noise": "true"}, "unsupported", "remove_background_noise"),
        (ELEVENLABS, {"labels": "{"}, "invalid_json", "JSON"),
        (ELEVENLABS, {"labels": '["consent"]'}, "invalid_message", "labels"),
        (ELEVENLABS, {"labels": '{"consent_by": 5, "consent_statement": "Yes."}'},
         "invalid_message", "consent_by"),
        (CARTESIA, {"base_voice_id": "x"}, "unsupported", "base_voice_id"),
        (CARTESIA, {"name": "Zo\xeb"}, "invalid_message", "name"),
    ],
)  # fmt: skip
async def test_field_at_fault_is_named(
    vendor: Vendor, fields: dict[str, str], code: str, named: str
) -> None:
    async with server() as s:
        form, files = vendor.form(GIVEN) | fields, {vendor.file: ("a.flac", OTHER)}
        answer = await s.http.post(vendor.address, data=form, files=files)
        assert vendor.refusal(answer)[:2] == (vendor.status(code), code), answer.text
        assert named in vendor.refusal(answer)[2]


@pytest.mark.parametrize("vendor", VENDORS)
async def test_one_clip_is_taken_and_no_other_body(vendor: Vendor) -> None:
    async with server() as s:
        clips = [(vendor.file, (f"{n}.flac", OTHER)) for n in range(3)]
        for files, code, named in (
            (clips, "unsupported", "one clip of a voice, not 3"),
            ([("nothing", (None, "x"))], "invalid_message", vendor.file),
        ):
            answer = await s.http.post(vendor.address, data=vendor.form(GIVEN), files=files)
            assert vendor.refusal(answer)[:2] == (vendor.status(code), code), answer.text
            assert named in vendor.refusal(answer)[2]
        answer = await s.http.post(vendor.address, json={"name": "Anna"})
        assert vendor.refusal(answer)[1] == "invalid_message"


@pytest.mark.parametrize("vendor", VENDORS)
async def test_voice_belongs_to_the_tenant_of_the_key(tmp_path: Path, vendor: Vendor) -> None:
    keys = [entry(name, name, "speak", "voices:write") for name in ("acme", "globex")]
    async with server(api_keys_file=write_keys(tmp_path / "keys.json", *keys)) as s:
        files = {vendor.file: ("a.flac", OTHER)}
        form, acme = vendor.form(GIVEN), bearer("acme")
        added = await s.http.post(vendor.address, data=form, files=files, headers=acme)
        address = f"{vendor.voices}/{added.json()[vendor.id]}"
        other = await s.http.delete(address, headers=bearer("globex"))
        assert vendor.refusal(other)[:2] == (404, "unknown_voice")
        assert (await s.http.delete(address, headers=acme)).is_success
