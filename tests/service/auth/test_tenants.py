"""Limits of tenants and their isolation from each other, over real connections."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from loadtest.fakes.talker import FakeTalker
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.live import Gateway, client, gateway
from tests.service.voices.clips import tone, wav

VOICES = "/v1/audio/voices"
ALL = ("speak", "voices:write", "admin")
SLOW: dict[str, Any] = {"row_s": 0.05, "frames_per_character": 50}


def new_voice(name: str = "anna") -> dict[str, Any]:
    return {
        "name": name,
        "audio_sample": base64.b64encode(wav(tone())).decode(),
        "ref_text": "A tone.",
        "consent": {"by": "Anna", "statement": "Yes."},
    }


def talk_as(server: Gateway, key: str) -> Any:
    return client(server.url, additional_headers=bearer(key))


@pytest_asyncio.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60) as made:
        yield made


async def tenant_metrics(server: Gateway) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(server.runtime.metrics.render().decode())
    samples = [s for f in families if f.name.startswith("tts_tenant") for s in f.samples]
    return {(s.name, s.labels["tenant"]): s.value for s in samples}


# -- voices


async def test_public_lists_name_shared_voices_without_key(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    """Open WebUI asks for both lists without its key."""
    file = write_keys(tmp_path / "keys.json", entry("a", "acme", *ALL))
    folder = tmp_path / "voices"
    async with gateway(voices_dir=folder) as server:  # without keys, so the voice is shared
        shared = new_voice() | {"name": "shared"}
        assert (await http.post(server.http + VOICES, json=shared)).status_code == 201
    models = "/v1/audio/models"
    async with gateway(api_keys_file=file, voices_dir=folder, public_lists=True) as server:
        base = server.http
        added = await http.post(base + VOICES, json=new_voice(), headers=bearer("a"))
        assert added.status_code == 201
        listed = (await http.get(base + VOICES)).json()
        assert listed["voice_names"] == ["default", "shared"]
        assert listed["data"] == []
        assert (await http.get(base + models)).json()["models"]
        own = (await http.get(base + VOICES, headers=bearer("a"))).json()
        assert [voice["name"] for voice in own["data"]] == ["shared", "anna"]
        for path in (VOICES, models):
            assert (await http.get(base + path, headers=bearer("wrong"))).status_code == 401
        for path in ("/v1/voices", "/voices", "/v1/models", f"{VOICES}/shared"):
            assert (await http.get(base + path)).status_code == 401
        assert (await http.post(base + VOICES, json=new_voice())).status_code == 401
        document = (await http.get(base + "/openapi.json", headers=bearer("a"))).json()
        assert {} in document["paths"][models]["get"]["security"]
    async with gateway(api_keys_file=file) as server:
        for path in (VOICES, models):
            assert (await http.get(server.http + path)).status_code == 401


async def test_voice_of_tenant_is_hidden_from_other_tenants(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    file = write_keys(tmp_path / "keys.json", entry("a", "acme", *ALL), entry("b", "globex", *ALL))
    folder = tmp_path / "voices"
    async with gateway(api_keys_file=file, voices_dir=folder) as server:
        base = server.http
        added = await http.post(base + VOICES, json=new_voice(), headers=bearer("a"))
        assert added.status_code == 201
        ours = added.json()["id"]
        strange = f"voice_{'0' * 16}"
        for name in ("anna", ours):
            # another tenant's voice is answered exactly like an unknown one
            for path in (f"{VOICES}/", "/v1/voices/", "/voices/"):
                other, nobodys = [
                    await http.get(f"{base}{path}{key}", headers=bearer("b"))
                    for key in (name, strange)
                ]
                assert (other.status_code, nobodys.status_code) == (404, 404), path
                assert _told(other) == _told(nobodys)
                mine = await http.get(f"{base}{path}{name}", headers=bearer("a"))
                assert mine.status_code == 200, path
            other, nobodys = [
                await http.delete(f"{base}{VOICES}/{key}", headers=bearer("b"))
                for key in (name, strange)
            ]
            assert (other.status_code, _told(other)) == (404, _told(nobodys))
            other, nobodys, mine = [
                await http.post(
                    f"{base}/v1/audio/speech",
                    json={"input": "Hello.", "voice": voice},
                    headers=bearer(key),
                )
                for voice, key in ((name, "b"), (strange, "b"), (name, "a"))
            ]
            assert (other.status_code, _told(other)) == (400, _told(nobodys))
            assert mine.status_code == 200
            el = f"{base}/v1/text-to-speech/{name}"
            assert (
                await http.post(el, json={"text": "Hi."}, headers={"xi-api-key": "b"})
            ).status_code == 404
            assert (
                await http.post(el, json={"text": "Hi."}, headers={"xi-api-key": "a"})
            ).status_code == 200
            lines = [{"text": "Hi.", "voice_id": voice} for voice in ("default", name)]
            for key, status in (("b", 404), ("a", 200)):
                dialogue = await http.post(
                    f"{base}/v1/text-to-dialogue", json={"inputs": lines}, headers=bearer(key)
                )
                assert dialogue.status_code == status
        for path in (VOICES, "/v1/voices", "/voices"):
            assert ours in (await http.get(base + path, headers=bearer("a"))).text
            seen = (await http.get(base + path, headers=bearer("b"))).text
            assert "anna" not in seen
            assert ours not in seen
        async with talk_as(server, "b") as talk:
            for number, name in enumerate(("anna", ours)):
                await talk.send("context.create", context_id=str(number), voice=name)
                assert (await talk.error())["code"] == "unknown_voice"
        # the other tenant may use the name for a voice of its own
        theirs = await http.post(base + VOICES, json=new_voice(), headers=bearer("b"))
        assert theirs.status_code == 201
        twice = await http.post(base + VOICES, json=new_voice(), headers=bearer("b"))
        assert twice.status_code == 409
        gone = await http.delete(f"{base}{VOICES}/anna", headers=bearer("b"))
        assert gone.json()["id"] == theirs.json()["id"]
        assert (await http.get(f"{base}{VOICES}/anna", headers=bearer("a"))).json()["id"] == ours
    # the owner survives a restart, and without keys no caller is that tenant
    async with gateway(api_keys_file=file, voices_dir=folder) as server:
        for key, status in (("a", 200), ("b", 404)):
            found = await http.get(f"{server.http}{VOICES}/{ours}", headers=bearer(key))
            assert found.status_code == status
    async with gateway(voices_dir=folder) as server:
        assert (await http.get(f"{server.http}{VOICES}/{ours}")).status_code == 404


def _told(answer: httpx.Response) -> Any:
    """Return an error without request ids and without names that the client sent."""
    body = json.loads(re.sub(r'\\"(anna|voice_\w+)\\"', "NAME", answer.text))
    body.pop("request_id", None)
    if isinstance(body.get("detail"), dict):
        body["detail"].pop("request_id", None)
    return body


async def test_voices_added_without_keys_are_shared_by_all_tenants(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    folder = tmp_path / "voices"
    async with gateway(voices_dir=folder) as server:
        assert (await http.post(server.http + VOICES, json=new_voice())).status_code == 201
    file = write_keys(
        tmp_path / "keys.json",
        entry("a", "acme", "speak", "voices:write", limits={"max_voices": 1}),
        entry("root", "ops", *ALL),
    )
    async with gateway(api_keys_file=file, voices_dir=folder) as server:
        one = f"{server.http}{VOICES}/anna"
        assert (await http.get(one, headers=bearer("a"))).status_code == 200
        taken = await http.post(server.http + VOICES, json=new_voice(), headers=bearer("a"))
        assert taken.json()["error"]["code"] == "voice_exists"
        refused = await http.delete(one, headers=bearer("a"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert (await http.delete(one, headers=bearer("root"))).status_code == 200
        for name, status in (("one", 201), ("two", 409)):
            added = await http.post(server.http + VOICES, json=new_voice(name), headers=bearer("a"))
            assert added.status_code == status


# -- contexts, connections, text


@pytest.mark.long
async def test_max_share_leaves_slots_to_other_tenants(tmp_path: Path) -> None:
    file = write_keys(
        tmp_path / "keys.json",
        *(entry(key, "acme") for key in ("a1", "a2")),
        entry("b", "globex"),
        acme={"max_share": 0.5},
    )
    async with (
        gateway(FakeTalker(**SLOW), api_keys_file=file, max_contexts=4) as server,
        talk_as(server, "a1") as first,
        talk_as(server, "a2") as second,
        talk_as(server, "b") as other,
    ):
        await first.create("1")
        await second.create("1")
        await first.send("context.create", context_id="2")
        error = await first.error()
        assert (error["code"], error["retryable"]) == ("rate_limited", True)
        assert error["retry_after_ms"] > 0
        for number in range(2):  # the other half is left to the other tenant
            await other.create(str(number))
        await other.send("context.create", context_id="3")
        assert (await other.error())["code"] == "overloaded"
        scraped = await tenant_metrics(server)
        assert scraped["tts_tenant_contexts_active", "acme"] == 2
        assert scraped["tts_tenant_refusals_total", "acme"] == 1
        assert scraped["tts_tenant_refusals_total", "globex"] == 0
        await first.send("context.cancel", context_id="1")
        await first.until("context.cancelled", "1")
        await second.create("2")
        for talk in (first, second, other):
            await talk.socket.close()
        await server.until_free()
        await _until_idle(server)


async def _until_idle(server: Gateway) -> None:
    async with asyncio.timeout(30):
        while any(
            value for (name, _), value in (await tenant_metrics(server)).items() if "active" in name
        ):
            await asyncio.sleep(0.01)


#: For each dialect, the address and the messages that open a context.
FIRST_WORDS: dict[str, list[dict[str, Any]]] = {
    "/tts/websocket": [
        {
            "context_id": "c",
            "transcript": "Hello there. ",
            "continue": True,
            "voice": "default",
            "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000},
        }
    ],
    "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000": [
        {"text": "Hello there. ", "context_id": "c"}
    ],
    "/v1/text-to-speech/default/stream-input?output_format=pcm_24000": [{"text": "Hello there. "}],
    "/v1/text-to-dialogue/multi-stream-input?output_format=pcm_24000": [
        {"voices": ["default"], "context_id": "c"},
        {"inputs": [{"text": "Hello there.", "voice_id": "default"}], "context_id": "c"},
    ],
    "/v1/speak": [{"type": "Speak", "text": "Hello there."}],
    "/v2/speak": [{"type": "Speak", "text": "Hello there."}],
    "/v1/audio/speech/stream": [
        {"type": "session.config", "response_format": "pcm"},
        {"type": "input.text", "text": "Hello there. How are you?"},
        {"type": "input.done"},
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("limits", [{"max_contexts": 1}, {"characters_per_minute": 1}])
async def test_limits_apply_in_every_dialect_and_release_all_slots(
    tmp_path: Path, http: httpx.AsyncClient, limits: dict[str, int]
) -> None:
    file = write_keys(tmp_path / "keys.json", entry("a", "acme", limits=limits))
    async with gateway(FakeTalker(**SLOW), api_keys_file=file) as server:
        async with talk_as(server, "a") as talk:
            await talk.create()
            await talk.send("text.append", context_id="c", text="Using it up. ")
            await talk.until("audio.started")
            for address, messages in FIRST_WORDS.items():
                url = server.http.replace("http", "ws", 1) + address
                async with connect(url, additional_headers=bearer("a")) as socket:
                    for message in messages:
                        await socket.send(json.dumps(message))
                    assert "rate_limited" in (await _until_error(socket)).lower(), address
            for path, body in (
                ("/v1/audio/speech", {"input": "Hi."}),
                ("/v1/text-to-speech/default", {"text": "Hi."}),
                ("/v1/speak", {"text": "Hi."}),
            ):
                refused = await http.post(server.http + path, json=body, headers=bearer("a"))
                assert refused.status_code == 429, refused.text
                assert int(refused.headers["retry-after"]) >= 1
        await server.until_free()
        await _until_idle(server)


async def _until_error(socket: Any) -> str:
    async with asyncio.timeout(30):
        while True:
            message = await socket.recv()
            if isinstance(message, str) and "rror" in message and "rate" in message.lower():
                return message


async def test_greeting_announces_tightest_limits(tmp_path: Path) -> None:
    file = write_keys(
        tmp_path / "keys.json",
        entry("a", "acme", limits={"max_connections": 2, "characters_per_minute": 900}),
        acme={"max_share": 0.5, "max_connections": 5, "characters_per_minute": 600},
    )
    async with gateway(api_keys_file=file, max_contexts=6, max_session_s=77) as server:
        url = server.url
        async with connect(url, additional_headers=bearer("a")) as one:
            limits = json.loads(await one.recv())["limits"]
            assert (limits["key_contexts"], limits["key_connections"]) == (3, 2)
            assert (limits["characters_per_minute"], limits["max_session_s"]) == (600, 77)
            async with connect(url, additional_headers=bearer("a")):
                with pytest.raises(InvalidStatus) as full:
                    await connect(url, additional_headers=bearer("a"))
                assert full.value.response.status_code == 429
                assert full.value.response.headers["retry-after"] == "1"
        await _until_idle(server)
        async with talk_as(server, "a"):  # the connections are free again
            pass


async def test_text_over_allowance_is_neither_added_nor_spoken(tmp_path: Path) -> None:
    file = write_keys(
        tmp_path / "keys.json", entry("a", "acme", limits={"characters_per_minute": 20})
    )
    async with gateway(api_keys_file=file) as server, talk_as(server, "a") as talk:
        handle = await talk.create()
        for text in ("One sentence to say. ", "Not this one. "):
            await talk.send("text.append", context_id="c", text=text)
        assert (await talk.error())["code"] == "rate_limited"
        await talk.send("context.end", context_id="c")
        await talk.until("context.done")
        heard, meant = talk.samples(handle), server.whole("One sentence to say.")
        assert len(heard) == len(meant)
        assert np.allclose(heard, meant, atol=0.5)
        assert (await tenant_metrics(server))["tts_tenant_characters_total", "acme"] == 21


async def test_batch_waits_for_slots_of_tenant(tmp_path: Path, http: httpx.AsyncClient) -> None:
    file = write_keys(tmp_path / "keys.json", entry("a", "acme", limits={"max_contexts": 1}))
    async with gateway(api_keys_file=file) as server:
        body = {"items": [{"input": f"Number {n}."} for n in range(3)]}
        done = await http.post(
            f"{server.http}/v1/audio/speech/batch", json=body, headers=bearer("a")
        )
        assert done.json()["succeeded"] == 3, done.text
        await _until_idle(server)


@pytest.mark.long
async def test_aborted_connections_release_slots_and_connections(tmp_path: Path) -> None:
    file = write_keys(tmp_path / "keys.json", entry("a", "acme"))
    async with (
        gateway(FakeTalker(**SLOW), api_keys_file=file) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        talks = [await stack.enter_async_context(talk_as(server, "a")) for _ in range(3)]
        for talk in talks:
            await talk.create()
            await talk.send("text.append", context_id="c", text="Speaking on and on. ")
            await talk.until("audio.started")
        for talk in talks:
            talk.socket.transport.abort()
        await server.until_free()
        await _until_idle(server)
