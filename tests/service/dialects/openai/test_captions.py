"""Captions over HTTP, in batches and by ``talkwire batch``."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import webvtt

from loadtest.fakes.talker import FakeTalker
from service import batch
from service.batch import (
    BatchOptions,
    Item,
    Results,
    engine_speaker,
    read_items,
    run_batch,
    server_speaker,
)
from tests.service.dialects.openai.talk import parsed, post_batch
from tests.service.dialects.vendor_talk import speaking
from tests.service.live import Gateway, gateway

TEXT = "The first is here. The second is not."
SENTENCES = ["The first is here.", "The second is not."]


async def ask(
    server: Gateway, accept: str = "*/*", path: str = "/v1/audio/speech", **fields: Any
) -> httpx.Response:
    body = {"input": TEXT, "seed": 5, "response_format": "pcm", **fields}
    async with httpx.AsyncClient(base_url=server.http) as http:
        return await http.post(path, json=body, headers={"accept": accept})


def shown(captions: str, kind: str) -> list[str]:
    return [one.text for one in webvtt.from_buffer(io.StringIO(captions), format=kind).captions]


@pytest.mark.parametrize(("kind", "accept"), [("vtt", "text/vtt"), ("srt", "application/x-subrip")])
async def test_accept_header_asks_for_captions_alone(kind: str, accept: str) -> None:
    async with gateway(speaking()) as server:
        answer = await ask(server, accept)
        assert answer.headers["content-type"].partition(";")[0] == accept
        assert shown(answer.text, kind) == SENTENCES
        await server.until_free()


def audio_of(events: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(event["audio"]) for event in events[:-1])


@pytest.mark.parametrize("kind", ["vtt", "srt", "json"])
async def test_last_event_has_captions(kind: str) -> None:
    async with gateway(speaking(), first_lookahead_frames=3, lookahead_frames=3) as server:
        plain = parsed((await ask(server, stream_format="sse")).text)
        events = parsed((await ask(server, stream_format="sse", captions=kind)).text)
        captions = events[-1].pop("captions")
        assert events[-1] == plain[-1]
        assert audio_of(events) == audio_of(plain)
        if kind != "json":
            assert shown(captions, kind) == SENTENCES
            return
        assert [one["text"] for one in captions] == SENTENCES
        words = [word["text"] for one in captions for word in one["words"]]
        assert words == TEXT.split()


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"captions": "vtt"}, "captions"), ({"captions": "ass", "stream_format": "sse"}, "captions")],
)
async def test_captions_that_cannot_be_sent_are_refused(fields: dict[str, Any], param: str) -> None:
    async with gateway(speaking()) as server:
        answer = await ask(server, **fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


async def test_model_without_word_timings_refuses_captions() -> None:
    async with gateway(FakeTalker()) as server:
        for answer in (
            await ask(server, "text/vtt"),
            await ask(server, stream_format="sse", captions="srt"),
        ):
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "unsupported"


async def test_batch_results_have_captions() -> None:
    async with gateway(speaking()) as server:
        items = [{"input": TEXT}, {"input": "Third.", "captions": "json"}]
        found = (await post_batch(server, {"items": items, "captions": "vtt"})).json()["results"]
        assert shown(found[0]["captions"], "vtt") == SENTENCES
        assert [one["text"] for one in found[1]["captions"]] == ["Third."]
        assert (
            "captions" not in (await post_batch(server, {"items": items[:1]})).json()["results"][0]
        )


@pytest.mark.parametrize("by", ["engines", "service"])
async def test_batch_command_writes_captions_beside_audio(tmp_path: Path, by: str) -> None:
    options = BatchOptions(tmp_path, {"seed": 5}, captions="srt")
    items = read_items(TEXT.encode())
    async with gateway(speaking()) as server:
        if by == "engines":
            speak = await engine_speaker(server.runtime, options)
        else:
            speak = server_speaker(server.http, None, options)
        for status in ("success", "kept"):
            (result,) = await made(items, options, speak)
            assert (result.status, result.captions) == (status, "00001.srt")
            assert shown((tmp_path / "00001.srt").read_text(), "srt") == SENTENCES
        (tmp_path / "00001.srt").unlink()
        (result,) = await made(items, options, speak)
        assert result.status == "success", "it is made again if the captions are gone"
        as_json = BatchOptions(tmp_path, {"seed": 5}, captions="json")
        if by == "engines":
            await made(items, as_json, await engine_speaker(server.runtime, as_json))
            captions = json.loads((tmp_path / "00001.json").read_text())
            assert [one["text"] for one in captions] == SENTENCES


async def made(items: list[Item], options: BatchOptions, speak: batch.Speak) -> list[batch.Result]:
    found: list[batch.Result] = []
    with Results.open(options.out) as results:
        assert await run_batch(items, options, speak, results, found.append) == 0
    return found
