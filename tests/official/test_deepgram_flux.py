"""Version 2 of Deepgram's socket (Flux): its client, and the services of Pipecat and LiveKit."""

from __future__ import annotations

import io
import wave
from typing import Any

import aiohttp
import pytest
from deepgram import AsyncDeepgramClient, DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.speak.v2.types import (
    SpeakV2Configure,
    SpeakV2Interrupt,
    SpeakV2InterruptPlaybackOffset,
    SpeakV2Speak,
)
from livekit.agents import APIConnectOptions, APIError
from livekit.plugins import deepgram
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
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


def test_client_speaks_turns_and_learns_totals(speaking: Service, ears: Ears) -> None:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    with client.speak.v2.connect(model="default", sample_rate="16000") as socket:
        messages: list[Any] = [socket.recv()]
        spoken = b""
        for text in (ONE, OTHER):
            pcm = b""
            for token in tokens(text):
                socket.send_speak(SpeakV2Speak(text=token))
            socket.send_flush()
            while getattr(messages[-1], "type", "") != "SpeechMetadata":
                message = socket.recv()
                if isinstance(message, bytes):
                    pcm += message
                else:
                    messages.append(message)
            metadata = messages[-1]
            assert ears.which(pcm, 16_000) == text
            assert metadata.audio_duration_ms == pytest.approx(len(pcm) / 32, abs=1)
            assert metadata.input_character_count == len(text)
            assert metadata.speech_id == messages[-3].speech_id
            messages.append(None)
            spoken += pcm
        socket.send_close()
        (totals,) = list(socket)
    told = [message.type for message in messages if message is not None]
    assert told == ["Connected", *("SpeechStarted", "Flushed", "SpeechMetadata") * 2]
    assert messages[0].model_name == "default"
    assert totals.type == "SessionMetadata"
    assert totals.total_audio_duration_ms == pytest.approx(len(spoken) / 32, abs=2)
    assert totals.total_input_character_count == len(ONE + OTHER)


@LEGACY
async def test_client_is_told_what_was_heard_in_ten_interrupted_turns(speaking: Service) -> None:
    client = AsyncDeepgramClient(api_key="any", environment=environment(speaking))
    async with client.speak.v2.connect(model="default") as socket:
        assert (await socket.recv()).type == "Connected"
        played_ms = 0
        for _ in range(10):
            await socket.send_speak(SpeakV2Speak(text=LONG))
            await socket.send_flush()
            pcm = b""
            while len(pcm) < 2 * 24_000:
                if isinstance(message := await socket.recv(), bytes):
                    pcm += message
            played_ms += 800
            offset = SpeakV2InterruptPlaybackOffset(type="time_ms", value=played_ms)
            await socket.send_interrupt(SpeakV2Interrupt(playback_offset=offset))
            while isinstance(message := await socket.recv(), bytes):
                pass
            assert message.type == "SpeechInterrupted"
            assert message.audio_played_ms == played_ms
            assert message.text_spoken
            assert message.text_spoken + message.text_remaining == LONG
            assert len(message.text_spoken) < 40
            assert speaking.metric("tts_contexts_active ") == 0
        await socket.send_close()
        assert (await socket.recv()).total_audio_duration_ms == played_ms


def test_client_changes_speed(speaking: Service, ears: Ears) -> None:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    with client.speak.v2.connect(model="default") as socket:
        assert socket.recv().type == "Connected"
        sizes = []
        for speed in (1.0, 0.75):
            socket.send_configure(SpeakV2Configure(speed=speed))
            answer = socket.recv()
            assert (answer.type, answer.applied.speed) == ("ConfigureSuccess", speed)
            socket.send_speak(SpeakV2Speak(text=ONE))
            socket.send_flush()
            pcm = b""
            while getattr(message := socket.recv(), "type", "") != "SpeechMetadata":
                pcm += message if isinstance(message, bytes) else b""
            assert ears.which(pcm) == ONE
            sizes.append(len(pcm))
        assert sizes[1] > 1.2 * sizes[0]
        socket.send_configure(SpeakV2Configure(speed=9.0))
        failure = socket.recv()
        assert (failure.type, failure.code) == ("ConfigureFailure", "SPEED_OUT_OF_RANGE")
        assert (failure.field, failure.value) == ("speed", 9.0)


