"""Dictionaries and rules of pronunciation in requests: what reaches the talker, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from service.cli import app
from tests.service.auth.keyring import bearer, entry, write_keys
from tests.service.contexts.recording_talker import RecordingTalker
from tests.service.dialects.vllm_omni.talk import STREAM, speaking
from tests.service.live import Gateway, client, gateway
from text.pronunciation.in_band import SOUNDED
from text.registry import FRONT_ENDS

TEXT = "Worcester has k8s."
SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
NAMES = "[[rules]]\nwritten = 'Worcester'\nphonemes = 'ˈwʊstər'"
OWN = [{"written": "k8s", "alias": "kubernetes"}]
USED: dict[str, Any] = {"pronunciations": ["names"], "pronunciation_rules": OWN}
SPOKEN = "/wˈʊstər/ has kubernetes."


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Gateway]:
    """A server with a dictionary of names, and a talker that records what it is to speak."""
    (folder / "names.toml").write_text(NAMES)
    talker = RecordingTalker()
    signs_of = FRONT_ENDS["english-sounds"].signs_of
    rendering = replace(talker.spec.rendering, signs_of=signs_of)
    talker.spec = replace(talker.spec, rendering=rendering)
    async with gateway(talker, pronunciations_dir=folder, **settings) as server:
        talker.spoken.clear()
        yield server


def spoken(server: Gateway) -> list[str]:
    """What the talker was to speak, with sounds between slashes."""
    assert isinstance(server.talker, RecordingTalker)
    return [SOUNDED.sub(r"/\g<sounds>/", text) for _, text in server.talker.spoken]


async def test_requests_use_dictionaries_and_rules(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, httpx.AsyncClient(timeout=60) as http:
        async with client(server.url) as native:
            await native.say(TEXT, **USED)
            await native.say(TEXT, "d")
        body = {"input": TEXT, "response_format": "pcm", **USED}
        assert (await http.post(server.http + SPEECH, json=body)).status_code == 200
        shared = {"items": [{"input": TEXT}, {"input": TEXT, "pronunciations": []}], **USED}
        assert (await http.post(server.http + BATCH, json=shared)).json()["succeeded"] == 2
        async with speaking(server, **STREAM, **USED) as talk:
            await talk.say(TEXT)
            await talk.hear()
        said = spoken(server)
        assert said[:3] == [SPOKEN, TEXT, SPOKEN]
        assert sorted(said[3:5]) == sorted([SPOKEN, "Worcester has kubernetes."])
        assert said[5:] == [SPOKEN]


async def test_text_in_parts_is_spoken_alike_and_told_as_written(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, client(server.url) as native:
        await native.create(**USED)
        for char in TEXT:
            await native.send("text.append", context_id="c", text=char)
        await native.send("context.flush", context_id="c", flush_id="f")
        await native.until("flush.done")
        await native.send("context.cancel", context_id="c")
        told = await native.until("context.cancelled")
        assert told["text_spoken"] + told["text_remaining"] == TEXT
        assert spoken(server) == [SPOKEN]


@pytest.mark.parametrize(
    ("fields", "code", "param", "message"),
    [
        ({"pronunciations": ["nams"]}, "unknown_pronunciations", "pronunciations",
         'There is no dictionary of pronunciations "nams"; there is names.'),
        ({"pronunciations": ["a"] * 9}, None, "pronunciations", "at most 8"),
        ({"pronunciation_rules": [{"written": "a"}]}, "invalid_parameter",
         "pronunciation_rules.0.alias", "give either an alias or phonemes"),
        ({"pronunciation_rules": [*OWN, {"written": "a", "phonemes": "W3",
                                         "alphabet": "cmu-arpabet"}]},
         "invalid_parameter", "pronunciation_rules.1.phonemes", "'W3' is no symbol"),
        ({"pronunciation_rules": OWN * 101}, None, "pronunciation_rules", "at most 100"),
    ],
)  # fmt: skip
async def test_wrong_pronunciations_are_refused(
    tmp_path: Path, fields: dict[str, Any], code: str | None, param: str, message: str
) -> None:
    async with serving(tmp_path) as server, httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(server.http + SPEECH, json={"input": "Hi.", **fields})
        async with client(server.url) as native:
            await native.send("context.create", context_id="c", **fields)
            for error in (answer.json()["error"], await native.error()):
                assert error["param"] == param
                assert message in error["message"]
                assert error["code"] == (code or "invalid_message")
        assert answer.status_code == (404 if code == "unknown_pronunciations" else 400)


async def test_tenant_has_its_own_dictionaries(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("a", "acme"), entry("b", "other"))
    folder = tmp_path / "dictionaries"
    (folder / "acme").mkdir(parents=True)
    (folder / "acme" / "own.toml").write_text("[[rules]]\nwritten = 'k8s'\nalias = 'mine'")
    body = {"input": TEXT, "response_format": "pcm", "pronunciations": ["own"]}
    async with serving(folder, api_keys_file=keys) as server, httpx.AsyncClient(timeout=60) as http:
        answers = [
            await http.post(server.http + SPEECH, json=body, headers=bearer(key)) for key in "ab"
        ]
        assert [answer.status_code for answer in answers] == [200, 404]
        assert "there is names." in answers[1].json()["error"]["message"]
        assert spoken(server) == ["Worcester has mine."]


async def test_command_line_names_dictionaries(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(TEXT)
    async with serving(tmp_path) as server:
        options = ["--pronunciations", "names", "--url", server.http]
        for command in (
            ["say", TEXT, "--out", str(tmp_path / "out.wav")],
            ["batch", str(texts), "--out", str(tmp_path / "out")],
        ):
            made = await asyncio.to_thread(CliRunner().invoke, app, [*command, *options])
            assert made.exit_code == 0, made.output
        assert spoken(server) == ["/wˈʊstər/ has k8s."] * 2
