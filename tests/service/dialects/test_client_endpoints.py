"""Lists, accounts and tokens, speech by GET and by Azure's addresses, and CORS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import openai
import pytest

from loadtest.fakes.talker import FakeTalker
from service.auth.authenticator import MAX_TTL_S, TokenSigner
from service.auth.keys import KeyFileError, Scope
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.live import Gateway, gateway
from tests.service.memory import Refused, Served, served
from tests.waiting import until

SPEECH = "/v1/audio/speech"
PCM = {"input": "Hello there.", "response_format": "pcm"}


def speaking(*voices: str) -> FakeTalker:
    talker = FakeTalker()
    talker.voices = ("default", *voices)
    return talker


# -- lists


async def test_open_webui_lists_models_and_speaks_each_voice() -> None:
    """As Open WebUI's backend uses the lists of voices and models."""
    async with served(speaking("anna")) as service:
        listed = (await service.http.get("/v1/audio/voices")).json()["voices"]
        assert {voice["id"]: voice["name"] for voice in listed} == {
            "default": "default",
            "anna": "anna",
        }
        models = (await service.http.get("/v1/audio/models")).json()["models"]
        assert "tts-1" in [model["id"] for model in models]
        for voice in listed:
            answer = await service.http.post(SPEECH, json=PCM | {"voice": voice["id"]})
            assert answer.status_code == 200
            assert "x-talkwire-ignored" not in answer.headers


async def test_audio_voices_include_bare_names() -> None:
    async with served(speaking("anna")) as service:
        body = (await service.http.get("/v1/audio/voices")).json()
        assert body["voice_names"] == ["default", "anna"]


async def test_models_have_elevenlabs_format_with_xi_api_key() -> None:
    async with served() as service:
        plain = (await service.http.get("/v1/models")).json()
        assert plain["object"] == "list"
        theirs = (await service.http.get("/v1/models", headers={"xi-api-key": "any"})).json()
        assert [one["model_id"] for one in theirs] == [one["id"] for one in plain["data"]]
        assert all(one["can_do_text_to_speech"] for one in theirs)


async def test_models_are_voices_in_deepgram_format_with_its_token() -> None:
    async with served(speaking("anna")) as service:
        theirs = await service.http.get("/v1/models", headers={"Authorization": "Token any"})
        assert theirs.json()["stt"] == []
        listed = theirs.json()["tts"]
        assert [one["name"] for one in listed] == ["default", "anna"]
        for one in listed:
            query = {"model": one["canonical_name"]}
            spoken = await service.http.post("/v1/speak", params=query, json={"text": "Hello."})
            assert spoken.status_code == 200
            assert spoken.headers["dg-model-name"] == one["canonical_name"]


async def test_elevenlabs_v2_voices_are_paginated_and_searchable() -> None:
    names = [f"voice{n}" for n in range(24)]
    async with served(speaking(*names)) as service:
        found: list[str] = []
        token: str | None = None
        while True:
            query = {"page_size": 10} | ({"next_page_token": token} if token else {})
            page = (await service.http.get("/v2/voices", params=query)).json()
            assert page["total_count"] == 25
            found += [voice["voice_id"] for voice in page["voices"]]
            token = page["next_page_token"]
            if not page["has_more"]:
                break
        assert found == ["default", *names]
        one = (await service.http.get("/v2/voices", params={"search": "VOICE23"})).json()
        assert [voice["name"] for voice in one["voices"]] == ["voice23"]


