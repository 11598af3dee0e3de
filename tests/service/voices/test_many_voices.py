"""Thousands of voices: lists are made beside the event loop, once for each change."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from service.auth.caller import Caller, serving
from service.dialects.voice_lists import VoiceListBody
from tests.service.live import Gateway, gateway
from tests.service.voices.stored_voices import library, voice
from tests.service.voices.voice_server import PATH, server

LISTS = {
    "native": (PATH, {}, lambda body: body["voice_names"]),
    "elevenlabs": ("/v1/voices", {}, lambda body: [one["name"] for one in body["voices"]]),
    "deepgram": (
        "/v1/models",
        {"authorization": "Token x"},
        lambda body: [one["name"] for one in body["tts"]],
    ),
}


def take(live: Gateway, *names: str) -> None:
    """Add voices without clips, files and time."""
    for name in names:
        live.runtime.voices.library._take(voice(name))


@pytest.mark.parametrize("dialect", LISTS)
async def test_list_is_made_again_only_after_change_and_not_on_event_loop(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, headers, names = LISTS[dialect]
    makers: list[threading.Thread] = []
    create = VoiceListBody.__init__

    def watched(self: Any, runtime: Any, collect: Any, shape: Callable[[Any], object]) -> None:
        def watching(taken: Any) -> object:
            makers.append(threading.current_thread())
            return shape(taken)

        create(self, runtime, collect, watching)

    monkeypatch.setattr(VoiceListBody, "__init__", watched)
    async with server() as s:
        take(s.live, "ben", "anna")

        async def listed() -> list[str]:
            answer = await s.http.get(path, headers=headers)
            assert answer.headers["content-type"] == "application/json"
            found: list[str] = names(answer.json())
            return [name for name in found if name in ("anna", "ben", "carl")]

        assert await listed() == ["anna", "ben"]
        assert await listed() == ["anna", "ben"]
        assert len(makers) == 1
        take(s.live, "carl")
        assert await listed() == ["anna", "ben", "carl"]
        s.live.runtime.voices.library._drop(s.live.runtime.voices.library.find("ben").id)
        assert await listed() == ["anna", "carl"]
        assert len(makers) == 3
        assert threading.main_thread() not in makers


async def test_event_loop_runs_while_list_is_made() -> None:
    async with gateway() as live:
        made = threading.Event()
        body = VoiceListBody(live.runtime.voices, lambda: None, lambda _: made.wait(60))
        answer = asyncio.create_task(body.response())
        async with httpx.AsyncClient(base_url=live.http, timeout=60) as http:
            assert (await http.get("/health/live")).status_code == 200
        assert not answer.done()
        made.set()
        assert bytes((await answer).body) == b"true"


async def test_lists_of_few_tenants_are_kept() -> None:
    async with gateway() as live:
        makes: list[None] = []
        body = VoiceListBody(live.runtime.voices, lambda: makes.append(None), lambda _: 1)
        for name in ("a", "b", "a", "b", "c", "d", "e", "b", "a"):
            with serving(Caller(None, name, frozenset())):
                await body.response()
        assert len(makes) == 6  # "a" has been the oldest of five


async def test_greeting_has_hundred_voices_and_number_of_others() -> None:
    async with gateway() as live:
        own = len(live.runtime.voices.names)
        for count in (99 - own, 100 - own, 250 - own):
            take(live, *(f"voice {number:03}" for number in range(count)))
            async with connect(live.url, compression=None) as socket:
                greeting = json.loads(await socket.recv())
            voices = live.runtime.voices.names
            assert greeting["voices"] == list(voices[:100])
            assert greeting["more_voices"] == max(0, len(voices) - 100)
            for name in live.runtime.voices.library.names():
                if name.startswith("voice "):
                    live.runtime.voices.library._drop(live.runtime.voices.library.find(name).id)


async def test_names_are_sorted_after_changes_in_any_order() -> None:
    async with library(None) as voices:
        for name in ("b", "d", "a", "c"):
            voices._take(voice(name))
            voices._take(voice(name.upper(), tenant="t"))
        assert voices.names() == ["a", "b", "c", "d"]
        for name in ("d", "a", "b", "c"):
            before = voices.version
            voices._drop(voices.find(name).id)
            assert voices.names() == sorted(voices.names())
            assert voices.version > before
        assert voices.names() == []
        assert voices.own_names("t") == ["A", "B", "C", "D"]
        assert voices.own_names("u") == []
