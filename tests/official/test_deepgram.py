"""Deepgram's client and the Deepgram services of Pipecat and LiveKit."""

from __future__ import annotations

import io
import wave
from typing import Any

import aiohttp
import pytest
from deepgram import AsyncDeepgramClient, DeepgramClient
from deepgram.errors import BadRequestError
from deepgram.speak.v1.types import SpeakV1Text
from livekit.agents import APIConnectOptions, APIError, APIStatusError
from livekit.plugins import deepgram
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from websockets.exceptions import InvalidStatus

from tests.e2e.live import Service
from tests.official.deepgram_client import environment
from tests.official.ears import Ears
from tests.official.livekit_agent import agent
from tests.official.livekit_speech import listen, say
from tests.official.pipecat_pipeline import conversation
from tests.official.turns import GONE, LONG, ONE, OTHER, TURN, tokens

#: A busy machine may take longer than Pipecat waits.
PATIENCE = {"stop_frame_timeout_s": 60.0}
#: The client opens asynchronous sockets by the legacy API of websockets.
LEGACY = pytest.mark.filterwarnings("ignore::DeprecationWarning")


# -- Deepgram's client


def test_client_speaks_over_socket(speaking: Service, ears: Ears) -> None:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    options: dict[str, Any] = {"encoding": "linear16", "sample_rate": 16_000}
    with client.speak.v1.connect(model="default", **options) as socket:
        messages: list[Any] = []
        for text in (ONE, OTHER):
            pcm = b""
            socket.send_text(SpeakV1Text(text=text))
            socket.send_flush()
            while not (messages and getattr(messages[-1], "type", "") == "Flushed"):
                message = socket.recv()
                if isinstance(message, bytes):
                    pcm += message
                else:
                    messages.append(message)
            messages.append(None)
            assert ears.which(pcm, 16_000) == text
        socket.send_clear()
        messages.append(socket.recv())
        socket.send_close()
        assert list(socket) == []
    told = [message for message in messages if message is not None]
    assert [message.type for message in told] == ["Metadata", "Flushed", "Flushed", "Cleared"]
    assert told[0].model_name == "default"
    assert [message.sequence_id for message in told[1:]] == [0, 1, 2]


@LEGACY
async def test_async_client_clear_stops_audio_and_next_text_speaks(
    speaking: Service, ears: Ears
) -> None:
    client = AsyncDeepgramClient(api_key="any", environment=environment(speaking))
    async with client.speak.v1.connect(model="default", encoding="linear16") as socket:
        for token in tokens(LONG):
            await socket.send_text(SpeakV1Text(text=token))
        while not isinstance(await socket.recv(), bytes):
            pass
        await socket.send_clear()
        while isinstance(message := await socket.recv(), bytes):
            pass
        assert message.type == "Cleared"
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        for token in tokens(ONE):
            await socket.send_text(SpeakV1Text(text=token))
        await socket.send_flush()
        pcm = b""
        while isinstance(message := await socket.recv(), bytes):
            pcm += message
        assert (message.type, message.sequence_id) == ("Flushed", 1)
        assert ears.which(pcm) == ONE
        await socket.send_close()


def test_client_reports_unknown_voice(speaking: Service) -> None:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    with (
        pytest.raises(InvalidStatus) as refused,
        client.speak.v1.connect(model=GONE) as _,
    ):
        pytest.fail("it was accepted")
    assert refused.value.response.status_code == 400
    assert "voice" in refused.value.response.headers["dg-error"]
    with pytest.raises(BadRequestError) as bad:
        b"".join(client.speak.v1.audio.generate(text=ONE, model=GONE))
    assert bad.value.body["err_code"] == "UNKNOWN_VOICE"


def test_client_speaks_over_http(speaking: Service, ears: Ears) -> None:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    generate = client.speak.v1.audio.generate
    mp3 = b"".join(generate(text=ONE))
    assert mp3[0] == 0xFF
    assert mp3[1] & 0xE0 == 0xE0
    wav = b"".join(
        generate(text=ONE, model="default", encoding="linear16", sample_rate=16_000, speed=1.25)
    )
    with wave.open(io.BytesIO(wav)) as file:
        assert file.getframerate() == 16_000
        assert ears.which(file.readframes(1 << 30), 16_000) == ONE


# -- Pipecat


def pipecat(speaking: Service, **more: Any) -> DeepgramTTSService:
    settings = DeepgramTTSService.Settings(voice="default", **more.pop("settings", {}))
    url = f"ws://127.0.0.1:{speaking.port}"
    return DeepgramTTSService(api_key="any", base_url=url, settings=settings, **PATIENCE, **more)


