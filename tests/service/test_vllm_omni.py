"""vLLM-Omni's socket against a live gateway, spoken to as its public example client does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from service.audio.resample import Resampler
from streaming.errors import BackendError, ErrorCode
from talker.fake import FakeTalker
from tests.service.audio_signal import decoded_file
from tests.service.live import SPEC, Gateway, gateway
from tests.service.test_openai import s16
from tests.service.test_speed import stretched

TEXTS = ["The first one is short.", "The second one is somewhat longer than that."]
BOTH = " ".join(TEXTS)
EXACT: dict[str, Any] = {"first_lookahead_frames": 3, "lookahead_frames": 3}
SLOW: dict[str, Any] = {"row_s": 0.001, "frames_per_character": 20}
STREAM: dict[str, Any] = {"stream_audio": True, "response_format": "pcm"}


class Talk:
    """A bare client; ``frames`` are the binary messages since they were last taken."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.frames = socket, list[bytes]()

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def say(self, *texts: str) -> None:
        for text in texts:
            await self.send("input.text", text=text)
        await self.send("input.done")

    async def next(self) -> dict[str, Any]:
        while True:
            async with asyncio.timeout(60):
                data = await self.socket.recv()
            if isinstance(data, str):
                return dict(json.loads(data))
            self.frames.append(data)

    async def sentence(self, flush: int, index: int, text: str) -> tuple[dict[str, Any], bytes]:
        """One sentence's ``audio.start`` and its audio."""
        assert not self.frames
        start = await self.next()
        assert start["type"] == "audio.start", start
        assert (start["utterance_index"], start["sentence_index"]) == (flush, index)
        assert start["sentence_text"] == text
        done = await self.next()
        data, self.frames = b"".join(self.frames), []
        assert done == {
            "type": "audio.done",
            "utterance_index": flush,
            "sentence_index": index,
            "total_bytes": len(data),
            "error": False,
        }
        return start, data

    async def done(self, flush: int, sentences: int) -> None:
        assert await self.next() == {
            "type": "session.done",
            "utterance_index": flush,
            "total_sentences": sentences,
        }

    async def hear(self) -> bytes:
        """The next audio, past messages."""
        while True:
            async with asyncio.timeout(60):
                data = await self.socket.recv()
            if isinstance(data, bytes):
                self.frames.append(data)
                return data

    async def closed(self) -> int | None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code


@contextlib.asynccontextmanager
async def speaking(server: Gateway, **config: Any) -> AsyncIterator[Talk]:
    """A connected client that has sent its config, unless there is none."""
    url = server.http.replace("http", "ws") + "/v1/audio/speech/stream"
    async with connect(url, compression=None) as socket:
        talk = Talk(socket)
        if config:
            await talk.send("session.config", **config)
        yield talk


