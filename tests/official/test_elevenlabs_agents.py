"""The ElevenLabs services of Pipecat and LiveKit, against the real service."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from livekit.agents import APIConnectOptions, APIStatusError
from livekit.plugins import elevenlabs
from loguru import logger
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.tts_service import TextAggregationMode

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears
from tests.official.livekit_speech import listen, say
from tests.official.pipecat_checks import assert_a_turn_with_its_words, assert_turn_after_turn
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import GONE, LONG, ONE, OTHER, TURN, tokens

#: A busy machine may take longer than Pipecat waits.
PATIENCE = {"stop_frame_timeout_s": 60.0}


def pipecat(speaking: Service, **more: Any) -> ElevenLabsTTSService:
    settings = ElevenLabsTTSService.Settings(voice="default", **more.pop("settings", {}))
    url = f"ws://127.0.0.1:{speaking.port}"
    return ElevenLabsTTSService(api_key="any", url=url, settings=settings, **PATIENCE, **more)


# -- Pipecat


async def test_pipecat_speaks_turn_with_word_timestamps(speaking: Service, ears: Ears) -> None:
    async with conversation(pipecat(speaking)) as talk:
        await talk.say(*tokens(TURN))
    assert_a_turn_with_its_words(talk, ears)


async def test_pipecat_keeps_words_after_emoji(speaking: Service) -> None:
    """It drops words that it does not find in its text, with a warning."""
    warnings: list[str] = []
    sink = logger.add(warnings.append, level="WARNING")
    async with conversation(pipecat(speaking)) as talk:
        await talk.say("Sure! \N{PARTY POPPER} \N{PARTY POPPER}. Let me see.")
        await talk.until_stopped(1)
    logger.remove(sink)
    assert talk.text() == "Sure! Let me see."
    assert [warning for warning in warnings if "not recognised" in warning] == []
    assert talk.errors() == []


async def test_pipecat_speaks_turn_after_turn(speaking: Service, ears: Ears) -> None:
    await assert_turn_after_turn(pipecat(speaking), ears)
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_pipecat_interruption_stops_audio_and_next_turn_speaks(
    speaking: Service, ears: Ears
) -> None:
    async with conversation(pipecat(speaking)) as talk:
        text = " ".join(sentence.capitalize() for sentence in SENTENCES)
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(text))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks")
        assert speaking.metric("tts_contexts_active ") == 1
        await talk.queue(InterruptionFrame())
        await talk.until(lambda: bool(talk.of(InterruptionFrame)), "it was interrupted")
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        assert talk.pcm_after(InterruptionFrame) == b""
        await talk.say(OTHER)
        await talk.until_stopped(1)
    assert ears.which(talk.pcm_after(InterruptionFrame)) == OTHER
    assert talk.errors() == []


async def test_pipecat_interruption_after_end_of_text_stops_audio(
    speaking: Service, ears: Ears
) -> None:
    async with conversation(pipecat(speaking)) as talk:
        await talk.say(" ".join(sentence.capitalize() for sentence in SENTENCES))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks")
        await talk.queue(InterruptionFrame())
        await talk.until(lambda: bool(talk.of(InterruptionFrame)), "it was interrupted")
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        await talk.say(OTHER)
        await talk.until_stopped(1)
    assert ears.which(talk.pcm_after(InterruptionFrame)) == OTHER


async def test_pipecat_interruptions_leave_nothing_speaking(speaking: Service, ears: Ears) -> None:
    async with conversation(pipecat(speaking)) as talk:
        for turn in range(1, 13):
            heard = len(talk.of(TTSAudioRawFrame))
            await talk.say(LONG)
            await talk.until(lambda: len(talk.of(TTSAudioRawFrame)) > heard, "it speaks")  # noqa: B023
            await talk.queue(InterruptionFrame())
            await talk.until(lambda: len(talk.of(InterruptionFrame)) == turn, "it stops")  # noqa: B023
            speaking.until("the server works no more", "tts_contexts_active ", 0)
        await talk.say(OTHER)
    assert ears.which(talk.pcm(talk.contexts()[-1])) == OTHER
    assert talk.errors() == []


async def test_pipecat_speeches_said_at_once_are_spoken_one_after_the_other(
    speaking: Service, ears: Ears
) -> None:
    """Their contexts are open at the same time, and no later one interrupts an earlier one."""
    async with conversation(pipecat(speaking)) as talk:
        await talk.say(ONE)
        await talk.say(OTHER)
        await talk.until_stopped(2)
    spoken = [ears.which(talk.pcm(frame.context_id)) for frame in talk.of(TTSStartedFrame)]
    assert spoken == [ONE, OTHER]
    assert talk.errors() == []


async def test_pipecat_token_mode_speaks_before_end_of_text(speaking: Service, ears: Ears) -> None:
    tts = pipecat(speaking, text_aggregation_mode=TextAggregationMode.TOKEN)
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame())
        await talk.queue(*(LLMTextFrame(token) for token in tokens(f"{ONE} {OTHER[:5]}")))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks before the end")
        await talk.queue(LLMTextFrame(OTHER[5:]), LLMFullResponseEndFrame())
    pcm = talk.pcm()
    assert ears.which(pcm) == TURN
    assert talk.text() == f"{ONE} {OTHER}"
    assert talk.errors() == []


async def test_pipecat_changes_speed_during_conversation(speaking: Service, ears: Ears) -> None:
    faster = TTSUpdateSettingsFrame(delta=ElevenLabsTTSService.Settings(speed=2.0))
    async with conversation(pipecat(speaking, settings={"speed": 1.0})) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        await talk.queue(faster)
        await talk.say(ONE)
        await talk.until_stopped(2)
    first, second = [talk.pcm(frame.context_id) for frame in talk.of(TTSStartedFrame)]
    assert ears.which(first) == ONE
    assert len(second) < 0.75 * len(first)


async def test_pipecat_speaks_at_8_khz(speaking: Service, ears: Ears) -> None:
    async with conversation(pipecat(speaking), rate=8_000) as talk:
        await talk.say(ONE)
    assert {frame.sample_rate for frame in talk.of(TTSAudioRawFrame)} == {8_000}
    assert ears.which(talk.pcm(), 8_000) == ONE


async def test_pipecat_reports_unknown_voice(speaking: Service) -> None:
    async with conversation(pipecat(speaking)) as talk:
        unknown = ElevenLabsTTSService.Settings(voice=GONE)
        await talk.queue(TTSUpdateSettingsFrame(delta=unknown))
        await talk.say(ONE)
        await talk.until(lambda: any("404" in error for error in talk.errors()), "it is told")
    assert talk.pcm() == b""


async def test_pipecat_speaks_over_http(speaking: Service, ears: Ears) -> None:
    async with aiohttp.ClientSession() as session:
        tts = ElevenLabsHttpTTSService(
            api_key="any",
            aiohttp_session=session,
            base_url=f"http://127.0.0.1:{speaking.port}",
            settings=ElevenLabsHttpTTSService.Settings(voice="default"),
            **PATIENCE,
        )
        async with conversation(tts) as talk:
            await talk.say(TURN)
    assert ears.which(talk.pcm()) == TURN
    assert talk.text() == TURN
    assert talk.errors() == []


# -- LiveKit


def livekit(
    speaking: Service, session: aiohttp.ClientSession, voice: str = "default", **more: Any
) -> elevenlabs.TTS:
    url = f"http://127.0.0.1:{speaking.port}/v1"
    return elevenlabs.TTS(voice_id=voice, api_key="any", base_url=url, http_session=session, **more)


@pytest.mark.parametrize("encoding", ["mp3_22050_32", "pcm_24000", "opus_48000_64"])
async def test_livekit_speaks_turn_with_word_timestamps(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears, encoding: str
) -> None:
    plugin = livekit(speaking, session, encoding=encoding)
    speech = await say(plugin, *tokens(TURN))
    assert ears.which(speech.pcm, speech.rate) == TURN
    assert speech.text == TURN
    starts = [word.start_time for word in speech.words]
    assert starts == sorted(starts)
    assert 0.5 < (starts[-1] - starts[0]) / (len(speech.pcm) / 2 / speech.rate) < 1
    again = await say(plugin, OTHER)  # on the same socket
    assert ears.which(again.pcm, again.rate) == OTHER
    await plugin.aclose()
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_livekit_without_auto_mode_speaks_turn(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session, auto_mode=False)
    speech = await say(plugin, *tokens(TURN))
    assert ears.which(speech.pcm, speech.rate) == TURN
    await plugin.aclose()


async def test_livekit_synthesizes_whole_text(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session)
    speech = await listen(plugin.synthesize(ONE))
    assert ears.which(speech.pcm, speech.rate) == ONE
    await plugin.aclose()


async def test_livekit_closed_stream_is_cancelled_and_next_turn_speaks(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session)
    stream = plugin.stream()
    stream.push_text(" ".join(sentence.capitalize() for sentence in SENTENCES))
    await listen(stream, enough=lambda speech: len(speech.pcm) > 1000)
    await stream.aclose()
    speech = await say(plugin, OTHER)
    assert ears.which(speech.pcm, speech.rate) == OTHER
    await plugin.aclose()
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_livekit_interruptions_lock_no_turn_out(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    """The text of each turn is complete, so the plugin does not tell that it was interrupted. The
    turns speak on beside the next ones until these need their slots.
    """
    plugin = livekit(speaking, session, encoding="pcm_24000")
    for _ in range(12):  # more than one socket may have contexts
        async with plugin.stream() as stream:
            stream.push_text(LONG)
            stream.end_input()
            await listen(stream, enough=lambda speech: len(speech.pcm) > 1000)
    speech = await say(plugin, OTHER)
    assert ears.which(speech.pcm, speech.rate) == OTHER
    speaking.until("nothing is left", "tts_contexts_active ", 0)
    await plugin.aclose()


async def test_livekit_lists_voices_and_reports_unknown_voice(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    voices = await livekit(speaking, session).list_voices()
    assert "default" in [voice.id for voice in voices]
    plugin = livekit(speaking, session, GONE)
    once = APIConnectOptions(max_retry=0)
    stream = plugin.stream(conn_options=once)
    stream.push_text(ONE)
    stream.end_input()
    with pytest.raises(APIStatusError) as refused:
        await listen(stream)
    assert refused.value.status_code == 404
    await stream.aclose()