async def test_pipecat_speaks_turn_after_turn(speaking: Service, ears: Ears) -> None:
    async with conversation(pipecat(speaking)) as talk:
        await talk.say(*tokens(TURN))
        await talk.until_stopped(1)
        await talk.say(OTHER)
        await talk.until_stopped(2)
    first, second = talk.contexts()
    assert ears.which(talk.pcm(first)) == TURN
    assert ears.which(talk.pcm(second)) == OTHER
    assert talk.errors() == []
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_pipecat_interruption_stops_audio_and_next_turn_speaks(
    speaking: Service, ears: Ears
) -> None:
    async with conversation(pipecat(speaking)) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(LONG))
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
        await talk.say(LONG)
        await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks")
        await talk.queue(InterruptionFrame())
        await talk.until(lambda: bool(talk.of(InterruptionFrame)), "it was interrupted")
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        await talk.say(OTHER)
        await talk.until_stopped(1)
    assert ears.which(talk.pcm_after(InterruptionFrame)) == OTHER


async def test_pipecat_changes_speed_at_16_khz(speaking: Service, ears: Ears) -> None:
    slower = TTSUpdateSettingsFrame(delta=DeepgramTTSService.Settings(speed=0.75))
    async with conversation(pipecat(speaking), rate=16_000) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        await talk.queue(slower)
        await talk.say(ONE)
        await talk.until_stopped(2)
    first, second = (talk.pcm(context) for context in talk.contexts())
    assert ears.which(first, 16_000) == ONE
    assert len(second) > 1.2 * len(first)


async def test_pipecat_reports_unknown_voice(speaking: Service) -> None:
    async with conversation(pipecat(speaking)) as talk:
        nobody = DeepgramTTSService.Settings(voice=GONE)
        await talk.queue(TTSUpdateSettingsFrame(delta=nobody))
        await talk.until(
            lambda: any("400" in error and "voice" in error for error in talk.errors()),
            "it is told",
        )
    assert talk.pcm() == b""


async def test_pipecat_speaks_over_http(speaking: Service, ears: Ears) -> None:
    async with aiohttp.ClientSession() as session:
        tts = DeepgramHttpTTSService(
            api_key="any",
            aiohttp_session=session,
            base_url=f"http://127.0.0.1:{speaking.port}",
            settings=DeepgramHttpTTSService.Settings(voice="default"),
            **PATIENCE,
        )
        async with conversation(tts) as talk:
            await talk.say(TURN)
    assert ears.which(talk.pcm()) == TURN
    assert talk.errors() == []


# -- LiveKit


def livekit(
    speaking: Service, session: aiohttp.ClientSession, model: str = "default", **more: Any
) -> deepgram.TTS:
    url = f"http://127.0.0.1:{speaking.port}/v1/speak"
    return deepgram.TTS(model=model, api_key="any", base_url=url, http_session=session, **more)


async def test_livekit_speaks_turns_on_one_socket(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session)
    opened = speaking.metric("tts_connections_total ")
    speech = await say(plugin, *tokens(TURN))
    assert ears.which(speech.pcm, speech.rate) == TURN
    again = await say(plugin, OTHER)
    assert ears.which(again.pcm, again.rate) == OTHER
    assert speaking.metric("tts_connections_total ") == opened + 1
    await plugin.aclose()
    speaking.until("nothing is left", "tts_contexts_active ", 0)


async def test_livekit_synthesizes_whole_text(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session, sample_rate=16_000, speed=1.25)
    async with plugin.synthesize(ONE) as stream:
        speech = await listen(stream)
    assert speech.rate == 16_000
    assert ears.which(speech.pcm, 16_000) == ONE
    await plugin.aclose()


async def test_livekit_interruption_stops_generation(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    async with agent(livekit(speaking, session), endless=True) as (talk, loudspeaker):
        speech = talk.say(LONG)
        await loudspeaker.plays.wait()
        await talk.interrupt()
        await speech
        assert speech.interrupted
        assert loudspeaker.cleared_at == len(loudspeaker.frames)
        speaking.until("the server works no more", "tts_contexts_active ", 0)


async def test_livekit_raises_api_error_for_unknown_voice(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    plugin = livekit(speaking, session, GONE)
    once = APIConnectOptions(max_retry=0, timeout=60)
    with pytest.raises(APIStatusError) as refused:
        async with plugin.synthesize(ONE, conn_options=once) as stream:
            await listen(stream)
    assert refused.value.status_code == 400
    async with plugin.stream(conn_options=once) as stream:
        stream.push_text(ONE)
        stream.end_input()
        with pytest.raises(APIError):
            await listen(stream)
    await plugin.aclose()