def spoken(server: Gateway, *texts: str, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.concatenate([server.whole(text, seed) for text in texts])


async def test_the_example_clients_conversation() -> None:
    """Everything that it sends by default: a WAV file for the whole text."""
    config = {
        "voice": "default",
        "task_type": "CustomVoice",
        "response_format": "wav",
        "speed": 1.0,
        "split_granularity": "none",
    }
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        words = [word + " " for word in BOTH.split()]
        await talk.say(*words)
        start, data = await talk.sentence(0, 0, BOTH)
        assert (start["format"], start["sample_rate"], start["channels"]) == ("wav", 24_000, 1)
        samples, rate = decoded_file(data)
        assert rate == SPEC.sample_rate
        assert s16(spoken(server, *TEXTS)) == np.rint(samples * 32768).astype("<i2").tobytes()
        await talk.done(0, 1)
        await server.until_free()  # between flushes it holds no place
        await talk.send("session.close")
        assert await talk.closed() == 1000


async def test_audio_streams_while_it_is_made() -> None:
    talker = FakeTalker(row_s=0.001, frames_per_character=6)
    async with gateway(talker, **EXACT) as server, speaking(server, **STREAM, seed=5) as talk:
        await talk.say(BOTH)
        start = await talk.next()
        assert (start["type"], start["format"]) == ("audio.start", "pcm")
        await talk.hear()
        assert server.talker.outstanding == 1
        done = await talk.next()
        assert len(talk.frames) > 2
        assert b"".join(talk.frames) == s16(spoken(server, *TEXTS, seed=5))
        assert done["total_bytes"] == sum(map(len, talk.frames))
        await talk.done(0, 1)


@pytest.mark.parametrize("streams", [True, False])
async def test_sentences_are_spoken_as_they_come(streams: bool) -> None:
    config = {**STREAM, "stream_audio": streams, "split_granularity": "sentence"}
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        await talk.send("input.text", text=TEXTS[0] + " The")
        _, data = await talk.sentence(0, 0, TEXTS[0])
        assert data == s16(server.whole(TEXTS[0]))
        await talk.say(TEXTS[1][3:])
        _, data = await talk.sentence(0, 1, TEXTS[1])
        assert data == s16(server.whole(TEXTS[1]))
        await talk.done(0, 2)
        await talk.say(TEXTS[0])
        await talk.sentence(1, 0, TEXTS[0])
        await talk.done(1, 1)


async def test_flushes_that_come_while_another_is_spoken_wait_their_turn() -> None:
    talker = FakeTalker(row_s=0.0005)
    async with gateway(talker, **EXACT) as server, speaking(server, **STREAM) as talk:
        for text in TEXTS:
            await talk.say(text)
        await talk.say("   ")
        await talk.say(TEXTS[0])
        for flush, text in enumerate(TEXTS):
            _, data = await talk.sentence(flush, 0, text)
            assert data == s16(server.whole(text))
            await talk.done(flush, 1)
        await talk.done(2, 0)
        await talk.sentence(3, 0, TEXTS[0])
        await talk.done(3, 1)
        await server.until_free()


async def test_another_config_holds_for_what_follows_it() -> None:
    talker = FakeTalker(row_s=0.0005)
    async with gateway(talker, **EXACT) as server, speaking(server, **STREAM) as talk:
        await talk.say(TEXTS[0])
        await talk.send("session.config", **STREAM, sample_rate=8000, seed=7)
        await talk.say(TEXTS[1])
        await talk.send("session.config", **STREAM, speed=2.0)
        await talk.say(TEXTS[0])
        start, data = await talk.sentence(0, 0, TEXTS[0])
        assert data == s16(server.whole(TEXTS[0]))
        await talk.done(0, 1)
        start, data = await talk.sentence(1, 0, TEXTS[1])
        resampler = Resampler(SPEC.sample_rate, 8000)
        whole = server.whole(TEXTS[1], 7)
        assert start["sample_rate"] == 8000
        assert data == s16(np.concatenate([resampler.push(whole), resampler.finish()]))
        await talk.done(1, 1)
        _, data = await talk.sentence(2, 0, TEXTS[0])
        assert data == s16(stretched(server.whole(TEXTS[0]), 2.0))
        await talk.done(2, 1)


@pytest.mark.parametrize(
    ("name", "rate"), [("mp3", 24_000), ("flac", 24_000), ("opus", 48_000), ("aac", 24_000)]
)
async def test_a_file_for_each_sentence(name: str, rate: int) -> None:
    config = {"response_format": name, "split_granularity": "sentence"}
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        await talk.say(BOTH)
        for index, text in enumerate(TEXTS):
            start, data = await talk.sentence(0, index, text)
            assert start["format"] == name
            samples, told = decoded_file(data)
            assert told == rate
            seconds = len(server.whole(text)) / SPEC.sample_rate
            assert seconds - 0.001 <= len(samples) / rate <= seconds + 0.12
        await talk.done(0, 2)


@pytest.mark.parametrize("text", ["🙂", "...?!"])
async def test_text_that_cannot_be_spoken_has_no_audio(text: str) -> None:
    async with gateway(**EXACT) as server, speaking(server, **STREAM) as talk:
        await talk.say(text)
        _, data = await talk.sentence(0, 0, text)
        assert data == b""
        await talk.done(0, 1)
        await server.until_free()
        await talk.say(TEXTS[0])
        assert (await talk.sentence(1, 0, TEXTS[0]))[1]


async def test_a_close_stops_everything() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, speaking(server, **STREAM) as talk:
        await talk.say(BOTH * 3)
        await talk.hear()
        await talk.send("session.config", **STREAM)
        await talk.send("session.close")
        assert await talk.closed() == 1000
        await server.until_free()
        made = server.talker.rows_made
        await asyncio.sleep(0.05)
        assert server.talker.rows_made == made


async def test_a_client_that_goes_stops_everything() -> None:
    async with gateway(FakeTalker(**SLOW)) as server:
        async with speaking(server, **STREAM) as talk:
            await talk.say(BOTH * 3)
            await talk.hear()
        await server.until_free()


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"voice": "nobody"}, "unknown_voice", "voice"),
    ({"model": "other"}, "unknown_model", "model"),
    ({"colour": "red"}, "invalid_message", "colour"),
    ({"speed": 9}, "invalid_message", "speed"),
    ({"task_type": "Base"}, "invalid_message", "task_type"),
    ({"response_format": "midi"}, "invalid_message", "response_format"),
    ({"response_format": "wav", "stream_audio": True}, "unsupported", "response_format"),
    ({"response_format": "pcm", "sample_rate": 7}, "unsupported", "sample_rate"),
    ({"split_granularity": "clause"}, "unsupported", "split_granularity"),
    ({"instructions": "Whisper."}, "unsupported", "instructions"),
    ({"ref_audio": "data:,"}, "unsupported", "ref_audio"),
    ({"word_timestamps": True}, "unsupported", "word_timestamps"),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
