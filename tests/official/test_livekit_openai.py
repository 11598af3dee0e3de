"""LiveKit's OpenAI plugin with another ``base_url``, in a real agent session."""

from __future__ import annotations

from livekit.plugins import openai

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears
from tests.official.livekit_agent import agent, written
from tests.official.turns import ONE, OTHER


def voice(speaking: Service) -> openai.TTS:
    return openai.TTS(base_url=f"http://127.0.0.1:{speaking.port}/v1", api_key="any")


async def test_agent_speaks_text(speaking: Service, ears: Ears) -> None:
    async with agent(voice(speaking)) as (session, loudspeaker):
        await session.say(ONE)
        assert ears.which(loudspeaker.pcm()) == ONE


async def test_agent_speaks_streamed_text(speaking: Service, ears: Ears) -> None:
    text = f"{ONE} {OTHER}"
    async with agent(voice(speaking)) as (session, loudspeaker):
        await session.say(written(text))
        assert ears.which(loudspeaker.pcm(), among=[text]) == text


async def test_interruption_cancels_request_on_server(speaking: Service, ears: Ears) -> None:
    cancelled = 'tts_contexts_total{outcome="cancelled",protocol="openai"}'
    before = speaking.metric(cancelled)
    async with agent(voice(speaking), endless=True) as (session, loudspeaker):
        speech = session.say(written(" ".join(SENTENCES)))
        await loudspeaker.plays.wait()
        await session.interrupt()
        await speech
        assert speech.interrupted
        assert loudspeaker.cleared_at == len(loudspeaker.frames)
        speaking.until("the server works no more", "tts_contexts_active ", 0)
    assert speaking.metric(cancelled) > before
