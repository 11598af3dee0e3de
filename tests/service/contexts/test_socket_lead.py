"""Audio beyond the maximum lead goes on once the client has read it, in several dialects."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from loadtest.fakes.talker import TIMED_SPEC, FakeTalker
from service.transport.ack_tracker import AckTracker
from tests.service.contexts.fake_pinging import FakePinging
from tests.service.dialects.cartesia.talk import EXACT, cartesia, is_, say, whole
from tests.service.dialects.vendor_talk import s16, speaking
from tests.service.dialects.vllm_omni.talk import speaking as vllm_omni
from tests.service.live import SPEC, client, gateway
from tests.waiting import until

#: Longer than the two seconds that may be unread.
LONG = "This takes longer to be heard than may be unread at a time, by some way."
SHORT_LEAD: dict[str, Any] = {"default_lead_ms": 400, **EXACT}


def test_ping_follows_audio_with_messages_behind() -> None:
    pinging, read = FakePinging(), list[int]()
    acks = AckTracker(pinging)
    acks.follow(1, read.append)
    acks.on_written(1, 10, 100, 0.0, more=True)
    acks.on_written(None, 0, 50, 0.0, more=True)
    assert not pinging.pings
    acks.on_written(None, 0, 50, 0.0, more=False)
    pinging.answer()
    assert read == [0, 10]
    acks.on_written(None, 0, 50, 0.0, more=False)
    assert len(pinging.pings) == 1  # words need no acknowledgement


@pytest.mark.parametrize("encoding", ["pcm_mulaw", "pcm_s16le"])
async def test_native_audio_with_timestamps_is_sent_to_end(encoding: str) -> None:
    talker = FakeTalker(row_s=0.004, spec=TIMED_SPEC)
    async with gateway(talker, **SHORT_LEAD) as server, client(server.url) as talk:
        await talk.create(timestamps=True, audio={"encoding": encoding})
        await talk.send("text.append", context_id="c", text=LONG)
        await talk.send("context.end", context_id="c")
        async with asyncio.timeout(40):
            metrics = await talk.until("metrics")
        assert metrics["audio_ms"] == 1000 * len(server.whole(LONG)) / SPEC.sample_rate


async def test_messages_longer_than_lead_are_filled_for_client_that_reports_playback() -> None:
    options: dict[str, Any] = {
        "audio": {"frame_ms": 1000},
        "max_lead_ms": 400,
        "chunking": {"chunk_ms": 40},
    }
    async with gateway() as server, client(server.url) as talk, asyncio.timeout(40):
        await talk.create(**options)
        await talk.send("text.append", context_id="c", text="Two seconds of speech. " * 2)
        await talk.send("context.end", context_id="c")
        heard, is_done = 0, False
        while not is_done:
            await talk.send("playback", context_id="c", played_samples=heard)
            await talk.send("ping")
            while not isinstance(message := await talk.next(), dict) or message["type"] != "pong":
                if isinstance(message, dict):
                    is_done |= message["type"] == "context.done"
                else:  # it is played at once
                    heard += len(talk.audio[message.handle][-1][1]) // 2
        assert heard > 2 * SPEC.sample_rate


async def test_cartesia_audio_with_timestamps_is_sent_to_end() -> None:
    async with gateway(speaking(row_s=0.004), **SHORT_LEAD) as server, cartesia(server) as talk:
        await say(talk, "a", LONG, add_timestamps=True)
        async with asyncio.timeout(40):
            await talk.until(is_("done", "a"))
        assert talk.sounds["a"] == s16(whole(server, LONG))


@pytest.mark.parametrize("granularity", ["none", "sentence"])
async def test_audio_sent_as_one_message_is_not_held_to_real_time(granularity: str) -> None:
    config = {"response_format": "pcm", "split_granularity": granularity}
    async with gateway(**SHORT_LEAD) as server, vllm_omni(server, **config) as talk:
        texts = [f"Now number {number}: {LONG}" for number in range(3)]
        await talk.say(" ".join(texts))
        spoken = texts if granularity == "sentence" else [" ".join(texts)]
        for index, text in enumerate(spoken):
            _, data = await talk.sentence(0, index, text)
            assert len(data) > 10 * SPEC.sample_rate
        await talk.done(0, len(spoken))


async def test_audio_too_long_for_one_message_fails_only_that_text() -> None:
    limits: dict[str, Any] = {"max_outbox_bytes": 1 << 17, **EXACT}
    async with gateway(**limits) as server, vllm_omni(server, response_format="pcm") as talk:
        await talk.say(LONG)
        start, told, done = [await talk.next() for _ in range(3)]
        assert (start["type"], told["code"]) == ("audio.start", "text_too_long")
        assert (done["type"], done["error"], done["total_bytes"]) == ("audio.done", True, 0)
        assert (
            'tts_errors_total{code="text_too_long"} 1.0' in server.runtime.metrics.render().decode()
        )
        await talk.done(0, 1)
        await talk.say("Hi.")
        assert (await talk.sentence(1, 0, "Hi."))[1] == s16(np.asarray(server.whole("Hi.")))
        await server.until_free()


async def test_stream_at_maximum_lead_does_not_count_as_running() -> None:
    """New streams take only running streams into account."""
    talker = FakeTalker(row_s=0.0005, frames_per_character=25)
    async with gateway(talker, default_lead_ms=500) as server, client(server.url) as talk:
        await talk.create()
        await talk.send(
            "text.append", context_id="c", text="Forty characters of text or some more!! "
        )
        await talk.until("audio.started")
        pace = server.runtime.pace.estimator
        await until(lambda: not pace.running, timeout_s=30)
        assert (pace.live, server.talker.outstanding) == (1, 1)
