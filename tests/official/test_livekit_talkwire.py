"""``livekit-plugins-talkwire`` with the real service, alone and in an agent's session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from livekit.agents import APIConnectionError, APIConnectOptions, APIError, APIStatusError
from livekit.agents import tts as livekit_tts
from livekit.plugins import talkwire

from talkwire_client import ContextCancelled
from tests.e2e.live import Service
from tests.official.cable import cable
from tests.official.ears import Ears
from tests.official.livekit_agent import agent, written
from tests.official.livekit_speech import Speech, listen, say
from tests.official.turns import GONE, LONG, ONE, OTHER, TURN, tokens

ONCE = APIConnectOptions(max_retry=0)
CANCELLED = 'tts_contexts_total{outcome="cancelled",protocol="native"}'
CONNECTIONS = "tts_connections_active "


@pytest.fixture
async def voice(speaking: Service) -> AsyncIterator[talkwire.TTS]:
    plugin = talkwire.TTS(url=f"http://127.0.0.1:{speaking.port}")
    yield plugin
    await plugin.aclose()
    speaking.until("nothing is left", "tts_contexts_active ", 0)


def events(plugin: talkwire.TTS, name: Any) -> list[Any]:
    """Return a list that receives the plugin's events of a name."""
    received: list[Any] = []
    plugin.on(name, received.append)
    return received


def some(speech: Speech) -> bool:
    return len(speech.pcm) > 1000


# -- a turn


async def test_streamed_turn_is_spoken_with_its_words(voice: talkwire.TTS, ears: Ears) -> None:
    speech = await say(voice, *tokens(TURN))
    assert ears.which(speech.pcm, speech.rate) == TURN
    assert "".join(speech.words) == TURN
    assert len(speech.words) == len(TURN.split())
    assert all(a.end_time <= b.end_time for a, b in pairwise(speech.words))
    assert speech.words[0].start_time >= 0
    assert speech.words[-1].end_time <= len(speech.pcm) / 2 / speech.rate


async def test_text_after_last_word_belongs_to_transcript(voice: talkwire.TTS) -> None:
    text = "Good morning! \N{PARTY POPPER} \N{PARTY POPPER}"
    speech = await say(voice, *text)
    assert "".join(speech.words) == text


async def test_whole_text_is_spoken_at_another_rate(speaking: Service, ears: Ears) -> None:
    async with talkwire.TTS(url=speaking.url, sample_rate=16_000) as plugin:
        assert isinstance(plugin, talkwire.TTS)
        speech = await listen(plugin.synthesize(ONE))
    assert speech.rate == 16_000
    assert ears.which(speech.pcm, speech.rate) == ONE
    assert "".join(speech.words) == ONE


async def test_words_are_left_out_if_not_wanted(speaking: Service) -> None:
    async with talkwire.TTS(url=speaking.url, word_timestamps=False) as plugin:
        speech = await say(plugin, ONE)
        assert not plugin.capabilities.aligned_transcript
    assert speech.words == []
    assert speech.pcm


async def test_turns_and_streams_side_by_side_share_a_connection(
    voice: talkwire.TTS, speaking: Service, ears: Ears
) -> None:
    voice.prewarm()
    await say(voice, ONE)
    one, other = await asyncio.gather(say(voice, *tokens(ONE)), say(voice, *tokens(OTHER)))
    assert [ears.which(one.pcm), ears.which(other.pcm)] == [ONE, OTHER]
    assert speaking.metric(CONNECTIONS) == 1
    assert voice.model == "embedded"
    assert voice.provider == "Talkwire"


async def test_options_change_with_next_stream(voice: talkwire.TTS, ears: Ears) -> None:
    first = await say(voice, ONE)
    voice.update_options(speed=2.0, voice="george")
    second = await say(voice, ONE)
    assert len(second.pcm) < 0.75 * len(first.pcm)
    voice.update_options(speed=None)
    third = await say(voice, ONE)
    assert len(third.pcm) > 1.3 * len(second.pcm)
    assert ears.which(third.pcm) == ONE


@pytest.mark.parametrize(
    ("options", "message"),
    [({"sped": 2}, "sped"), ({"encoding": "opus"}, "decides encoding"), ({"speed": 1j}, "complex")],
)
def test_unknown_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        talkwire.TTS(**options)
    plugin = talkwire.TTS(speed=1.5)
    with pytest.raises(TypeError, match=message):
        plugin.update_options(**options)
    assert plugin.options["speed"] == 1.5


# -- interruptions


async def test_closed_stream_is_cancelled_at_once_and_reported(
    voice: talkwire.TTS, speaking: Service, ears: Ears
) -> None:
    reports = events(voice, "speech_cancelled")
    for turn in range(1, 13):  # more than the socket may have contexts
        async with voice.stream() as stream:
            stream.push_text(LONG)
            stream.end_input()
            await listen(stream, enough=some)
        speaking.until("the slot is free", "tts_contexts_active ", 0)
        speech = await say(voice, "Yes.")  # its answer comes after the cancel's
        assert speech.pcm
        assert len(reports) == turn
    report: ContextCancelled = reports[-1]
    assert report.text_spoken + report.text_remaining == LONG
    assert report.text_remaining
    assert report.sent_ms <= report.generated_ms
    assert speaking.metric(CONNECTIONS) == 1


async def test_stream_closed_while_text_arrives_is_cancelled(
    voice: talkwire.TTS, speaking: Service, ears: Ears
) -> None:
    before = speaking.metric(CANCELLED)
    async with voice.stream() as stream:
        stream.push_text(LONG)
        await listen(stream, enough=some)
    speech = await say(voice, OTHER)
    assert ears.which(speech.pcm) == OTHER
    assert speaking.metric(CANCELLED) == before + 1


