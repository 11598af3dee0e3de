"""References, as SGLang-Omni's clients send them."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.fakes.codec import FakeDecoder
from loadtest.fakes.talker import FAKE_SPEC, FakeTalker
from streaming.errors import ErrorCode, RequestError
from streaming.ports import DecodeStats, Reference, SpeechRequest
from streaming.spec import Samples
from streaming.window import DecodeWindow
from tests.service.live import SPEC, client
from tests.service.memory import Served, served
from tests.service.voices import clips
from tests.service.voices.voice_server import (
    CLIP,
    OTHER,
    SEED,
    SPEAK,
    error,
    pcm,
    samples_of,
    server,
)

PATH = "/v1/audio/speech"
OMNI = {"ref_audio": clips.as_base64(CLIP), "ref_text": "A tone."}


async def speak(service: Served, **fields: Any) -> httpx.Response:
    return await service.http.post(PATH, json=SPEAK | fields)


async def test_reference_by_data_or_path_equals_ref_audio(tmp_path: Path) -> None:
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "clip.wav").write_bytes(CLIP)
    async with served(references_dir=tmp_path) as service:
        wanted = await speak(service, **OMNI)
        assert wanted.status_code == 200, wanted.text
        plain = await speak(service)
        assert plain.content != wanted.content
        for clip in (
            {"audio": OMNI["ref_audio"], "text": "A tone."},
            {"audio_path": "anna/clip.wav", "text": "A tone."},
            {"audio_path": str(tmp_path / "anna/clip.wav"), "text": "A tone.", "more": 1},
        ):
            answer = await speak(service, references=[clip], voice="default")
            assert answer.status_code == 200, answer.text
            assert answer.content == wanted.content


async def test_several_references_are_accepted_in_every_protocol_with_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "clip.wav").write_bytes(CLIP)
    talker = FakeTalker(spec=replace(FAKE_SPEC, max_references=2))
    pair = [{"audio": clips.as_base64(OTHER), "text": "Higher."}, {"audio_path": "clip.wav"}]
    sent = [pair[0], {"audio": OMNI["ref_audio"]}]
    async with server(talker=talker, references_dir=tmp_path) as s:
        one, two = [
            Reference(FakeDecoder(SPEC).encode(await samples_of(clip)), text)
            for clip, text in ((OTHER, "Higher."), (CLIP, None))
        ]
        wanted = s.expected(reference=one, other_references=(two,))
        assert wanted != s.expected(reference=one)
        answer = await s.speak(references=pair)
        assert answer.content == wanted
        assert "x-talkwire-warning" in answer.headers  # the second has no text
        batch = {"items": [SPEAK], "references": pair, "response_format": "pcm"}
        made = (await s.http.post(PATH + "/batch", json=batch)).json()["results"][0]
        assert base64.b64decode(made["audio_data"]) == wanted
        small = clips.as_base64(clips.encoded("ogg_opus", clips.tone(1.5)))
        codes = FakeDecoder(SPEC).encode(await samples_of(base64.b64decode(small)))
        one, two = Reference(codes, "Higher."), Reference(codes, None)
        async with client(s.live.url) as native:
            heard = await native.say(
                SPEAK["input"],
                references=[{"audio": small, "text": "Higher."}, {"audio": small}],
                sampling=SEED,
            )
            assert pcm(heard) == s.expected(reference=one, other_references=(two,))
            for wrong in ({"voice": "default"}, {"reference": {"audio": small}}):
                await native.send(
                    "context.create", context_id="x", references=[{"audio": small}], **wrong
                )
                refused = await native.error()
                assert (refused["code"], refused["param"]) == ("invalid_parameter", "references")
            three = [{"audio": "AAAA"}] * 3
            await native.send("context.create", context_id="x", references=three)
            refused = await native.error()
            assert (refused["code"], refused["param"]) == ("unsupported", "references")
        bad = await s.speak(references=[sent[0], {"audio": "AAAA"}])
        assert error(bad) == (400, "invalid_audio", "references.1.audio")


async def test_unusable_text_of_a_clip_is_reported_by_its_own_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(request: SpeechRequest) -> None:
        if request.reference is not None:
            raise RequestError(ErrorCode.INVALID_TEXT, "A control token.", param="text")

    clip = {"audio": clips.as_base64(OTHER), "text": "<|eot|>"}
    async with server() as s:
        monkeypatch.setattr(s.live.talker, "check", refuse)
        assert error(await s.speak(**OMNI)) == (400, "invalid_text", "ref_text")
        several = await s.speak(references=[clip])
        assert error(several) == (400, "invalid_text", "references.0.text")
        async with client(s.live.url) as native:
            await native.send("context.create", context_id="x", reference=clip)
            await native.send("text.append", context_id="x", text="Hello there.")
            await native.send("context.end", context_id="x")
            refused = await native.error()
            assert (refused["code"], refused["param"]) == ("invalid_text", "reference.text")


@pytest.mark.parametrize(
    "path", ["../secret.wav", "/etc/passwd", "gone.wav", "out.wav", ".", "", "a\0b", "x" * 300]
)
async def test_audio_path_outside_folder_is_refused_without_details(
    path: str, tmp_path: Path
) -> None:
    folder = tmp_path / "references"
    folder.mkdir()
    (tmp_path / "secret.wav").write_bytes(CLIP)
    (folder / "out.wav").symlink_to(tmp_path / "secret.wav")
    async with served(references_dir=folder) as service:
        answer = await speak(service, references=[{"audio_path": path}])
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_parameter")
        assert error["message"] == (
            "references.0.audio_path: audio_path must be a clip under the server's folder of "
            "references."
        )
        await service.until_free()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"references": [{"audio_path": "clip.wav"}]}, "unsupported"),
        ({"references": [{}]}, "invalid_parameter"),
        ({"references": [{"audio": "AAAA", "audio_path": "x"}]}, "invalid_parameter"),
        ({"references": [{"audio": "AAAA"}], "ref_audio": "AAAA"}, "invalid_parameter"),
        ({"references": [{"audio": "https://example.org/a.wav"}]}, "unsupported"),
        ({"references": [{"audio": "AAAA"}, {"audio": "AAAA"}]}, "unsupported"),
        ({"references": [{"audio": "AAAA"}] * 5}, "invalid_message"),
    ],
)
async def test_invalid_references_are_refused(fields: dict[str, Any], code: str) -> None:
    async with served() as service:
        answer = await speak(service, **fields)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


async def test_initial_codec_chunk_frames_sets_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    text = "One sentence of many more frames than there are in the largest chunk."
    async with served(first_chunk_frames=7, max_chunk_frames=50) as service:
        decode = service.codec.decode

        async def spy(
            window: DecodeWindow, deadline_s: float, request_id: str
        ) -> tuple[Samples, DecodeStats]:
            sizes.append(window.new_frames)
            return await decode(window, deadline_s, request_id)

        monkeypatch.setattr(service.codec, "decode", spy)
        for frames, first in ((0, 7), (3, 3), (20, 20), (10**6, 50)):
            options = {"initial_codec_chunk_frames": frames, "response_format": "pcm"}
            answer = await speak(service, **options, input=text, mode="chunked")
            assert answer.status_code == 200
            assert "x-talkwire-ignored" not in answer.headers
            assert sizes[0] == first
            assert (await speak(service, **options)).status_code == 200  # whole: no effect
            sizes.clear()
            async with service.socket(PATH + "/stream") as socket:
                socket.send({"type": "session.config", "stream_audio": True, **options})
                socket.send({"type": "input.text", "text": text})
                socket.send({"type": "input.done"})
                while not isinstance(await socket.next(), bytes):
                    pass
            assert sizes[0] == first
            sizes.clear()
        assert (await speak(service, initial_codec_chunk_frames=-1)).status_code == 400
