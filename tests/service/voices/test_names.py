"""Voice aliases, the voice for unknown names, and added voices in vendors' formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.fakes.codec import FakeCodecEngine
from loadtest.fakes.talker import FakeTalker
from service.build import assemble
from service.engines.contracts import Engines
from service.settings import Settings, SettingsError, load_settings
from service.voices.names import Voices
from tests.service.live import SPEC
from tests.service.voices.voice_server import SPEAK, server


def voices(**settings: Any) -> Voices:
    talker = FakeTalker()
    talker.voices = ("anna", "bert")
    codec = FakeCodecEngine(SPEC, 0.0)
    return assemble(Settings(**settings), Engines(talker, codec)).voices


def test_resolve_voice_applies_one_alias_or_default() -> None:
    mine = voices(voice_aliases={"x1": "bert", "bert": "anna"})
    assert [mine.resolve(name) for name in ("anna", "x1", "bert", "x2", "", None)] == [
        "anna",
        "bert",
        "anna",
        "anna",
        "anna",
        "anna",
    ]


def test_resolve_voice_maps_unknown_names_to_default_voice() -> None:
    mine = voices(voice_aliases={"x1": "bert", "x3": "gone"}, unknown_voice="default")
    assert [mine.resolve(name) for name in ("bert", "x1", "x2", "x3")] == [
        "bert",
        "bert",
        "anna",
        "anna",
    ]


def test_voice_aliases_load_from_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "talkwire.toml"
    file.write_text('unknown_voice = "default"\n[voice_aliases]\nx1 = "anna"\n')
    settings = load_settings(file)
    assert (settings.voice_aliases, settings.unknown_voice) == ({"x1": "anna"}, "default")
    monkeypatch.setenv("TALKWIRE_VOICE_ALIASES", json.dumps({"x2": "bert"}))
    assert load_settings(file).voice_aliases == {"x2": "bert"}


@pytest.mark.parametrize("value", ["x1=anna", "[1]", '{"x1": 5}'])
def test_voice_aliases_setting_must_be_table_of_names(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALKWIRE_VOICE_ALIASES", value)
    with pytest.raises(SettingsError, match="voice_aliases"):
        load_settings()


async def test_added_voice_is_listed_and_spoken_in_vendor_formats() -> None:
    async with server(unknown_voice="default") as s:
        added = (await s.add(language="en", description="A test.")).json()
        listed = (await s.http.get("/v1/voices")).json()["voices"]
        assert listed == [
            {
                "voice_id": "default",
                "name": "default",
                "category": "premade",
                "description": None,
                "labels": {},
            },
            {
                "voice_id": added["id"],
                "name": added["name"],
                "category": "cloned",
                "description": "A test.",
                "labels": {"language": "en"},
            },
        ]
        _, theirs = (await s.http.get("/voices")).json()["data"]
        assert (theirs["id"], theirs["name"]) == (added["id"], added["name"])
        assert (theirs["description"], theirs["language"]) == ("A test.", "en")
        for key, found in ((added["id"], 1), (added["name"], 1), ("nobody", 0)):
            assert (await s.http.get(f"/v1/voices/{key}")).json() == listed[found]
            speech = await s.http.post(
                f"/v1/text-to-speech/{key}",
                params={"output_format": "pcm_24000"},
                json={"text": SPEAK["input"], "seed": 7},
            )
            named = {"voice": added["name"]} if found else {}
            assert speech.content == (await s.speak(**named)).content
        default, mine = await s.speak(), await s.speak(voice=added["name"])
        assert default.content != mine.content
