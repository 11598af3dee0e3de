"""The Cartesia services of Pipecat and LiveKit, against the real service."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from livekit.agents import APIConnectOptions, APIError
from livekit.plugins import cartesia
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.services.cartesia.tts import (
    CartesiaHttpTTSService,
    CartesiaTTSService,
    GenerationConfig,
)
from pipecat.services.tts_service import TextAggregationMode

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.livekit_speech import listen, say
from tests.official.pipecat_checks import assert_a_turn_with_its_words, assert_turn_after_turn
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import GONE, LONG, ONE, OTHER, TURN, tokens

#: A busy machine may take longer than Pipecat waits.
PATIENCE = {"stop_frame_timeout_s": 60.0}


def pipecat(speaking: Service, voice: str = "default", **more: Any) -> CartesiaTTSService:
    settings = CartesiaTTSService.Settings(voice=voice, **more.pop("settings", {}))
    url = f"ws://127.0.0.1:{speaking.port}/tts/websocket"
    return CartesiaTTSService(api_key="any", url=url, settings=settings, **PATIENCE, **more)


# -- Pipecat


async def test_pipecat_speaks_turn_with_word_timestamps(speaking: Service, ears: Ears) -> None:
    async with conversation(pipecat(speaking)) as talk:
        await talk.say(*tokens(TURN))
    assert_a_turn_with_its_words(talk, ears)


async def test_pipecat_speaks_turn_after_turn(speaking: Service, ears: Ears) -> None:
    await assert_turn_after_turn(pipecat(speaking), ears)
    speaking.until("nothing is left", "tts_contexts_active ", 0)


@pytest.mark.parametrize("ended", [False, True])
async def test_pipecat_interruption_stops_audio_and_next_turn_speaks(
    speaking: Service, ears: Ears, ended: bool
) -> None:
    async with conversation(pipecat(speaking)) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(LONG))
        if ended:
            await talk.queue(LLMFullResponseEndFrame())
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks")
        await talk.queue(InterruptionFrame())
        await talk.until(lambda: bool(talk.of(InterruptionFrame)), "it was interrupted")
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        assert talk.pcm_after(InterruptionFrame) == b""
        await talk.say(OTHER)
        await talk.until_stopped(1)
    assert ears.which(talk.pcm_after(InterruptionFrame)) == OTHER
    assert talk.errors() == []


async def test_pipecat_token_mode_speaks_before_end_of_text(speaking: Service, ears: Ears) -> None:
    tts = pipecat(speaking, text_aggregation_mode=TextAggregationMode.TOKEN)
    begun, rest = OTHER.split(maxsplit=1)  # text that waits for max_buffer_delay_ms is spoken
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame())
        await talk.queue(*(LLMTextFrame(token) for token in tokens(f"{ONE} {begun}")))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks before the end")
        await talk.queue(*(LLMTextFrame(token) for token in tokens(f" {rest}")))
        await talk.queue(LLMFullResponseEndFrame())
    pcm = talk.pcm()
    assert ears.which(pcm) == TURN
    assert talk.text() == f"{ONE} {OTHER}"
    assert talk.errors() == []


async def test_pipecat_changes_speed_during_conversation(speaking: Service, ears: Ears) -> None:
    def settings(speed: float) -> CartesiaTTSService.Settings:
        return CartesiaTTSService.Settings(generation_config=GenerationConfig(speed=speed))

    async with conversation(pipecat(speaking)) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        await talk.queue(TTSUpdateSettingsFrame(delta=settings(2.0)))
        await talk.say(ONE)
        await talk.until_stopped(2)
    first, second = [talk.pcm(frame.context_id) for frame in talk.of(TTSStartedFrame)]
    assert ears.which(first) == ONE
    assert len(second) < 0.75 * len(first)


async def test_pipecat_reports_unknown_voice(speaking: Service) -> None:
    async with conversation(pipecat(speaking, GONE)) as talk:
        await talk.say(ONE)
        await talk.until(
            lambda: any("unknown_voice" in error for error in talk.errors()), "it is told"
        )
    assert talk.pcm() == b""


async def test_pipecat_speaks_over_http(speaking: Service, ears: Ears) -> None:
    tts = CartesiaHttpTTSService(
        api_key="any",
        base_url=f"http://127.0.0.1:{speaking.port}",
        settings=CartesiaHttpTTSService.Settings(voice="default"),
        **PATIENCE,
    )
    async with conversation(tts) as talk:
        await talk.say(ONE)
    assert ears.which(talk.pcm()) == ONE
    assert talk.errors() == []


# -- LiveKit


def livekit(
    speaking: Service, session: aiohttp.ClientSession, voice: str = "default", **more: Any
) -> cartesia.TTS:
    url = f"http://127.0.0.1:{speaking.port}"
    return cartesia.TTS(api_key="any", voice=voice, base_url=url, http_session=session, **more)


async def test_livekit_speaks_turn_with_word_timestamps(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session)
    speech = await say(plugin, *tokens(TURN))
    assert ears.which(speech.pcm, speech.rate) == TURN
    assert speech.text == TURN
    assert all(a.start_time <= b.start_time for a, b in pairwise(speech.words))
    assert speech.words[-1].end_time <= len(speech.pcm) / 48_000
    again = await say(plugin, OTHER)  # on the same socket
    assert ears.which(again.pcm, again.rate) == OTHER
    await plugin.aclose()
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_livekit_synthesizes_whole_text(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session, sample_rate=16_000)
    speech = await listen(plugin.synthesize(ONE))
    assert speech.rate == 16_000
    assert ears.which(speech.pcm, speech.rate) == ONE
    await plugin.aclose()


async def test_livekit_closed_stream_is_cancelled_and_next_turn_speaks(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session)
    stream = plugin.stream()
    stream.push_text(LONG)
    await listen(stream, enough=lambda speech: len(speech.pcm) > 1000)
    await stream.aclose()
    speech = await say(plugin, OTHER)
    assert ears.which(speech.pcm, speech.rate) == OTHER
    await plugin.aclose()
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_livekit_raises_api_error_for_unknown_voice(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    plugin = livekit(speaking, session, GONE)
    stream = plugin.stream(conn_options=APIConnectOptions(max_retry=0))
    stream.push_text(ONE)
    stream.end_input()
    with pytest.raises(APIError):  # the plugin takes the error for the end and reports no audio
        await listen(stream)
    await stream.aclose()
    await plugin.aclose()
