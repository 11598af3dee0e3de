"""Several texts in one request: results of items, errors, concurrency."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import wave
from pathlib import Path
from typing import Any
from unittest.mock import patch

import av
import httpx
import pytest

from loadtest.fakes.talker import FakeTalker
from service.admission import Lease
from service.auth.caller import Caller
from service.dialects.openai import batch
from service.dialects.openai.batch import BatchBody, BatchItem
from service.dialects.openai.request import SpeechBody
from streaming.errors import BackendError, CapacityError, ErrorCode
from tests.service.audio.audio_signal import stretched
from tests.service.dialects.openai.talk import BATCH_PATH, BATCH_TEXTS, batch_items, post_batch
from tests.service.dialects.vendor_talk import s16
from tests.service.live import SPEC, client, gateway
from tests.waiting import until


def pcm(result: dict[str, Any]) -> bytes:
    """Return the samples of a successful WAV result."""
    assert (result["status"], result["media_type"]) == ("success", "audio/wav")
    with wave.open(io.BytesIO(base64.b64decode(result["audio_data"], validate=True))) as file:
        assert file.getframerate() == SPEC.sample_rate
        samples = file.readframes(1 << 30)
        assert 2 * file.getnframes() == len(samples)  # the header has the length
        return samples


async def test_batch_results_have_whole_audio_in_order() -> None:
    async with gateway(FakeTalker(row_s=0.0005), codec_delay_s=0.001) as server:
        answer = await post_batch(server, {"items": batch_items(*BATCH_TEXTS * 3), "seed": 5})
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert body["id"].startswith("speech-batch-")
        assert [result["index"] for result in body["results"]] == list(range(9))
        assert (body["total"], body["succeeded"], body["failed"]) == (9, 9, 0)
        for result, text in zip(body["results"], BATCH_TEXTS * 3, strict=True):
            whole = server.whole(text, 5)
            assert pcm(result) == s16(whole)
            frames = len(whole) // SPEC.hop_length
            assert result["usage"] == {
                "input_tokens": len(text),
                "output_tokens": frames,
                "total_tokens": len(text) + frames,
            }
        await server.until_free()


async def test_documented_batch_has_documented_results() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "http.md").read_text()
    section = page.partition("\n## `POST /v1/audio/speech/batch`\n")[2]
    ((body, results),) = re.findall(r"-d '(.*?)'\n```\n\n```\n(.*?)\n```", section, re.DOTALL)
    async with gateway() as server:
        answer = (await post_batch(server, json.loads(body))).json()
    documented = json.loads(results.replace("{…}", "{}"))
    assert documented.keys() == answer.keys()
    for shown, result in zip(documented["results"], answer["results"], strict=True):
        assert shown.keys() == result.keys()
        for name in {"index", "status", "media_type", "code", "param"} & shown.keys():
            assert shown[name] == result[name]
    for name in ("total", "succeeded", "failed"):
        assert documented[name] == answer[name]


async def test_item_options_override_batch_options() -> None:
    batch = [
        {"input": BATCH_TEXTS[0]},
        {"input": BATCH_TEXTS[1], "seed": 9, "response_format": "pcm"},
        {"input": BATCH_TEXTS[2], "speed": 2.0},
        {"input": BATCH_TEXTS[0], "response_format": "mp3", "bitrate": 160_000, "voice": "alloy"},
    ]
    async with gateway() as server:
        answer = await post_batch(server, {"items": batch, "seed": 3, "voice": "default"})
        first, second, third, fourth = answer.json()["results"]
        assert pcm(first) == s16(server.whole(BATCH_TEXTS[0], 3))
        assert second["media_type"] == "audio/pcm"
        assert base64.b64decode(second["audio_data"]) == s16(server.whole(BATCH_TEXTS[1], 9))
        fast = server.whole(BATCH_TEXTS[2], 3)
        assert pcm(third) == s16(stretched(fast, 2.0))
        assert third["usage"]["output_tokens"] == len(fast) // SPEC.hop_length
        assert fourth["media_type"] == "audio/mpeg"
        assert len(base64.b64decode(fourth["audio_data"])) > 10_000


async def test_flac_item_has_duration_in_header() -> None:
    async with gateway() as server:
        body = (
            await post_batch(
                server, {"items": batch_items(BATCH_TEXTS[0]), "response_format": "flac"}
            )
        ).json()
        data = base64.b64decode(body["results"][0]["audio_data"])
        with av.open(io.BytesIO(data)) as file:
            assert file.streams.audio[0].duration == len(server.whole(BATCH_TEXTS[0]))


async def test_batch_audio_is_encoded_to_base64_in_pieces() -> None:
    """A single call for a long item would block the event loop for some tenths of a second."""
    encode, encoded = base64.b64encode, list[int]()

    def noted(data: bytes) -> bytes:
        encoded.append(len(data))
        return encode(data)

    async with gateway() as server:
        with patch.object(base64, "b64encode", noted):
            text = BATCH_TEXTS[1] * 40
            body = (
                await post_batch(server, {"items": batch_items(text), "response_format": "pcm"})
            ).json()
        sizes = len(base64.b64decode(body["results"][0]["audio_data"], validate=True))
        assert sum(encoded) == sizes > 4 * max(encoded)
        assert max(encoded) <= 64 * 1024


async def test_batch_takes_free_slot_before_retry_hint_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "_MOST_WAIT_S", 0.01)
    async with gateway(max_batch_contexts=1) as server, asyncio.timeout(60):
        acquire, asked = server.runtime.admission.acquire, 0

        def acquire_late(caller: Caller, speed: float = 1.0) -> Lease:
            nonlocal asked
            asked += 1
            if asked in (2, 3):  # the second item, twice
                hour_ms = 3_600_000
                raise CapacityError(ErrorCode.OVERLOADED, "Full.", retry_after_ms=hour_ms)
            return acquire(caller, speed)

        monkeypatch.setattr(server.runtime.admission, "acquire", acquire_late)
        body = (await post_batch(server, {"items": batch_items(*BATCH_TEXTS)})).json()
        assert (body["succeeded"], asked) == (3, 5)
        await server.until_free()


async def test_failed_items_do_not_affect_other_items() -> None:
    batch = [
        {"input": "..."},
        {"input": BATCH_TEXTS[0]},
        {"input": BATCH_TEXTS[0], "voice": "nobody"},
        {"input": "This will !fail now."},
        {"input": BATCH_TEXTS[0], "instructions": "Whisper."},
        {"input": BATCH_TEXTS[1], "bitrate": 64_000},
        {"input": BATCH_TEXTS[2]},
    ]
    async with (
        gateway(unspeakable_text="error", unknown_fields="refuse") as server,
        httpx.AsyncClient(timeout=60) as http,
    ):
        body = (await post_batch(server, {"items": batch})).json()
        errors = {
            result["index"]: (result["code"], result.get("param"))
            for result in body["results"]
            if result["status"] == "error"
        }
        assert errors == {
            0: ("invalid_text", "input"),
            2: ("unknown_voice", "voice"),
            3: ("engine_failed", None),
            4: ("unsupported", "instructions"),
            5: ("unsupported", "bitrate"),
        }
        assert (body["total"], body["succeeded"], body["failed"]) == (7, 2, 5)
        assert all(result["error"] for result in body["results"] if "error" in result)
        assert pcm(body["results"][6]) == s16(server.whole(BATCH_TEXTS[2]))
        counted = (await http.get(server.http + "/metrics")).text
        assert 'tts_errors_total{code="unsupported"} 2.0' in counted
        await server.until_free()


async def test_batch_without_valid_item_needs_no_slot() -> None:
    async with gateway(max_contexts=1) as server:
        lease = server.runtime.admission.acquire()
        answer = await post_batch(server, {"items": [{"input": "x", "voice": "nobody"}]})
        assert answer.json()["failed"] == 1
        lease.release()


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({}, 400, "invalid_message", "items"),
        ({"items": []}, 400, "invalid_message", "items"),
        ({"items": [{}]}, 400, "invalid_message", "items.0.input"),
        (
            {"items": [{"input": "x", "colour": 1}]},
            400,
            "invalid_message",
            "items.0.colour",
        ),
        ({"items": [{"input": "x"}] * 5}, 400, "invalid_parameter", "items"),
        ({"items": batch_items("x" * 60, "y" * 60)}, 413, "text_too_long", "items"),
        ({"items": batch_items("x"), "model": "other"}, 404, "unknown_model", "model"),
        ({"items": batch_items("x"), "speed": 5}, 400, "invalid_message", "speed"),
        ({"items": batch_items("x"), "stream": True}, 400, "invalid_message", "stream"),
    ],
)
async def test_invalid_batch_is_refused_with_status(
    body: dict[str, Any], status: int, code: str, param: str
) -> None:
    settings: dict[str, Any] = {
        "max_batch_items": 4,
        "max_text_chars": 100,
        "unknown_fields": "refuse",
    }
    async with gateway(**settings) as server:
        answer = await post_batch(server, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


async def test_full_server_refuses_batch() -> None:
    async with gateway(max_contexts=1) as server, client(server.url) as talk:
        await talk.create()
        answer = await post_batch(server, {"items": batch_items(*BATCH_TEXTS)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
        assert int(answer.headers["retry-after-ms"]) >= 50


@pytest.mark.parametrize(("at_once", "places"), [(2, 16), (4, 3), (4, 1)])
async def test_batch_concurrency_is_limited_by_setting_and_slots(at_once: int, places: int) -> None:
    """If there are fewer slots than the setting allows, items wait for them."""
    settings: dict[str, Any] = {"max_batch_contexts": at_once, "max_contexts": places}
    async with gateway(FakeTalker(row_s=0.0005), **settings) as server:
        most, done = 0, asyncio.Event()

        async def watch() -> None:
            nonlocal most
            while not done.is_set():
                most = max(most, server.runtime.admission.active)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        body = (await post_batch(server, {"items": batch_items(*BATCH_TEXTS * 3)})).json()
        done.set()
        await watching
        assert body["succeeded"] == 9
        assert most == min(at_once, places)
        await server.until_free()


async def test_first_result_is_sent_while_next_item_is_spoken() -> None:
    talker = FakeTalker(row_s=0.002)
    async with (
        gateway(talker, max_batch_contexts=1) as server,
        httpx.AsyncClient(timeout=60) as http,
    ):
        body = {"items": batch_items(BATCH_TEXTS[2], BATCH_TEXTS[1] * 8)}
        async with http.stream("POST", server.http + BATCH_PATH, json=body) as answer:
            came = b""
            async for piece in answer.aiter_raw():
                came += piece
                if b'"index":0' in came:
                    break
            assert b'"index":1' not in came
            assert server.runtime.admission.active == 1
        await server.until_free()


async def test_disconnect_cancels_whole_batch() -> None:
    talker = FakeTalker(row_s=0.02, frames_per_character=50)
    async with gateway(talker) as server, httpx.AsyncClient(timeout=60) as http:
        body = {"items": batch_items(*BATCH_TEXTS * 4)}
        async with http.stream("POST", server.http + BATCH_PATH, json=body) as answer:
            pieces = answer.aiter_raw()  # kept, because httpx closes the response with its iterator
            await anext(pieces)
            await until(lambda: server.talker.outstanding >= 4)
        await server.until_free()
        counted = server.runtime.metrics.render().decode()
        assert 'tts_contexts_total{outcome="cancelled",protocol="openai"} 4.0' in counted
        # they are closed shortly after the work ends
        await until(lambda: not server.runtime.lifecycle.connections)
        made = server.talker.rows_made
        await asyncio.sleep(0.05)
        assert server.talker.rows_made == made


async def test_drain_refuses_items_not_yet_started() -> None:
    async with gateway(FakeTalker(row_s=0.005), max_batch_contexts=1) as server:
        answering = asyncio.create_task(post_batch(server, {"items": batch_items(*BATCH_TEXTS)}))
        await until(lambda: server.talker.outstanding)
        draining = asyncio.create_task(server.runtime.lifecycle.drain())
        body = (await answering).json()
        await draining
        codes = [result.get("code") for result in body["results"]]
        assert codes == [None, "draining", "draining"]


async def test_codec_failure_is_reported_per_item() -> None:
    async with gateway() as server:
        server.codec.fail_with = BackendError(ErrorCode.CODEC_FAILED, "Told.")
        body = (await post_batch(server, {"items": batch_items(*BATCH_TEXTS)})).json()
        assert [result["code"] for result in body["results"]] == ["codec_failed"] * 3
        server.codec.fail_with = RuntimeError("secret at 0xdeadbeef")
        answer = await post_batch(server, {"items": batch_items(*BATCH_TEXTS)})
        assert [result["code"] for result in answer.json()["results"]] == ["internal"] * 3
        assert "secret" not in answer.text
        await server.until_free()


async def test_long_items_are_not_limited_by_lead() -> None:
    """Items are sent when complete, so no lead limits them."""
    text = "One two three four five six. " * 100
    async with gateway(max_lead_ms=500, default_lead_ms=500) as server:
        async with asyncio.timeout(30):
            body = (await post_batch(server, {"items": batch_items(text)})).json()
        assert len(pcm(body["results"][0])) // 2 > 60 * SPEC.sample_rate


def test_batch_options_have_same_limits_as_single_speech() -> None:
    single = SpeechBody.model_json_schema()["properties"]
    for mine in (BatchBody, BatchItem):
        for name, schema in mine.model_json_schema()["properties"].items():
            assert name == "items" or limits(schema) == limits(single[name]), name


def limits(schema: dict[str, Any]) -> list[Any]:
    choices = schema.get("anyOf", [schema])
    kept = [
        {k: v for k, v in choice.items() if k not in ("title", "description", "default")}
        for choice in choices
        if choice.get("type") != "null"
    ]
    return kept