async def test_elevenlabs_next_page_follows_a_voice_deleted_meanwhile() -> None:
    talker = speaking(*(f"voice{n}" for n in range(6)))
    async with served(talker) as service:
        query: dict[str, Any] = {"page_size": 3}
        page = (await service.http.get("/v2/voices", params=query)).json()
        assert [voice["name"] for voice in page["voices"]] == ["default", "voice0", "voice1"]
        talker.voices = tuple(name for name in talker.voices if name != "voice1")
        query["next_page_token"] = page["next_page_token"]
        page = (await service.http.get("/v2/voices", params=query)).json()
        assert [voice["name"] for voice in page["voices"]] == ["voice2", "voice3", "voice4"]
        wrong = await service.http.get("/v2/voices", params={"next_page_token": "voice1"})
        assert (wrong.status_code, wrong.json()["detail"]["param"]) == (400, "next_page_token")


async def test_elevenlabs_voice_settings_and_user_are_served() -> None:
    async with served(unknown_voice="error") as service:
        assert (await service.http.get("/v1/voices/default/settings")).json()["speed"] == 1.0
        assert (await service.http.get("/v1/voices/settings/default")).json()["speed"] == 1.0
        assert (await service.http.get("/v1/voices/nobody/settings")).status_code == 404
        user = (await service.http.get("/v1/user")).json()
        subscription = (await service.http.get("/v1/user/subscription")).json()
        assert user["subscription"] == subscription
        # without them, the JavaScript SDK cannot parse the subscription
        assert (subscription["open_invoices"], subscription["has_open_invoices"]) == ([], False)


# -- tokens


async def grant(service: Served, vendor: str, key: str | None, ttl_s: int = 60) -> str:
    """Request a token as the vendor's client does, and return it."""
    address, body, name = {
        "cartesia": ("/access-token", {"grants": {"tts": True}, "expires_in": ttl_s}, "token"),
        "deepgram": ("/v1/auth/grant", {"ttl_seconds": ttl_s}, "access_token"),
        "elevenlabs": ("/v1/single-use-token/tts_websocket", None, "token"),
    }[vendor]
    headers = {} if key is None else bearer(key)
    answer = await service.http.post(address, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()[name])


SOCKETS = {
    "cartesia": "/tts/websocket?access_token={}",
    "elevenlabs": "/v1/text-to-speech/default/stream-input?single_use_token={}",
}


@pytest.mark.parametrize("vendor", ["cartesia", "deepgram", "elevenlabs"])
async def test_token_allows_speech_and_nothing_else(vendor: str, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("all", "acme", *Scope))
    async with served(api_keys_file=keys) as service:
        token = await grant(service, vendor, "all")
        spoken = await service.http.post(SPEECH, json=PCM, headers=bearer_of(token))
        assert spoken.status_code == 200
        for method, address in (("POST", "/access-token"), ("POST", "/v1/auth/grant")):
            answer = await service.http.request(method, address, json={}, headers=bearer_of(token))
            assert answer.status_code == 403
        deleted = await service.http.delete("/v1/audio/voices/x", headers=bearer_of(token))
        assert deleted.status_code == 403
        if vendor in SOCKETS:
            async with service.socket(SOCKETS[vendor].format(token)):
                pass
            with pytest.raises(Refused) as wrong:
                async with service.socket(SOCKETS[vendor].format(token + "x")):
                    pass
            assert wrong.value.status == 401


