"""``pipecat-talkwire`` in a real pipeline with the real service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFAMetricsData, TTFBMetricsData, TTSUsageMetricsData
from pipecat.services.tts_service import TextAggregationMode
from pipecat.utils.errors import ErrorCategory
from pipecat_talkwire import TalkwireTTSService

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import GONE, ONE, OTHER, TURN, tokens


@pytest.fixture
def tts(speaking: Service) -> TalkwireTTSService:
    return TalkwireTTSService(url=speaking.url)


async def test_turn_is_spoken_with_word_timestamps(tts: TalkwireTTSService, ears: Ears) -> None:
    async with conversation(tts) as talk:
        await talk.say(*tokens(ONE))
    assert talk.errors() == []
    assert talk.kinds()[:2] == ["TTSStartedFrame", "TTSAudioRawFrame"]
    assert talk.kinds()[-1] == "TTSStoppedFrame"
    assert talk.kinds().count("TTSStartedFrame") == talk.kinds().count("TTSStoppedFrame") == 1
    assert ears.which(talk.pcm()) == ONE
    words: list[TTSTextFrame] = talk.of(TTSTextFrame)
    assert [word.text for word in words] == ONE.split()
    times = [word.pts for word in words]
    assert times == sorted(times)
    assert times[-1] - times[0] < len(talk.pcm()) / 48_000 * 1e9  # within the audio
    assert len({f.context_id for f in talk.of(TTSAudioRawFrame) + words}) == 1


async def test_metrics_have_one_ttfa_per_turn(tts: TalkwireTTSService) -> None:
    async with conversation(tts) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        await talk.say(OTHER)
    assert len(talk.metrics(TTFAMetricsData)) == 2
    assert all(m.ttfa >= m.ttfb > 0 for m in talk.metrics(TTFAMetricsData))
    assert len([m for m in talk.metrics(TTFBMetricsData) if m.value]) == 2
    assert [m.value for m in talk.metrics(TTSUsageMetricsData)] == [len(ONE) + 1, len(OTHER) + 1]


async def test_sentences_of_turn_share_one_context(tts: TalkwireTTSService, ears: Ears) -> None:
    text = " ".join(SENTENCES[:5])
    async with conversation(tts) as talk:
        await talk.say(*tokens(text))
    assert talk.text() == text
    assert len(talk.of(TTSStartedFrame)) == 1
    assert ears.which(talk.pcm(), among=[text]) == text


async def test_turns_queued_at_once_are_spoken_in_order(
    tts: TalkwireTTSService, ears: Ears
) -> None:
    async with conversation(tts) as talk:
        for sentence in SENTENCES[:3]:
            await talk.say(sentence)
        await talk.queue(TTSSpeakFrame(SENTENCES[3]))
    contexts = talk.contexts()
    assert [ears.which(talk.pcm(context)) for context in contexts] == list(SENTENCES[:4])
    order = [frame.context_id for frame in talk.of(TTSAudioRawFrame)]
    assert list(dict.fromkeys(order)) == contexts
    assert order == sorted(order, key=contexts.index)


async def test_interruption_stops_audio_and_generation(
    tts: TalkwireTTSService, speaking: Service, ears: Ears
) -> None:
    told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    @tts.event_handler("on_speech_cancelled")
    async def cancelled(_: object, context_id: str, what: dict[str, Any]) -> None:
        told.set_result(what)

    text = " ".join(SENTENCES)
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(text))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks")
        assert speaking.metric("tts_contexts_active ") == 1
        await talk.queue(InterruptionFrame())
        await talk.until(lambda: bool(talk.of(InterruptionFrame)), "it was interrupted")
        what = await told  # audio that was in transit has arrived by now
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        assert talk.pcm_after(InterruptionFrame) == b""
        # Pipecat holds the last sentence until it is known to be complete.
        assert what["text_spoken"] + what["text_remaining"] == " ".join(SENTENCES[:-1]) + " "
        assert what["sent_ms"] >= what["played_ms"] >= 0

        await talk.say(OTHER)
        await talk.until_stopped(1)
    assert talk.pcm_after(InterruptionFrame) == talk.pcm(talk.contexts()[1])
    assert ears.which(talk.pcm_after(InterruptionFrame)) == OTHER
    assert talk.errors() == []


async def test_interruption_before_first_audio_drops_turn(
    tts: TalkwireTTSService, speaking: Service, ears: Ears
) -> None:
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(ONE + " " + ONE))
        await talk.until(lambda: "TTSStartedFrame" in talk.kinds(), "it is about to speak")
        await talk.queue(InterruptionFrame())
        await talk.say(OTHER)
    assert ears.which(talk.pcm_after(InterruptionFrame)) == OTHER
    assert talk.errors() == []
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_token_mode_speaks_before_end_of_text(speaking: Service, ears: Ears) -> None:
    tts = TalkwireTTSService(url=speaking.url, text_aggregation_mode=TextAggregationMode.TOKEN)
    text = f"{ONE} {OTHER}"
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame())
        # The first sentence can be spoken once its end is known; the rest follows later.
        await talk.queue(*(LLMTextFrame(token) for token in tokens(ONE + " " + OTHER[:5])))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks before the end")
        await talk.queue(LLMTextFrame(OTHER[5:]), LLMFullResponseEndFrame())
    assert ears.which(talk.pcm(), among=[text]) == text
    assert talk.text() == text
    assert talk.errors() == []


async def test_text_frames_are_whole_texts_without_word_timestamps(
    speaking: Service, ears: Ears
) -> None:
    tts = TalkwireTTSService(url=speaking.url, word_timestamps=False)
    async with conversation(tts) as talk:
        await talk.say(ONE, " ", OTHER)
    assert [frame.text for frame in talk.of(TTSTextFrame)] == [ONE, OTHER]
    assert ears.which(talk.pcm()) == TURN


async def test_pipeline_rate_of_8_khz_is_used(tts: TalkwireTTSService, ears: Ears) -> None:
    async with conversation(tts, rate=8_000) as talk:
        await talk.say(ONE)
    assert {frame.sample_rate for frame in talk.of(TTSAudioRawFrame)} == {8_000}
    assert ears.which(talk.pcm(), 8_000) == ONE


async def test_settings_can_change_within_turn(speaking: Service, ears: Ears) -> None:
    exactly = TalkwireTTSService.Settings(temperature=0.0, speed=1.0)
    tts = TalkwireTTSService(url=speaking.url, settings=exactly)
    faster = TTSUpdateSettingsFrame(delta=TalkwireTTSService.Settings(speed=2.0))
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(ONE + " "), LLMTextFrame("a"))
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "the first sentence is spoken")
        await talk.queue(faster, LLMTextFrame("nd now " + ONE), LLMFullResponseEndFrame())
        await talk.until_stopped(2)
        await talk.say(ONE)
    first, _, last = map(talk.pcm, talk.contexts())
    assert ears.which(first) == ONE
    assert 0.45 < len(last) / len(first) < 0.55


async def test_unknown_voice_ends_turn_until_settings_change(speaking: Service) -> None:
    unknown = TalkwireTTSService.Settings(voice=GONE)
    tts = TalkwireTTSService(url=speaking.url, settings=unknown)
    async with conversation(tts) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        assert any("unknown_voice" in error for error in talk.errors())
        assert talk.up[-1].category is ErrorCategory.INVALID_REQUEST
        assert talk.pcm() == b""
        assert not tts.is_usable
        known = TalkwireTTSService.Settings(voice=None)
        await talk.queue(TTSUpdateSettingsFrame(delta=known))
        await talk.say(ONE)
        await talk.until(lambda: bool(talk.pcm()), "another voice speaks")


async def test_emoji_is_silence(tts: TalkwireTTSService, ears: Ears) -> None:
    async with conversation(tts) as talk:
        await talk.say("🎉🎉")
        await talk.until_stopped(1)
        await talk.say(ONE)
    assert talk.errors() == []


async def test_unspeakable_text_ends_only_its_turn(tts: TalkwireTTSService, ears: Ears) -> None:
    async with conversation(tts) as talk:
        await talk.say("\u0645\u0631\u062d\u0628\u0627")
        await talk.until_stopped(1)
        await talk.say(ONE)
    assert any("invalid_text" in error for error in talk.errors())
    assert tts.is_usable
    assert ears.which(talk.pcm()) == ONE


async def test_missing_server_ends_turn_with_error() -> None:
    tts = TalkwireTTSService(url="ws://127.0.0.1:9/v1/tts/stream")
    async with conversation(tts) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
    assert any("cannot connect" in error for error in talk.errors())
    assert talk.pcm() == b""
