"""LiveKit Inference's socket: its messages, options and order."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from loadtest.fakes.talker import FakeTalker
from tests.service.dialects.vendor_talk import speaking
from tests.service.memory import MemorySocket, served

ADDRESS = "/tts?model=cartesia%2Fsonic-3"
TEXT = "Hello there. And some more of it."
CREATE: dict[str, Any] = {
    "type": "session.create",
    "sample_rate": "24000",
    "encoding": "pcm_s16le",
    "extra": {},
    "model": "cartesia/sonic-3",
    "language": "en",
    "fallback": {"models": [{"model": "deepgram/aura-2", "voice": "", "extra": {}}]},
    "connection": {"timeout": 10.0, "retries": 3},
}


def say(text: str, **fields: Any) -> dict[str, Any]:
    config = {"model": "cartesia/sonic-3", "language": "en"}
    fields = {"generation_config": config, "extra": {}, **fields}
    return {"type": "input_transcript", "transcript": text, **fields}


FLUSH = {"type": "session.flush"}


async def until_end(socket: MemorySocket) -> tuple[bytes, list[dict[str, Any]]]:
    """Return all audio up to ``done``, ``error`` or the close, and the other messages."""
    audio, others = b"", []
    while (said := await socket.next()) is not None:
        assert isinstance(said, dict)
        if said["type"] == "output_audio":
            audio += base64.b64decode(said["audio"])
            continue
        others.append(said)
        if said["type"] in ("done", "error"):
            break
    return audio, others


class Listening(FakeTalker):
    """Records the requests that are spoken."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []

    def generate(self, request: Any) -> Any:
        self.requests.append(request)
        return super().generate(request)


async def test_every_message_has_the_id_of_the_session() -> None:
    async with served() as service, service.socket(ADDRESS) as socket:
        for message in (CREATE, say("Hello there. "), say("And more. "), FLUSH):
            socket.send(message)
        said: list[Any] = []
        while not said or said[-1]["type"] != "done":
            said.append(await socket.next())
    assert said[0]["type"] == "session.created"
    assert len({message["session_id"] for message in said}) == 1
    assert {message["type"] for message in said[1:-1]} == {"output_audio"}


async def test_turns_follow_each_other_with_voices_of_their_own() -> None:
    talker = Listening()
    talker.voices = ("default", "anna")
    async with served(talker) as service, service.socket(ADDRESS) as socket:
        talker.requests.clear()  # of the start
        socket.send(CREATE)
        for config in ({}, {"voice": "anna"}):
            socket.send(say(TEXT, generation_config=config))
            socket.send(FLUSH)
            audio, (*_, end) = await until_end(socket)
            assert (end["type"], bool(audio)) == ("done", True)
        voices = [request.voice for request in talker.requests]
        assert list(dict.fromkeys(voices)) == ["default", "anna"]


@pytest.mark.parametrize("texts", [[], [" "], ["", "\n"]])
async def test_turn_without_text_is_done_without_audio(texts: list[str]) -> None:
    async with served() as service, service.socket(ADDRESS) as socket:
        for message in (CREATE, *map(say, texts), FLUSH):
            socket.send(message)
        audio, said = await until_end(socket)
    assert audio == b""
    assert [message["type"] for message in said] == ["session.created", "done"]


@pytest.mark.parametrize(
    ("model", "extra", "words"),
    [
        ("cartesia/sonic-3", {"add_timestamps": True}, ["Hello", "there."]),
        ("inworld/inworld-tts-1", {"timestamp_type": "WORD"}, ["Hello ", "there. "]),
        ("assemblyai/x", {"word_timestamps": True}, ["Hello ", "there. "]),
        ("cartesia/sonic-3", {}, []),
    ],
)
async def test_words_have_times_and_the_space_that_the_client_does_not_add(
    model: str, extra: dict[str, Any], words: list[str]
) -> None:
    async with served(speaking()) as service, service.socket(ADDRESS) as socket:
        socket.send({**CREATE, "model": model})
        socket.send(say("Hello there.", generation_config={"model": model}, extra=extra))
        socket.send(FLUSH)
        audio, said = await until_end(socket)
    timed = [w for one in said if one["type"] == "output_alignment" for w in one["words"]]
    assert [word["word"] for word in timed] == words
    ends = [time for word in timed for time in (word["start"], word["end"])]
    assert ends == sorted(ends)
    assert not ends or ends[-1] <= len(audio) / 48_000


