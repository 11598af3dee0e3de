"""vLLM-Omni's socket: refused messages and handshakes, failures, timeouts, draining."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from loadtest.fakes.talker import FakeTalker
from streaming.errors import BackendError, ErrorCode
from tests.service.dialects.vendor_talk import s16
from tests.service.dialects.vllm_omni.talk import BOTH, EXACT, SLOW, STREAM, TEXTS, speaking
from tests.service.live import gateway

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"voice": "nobody"}, "unknown_voice", "voice"),
    ({"model": "other"}, "unknown_model", "model"),
    ({"colour": "red"}, "invalid_message", "colour"),
    ({"speed": 9}, "invalid_message", "speed"),
    ({"task_type": "Base"}, "invalid_parameter", "task_type"),
    ({"task_type": "CustomVoice", "ref_audio": "AAAA"}, "invalid_parameter", "task_type"),
    ({"task_type": "Sing"}, "invalid_message", "task_type"),
    ({"response_format": "midi"}, "invalid_message", "response_format"),
    ({"response_format": "wav", "stream_audio": True}, "unsupported", "response_format"),
    ({"response_format": "pcm", "sample_rate": 7}, "unsupported", "sample_rate"),
    ({"split_granularity": "clause"}, "unsupported", "split_granularity"),
    ({"instructions": "Whisper."}, "unsupported", "instructions"),
    ({"ref_audio": "data:"}, "invalid_audio", "ref_audio"),
    ({"ref_audio": "https://example.org/a.wav"}, "unsupported", "ref_audio"),
    ({"ref_audio": 5}, "invalid_message", "ref_audio"),
    ({"ref_audio": "AAAA", "voice": "default"}, "invalid_parameter", "ref_audio"),
    ({"ref_text": "Hello."}, "invalid_parameter", "ref_text"),
    ({"word_timestamps": True}, "unsupported", "word_timestamps"),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
async def test_invalid_first_config_closes_socket(
    fields: dict[str, Any], code: str, param: str
) -> None:
    async with gateway() as server, speaking(server, **fields) as talk:
        error = await talk.next()
        assert (error["type"], error["code"], error["param"]) == ("error", code, param)
        assert error["message"]
        assert await talk.closed() == 1008


async def test_invalid_later_config_changes_nothing() -> None:
    async with gateway(**EXACT) as server, speaking(server, **STREAM, seed=5) as talk:
        await talk.send("session.config", voice="nobody")
        assert (await talk.next())["code"] == "unknown_voice"
        await talk.send("input.text", text=TEXTS[0])
        await talk.send("session.config", **STREAM, seed=6)
        assert (await talk.next())["code"] == "invalid_message"
        await talk.send("input.done")
        _, data = await talk.sentence(0, 0, TEXTS[0])
        assert data == s16(server.whole(TEXTS[0], 5))


async def test_config_accepts_other_fields_of_vllm_omni_clients() -> None:
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
        "ref_text": "",
        **STREAM,
    }
    async with gateway(**EXACT) as server, speaking(server, **config) as talk:
        await talk.say(TEXTS[0])
        _, data = await talk.sentence(0, 0, TEXTS[0])
        assert 0 < len(data) < len(s16(server.whole(TEXTS[0])))  # 20 frames at most


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
async def test_invalid_message_gets_error_and_changes_nothing(
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
async def test_first_message_must_be_session_config(kind: str) -> None:
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
async def test_failure_is_reported_per_sentence_and_socket_stays_open(
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


async def test_failure_within_audio_has_action_discard() -> None:
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


async def test_full_server_refuses_sentence() -> None:
    async with gateway(max_contexts=1, **EXACT) as server, speaking(server, **STREAM) as talk:
        lease = server.runtime.admission.acquire()
        await talk.say(TEXTS[0])
        kinds = [await talk.next() for _ in range(3)]
        assert kinds[1]["code"] == "overloaded"
        assert kinds[2]["error"] is True
        await talk.done(0, 1)
        lease.release()
        await talk.say(TEXTS[0])
        assert (await talk.sentence(1, 0, TEXTS[0]))[1]


async def test_too_many_messages_behind_config_close_socket() -> None:
    async with gateway(FakeTalker(**SLOW)) as server, speaking(server, **STREAM) as talk:
        await talk.say(BOTH)
        for _ in range(66):
            await talk.send("session.config", **STREAM)
        assert await talk.closed() == 1008
        await server.until_free()


async def test_idle_socket_is_closed() -> None:
    async with gateway(session_idle_s=0.3) as server, speaking(server, **STREAM) as talk:
        assert (await talk.next())["code"] == "idle_timeout"
        assert await talk.closed() == 1001


async def test_drain_finishes_sentence_and_closes_socket() -> None:
    async with gateway(FakeTalker(row_s=0.001), **EXACT) as server:
        async with speaking(server, **STREAM) as talk:
            await talk.say(TEXTS[1])
            await talk.hear()
            draining = asyncio.create_task(server.runtime.lifecycle.drain())
            assert (await talk.next())["type"] == "audio.done"
            assert b"".join(talk.frames) == s16(server.whole(TEXTS[1]))
            await talk.done(0, 1)
            assert await talk.closed() == 1001
        await draining


async def test_handshake_is_refused_if_full_or_not_ready() -> None:
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
