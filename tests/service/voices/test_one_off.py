"""One-off references: clips that come with a request or context."""

from __future__ import annotations

import asyncio
import base64
import errno
from typing import Any

import pytest

from loadtest.fakes.codec import FakeDecoder
from streaming.ports import EncodedClip, Reference
from streaming.spec import Samples
from tests.service.dialects.vllm_omni.talk import speaking
from tests.service.live import SPEC, client
from tests.service.scraping import scrape, value
from tests.service.voices import clips
from tests.service.voices.voice_server import (
    CLIP,
    OTHER,
    PATH,
    SEED,
    SPEAK,
    error,
    pcm,
    samples_of,
    server,
)


async def test_speech_endpoint_accepts_clone_fields_of_vllm_omni_benchmark() -> None:
    async with server() as s:
        clip = {"ref_audio": f"data:audio/wav;base64,{clips.as_base64(CLIP)}", "ref_text": "Hello."}
        theirs = {"task_type": "Base", "language": "English", "max_new_tokens": 2048}
        plain = await s.speak(**clip)
        same = await s.speak(**clip, **theirs)
        assert plain.status_code == same.status_code == 200
        assert same.content == plain.content
        assert len(plain.content) > 0


async def test_encoding_of_reference_counts_as_queue_time() -> None:
    async with server() as s:
        begun, encode = asyncio.Event(), s.live.codec.encode

        async def slowly(samples: Samples) -> EncodedClip:
            begun.set()
            await asyncio.sleep(4.0)
            return await encode(samples)

        s.live.codec.encode = slowly  # type: ignore[method-assign]
        reference = {"ref_audio": clips.as_base64(CLIP), "ref_text": "A tone."}
        assert (await s.speak(**reference)).status_code == 200
        assert begun.is_set()
        scraped = await scrape(s.live)
    openai = {"protocol": "openai"}
    queued_s = value(scraped, "tts_queue_seconds_sum", **openai)
    audio_s = value(scraped, "tts_audio_seconds_total", **openai)
    assert queued_s >= 4.0
    assert value(scraped, "tts_real_time_factor_sum", **openai) * audio_s < queued_s


async def test_speech_endpoint_speaks_with_one_off_reference() -> None:
    async with server() as s:
        codes = FakeDecoder(SPEC).encode(await samples_of(OTHER))
        given = {"ref_audio": clips.as_base64(OTHER), "ref_text": "A tone."}
        expected = s.expected(reference=Reference(codes, "A tone."))
        for _ in range(2):
            assert (await s.speak(**given)).content == expected
        assert s.live.codec.encoded == 1  # the same clip is encoded once
        address = f"data:audio/flac;base64,{given['ref_audio']}"
        bare = await s.speak(ref_audio=address)
        assert bare.content == s.expected(reference=Reference(codes)) != expected
        assert (await s.http.get(PATH)).json()["voice_names"] == ["default"]
        bad = await s.speak(ref_audio=clips.as_base64(OTHER[:3000]))
        assert error(bad) == (400, "invalid_audio", "ref_audio")
        events = await s.speak(**given, stream_format="sse")
        assert b"speech.audio.done" in events.content


async def test_native_context_speaks_with_one_off_reference() -> None:
    clip = clips.encoded("ogg_opus", clips.tone(1.5))
    codes = FakeDecoder(SPEC).encode(await samples_of(clip))
    given = {"audio": clips.as_base64(clip), "text": "A tone."}
    async with server() as s, client(s.live.url) as native:
        spoken = await native.say(SPEAK["input"], reference=given, mode="whole", sampling=SEED)
        assert pcm(spoken) == s.expected(reference=Reference(codes, "A tone."))
        plain = await native.say(SPEAK["input"], "d", mode="whole", sampling=SEED)
        assert pcm(plain) == s.expected() != pcm(spoken)


async def test_vllm_omni_socket_speaks_with_one_off_reference() -> None:
    clip = clips.encoded("ogg_opus", clips.tone(1.5))
    codes = FakeDecoder(SPEC).encode(await samples_of(clip))
    given = {"ref_audio": clips.as_base64(clip), "ref_text": "A tone.", "task_type": "Base"}
    config = {"response_format": "pcm", "seed": 7}
    async with server() as s, speaking(s.live, **config, **given) as talk:
        for flush in range(2):  # each flush is a context of its own
            await talk.say(SPEAK["input"])
            _, data = await talk.sentence(flush, 0, SPEAK["input"])
            assert data == s.expected(reference=Reference(codes, "A tone."))
            await talk.done(flush, 1)
        await talk.send("session.config", **config)
        await talk.say(SPEAK["input"])
        _, data = await talk.sentence(2, 0, SPEAK["input"])
        assert data == s.expected()


async def test_vllm_omni_socket_reports_unreadable_clip() -> None:
    damaged = clips.as_base64(b"RIFF....WAVE")
    config = {"response_format": "pcm", "ref_audio": damaged}
    async with server() as s, speaking(s.live, **config) as talk:
        await talk.say(SPEAK["input"])
        while (error := await talk.next())["type"] != "error":
            pass
        assert (error["code"], error["param"]) == ("invalid_audio", "ref_audio")
        await s.live.until_free()


