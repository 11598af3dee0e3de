"""LiveKit Inference's client with another ``base_url``, alone and in a real agent session."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from livekit.agents import APIConnectOptions, APIError, inference

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.livekit_agent import agent, written
from tests.official.livekit_speech import listen, say
from tests.official.turns import GONE, LONG, ONE, OTHER, TURN, tokens


def voice(
    speaking: Service,
    session: aiohttp.ClientSession,
    model: str = "cartesia/sonic-3",
    **options: Any,
) -> inference.TTS:
    return inference.TTS(
        model,
        base_url=f"http://127.0.0.1:{speaking.port}",
        api_key="any",
        api_secret="any-text-of-32-characters-or-more",
        http_session=session,
        **options,
    )


async def test_client_speaks_turns_on_one_socket(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    before = speaking.metric("tts_connections_total ")
    client = voice(speaking, session)
    for text in (ONE, OTHER):
        speech = await say(client, *tokens(text))
        assert (ears.which(speech.pcm, speech.rate), speech.rate) == (text, 24_000)
    await client.aclose()
    assert speaking.metric("tts_connections_total ") == before + 1
    speaking.until("nothing is left", "tts_contexts_active ", 0)


@pytest.mark.parametrize(
    ("model", "extra"),
    [
        ("cartesia/sonic-3", {"add_timestamps": True}),
        ("inworld/inworld-tts-1.5", {"timestamp_type": "WORD"}),
    ],
)
async def test_client_gets_words_with_times(
    speaking: Service, session: aiohttp.ClientSession, model: str, extra: dict[str, Any]
) -> None:
    client = voice(speaking, session, model, extra_kwargs=extra)
    assert client.capabilities.aligned_transcript
    speech = await say(client, *tokens(TURN))
    await client.aclose()
    assert speech.text == TURN
    starts = [word.start_time for word in speech.words]
    assert starts == sorted(starts)


async def test_client_takes_voice_rate_and_speed(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    client = voice(speaking, session, "cartesia/sonic-3:default", sample_rate=16_000, language="en")
    plain = await say(client, ONE)
    client.update_options(extra_kwargs={"speed": 1.5})
    fast = await say(client, ONE)
    await client.aclose()
    assert ears.which(plain.pcm, plain.rate) == ONE
    assert plain.rate == 16_000
    assert len(fast.pcm) < 0.8 * len(plain.pcm)


async def test_client_ends_turn_without_text(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    client = voice(speaking, session)
    assert (await say(client)).pcm == b""
    await client.aclose()


async def test_client_raises_error_of_server(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    client = voice(speaking, session, voice=GONE)
    with pytest.raises(APIError, match="unknown_voice"):
        async with client.synthesize(ONE, conn_options=APIConnectOptions(max_retry=0)) as stream:
            await listen(stream)
    await client.aclose()


async def test_interruption_frees_the_slot_and_next_turn_is_spoken(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    cancelled = 'tts_contexts_total{outcome="cancelled",protocol="livekit"}'
    before = speaking.metric(cancelled)
    async with agent(voice(speaking, session), endless=True) as (conversation, loudspeaker):
        speech = conversation.say(written(LONG))
        await loudspeaker.plays.wait()
        await conversation.interrupt()
        await speech
        assert speech.interrupted
        speaking.until("the server works no more", "tts_contexts_active ", 0)
    assert speaking.metric(cancelled) > before
    client = voice(speaking, session)
    async with client.stream() as stream:  # closed while text still comes
        for piece in tokens(LONG):
            stream.push_text(piece)
        await listen(stream, enough=lambda heard: len(heard.pcm) > 0)
    speaking.until("the server works no more", "tts_contexts_active ", 0)
    heard = await say(client, *tokens(OTHER))
    await client.aclose()
    assert ears.which(heard.pcm, heard.rate) == OTHER