def bearer_of(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_token_is_refused_after_its_key_is_revoked(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = write_keys(path, entry("all", "acme", *Scope))
    async with served(api_keys_file=keys) as service:
        token = await grant(service, "deepgram", "all")
        revoked = entry("all", "acme", *Scope, revoked_at="2026-01-01T00:00:00+00:00")
        write_keys(path, revoked, entry("new", "acme"), entry("newer", "acme"))
        service.runtime.authority.reload_soon()
        await until(lambda: service.runtime.authority.key_count > 1)
        answer = await service.http.post(SPEECH, json=PCM, headers=bearer_of(token))
        assert answer.status_code == 401


async def test_tokens_are_granted_without_api_keys() -> None:
    async with served() as service:
        token = await grant(service, "elevenlabs", None)
        async with service.socket(SOCKETS["elevenlabs"].format(token)):
            pass
        answer = await service.http.post("/v1/single-use-token/batch_scribe")
        assert "tts_websocket" in answer.json()["detail"]["message"]


def test_token_signer_rejects_expired_and_forged_tokens() -> None:
    signer, other = TokenSigner(b"a" * 32), TokenSigner(b"b" * 32)
    token = signer.issue("key.with.dots", 60, 1000.0)
    assert signer.key_of(token, 1059.0) == "key.with.dots"
    assert signer.key_of(token, 1060.0) is None
    assert TokenSigner(b"a" * 32).key_of(token, 1001.0) == "key.with.dots"
    assert other.key_of(token, 1001.0) is None
    assert signer.key_of(token.replace("1060", "9999"), 1001.0) is None
    assert signer.key_of(token.replace("key.with", "key.for"), 1001.0) is None
    assert signer.key_of("talkwire_" + "0" * 64, 1001.0) is None
    assert signer.issue("k", 10**9, 0.0).split(".")[1] == str(MAX_TTL_S)


def test_token_secret_file_must_exist_and_have_32_bytes(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(KeyFileError, match="cannot read"):
        TokenSigner.of_file(path)
    path.write_bytes(b"short")
    with pytest.raises(KeyFileError, match="fewer than 32"):
        TokenSigner.of_file(path)
    path.write_bytes(b"x" * 32)
    token = TokenSigner.of_file(path).issue("k", 60, 0.0)
    assert TokenSigner.of_file(path).key_of(token, 1.0) == "k"


# -- speech by GET, and by Azure's addresses


@pytest.mark.parametrize("format_", ["pcm", "wav", "mp3"])
async def test_get_speech_equals_post_speech(format_: str) -> None:
    fields: dict[str, Any] = {
        "input": "Hello there.", "response_format": format_, "speed": 1.25, "seed": 3,
    }  # fmt: skip
    async with served() as service:
        posted = await service.http.post(SPEECH, json=fields)
        got = await service.http.get(SPEECH + "?" + urlencode(fields))
        assert got.status_code == 200, got.text
        assert got.content == posted.content
        assert got.headers["content-type"] == posted.headers["content-type"]


def spoken(server: Gateway) -> int:
    """Return the number of contexts so far."""
    figures = server.runtime.metrics.render().decode()
    return round(sum(map(float, re.findall(r"^tts_contexts_total\{.*\} (.+)$", figures, re.M))))


async def test_head_of_speech_has_its_headers_and_speaks_nothing() -> None:
    query = f"{SPEECH}?{urlencode({'input': 'Hello there.', 'response_format': 'wav', 'x': 1})}"
    async with gateway() as server, httpx.AsyncClient(base_url=server.http) as http:
        got = await http.get(query)
        assert spoken(server) == 1
        head = await http.head(query)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "cache-control", "x-talkwire-ignored", "accept-ranges"):
            assert head.headers[name] == got.headers[name]
        assert "content-length" not in head.headers
        assert (await http.head(SPEECH)).status_code == 400
        assert spoken(server) == 1


@pytest.mark.parametrize("wanted", ["bytes=0-", "bytes=0-1", "bytes=100-", "bytes=-5", "lines=1"])
async def test_range_of_speech_gets_all_of_it_and_none_is_promised(wanted: str) -> None:
    """Browsers ask so for ``<audio>``. Nobody knows the length, which a 206 would have to tell."""
    query = f"{SPEECH}?{urlencode({'input': 'Hello there.', 'response_format': 'mp3', 'seed': 3})}"
    async with served(first_lookahead_frames=3, lookahead_frames=3) as service:
        whole = await service.http.get(query)
        part = await service.http.get(query, headers={"range": wanted})
        assert (part.status_code, part.content) == (200, whole.content)
        assert part.headers["accept-ranges"] == "none"
        assert "content-range" not in part.headers


@pytest.mark.parametrize(
    ("query", "param"),
    [("", "input"), ("input=x&speed=fast", "speed"), ("input=x&seed=1.5", "seed")],
)
async def test_get_speech_validates_query_parameters(query: str, param: str) -> None:
    async with served() as service:
        answer = await service.http.get(f"{SPEECH}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_api_key_in_query_is_accepted_only_for_get(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("right", "acme", "speak"))
    key = bearer("right")["Authorization"].removeprefix("Bearer ")
    async with served(api_keys_file=keys) as service:
        assert (await service.http.get(f"{SPEECH}?input=x")).status_code == 401
        answer = await service.http.get(f"{SPEECH}?input=x&api_key={key}")
        assert answer.status_code == 200
        assert "x-talkwire-ignored" not in answer.headers
        posted = await service.http.post(f"{SPEECH}?api_key={key}", json=PCM)
        assert posted.status_code == 401, "a body comes with headers"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "same-origin", "referer": "http://127.0.0.1:8000/"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "referer": "https://evil.example/"}, 403),
        ({"sec-fetch-site": "cross-site", "referer": "http://["}, 403),
        ({"sec-fetch-site": "cross-site", "referer": "https://good.example/page"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://good.example"}, 200),
    ],
)
async def test_get_speech_checks_origin_of_page(headers: dict[str, str], status: int) -> None:
    async with served(allowed_origins="https://good.example") as service:
        answer = await service.http.get(f"{SPEECH}?input=x", headers=headers)
        assert answer.status_code == status


async def test_azure_client_speaks() -> None:
    async with served(unknown_model="error") as service:
        http: Any = service.http  # openai declares the client of httpx2, and takes this one too
        azure = openai.AsyncAzureOpenAI(
            azure_endpoint="http://127.0.0.1:8000",
            api_version="2026-01-01",
            api_key="any",
            http_client=http,
        )
        spoken = await azure.audio.speech.create(
            model="tts-1", voice="alloy", input="Hello there.", response_format="pcm"
        )
        plain = await service.http.post(SPEECH, json=PCM)
        assert spoken.content == plain.content
        with pytest.raises(openai.NotFoundError):
            await azure.audio.speech.create(model="other", voice="alloy", input="Hello.")
        newer = await service.http.post("/openai/v1/audio/speech", json=PCM)
        assert newer.content == plain.content


async def test_azure_address_accepts_api_key_header(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("right", "acme", "speak"))
    key = bearer("right")["Authorization"].removeprefix("Bearer ")
    address = "/openai/deployments/tts-1/audio/speech?api-version=2026-01-01"
    async with served(api_keys_file=keys) as service:
        assert (await service.http.post(address, json=PCM)).status_code == 401
        answer = await service.http.post(address, json=PCM, headers={"api-key": key})
        assert answer.status_code == 200


# -- CORS


async def test_cors_allows_pages_of_allowed_origins(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("right", "acme", "speak"))
    page = {"origin": "https://good.example"}
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    settings: dict[str, Any] = {"allowed_origins": "https://good.example", "api_keys_file": keys}
    async with served(**settings) as service:
        before = await service.http.options(SPEECH, headers=page | asks)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == "https://good.example"
        assert "authorization" in before.headers["access-control-allow-headers"]
        answer = await service.http.post(SPEECH, json=PCM, headers=page | bearer("right"))
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://good.example"
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        for name in ("x-request-id", "x-talkwire-ignored", "request-id", "dg-request-id"):
            assert name in exposed
        refused = await service.http.post(SPEECH, json=PCM, headers=page)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://good.example"


async def test_cors_refuses_pages_of_other_origins() -> None:
    page = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    async with served(allowed_origins="https://good.example") as service:
        assert (await service.http.options(SPEECH, headers=page)).status_code == 400
        answer = await service.http.post(SPEECH, json=PCM, headers=page)
        assert "access-control-allow-origin" not in answer.headers
    async with served() as service:
        assert (await service.http.options(SPEECH, headers=page)).status_code == 405