async def test_batch_speaks_with_one_off_references() -> None:
    async with server() as s:
        tone = Reference(FakeDecoder(SPEC).encode(await samples_of(OTHER)), "A tone.")
        high = Reference(FakeDecoder(SPEC).encode(await samples_of(CLIP)))
        items: list[dict[str, Any]] = [
            {},
            {},
            {"voice": "default"},
            {"ref_audio": clips.as_base64(CLIP)},
            {"references": [{"audio": clips.as_base64(OTHER), "text": "A tone."}]},
        ]
        body = {
            "items": [{"input": SPEAK["input"], **item} for item in items],
            "ref_audio": clips.as_base64(OTHER),
            "ref_text": "A tone.",
            "task_type": "Base",
            "response_format": "pcm",
            "seed": 7,
        }
        answer = await s.http.post("/v1/audio/speech/batch", json=body)
        spoken = [base64.b64decode(one["audio_data"]) for one in answer.json()["results"]]
        cloned = s.expected(reference=tone)
        assert spoken == [cloned, cloned, s.expected(), s.expected(reference=high), cloned]
        assert s.live.codec.encoded == 2  # each clip once, even for several items
        assert "x-talkwire-ignored" not in answer.headers


async def test_batch_accepts_large_clip() -> None:
    async with server() as s:
        large = clips.as_base64(clips.wav(clips.tone(25.0)))  # 1.6 MB, more than any text
        body = {"items": [{"input": "Hello."}], "ref_audio": large}
        answer = await s.http.post("/v1/audio/speech/batch", json=body)
        assert answer.json()["succeeded"] == 1


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"ref_audio": "data:"}, "invalid_audio", "ref_audio"),
        ({"ref_audio": clips.as_base64(b"RIFF....WAVE")}, "invalid_audio", "ref_audio"),
        ({"ref_audio": "https://example.org/a.wav"}, "unsupported", "ref_audio"),
        ({"ref_audio": "AAAA", "voice": "default"}, "invalid_parameter", "ref_audio"),
        ({"ref_text": "Hello."}, "invalid_parameter", "ref_text"),
        ({"task_type": "Base"}, "invalid_parameter", "task_type"),
        ({"references": [{"audio_path": "clip.wav"}]}, "unsupported", "references.0.audio_path"),
        ({"references": [{"audio": "AAAA"}], "ref_audio": "AA"}, "invalid_parameter", "references"),
    ],
)
async def test_batch_item_reference_is_refused_like_in_single_request(
    fields: dict[str, Any], code: str, param: str | None
) -> None:
    async with server() as s:
        alone = await s.speak(**fields)
        assert error(alone) == (400, code, param)
        body = {"items": [{"input": "Hello.", **fields}, {"input": "Bye."}]}
        results = (await s.http.post("/v1/audio/speech/batch", json=body)).json()["results"]
        assert (results[0]["code"], results[0].get("param")) == (code, param)
        assert results[1]["status"] == "success"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"reference": {"audio": ""}}, "invalid_message", "reference.audio"),
        ({"reference": {"text": "A tone."}}, "invalid_message", "reference.audio"),
        ({"reference": {"audio": "?"}}, "invalid_audio", "reference.audio"),
        ({"reference": {"audio": "https://example.org/a"}}, "unsupported", "reference.audio"),
        ({"reference": {"audio": "AAAA"}, "voice": "default"}, "invalid_parameter", "reference"),
    ],
)
async def test_context_with_invalid_reference_is_not_opened(
    fields: dict[str, Any], code: str, param: str
) -> None:
    async with server() as s, client(s.live.url) as native:
        await native.send("context.create", context_id="c", **fields)
        error = await native.error()
        assert (error["code"], error["param"]) == (code, param)
        assert not s.live.runtime.admission.active


async def test_unreadable_clip_ends_context_with_error() -> None:
    async with server() as s, client(s.live.url) as native:
        await native.create(reference={"audio": clips.as_base64(b"RIFF....WAVE")})
        await native.send("text.append", context_id="c", text="Hello there.")
        await native.send("context.end", context_id="c")
        assert (await native.error())["code"] == "invalid_audio"
        assert (await native.until("context.done"))["reason"] == "error"


async def test_cancel_stops_encoding_of_reference() -> None:
    async with server() as s, client(s.live.url) as native:
        begun, given_up = asyncio.Event(), asyncio.Event()

        async def never(samples: Samples) -> EncodedClip:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            raise AssertionError("nothing is waited for")

        s.live.codec.encode = never  # type: ignore[method-assign]
        opus = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.5)))
        await native.create(reference={"audio": opus})
        await native.send("text.append", context_id="c", text="Hello there.")
        async with asyncio.timeout(60):
            await begun.wait()
        await native.send("context.cancel", context_id="c")
        await native.until("context.cancelled")
        await s.live.until_free()
        async with asyncio.timeout(30):
            await given_up.wait()


async def test_clip_that_cannot_be_read_is_logged_with_its_request_id(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def no_child(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_child)
    clip = clips.as_base64(OTHER)
    async with server() as s, client(s.live.url) as talk:
        by_http = await s.speak(ref_audio=clip)
        await talk.create(reference={"audio": clip})
        await talk.send("text.append", context_id="c", text="Hello there. ")
        by_socket = await talk.error()
    assert error(by_http)[:2] == (500, "internal")
    assert by_socket["code"] == "internal"
    told = {
        vars(record)["request_id"]: record.exc_text or record.getMessage()
        for record in caplog.records
        if record.exc_info and isinstance(record.exc_info[1], OSError)
    }
    assert told.keys() == {by_http.headers["x-request-id"], by_socket["request_id"]}