async def test_options_of_the_vendors_models_reach_the_talker() -> None:
    talker = Listening()
    async with served(talker) as service, service.socket(ADDRESS) as socket:
        talker.requests.clear()  # of the start
        socket.send(CREATE)
        extra = {"temperature": 0.5, "top_p": 0.9, "speed": "normal", "latency": "low"}
        socket.send(say(TEXT, extra=extra))
        socket.send(FLUSH)
        plain, _ = await until_end(socket)
        socket.send(say(TEXT, extra={"speaking_rate": 2}))
        socket.send(FLUSH)
        fast, _ = await until_end(socket)
        socket.send(say(TEXT, generation_config={"model": "fishaudio/s2"}, extra={"volume": -20}))
        socket.send(FLUSH)
        quiet, (end,) = await until_end(socket)
    assert end["type"] == "done"
    sampling = talker.requests[0].sampling
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)
    assert len(fast) == pytest.approx(len(plain) / 2, rel=0.1)
    assert len(quiet) == len(plain)
    assert quiet != plain


@pytest.mark.parametrize(
    ("create", "code", "named"),
    [
        ({"encoding": "mp3"}, "invalid_message", "encoding"),
        ({"sample_rate": "fast"}, "invalid_message", "sample_rate"),
        ({"sample_rate": 7}, "unsupported", "sample_rate"),
        ({"voice": "voice_0123456789abcdef"}, "unknown_voice", "voice_0123456789abcdef"),
        ({"extra": {"speed": 9}}, "invalid_message", "extra.speed"),
        ({"extra": {"speed": "fast"}}, "invalid_message", "extra.speed"),
        ({"extra": {"volume": 3}}, "invalid_message", "extra.volume"),
        ({"extra": {"timestamp_type": "CHARACTER"}}, "unsupported", "extra.timestamp_type"),
        ({"extra": {"add_phoneme_timestamps": True}}, "unsupported", "phonemes"),
    ],
)
async def test_bad_option_is_told_with_its_field_and_closes(
    create: dict[str, Any], code: str, named: str
) -> None:
    async with served() as service, service.socket(ADDRESS) as socket:
        socket.send(CREATE | create)
        _, (error,) = await until_end(socket)
        assert (error["type"], error["code"]) == ("error", code), error
        assert named in error["message"]
        assert error["session_id"]
        assert await socket.next() is None
        assert socket.close_code == 1008


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([say(TEXT)], "unknown_context"),
        ([CREATE, say(TEXT), FLUSH, say(TEXT)], "context_closed"),
    ],
)
async def test_text_out_of_turn_closes(messages: list[dict[str, Any]], code: str) -> None:
    async with served() as service, service.socket(ADDRESS) as socket:
        for message in messages:
            socket.send(message)
        _, (*_, error) = await until_end(socket)
        assert (error["type"], error["code"]) == ("error", code)
        assert await socket.next() is None
        await service.until_free()


async def test_close_is_answered_and_stops_the_turn() -> None:
    async with served(codec_delay_s=0.01) as service, service.socket(ADDRESS) as socket:
        for message in (CREATE, say(TEXT * 20), {"type": "session.close"}):
            socket.send(message)
        said: list[Any] = []
        while (heard := await socket.next()) is not None:
            said.append(heard)
        assert said[-1]["type"] == "session.closed"
        assert socket.close_code == 1000
        await service.until_free()


async def test_turn_that_gets_no_more_text_ends_and_frees_its_slot() -> None:
    async with (
        served(context_idle_s=0.2, session_idle_s=1) as service,
        service.socket(ADDRESS) as socket,
    ):
        socket.send({**CREATE, "transcript": TEXT})
        audio, (*_, end) = await until_end(socket)
        assert (end["type"], bool(audio)) == ("done", True)
        assert await socket.next() is None  # no error, which the next turn would read
        assert socket.close_code == 1001