def test_client_reports_unknown_voice(speaking: Service) -> None:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    with (
        pytest.raises((ApiError, InvalidStatus)) as refused,
        client.speak.v2.connect(model=GONE) as _,
    ):
        pytest.fail("it was accepted")
    assert "400" in str(refused.value)


def test_client_speaks_over_http(speaking: Service, ears: Ears) -> None:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    wav = b"".join(
        client.speak.v2.audio.generate(
            model="flux-alexis-en", text=ONE, encoding="linear16", sample_rate=16_000
        )
    )
    with wave.open(io.BytesIO(wav)) as file:
        assert file.getframerate() == 16_000
        assert ears.which(file.readframes(1 << 30), 16_000) == ONE


# -- Pipecat


def pipecat(speaking: Service) -> DeepgramFluxTTSService:
    settings = DeepgramFluxTTSService.Settings(voice="default")
    url = f"ws://127.0.0.1:{speaking.port}/v2/speak"
    return DeepgramFluxTTSService(api_key="any", url=url, settings=settings, **PATIENCE)


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


async def test_pipecat_ten_interrupted_turns_on_one_socket(speaking: Service, ears: Ears) -> None:
    opened = speaking.metric("tts_connections_total ")
    async with conversation(pipecat(speaking)) as talk:
        for turn in range(1, 11):
            before = len(talk.of(TTSAudioRawFrame))
            # every other one is interrupted after the end of its text
            if turn % 2:
                await talk.say(LONG)
            else:
                await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(LONG))
            await talk.until(lambda: len(talk.of(TTSAudioRawFrame)) > before, "it speaks")  # noqa: B023
            assert speaking.metric("tts_contexts_active ") == 1
            await talk.queue(InterruptionFrame())
            await talk.until(lambda: len(talk.of(InterruptionFrame)) == turn, "it stopped")  # noqa: B023
            speaking.until("the server works no more", "tts_contexts_active ", 0)
        await talk.say(OTHER)
        await talk.until_stopped(1)
    assert ears.which(talk.pcm(talk.contexts()[-1])) == OTHER
    assert talk.errors() == []
    assert speaking.metric("tts_connections_total ") == opened + 1


async def test_pipecat_changes_speed_without_another_socket(speaking: Service, ears: Ears) -> None:
    slower = TTSUpdateSettingsFrame(delta=DeepgramFluxTTSService.Settings(speed=0.75))
    async with conversation(pipecat(speaking), rate=16_000) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        opened = speaking.metric("tts_connections_total ")
        await talk.queue(slower)
        await talk.say(ONE)
        await talk.until_stopped(2)
        assert speaking.metric("tts_connections_total ") == opened
    first, second = (talk.pcm(context) for context in talk.contexts())
    assert ears.which(first, 16_000) == ONE
    assert len(second) > 1.2 * len(first)


# -- LiveKit


def livekit(
    speaking: Service, session: aiohttp.ClientSession, model: str = "default", **more: Any
) -> deepgram.TTSv2:
    url = f"http://127.0.0.1:{speaking.port}/v2/speak"
    return deepgram.TTSv2(model=model, api_key="any", base_url=url, http_session=session, **more)


async def test_livekit_speaks_turns_on_one_socket(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    plugin = livekit(speaking, session)
    opened = speaking.metric("tts_connections_total ")
    for text in (TURN, OTHER, ONE):
        speech = await say(plugin, *tokens(text))
        assert ears.which(speech.pcm, speech.rate) == text
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


async def test_livekit_ten_interrupted_turns_pile_up_nothing(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    """It leaves an interrupted turn's socket, and closes it when the next turn opens another."""
    async with agent(livekit(speaking, session), endless=True) as (talk, loudspeaker):
        for _ in range(10):
            loudspeaker.plays.clear()
            speech = talk.say(LONG)
            await loudspeaker.plays.wait()
            assert speaking.metric("tts_contexts_active ") <= 2
            await talk.interrupt()
            await speech
            assert speech.interrupted
    speaking.until("the server works no more", "tts_contexts_active ", 0)


async def test_livekit_raises_api_error_for_unknown_voice(
    speaking: Service, session: aiohttp.ClientSession
) -> None:
    plugin = livekit(speaking, session, GONE)
    once = APIConnectOptions(max_retry=0, timeout=60)
    async with plugin.stream(conn_options=once) as stream:
        stream.push_text(ONE)
        stream.end_input()
        with pytest.raises(APIError):
            await listen(stream)
    await plugin.aclose()
