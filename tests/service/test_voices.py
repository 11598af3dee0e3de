"""Voices over HTTP, on a live gateway with fake engines and real clips."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from codec.fake import FakeDecoder
from service.voices.clip import ClipReader
from streaming.errors import BackendError, ErrorCode, RequestError
from streaming.ports import Reference, Sampling, SpeechRequest
from streaming.spec import Samples
from talker.fake import FakeTalker
from tests.service import clips
from tests.service.live import SPEC, Gateway, client, gateway

PATH = "/v1/audio/voices"
CLIP = clips.wav(clips.tone(2.0))
OTHER = clips.encoded("flac", clips.tone(1.5, 300.0))
CONSENT = {"by": "Anna Example", "statement": "My voice may speak for the example."}
VOICE = {"name": "anna", "ref_text": "A tone.", "consent": CONSENT}
SPEAK = {"input": "Hello there, you.", "response_format": "pcm", "mode": "whole", "seed": 7}
SEED = {"seed": 7}
EXACT = {"first_lookahead_frames": 3, "lookahead_frames": 3, "left_context_frames": 3}


class Server:
    """A gateway and an HTTP client for it."""

    def __init__(self, live: Gateway, http: httpx.AsyncClient) -> None:
        self.live, self.http = live, http

    async def add(self, clip: bytes = CLIP, **fields: Any) -> httpx.Response:
        body = VOICE | {"audio_sample": clips.as_base64(clip)} | fields
        return await self.http.post(PATH, json=body)

    async def speak(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/audio/speech", json=SPEAK | fields)

    def expected(self, **voice: Any) -> bytes:
        """What the fakes make of the text in that voice."""
        request = SpeechRequest("x", SPEAK["input"], sampling=Sampling(seed=7), **voice)
        frames = self.live.talker.frames_of(request)
        samples = FakeDecoder(SPEC).decode([np.ascontiguousarray(frames.T)])[0]
        return pcm(samples)


def pcm(samples: Samples) -> bytes:
    return np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes()


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[Server]:
    async with (
        gateway(**EXACT, **settings) as live,
        httpx.AsyncClient(base_url=live.http, timeout=60) as http,
    ):
        yield Server(live, http)


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    detail = answer.json()["error"]
    return answer.status_code, detail["code"], detail["param"]


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def samples_of(clip: bytes) -> Samples:
    return await ClipReader(SPEC.sample_rate).read(clip)


async def test_a_voice_lives_and_dies() -> None:
    async with server() as s:
        added = await s.add(language="en", description="A tone, growing.")
        assert added.status_code == 201
        voice = added.json()
        assert voice == {
            "id": voice["id"],
            "object": "audio.voice",
            "name": "anna",
            "built_in": False,
            "default": False,
            "language": "en",
            "description": "A tone, growing.",
            "text": "A tone.",
            "text_source": "given",
            "duration_s": 2.0,
            "created_at": voice["created_at"],
            "consent": CONSENT | {"at": voice["consent"]["at"]},
        }
        listed = (await s.http.get(PATH)).json()
        assert listed["voices"] == ["default", "anna"]
        assert (listed["data"], listed["lasting"]) == ([voice], False)
        for key in ("anna", voice["id"]):
            assert (await s.http.get(f"{PATH}/{key}")).json() == voice
            spoken = await s.speak(voice=key)
            assert spoken.content == s.expected(voice="anna") != s.expected()
        gone = await s.http.delete(f"{PATH}/anna")
        assert gone.json() == {"id": voice["id"], "object": "audio.voice.deleted", "deleted": True}
        for key in ("anna", voice["id"]):
            assert error(await s.http.get(f"{PATH}/{key}")) == (404, "unknown_voice", "id")
            assert error(await s.http.delete(f"{PATH}/{key}")) == (404, "unknown_voice", "id")
            assert error(await s.speak(voice=key)) == (400, "unknown_voice", "voice")
        assert (await s.add(OTHER)).status_code == 201
        assert s.live.codec.encoded == 2


async def test_what_is_spoken_with_are_the_clips_codes() -> None:
    async with server() as s:
        await s.add(OTHER)
        codes = FakeDecoder(SPEC).encode(await samples_of(OTHER))
        spoken = s.live.runtime.library.get("anna")
        assert spoken is not None
        assert np.array_equal(s.live.runtime.library.find("anna").codes, codes)
        assert spoken.transcript == "A tone."
        assert spoken.rows.shape == (codes.shape[1] + 7, 8)


async def test_a_form_does_as_well_as_json() -> None:
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


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"consent": None}, 400, "consent_required", "consent"),
        ({"consent": {"by": "A"}}, 400, "invalid_message", "consent"),
        ({"consent": {"by": "", "statement": "Yes."}}, 400, "invalid_message", "consent"),
        ({"consent": CONSENT | {"at": "today"}}, 400, "invalid_message", "consent"),
        ({"consent": "yes"}, 400, "invalid_message", "consent"),
        ({"name": ""}, 400, "invalid_message", "name"),
        ({"name": "../anna"}, 400, "invalid_message", "name"),
        ({"name": "anna\n"}, 400, "invalid_message", "name"),
        ({"name": "<|audio|>"}, 400, "invalid_message", "name"),
        ({"name": "a" * 65}, 400, "invalid_message", "name"),
        ({"name": "default"}, 409, "voice_exists", "name"),
        ({"audio_sample": None}, 400, "invalid_message", "audio_sample"),
        ({"audio_sample": ""}, 400, "invalid_audio", None),
        ({"audio_sample": "?"}, 400, "invalid_audio", "audio_sample"),
        ({"audio_sample": "https://example.org/anna.wav"}, 400, "unsupported", "audio_sample"),
        ({"audio_sample": clips.as_base64(b"<html>")}, 400, "invalid_audio", None),
        ({"ref_text": "x" * 4001}, 400, "invalid_message", "ref_text"),
        ({"colour": "red"}, 400, "invalid_message", "colour"),
    ],
)
async def test_what_is_no_voice(
    fields: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with server() as s:
        assert error(await s.add(**fields)) == (status, code, param)
        assert (await s.http.get(PATH)).json()["voices"] == ["default"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"--x",
        b"--x\r\n\r\n\r\n--x--",
        b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--",
    ],
)
async def test_forms_that_are_none(content: bytes) -> None:
    async with server() as s:
        for kind in ("multipart/form-data; boundary=x", "multipart/form-data"):
            answer = await s.http.post(PATH, content=content, headers={"content-type": kind})
            assert error(answer)[:2] == (400, "invalid_message")
        two = [("audio_sample", ("a", CLIP)), ("audio_sample", ("b", CLIP))]
        assert error(await s.http.post(PATH, files=two))[1] == "invalid_message"
        wrong = {"other": ("a", CLIP)}
        assert error(await s.http.post(PATH, files=wrong)) == (400, "invalid_message", "other")


async def test_there_is_room_for_so_many() -> None:
    async with server(max_voices=1) as s:
        assert (await s.add()).status_code == 201
        assert error(await s.add()) == (409, "voice_exists", "name")
        assert error(await s.add(name="bert")) == (409, "too_many_voices", None)
        assert s.live.codec.encoded == 1  # refused before anything is worked out


async def test_two_at_once_under_one_name() -> None:
    async with server() as s:
        answers = await asyncio.gather(s.add(), s.add(OTHER))
        assert sorted(a.status_code for a in answers) == [201, 409]


async def test_a_clone_as_vllm_omnis_benchmark_asks_for_it() -> None:
    async with server() as s:
        clip = {"ref_audio": f"data:audio/wav;base64,{clips.as_base64(CLIP)}", "ref_text": "Hello."}
        theirs = {"task_type": "Base", "language": "English", "max_new_tokens": 2048}
        plain = await s.speak(**clip)
        same = await s.speak(**clip, **theirs)
        assert plain.status_code == same.status_code == 200
        assert same.content == plain.content
        assert len(plain.content) > 0


async def test_a_codec_that_cannot_encode_says_so() -> None:
    async with server() as s:
        s.live.codec.can_encode = False
        assert error(await s.add()) == (400, "unsupported", "audio_sample")
        one_off = await s.speak(ref_audio=clips.as_base64(CLIP))
        assert error(one_off) == (400, "unsupported", "ref_audio")


async def test_foreign_pages_may_not_change_voices() -> None:
    async with server() as s:
        s.http.headers["origin"] = "https://evil.example"
        assert error(await s.add()) == (403, "forbidden_origin", None)
        assert error(await s.http.delete(f"{PATH}/anna")) == (403, "forbidden_origin", None)
        s.http.headers["origin"] = s.live.http
        assert (await s.add()).status_code == 201


async def test_large_bodies_are_few_and_bounded() -> None:
    async with server() as s:
        large = clips.as_base64(bytes(11 << 20))
        assert error(await s.add(audio_sample=large))[:2] == (413, "text_too_long")
        for _ in range(8):
            s.live.runtime.uploads.enter()
        answer = await s.add(clips.wav(clips.tone(25.0)))
        assert error(answer)[:2] == (429, "overloaded")
        assert "retry-after" in answer.headers
        assert (await s.add(CLIP[:60_000])).status_code == 201  # no larger than other requests
        for _ in range(8):
            s.live.runtime.uploads.leave(0.0)
        assert (await s.add(clips.wav(clips.tone(25.0)), name="b")).status_code == 201
        assert s.live.runtime.uploads.active == 0


async def test_one_off_voices() -> None:
    async with server() as s:
        codes = FakeDecoder(SPEC).encode(await samples_of(OTHER))
        given = {"ref_audio": clips.as_base64(OTHER), "ref_text": "A tone."}
        expected = s.expected(reference=Reference(codes, "A tone."))
        for _ in range(2):
            assert (await s.speak(**given)).content == expected
        assert s.live.codec.encoded == 1  # the same clip again
        address = f"data:audio/flac;base64,{given['ref_audio']}"
        bare = await s.speak(ref_audio=address)
        assert bare.content == s.expected(reference=Reference(codes)) != expected
        assert (await s.http.get(PATH)).json()["voices"] == ["default"]
        bad = await s.speak(ref_audio=clips.as_base64(OTHER[:3000]))
        assert error(bad) == (400, "invalid_audio", None)
        events = await s.speak(**given, stream_format="sse")
        assert b"speech.audio.done" in events.content


async def test_a_failing_encoder_is_told_with_a_code() -> None:
    async with server() as s:
        s.live.codec.fail_with = BackendError(ErrorCode.CODEC_FAILED, "It broke.")
        assert error(await s.add()) == (500, "codec_failed", None)
        assert error(await s.speak(ref_audio=clips.as_base64(CLIP))) == (500, "codec_failed", None)
        s.live.codec.fail_with = None
        assert (await s.add()).status_code == 201


class Listener:
    """A transcriber that says what it is told to."""

    def __init__(self, says: str | Exception) -> None:
        self.says, self.heard = says, 0

    def check(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def transcribe(self, samples: Samples, sample_rate: int) -> str:
        assert (len(samples), sample_rate) == (48_000, 24_000)
        self.heard += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


async def test_a_recogniser_hears_what_no_text_tells() -> None:
    async with server() as s:
        listener = s.live.runtime.cloner._transcriber = Listener("A tone.")
        given = (await s.add(name="given")).json()
        assert (given["text"], given["text_source"], listener.heard) == ("A tone.", "given", 0)
        heard = (await s.add(name="heard", ref_text=None)).json()
        assert (heard["text"], heard["text_source"], listener.heard) == ("A tone.", "recognised", 1)
        assert (await s.speak(voice="heard")).content == (await s.speak(voice="given")).content
        listener.says = ""
        mute = (await s.add(name="mute", ref_text="  ")).json()
        listener.says = BackendError(ErrorCode.INTERNAL, "Deaf.")
        deaf = (await s.add(name="deaf", ref_text=None)).json()
        for voice in (mute, deaf):
            assert (voice["text"], voice["text_source"]) == (None, None)
        assert (await s.speak(voice="mute")).content == (await s.speak(voice="deaf")).content


class Wordy(FakeTalker):
    """Takes no long texts in a voice, as a small model does."""

    def check(self, request: SpeechRequest) -> None:
        super().check(request)
        if request.reference is not None and request.reference.codes.shape[1] > 40:
            raise RequestError(ErrorCode.TEXT_TOO_LONG, "Too long.", param="text")


async def test_a_clip_that_leaves_no_room_for_texts_is_refused() -> None:
    async with gateway(Wordy()) as live, httpx.AsyncClient(base_url=live.http) as http:
        s = Server(live, http)
        refused = await s.add()
        assert error(refused) == (400, "invalid_audio", None)
        assert "too long for this model" in refused.json()["error"]["message"]
        assert (await s.add(OTHER)).status_code == 201


async def test_a_voice_that_is_deleted_meanwhile() -> None:
    """What is being spoken is spoken to its end; the next utterance is refused."""
    async with (
        gateway(FakeTalker(row_s=0.01)) as live,
        httpx.AsyncClient(base_url=live.http, timeout=60) as http,
        client(live.url) as native,
    ):
        await Server(live, http).add()
        handle = await native.create(voice="anna")
        await native.send("text.append", context_id="c", text="A sentence to be spoken. ")
        await native.send("context.flush", context_id="c", flush_id="f")
        await native.until("audio.started")
        assert (await http.delete(f"{PATH}/anna")).status_code == 200
        await native.until("flush.done")
        frames = live.talker.frames_of(SpeechRequest("x", "A sentence to be spoken."))
        assert len(native.samples(handle)) == len(frames) * SPEC.hop_length
        await native.send("text.append", context_id="c", text="Another one.")
        await native.send("context.end", context_id="c")
        assert (await native.error())["code"] == "unknown_voice"
        await native.until("context.done")


async def test_one_off_voices_in_the_native_protocol() -> None:
    clip = clips.encoded("ogg_opus", clips.tone(1.5))
    codes = FakeDecoder(SPEC).encode(await samples_of(clip))
    given = {"audio": clips.as_base64(clip), "text": "A tone."}
    async with server() as s, client(s.live.url) as native:
        spoken = await native.say(SPEAK["input"], reference=given, mode="whole", sampling=SEED)
        assert pcm(spoken) == s.expected(reference=Reference(codes, "A tone."))
        plain = await native.say(SPEAK["input"], "d", mode="whole", sampling=SEED)
        assert pcm(plain) == s.expected() != pcm(spoken)


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
async def test_references_that_open_no_context(
    fields: dict[str, Any], code: str, param: str
) -> None:
    async with server() as s, client(s.live.url) as native:
        await native.send("context.create", context_id="c", **fields)
        error = await native.error()
        assert (error["code"], error["param"]) == (code, param)
        assert not s.live.runtime.admission.active


async def test_a_clip_that_cannot_be_used_ends_the_context() -> None:
    async with server() as s, client(s.live.url) as native:
        await native.create(reference={"audio": clips.as_base64(b"RIFF....WAVE")})
        await native.send("text.append", context_id="c", text="Hello there.")
        await native.send("context.end", context_id="c")
        assert (await native.error())["code"] == "invalid_audio"
        assert (await native.until("context.done"))["reason"] == "error"
        # one that nobody speaks with is cancelled with its context
        opus = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.5)))
        await native.create(reference={"audio": opus})
        await native.send("text.append", context_id="c", text="Hello there.")
        await native.send("context.cancel", context_id="c")
        await native.until("context.cancelled")
        await s.live.until_free()
        assert s.live.codec.encoded == 0


async def test_voices_of_the_store_outlive_the_service(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    async with server(voices_dir=folder) as s:
        voice = (await s.add()).json()
        before = (await s.speak(voice="anna")).content
        assert (await s.http.get(PATH)).json()["lasting"]
    async with server(voices_dir=folder) as s:
        assert (await s.http.get(f"{PATH}/anna")).json() == voice
        assert (await s.speak(voice="anna")).content == before
        assert (await s.http.delete(f"{PATH}/{voice['id']}")).status_code == 200
        assert not files_in(folder)
    async with server(voices_dir=folder) as s:
        assert (await s.http.get(PATH)).json()["voices"] == ["default"]


async def test_a_full_disk_is_told_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    async with server(voices_dir=tmp_path) as s:
        with monkeypatch.context() as patched:
            patched.setattr("service.voices.folder.os.fsync", full)
            assert error(await s.add()) == (507, "storage_failed", None)
        assert not files_in(tmp_path)
        assert (await s.http.get(PATH)).json()["voices"] == ["default"]
        assert (await s.add()).status_code == 201


async def test_openapi_tells_both_forms() -> None:
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