async def test_a_first_config_that_cannot_be_served(
    fields: dict[str, Any], code: str, param: str
) -> None:
    async with gateway() as server, speaking(server, **fields) as talk:
        error = await talk.next()
        assert (error["type"], error["code"], error["param"]) == ("error", code, param)
        assert error["message"]
        assert await talk.closed() == 1008


async def test_a_later_config_that_cannot_be_served_changes_nothing() -> None:
    async with gateway(**EXACT) as server, speaking(server, **STREAM, seed=5) as talk:
        await talk.send("session.config", voice="nobody")
        assert (await talk.next())["code"] == "unknown_voice"
        await talk.send("input.text", text=TEXTS[0])
        await talk.send("session.config", **STREAM, seed=6)
        assert (await talk.next())["code"] == "invalid_message"
        await talk.send("input.done")
        _, data = await talk.sentence(0, 0, TEXTS[0])
        assert data == s16(server.whole(TEXTS[0], 5))


async def test_everything_else_that_clients_of_its_server_send_is_taken() -> None:
    config = {
        "model": "tts-1",
        "voice": "default",
        "instructions": "",
        "language": "Auto",
        "temperature": 0.7,
        "max_new_tokens": 20,
        "initial_codec_chunk_frames": 0,
        "non_streaming_mode": True,
        "x_vector_only_mode": False,
        "ref_audio": None,
        **STREAM,
    }
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        await talk.say(TEXTS[0])
        _, data = await talk.sentence(0, 0, TEXTS[0])
        assert 0 < len(data) < len(s16(server.whole(TEXTS[0])))  # 20 rows and no more


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_message"),
        ('{"type":"input.sing"}', "unknown_message"),
        ('{"type":"input.text","text":5}', "invalid_message"),
        ('{"type":"input.text","text":"' + "x" * 200 + '"}', "text_too_long"),
        (b"\0", "invalid_message"),
    ],
)
async def test_what_is_no_message_is_told_and_nothing_else_happens(
    message: str | bytes, code: str
) -> None:
    async with gateway(max_text_chars=100, **EXACT) as server, speaking(server, **STREAM) as talk:
        await talk.send("input.text", text=TEXTS[0])
        await talk.socket.send(message)
        error = await talk.next()
        assert (error["type"], error["code"]) == ("error", code)
        await talk.send("input.done")
        _, data = await talk.sentence(0, 0, TEXTS[0])
        assert data == s16(server.whole(TEXTS[0]))


