"""Voices over HTTP: added, used, stored and deleted, on a live gateway with fake engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from loadtest.fakes.codec import FakeDecoder
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from service.voices.cloning import NO_TEXT, UNHEARD
from streaming.errors import BackendError, CapacityError, ErrorCode, RequestError
from streaming.ports import SpeechRequest
from streaming.spec import Samples
from tests.service.dialects.vllm_omni.talk import speaking
from tests.service.live import SPEC, client, gateway
from tests.service.voices import clips
from tests.service.voices.voice_server import (
    CLIP,
    CONSENT,
    OTHER,
    PATH,
    Server,
    error,
    files_in,
    samples_of,
    server,
)


async def test_other_vendors_searches_find_a_voice_by_all_its_fields() -> None:
    async with server() as s:
        added = (await s.add(language="en", description="A tone, growing.")).json()

        async def found(path: str, **query: str) -> list[str]:
            body = (await s.http.get(path, params=query)).json()
            return [voice["name"] for voice in body.get("voices", body.get("data"))]

        for query in ("ANN", "growing", added["id"]):
            assert await found("/voices", q=query) == ["anna"]
        for query in ("ANN", "growing", "en", "cloned"):
            assert "anna" in await found("/v2/voices", search=query)
        assert await found("/voices", q="shrinking") == []
        assert await found("/v2/voices", search="shrinking") == []


async def test_elevenlabs_voices_are_filtered_and_sorted() -> None:
    async with server() as s:
        for name in ("anna", "Bert"):
            assert (await s.add(name=name)).status_code == 201

        async def listed(**query: str) -> list[str]:
            body = (await s.http.get("/v2/voices", params=query)).json()
            assert body["total_count"] == len(body["voices"])
            return [voice["name"] for voice in body["voices"]]

        assert await listed(category="premade") == ["default"]
        assert sorted(await listed(category="cloned")) == ["Bert", "anna"]
        assert await listed(category="generated") == []
        assert await listed(voice_type="default") == ["default"]
        for kind in ("personal", "non-default"):
            assert sorted(await listed(voice_type=kind)) == ["Bert", "anna"]
        assert len(await listed(voice_type="non-community", category="")) == 3
        assert await listed(sort="name") == ["anna", "Bert", "default"]
        assert await listed(sort="name", sort_direction="desc") == ["default", "Bert", "anna"]
        newest = await listed(sort="created_at_unix", sort_direction="desc")
        assert newest[-1] == "default"
        refused = await s.http.get("/v2/voices", params={"sort": "colour"})
        assert (refused.status_code, refused.json()["detail"]["param"]) == (422, "sort")


async def test_elevenlabs_subscription_counts_public_voices_without_keys() -> None:
    async with server() as s:
        await s.add()
        subscription = (await s.http.get("/v1/user/subscription")).json()
        assert subscription["voice_slots_used"] == 1


@pytest.mark.parametrize("name", ["n4 ", "n ", " n", "n4\n"])
async def test_name_that_looks_like_another_is_refused(name: str) -> None:
    async with server() as s:
        refused = await s.add(name=name)
        assert error(refused)[0] == 400
        assert error(refused)[2] == "name"


@pytest.mark.parametrize("name", ["n", "4", "n 4", "n4.", "n-", "a" * 64])
async def test_name_of_allowed_characters_is_kept(name: str) -> None:
    async with server() as s:
        assert (await s.add(name=name)).json()["name"] == name


async def test_voice_can_be_added_used_and_deleted() -> None:
    async with server() as s:
        added = await s.add(language="en", description="A tone, growing.")
        assert added.status_code == 201
        voice = added.json()
        assert voice == {
            "id": voice["id"],
            "object": "audio.voice",
            "type": "audio_sample",
            "name": "anna",
            "built_in": False,
            "default": False,
            "language": "en",
            "description": "A tone, growing.",
            "text": "A tone.",
            "text_source": "given",
            "warning": None,
            "duration_s": 2.0,
            "created_at": voice["created_at"],
            "consent": CONSENT | {"at": voice["consent"]["at"]},
        }
        listed = (await s.http.get(PATH)).json()
        assert listed["voice_names"] == ["default", "anna"]
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


async def test_added_voice_has_codes_of_clip() -> None:
    async with server() as s:
        await s.add(OTHER)
        codes = FakeDecoder(SPEC).encode(await samples_of(OTHER))
        spoken = s.live.runtime.voices.library.get("anna")
        assert spoken is not None
        assert np.array_equal(s.live.runtime.voices.library.find("anna").codes, codes)
        assert spoken.transcript == "A tone."
        assert np.array_equal(spoken.frames.T, codes)


async def test_added_voice_may_have_name_of_openai_voice() -> None:
    async with server() as s:
        default = (await s.speak(voice="alloy")).content
        assert default == s.expected()
        assert (await s.add(name="alloy")).status_code == 201
        assert (await s.speak(voice="alloy")).content != default


async def test_add_voice_over_max_voices_is_refused() -> None:
    async with server(max_voices=1) as s:
        assert (await s.add()).status_code == 201
        assert error(await s.add()) == (409, "voice_exists", "name")
        assert error(await s.add(name="bert")) == (409, "too_many_voices", None)
        assert s.live.codec.encoded == 1  # refused before the clip is encoded


async def test_add_voice_twice_concurrently_gives_one_conflict() -> None:
    async with server() as s:
        answers = await asyncio.gather(s.add(), s.add(OTHER))
        assert sorted(a.status_code for a in answers) == [201, 409]


@pytest.mark.parametrize("lacks", ["an encoder", "references"])
async def test_model_that_cannot_clone_refuses_clips(lacks: str) -> None:
    spec = replace(FAKE_SPEC, max_references=0) if lacks == "references" else FAKE_SPEC
    async with server(talker=FakeTalker(spec=spec)) as s:
        s.live.codec.can_encode = lacks != "an encoder"
        assert error(await s.add()) == (400, "unsupported", "audio_sample")
        one_off = await s.speak(ref_audio=clips.as_base64(CLIP))
        assert error(one_off) == (400, "unsupported", "ref_audio")
        account = (await s.http.get("/v1/user/subscription")).json()
        assert account["can_use_instant_voice_cloning"] is False


async def test_codec_encoder_failure_is_reported_with_code() -> None:
    async with server() as s:
        s.live.codec.fail_with = BackendError(ErrorCode.CODEC_FAILED, "It broke.")
        assert error(await s.add()) == (500, "codec_failed", None)
        assert error(await s.speak(ref_audio=clips.as_base64(CLIP))) == (500, "codec_failed", None)
        s.live.codec.fail_with = None
        assert (await s.add()).status_code == 201


class Listener:
    """A transcriber that returns ``says``, or raises it."""

    def __init__(self, says: str | Exception) -> None:
        self.says, self.heard = says, 0

    async def prepare(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def transcribe(self, samples: Samples, sample_rate: int) -> str:
        assert (len(samples), sample_rate) == (48_000, 24_000)
        self.heard += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


async def test_transcriber_supplies_missing_text_of_clip() -> None:
    async with server() as s:
        listener = s.live.runtime.voices.cloner._transcriber = Listener("A tone.")
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
            assert (voice["text"], voice["text_source"], voice["warning"]) == (None, None, UNHEARD)
        assert heard["warning"] is None
        assert (await s.speak(voice="mute")).content == (await s.speak(voice="deaf")).content


async def test_clip_is_transcribed_again_after_failure_of_transcriber() -> None:
    ref_audio = clips.as_base64(CLIP)
    async with server() as s:
        listener = s.live.runtime.voices.cloner._transcriber = Listener(
            CapacityError(ErrorCode.OVERLOADED, "Busy.")
        )
        without = (await s.speak(ref_audio=ref_audio)).content
        listener.says = "A tone."
        with_text = [(await s.speak(ref_audio=ref_audio)).content for _ in range(2)]
        assert listener.heard == 2  # and what it heard at last is cached
        given = (await s.speak(ref_audio=ref_audio, ref_text="A tone.")).content
        assert with_text == [given, given]
        assert without != given


async def test_clip_without_text_gives_warning_without_transcriber() -> None:
    opus = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.5)))
    texts = [({}, True), ({"ref_text": " "}, True), ({"ref_text": "A tone."}, False)]
    async with server() as s, client(s.live.url) as native:
        for number, (text, is_told) in enumerate(texts):
            fields: dict[str, Any] = {"ref_text": None} | text
            added = (await s.add(name=f"v{number}", **fields)).json()
            assert (NO_TEXT if is_told else None) == added["warning"]
            warned = {"x-talkwire-warning": NO_TEXT} if is_told else {}
            batch = {"items": [{"input": "Hello."}], "ref_audio": opus, **text}
            answers = [
                await s.speak(ref_audio=opus, **text),
                await s.speak(references=[{"audio": opus, "text": text.get("ref_text")}]),
                await s.http.post("/v1/audio/speech/batch", json=batch),
            ]
            for answer in answers:
                assert answer.status_code == 200
                found = {k: v for k, v in answer.headers.items() if k == "x-talkwire-warning"}
                assert found == warned
            reference = {"audio": opus, "text": text.get("ref_text")}
            await native.send("context.create", context_id=f"c{number}", reference=reference)
            created = await native.until("context.created")
            assert created.get("warning") == (NO_TEXT if is_told else None)
            config = {"response_format": "pcm", "ref_audio": opus, **text}
            async with speaking(s.live, **config) as talk:
                await talk.say("Hello.")
                start, _ = await talk.sentence(0, 0, "Hello.")
                assert start.get("warning") == (NO_TEXT if is_told else None)
        assert "x-talkwire-warning" not in (await s.speak()).headers


class Wordy(FakeTalker):
    """Refuses long references, as a small model does."""

    def check(self, request: SpeechRequest) -> None:
        super().check(request)
        if request.reference is not None and request.reference.codes.shape[1] > 40:
            raise RequestError(ErrorCode.TEXT_TOO_LONG, "Too long.", param="text")


async def test_clip_too_long_for_model_is_refused() -> None:
    async with gateway(Wordy()) as live, httpx.AsyncClient(timeout=60, base_url=live.http) as http:
        s = Server(live, http)
        refused = await s.add()
        assert error(refused) == (400, "invalid_audio", None)
        assert "too long for this model" in refused.json()["error"]["message"]
        assert (await s.add(OTHER)).status_code == 201


async def test_deleted_voice_finishes_current_utterance_only() -> None:
    """The current utterance is spoken to its end; the next one is refused."""
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


async def test_stored_voices_survive_restart_of_service(tmp_path: Path) -> None:
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
        assert (await s.http.get(PATH)).json()["voice_names"] == ["default"]


async def test_add_voice_on_full_disk_fails_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    async with server(voices_dir=tmp_path) as s:
        with monkeypatch.context() as patched:
            patched.setattr("service.voices.store.os.fsync", full)
            assert error(await s.add()) == (507, "storage_failed", None)
        assert not files_in(tmp_path)
        assert (await s.http.get(PATH)).json()["voice_names"] == ["default"]
        assert (await s.add()).status_code == 201