async def test_interrupted_agent_stops_and_speaks_next_turn(
    voice: talkwire.TTS, speaking: Service, ears: Ears
) -> None:
    reports = events(voice, "speech_cancelled")
    async with agent(voice, endless=True) as (session, loudspeaker):
        speech = session.say(written(LONG))
        await loudspeaker.plays.wait()
        await session.interrupt()
        await speech
        assert loudspeaker.cleared_at == len(loudspeaker.frames)
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        loudspeaker.plays.clear()
        answer = session.say(written(OTHER))
        await loudspeaker.plays.wait()
        await session.interrupt()  # an endless playback ends only when it is cleared
        await answer
    assert reports[0].text_remaining


async def test_agent_keeps_words_as_its_transcript(voice: talkwire.TTS, ears: Ears) -> None:
    async with agent(voice, aligned=True) as (session, loudspeaker):
        await session.say(written(TURN))
        said = session.history.items[-1]
        assert said.type == "message"
        assert said.text_content == TURN
        assert ears.which(loudspeaker.pcm()) == TURN


# -- failures


async def test_unknown_voice_is_status_error_without_retry(voice: talkwire.TTS) -> None:
    errors = events(voice, "error")
    voice.update_options(voice=GONE)
    with pytest.raises(APIStatusError) as refused:
        await say(voice, ONE)
    error = refused.value
    assert (error.status_code, error.retryable) == (400, False)
    assert error.request_id
    assert error.body == {"code": "unknown_voice", "param": "voice", "retry_after_ms": None}
    assert len(errors) == 1
    voice.update_options(voice=None)
    assert (await say(voice, ONE)).pcm


async def test_missing_server_is_connection_error_that_is_tried_again() -> None:
    async with talkwire.TTS(url="ws://127.0.0.1:9") as plugin:
        assert isinstance(plugin, talkwire.TTS)
        errors = events(plugin, "error")
        options = APIConnectOptions(max_retry=2, retry_interval=0.0)
        with pytest.raises(APIConnectionError, match="no server answers"):
            await listen(plugin.synthesize(ONE, conn_options=options))
        assert [error.recoverable for error in errors] == [True, True, False]


async def test_turn_of_lost_connection_fails_and_next_one_reconnects(
    speaking: Service, ears: Ears
) -> None:
    async with (
        cable(speaking.port) as (line, url),
        talkwire.TTS(url=url) as plugin,
        plugin.stream() as stream,
    ):
        stream.push_text(LONG)
        stream.end_input()
        await listen(stream, enough=some)
        await line.cut()
        with pytest.raises(APIConnectionError, match="the connection was lost"):
            await listen(stream)
        speech = await say(plugin, OTHER)
        assert ears.which(speech.pcm) == OTHER
        assert line.connections == 2


async def test_connection_lost_between_turns_is_replaced(speaking: Service, ears: Ears) -> None:
    async with cable(speaking.port) as (line, url), talkwire.TTS(url=url) as plugin:
        assert isinstance(plugin, talkwire.TTS)
        errors = events(plugin, "error")
        assert (await say(plugin, ONE)).pcm
        await line.cut()
        speech = await say(plugin, OTHER)
        assert ears.which(speech.pcm) == OTHER
        assert line.connections == 2
        assert [error for error in errors if not error.recoverable] == []


# -- the cases of LiveKit's own tests of plugins (tests/test_tts.py of its repository)


async def collect(stream: Any) -> list[livekit_tts.SynthesizedAudio]:
    return [event async for event in stream]


async def test_synthesized_events_have_one_request_and_one_final(voice: talkwire.TTS) -> None:
    metrics = events(voice, "metrics_collected")
    async with voice.synthesize(TURN) as stream:
        heard = await collect(stream)
    assert [event.is_final for event in heard] == [False] * (len(heard) - 1) + [True]
    assert all(0 < event.frame.duration < 0.25 for event in heard)
    assert len({event.request_id for event in heard}) == 1
    assert heard[0].request_id
    assert {event.frame.sample_rate for event in heard} == {voice.sample_rate}
    assert {event.frame.num_channels for event in heard} == {1}
    (figures,) = metrics
    assert figures.characters_count == len(TURN)
    assert figures.audio_duration == pytest.approx(sum(e.frame.duration for e in heard))


async def test_streamed_events_have_one_segment_and_one_final(voice: talkwire.TTS) -> None:
    metrics = events(voice, "metrics_collected")
    async with voice.stream() as stream:
        for token in tokens(TURN):
            stream.push_text(token)
        stream.flush()
        stream.end_input()
        heard = await collect(stream)
    assert [event.is_final for event in heard] == [False] * (len(heard) - 1) + [True]
    assert all(0 < event.frame.duration < 0.25 for event in heard)
    assert len({event.request_id for event in heard}) == 1
    assert len({event.segment_id for event in heard}) == 1
    assert heard[0].segment_id
    (figures,) = metrics
    assert figures.ttfb > 0


@pytest.mark.parametrize("pieces", [(), (" ", "\n")])
async def test_stream_without_text_ends_without_audio(
    voice: talkwire.TTS, pieces: tuple[str, ...]
) -> None:
    async with voice.stream() as stream:
        for piece in pieces:
            stream.push_text(piece)
        stream.end_input()
        assert await collect(stream) == []


async def test_whole_text_that_is_blank_ends_without_audio(voice: talkwire.TTS) -> None:
    assert await collect(voice.synthesize(" ")) == []


async def test_text_that_is_not_unicode_is_refused_without_retry(voice: talkwire.TTS) -> None:
    errors = events(voice, "error")
    with pytest.raises(APIError, match="surrogate"):
        await listen(voice.synthesize("Hello \udcff."))
    assert [error.recoverable for error in errors] == [False]