@pytest.mark.parametrize("kind", ["input.text", "input.done", "nonsense"])
async def test_the_first_message_must_be_a_config(kind: str) -> None:
    async with gateway() as server, speaking(server) as talk:
        await talk.send(kind)
        assert (await talk.next())["code"] == "invalid_message"
        assert await talk.closed() == 1008


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (BackendError(ErrorCode.CODEC_FAILED, "Told."), "codec_failed"),
        (RuntimeError("secret at 0xdeadbeef"), "internal"),
    ],
)
async def test_a_failure_is_told_of_each_sentence_and_the_socket_goes_on(
    failure: Exception, code: str
) -> None:
    config = {**STREAM, "split_granularity": "sentence"}
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        server.codec.fail_with = failure
        await talk.say(BOTH)
        for index in range(2):
            start, error, done = [await talk.next() for _ in range(3)]
            assert (start["type"], start["sentence_index"]) == ("audio.start", index)
            assert (error["type"], error["code"]) == ("error", code)
            assert "secret" not in error["message"]
            assert (done["type"], done["error"], done["total_bytes"]) == ("audio.done", True, 0)
        await talk.done(0, 2)
        await server.until_free()
        server.codec.fail_with = None
        await talk.say(TEXTS[0])
        assert (await talk.sentence(1, 0, TEXTS[0]))[1] == s16(server.whole(TEXTS[0]))


async def test_audio_that_breaks_off_is_to_be_discarded() -> None:
    talker = FakeTalker(frames_per_character=4, row_s=0.001, fail_after=60)
    async with gateway(talker, **EXACT) as server, speaking(server, **STREAM) as talk:
        await talk.say(BOTH + " This will !fail now.")
        assert (await talk.next())["type"] == "audio.start"
        error = await talk.next()
        assert (error["code"], error["partial_audio"], error["action"]) == (
            "engine_failed",
            True,
            "discard",
        )
        done = await talk.next()
        assert (done["error"], done["total_bytes"]) == (True, sum(map(len, talk.frames)))
        await talk.done(0, 1)


async def test_a_full_server_refuses_the_sentence() -> None:
    async with gateway(max_contexts=1, **EXACT) as server, speaking(server, **STREAM) as talk:
        server.runtime.admission.enter()
        await talk.say(TEXTS[0])
        kinds = [await talk.next() for _ in range(3)]
        assert kinds[1]["code"] == "overloaded"
        assert kinds[2]["error"] is True
        await talk.done(0, 1)
        server.runtime.admission.leave(0.1)
        await talk.say(TEXTS[0])
        assert (await talk.sentence(1, 0, TEXTS[0]))[1]


async def test_too_much_that_waits_for_a_config_closes_the_socket() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, speaking(server, **STREAM) as talk:
        await talk.say(BOTH)
        for _ in range(66):
            await talk.send("session.config", **STREAM)
        assert await talk.closed() == 1008
        await server.until_free()


async def test_idle_sockets_close() -> None:
    async with gateway(session_idle_s=0.3) as server, speaking(server, **STREAM) as talk:
        assert (await talk.next())["code"] == "idle_timeout"
        assert await talk.closed() == 1001


async def test_a_server_that_goes_finishes_what_it_speaks() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server:
        async with speaking(server, **STREAM) as talk:
            await talk.say(TEXTS[1])
            await talk.hear()
            draining = asyncio.create_task(server.runtime.drain())
            assert (await talk.next())["type"] == "audio.done"
            assert b"".join(talk.frames) == s16(server.whole(TEXTS[1]))
            await talk.done(0, 1)
            assert await talk.closed() == 1001
        await draining


async def test_refused_handshakes() -> None:
    async with gateway(max_connections=1) as server:
        async with speaking(server, **STREAM):
            with pytest.raises(InvalidStatus) as refused:
                async with speaking(server):
                    pytest.fail("it was accepted")
        assert refused.value.response.status_code == 429
        server.codec.is_ready = False
        with pytest.raises(InvalidStatus) as refused:
            async with speaking(server):
                pytest.fail("it was accepted")
        assert refused.value.response.status_code == 503
