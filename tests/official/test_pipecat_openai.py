"""Pipecat's OpenAI service with another ``base_url``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
)
from pipecat.services.openai.tts import OpenAITTSService

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import ONE, OTHER, TURN


@pytest.fixture
async def tts(speaking: Service) -> AsyncIterator[OpenAITTSService]:
    address = f"http://127.0.0.1:{speaking.port}/v1"
    patience = {"stop_frame_timeout_s": 60.0}  # a busy machine may take longer than Pipecat waits
    async with openai.DefaultAsyncHttpxClient() as http:  # Pipecat's service does not close its own
        yield OpenAITTSService(api_key="any", base_url=address, http_client=http, **patience)


async def test_pipecat_speaks_turns_in_order(tts: OpenAITTSService, ears: Ears) -> None:
    async with conversation(tts) as talk:
        await talk.say(f"{ONE} ", OTHER)
        await talk.until_stopped(1)
        await talk.say(ONE)
    first, second = talk.contexts()
    assert ears.which(talk.pcm(first)) == TURN
    assert ears.which(talk.pcm(second)) == ONE
    assert talk.errors() == []


async def test_interruption_cancels_request_on_server(
    tts: OpenAITTSService, speaking: Service, ears: Ears
) -> None:
    cancelled = 'tts_contexts_total{outcome="cancelled",protocol="openai"}'
    before = speaking.metric(cancelled)
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(" ".join(SENTENCES)))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks")
        await talk.queue(InterruptionFrame())
        await talk.until(lambda: bool(talk.of(InterruptionFrame)), "it was interrupted")
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        assert speaking.metric(cancelled) == before + 1
        await talk.say(OTHER)
    assert ears.which(talk.pcm_after(InterruptionFrame)) == OTHER
