"""Fish Audio's API: its requests, the events of its socket, its errors and limits."""

from __future__ import annotations

import base64
import io
import wave
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadtest.fakes.talker import FakeTalker
from service.dialects.fish.request import TtsRequest
from tests.service.auth.keyring import entry, write_keys
from tests.service.dialects.fish.talk import PCM, TEXT, event, post, start, until_finish
from tests.service.memory import served

LIVE = "/v1/tts/live"
#: What fish-audio-sdk sends if its caller chooses nothing.
DEFAULTS: dict[str, Any] = {
    "chunk_length": 200,
    "format": "mp3",
    "sample_rate": None,
    "mp3_bitrate": 128,
    "opus_bitrate": 32,
    "references": [],
    "reference_id": None,
    "normalize": True,
    "latency": "balanced",
    "prosody": None,
    "top_p": 0.7,
    "temperature": 0.7,
    "max_new_tokens": 1024,
    "repetition_penalty": 1.2,
    "min_chunk_length": 50,
    "condition_on_previous_chunks": True,
    "early_stop_threshold": 1.0,
}


def clip() -> bytes:
    """Return two seconds of a tone as WAV."""
    samples = (8000 * np.sin(np.arange(48_000) / 20)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 24_000, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return file.getvalue()


class Listening(FakeTalker):
    """Records the requests that are spoken."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []

    def generate(self, request: Any) -> Any:
        self.requests.append(request)
        return super().generate(request)


@pytest.mark.parametrize("packed", [True, False])
async def test_body_in_both_formats_gives_the_same_audio(packed: bool) -> None:
    async with served() as service:
        answer = await post(service, packed)
        other = await post(service, not packed)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/pcm"
    assert answer.content == other.content
    assert len(answer.content) > 50_000


async def test_defaults_of_client_give_mp3_at_44100() -> None:
    async with served() as service:
        answer = await post(service, **DEFAULTS)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.content[:2] in (b"\xff\xfb", b"ID")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"format": "mp3"}, ("mp3", 44_100, None)),
        ({"format": "mp3", "mp3_bitrate": 64}, ("mp3", 44_100, 64_000)),
        ({"format": "wav", "mp3_bitrate": 64}, ("wav", 44_100, None)),
        ({"format": "pcm", "sample_rate": 16_000}, ("pcm_s16le", 16_000, None)),
        ({"format": "opus"}, ("ogg_opus", None, None)),
        ({"format": "opus", "opus_bitrate": 24}, ("ogg_opus", None, 24_000)),
        ({"format": "opus", "opus_bitrate": 48_000}, ("ogg_opus", None, 48_000)),
        ({"format": "opus", "opus_bitrate": -1000}, ("ogg_opus", None, None)),
    ],
)
def test_format_is_that_of_fish_audio(fields: dict[str, Any], expected: tuple[Any, ...]) -> None:
    request = msgspec.convert({"text": "", **fields}, TtsRequest[bytes])
    format_ = request.audio_format()
    assert (format_.name, format_.sample_rate, format_.bit_rate) == expected


async def test_prosody_changes_length_and_amplitude() -> None:
    async with served() as service:
        plain = (await post(service)).content
        fast = (await post(service, prosody={"speed": 2.0})).content
        soft = (await post(service, prosody={"volume": -6.0206})).content
    assert len(fast) == pytest.approx(len(plain) / 2, rel=0.1)
    assert len(soft) == len(plain)
    before, after = (np.frombuffer(one, "<i2").astype(float) for one in (plain, soft))
    assert np.abs(after).sum() == pytest.approx(np.abs(before).sum() / 2, rel=0.02)


async def test_sampling_and_continuity_reach_the_talker() -> None:
    talker = Listening()
    async with served(talker) as service:
        fields: dict[str, Any] = {
            "temperature": 0.5,
            "top_p": 0.6,
            "condition_on_previous_chunks": False,
        }
        assert (await post(service, **fields)).status_code == 200
    sampling = talker.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.6)
    assert talker.requests[-1].conversation is None


@pytest.mark.parametrize("packed", [True, False])
async def test_clip_is_spoken_like(packed: bool) -> None:
    talker = Listening()
    async with served(talker) as service:
        service.codec.can_encode = True
        audio = clip() if packed else base64.b64encode(clip()).decode()
        answer = await post(service, packed, references=[{"audio": audio, "text": "A tone."}])
        assert answer.status_code == 200, answer.text
    assert talker.requests[-1].reference.text == "A tone."


async def test_clip_comes_on_a_socket() -> None:
    talker = Listening()
    async with served(talker) as service, service.socket(LIVE) as socket:
        service.codec.can_encode = True
        socket.send(start(references=[{"audio": clip(), "text": "A tone."}]))
        socket.send(event("text", text=TEXT))
        socket.send(event("stop"))
        audio, finish = await until_finish(socket)
    assert finish["reason"] == "stop"
    assert len(audio) > 50_000
    assert talker.requests[-1].reference.text == "A tone."


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": 5}, "text must be a string, not 5."),
        ({"format": "flac"}, 'format must be mp3, opus, pcm or wav, not "flac".'),
        ({"sample_rate": 24_001}, "sample_rate: The sample rates of pcm_s16le are 8000, "),
        ({"mp3_bitrate": 5}, "mp3_bitrate must be 64, 128 or 192, not 5."),
        ({"prosody": {"speed": 9}}, "prosody.speed must be at most 4.0, not 9."),
        ({"prosody": {"volume": -21}}, "prosody.volume must be at least -20.0, not -21."),
        ({"top_p": 0}, "top_p must be above 0.0, not 0."),
        ({"reference_id": ["a"]}, "reference_id must be a string, not a list."),
        ({"references": [{"audio": 5}]}, "references[0].audio must be "),
        ({"references": [{"text": "a"}]}, "references[0].audio is missing."),
        ({"text": ""}, "There is nothing in the text that can be spoken."),
    ],
)
async def test_error_names_field_value_and_what_is_allowed(
    packed: bool, fields: dict[str, Any], said: str
) -> None:
    async with served() as service:
        answer = await post(service, packed, **fields)
    assert answer.status_code == answer.json()["status"] == 400
    assert answer.json()["message"].startswith(said)


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"references": [{"audio": b"a"}] * 2}, "unsupported", "takes one clip of a voice, not 2"),
        (
            {"references": [{"audio": b"a"}], "reference_id": "default"},
            "invalid_parameter",
            "Give a reference_id or references, not both.",
        ),
        ({"references": [{"audio": b"a"}]}, "invalid_audio", "references.0.audio: The clip must"),
    ],
)
async def test_unusable_references_are_refused(
    fields: dict[str, Any], code: str, said: str
) -> None:
    async with served() as service:
        service.codec.can_encode = True
        answer = await post(service, **fields)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert said in answer.json()["message"]


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("text/plain", b'{"text": "Hello."}', "invalid_message"),
        ("application/json", b"{", "invalid_json"),
        ("application/json", b"[]", "invalid_message"),
        ("application/json", b'{"text": "' + b"\xff" + b'"}', "invalid_json"),
        ("application/json", b'{"a":' * 5000, "invalid_json"),
        ("application/msgpack", b"", "invalid_message"),
        ("application/msgpack", b"\x90", "invalid_message"),
        ("application/msgpack", b"\x81\xa1a" * 5000, "invalid_message"),
        ("application/msgpack", b"\x81\xa4text\xa1\xff", "invalid_message"),
    ],
)
async def test_body_that_is_no_request_is_refused(kind: str, data: bytes, code: str) -> None:
    async with served() as service:
        headers = {"content-type": kind}
        answer = await service.http.post("/v1/tts", content=data, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text


async def test_large_faulty_message_is_refused_without_its_value() -> None:
    async with served() as service:
        answer = await post(service, format=[0] * 100_000)
    assert answer.json()["message"] == "format must be mp3, opus, pcm or wav."


async def test_packed_body_may_hold_any_bytes() -> None:
    r"""As JSON it would have too many values, and halves of surrogate pairs."""
    async with served() as service:
        extra = b',"' * 20_000 + b"\\ud83d"
        answer = await post(service, **DEFAULTS, extra=extra)
    assert answer.status_code == 200, answer.text


async def test_socket_speaks_one_text_after_another() -> None:
    async with served() as service, service.socket(LIVE) as socket:
        heard = []
        for _ in range(2):
            socket.send(start(**{**DEFAULTS, **PCM}))
            for word in TEXT.split(" "):
                socket.send(event("text", text=f"{word} "))
            socket.send(event("stop"))
            audio, finish = await until_finish(socket)
            assert finish == {"event": "finish", "reason": "stop"}
            heard.append(audio)
        await service.until_free()
    assert heard[0] == heard[1]
    assert len(heard[0]) > 50_000


async def test_flush_speaks_a_text_that_goes_on() -> None:
    async with served() as service, service.socket(LIVE) as socket:
        socket.send(start())
        socket.send(event("text", text="Not the end of a sentence"))
        socket.send(event("flush"))
        first = await socket.next()
        assert isinstance(first, bytes)
        assert msgspec.msgpack.decode(first)["event"] == "audio"
        socket.send(event("text", text=", but more."))
        socket.send(event("stop"))
        audio, finish = await until_finish(socket)
    assert audio
    assert finish["reason"] == "stop"


async def test_wav_on_a_socket_has_one_header() -> None:
    async with served() as service, service.socket(LIVE) as socket:
        socket.send(start(format="wav"))
        for sentence in ("Hello there. ", "And some more of it. "):
            socket.send(event("text", text=sentence))
            socket.send(event("flush"))
        socket.send(event("stop"))
        audio, _ = await until_finish(socket)
    assert audio[:4] == b"RIFF"
    assert audio.count(b"RIFF") == 1


@pytest.mark.parametrize("texts", [[], [""], [" ", "\n"]])
async def test_text_without_words_finishes_at_once(texts: list[str]) -> None:
    async with served() as service, service.socket(LIVE) as socket:
        socket.send(start())
        for text in texts:
            socket.send(event("text", text=text))
            socket.send(event("flush"))
        socket.send(event("stop"))
        assert await until_finish(socket) == (b"", {"event": "finish", "reason": "stop"})


async def test_warning_of_the_text_comes_with_its_audio() -> None:
    async with served() as service, service.socket(LIVE) as socket:
        socket.send(start(prosody={"volume": 12}))
        socket.send(event("text", text=TEXT))
        socket.send(event("stop"))
        message = await socket.next()
        assert isinstance(message, bytes)
        assert "volume" in msgspec.msgpack.decode(message)["warning"]


@pytest.mark.parametrize(
    ("messages", "code", "closed"),
    [
        ([event("text", text="a")], "unknown_context", 1008),
        ([event("stop")], "unknown_context", 1008),
        ([start(), start()], "context_exists", 1008),
        ([start(), event("text", text="A b."), event("stop"), event("text", text="c")],
         "context_closed", 1008),
        ([start(format="flac")], "invalid_message", 1008),
        ([start(sample_rate=1)], "unsupported", 1008),
        ([event("start")], "invalid_message", 1008),
        ([event("cancel")], "unknown_message", 1008),
        ([start(text="w" * 300)], "text_too_long", 1008),
        (["{}"], "invalid_message", 1003),
    ],
)  # fmt: skip
async def test_faulty_events_finish_with_an_error_and_close(
    messages: list[Any], code: str, closed: int
) -> None:
    async with served(FakeTalker(first_row_s=0.5), max_text_chars=200) as service:
        async with service.socket(LIVE) as socket:
            for message in messages:
                socket.send(message)
            _, finish = await until_finish(socket)
            assert (finish["reason"], finish["code"]) == ("error", code)
            assert await socket.next() is None
            assert socket.close_code == closed
        await service.until_free()


async def test_text_holds_a_slot_from_its_first_word_only() -> None:
    async with served(max_contexts=1) as service, service.socket(LIVE) as socket:
        socket.send(start())
        socket.send(event("text", text=" "))
        socket.send(event("flush"))
        socket.send(event("stop"))
        await until_finish(socket)
        async with service.socket(LIVE) as idle:
            idle.send(start())
            socket.send(start(text="Hello there."))
            socket.send(event("stop"))
            audio, finish = await until_finish(socket)
    assert (finish["reason"], bool(audio)) == ("stop", True)


async def test_idle_text_is_ended() -> None:
    async with served(context_idle_s=0.2) as service, service.socket(LIVE) as socket:
        socket.send(start(text="Hello there, and"))
        audio, finish = await until_finish(socket)
        await service.until_free()
    assert (finish["reason"], bool(audio)) == ("stop", True)


async def test_key_is_a_bearer_token(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("good", "acme"))
    async with served(api_keys_file=keys) as service:
        statuses = [
            (await service.http.post("/v1/tts", json={"text": TEXT}, headers=headers)).status_code
            for headers in ({}, {"authorization": "Bearer bad"}, {"authorization": "Bearer good"})
        ]
    assert statuses == [401, 401, 200]
