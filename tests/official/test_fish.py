"""Fish Audio's client, and LiveKit's plugin for its API."""

from __future__ import annotations

import io
import wave

import aiohttp
import pytest
import wsproto
from fishaudio import AsyncFishAudio, FishAudio, TTSConfig
from fishaudio.exceptions import APIError, WebSocketError
from fishaudio.types import FlushEvent, Prosody
from livekit.agents import APIConnectOptions
from livekit.plugins import fishaudio

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.livekit_agent import agent, written
from tests.official.livekit_speech import listen, say
from tests.official.turns import LONG, ONE, OTHER, TURN, tokens

RAW = TTSConfig(format="pcm", sample_rate=16_000)


def address(speaking: Service) -> str:
    return f"http://127.0.0.1:{speaking.port}"


def client(speaking: Service) -> FishAudio:
    return FishAudio(api_key="any", base_url=address(speaking))


def plugin(speaking: Service, session: aiohttp.ClientSession, **options: object) -> fishaudio.TTS:
    return fishaudio.TTS(api_key="any", base_url=address(speaking), http_session=session, **options)


# -- Fish Audio's client


def test_client_speaks_a_text(speaking: Service, ears: Ears) -> None:
    spoken = client(speaking).tts.convert(text=ONE, config=RAW)
    assert ears.which(spoken, 16_000) == ONE


@pytest.mark.parametrize(("kind", "begins"), [("mp3", b"\xff\xfb"), ("opus", b"OggS")])
def test_client_gets_files(speaking: Service, kind: str, begins: bytes) -> None:
    spoken = b"".join(client(speaking).tts.stream(text=ONE, format=kind))
    assert spoken.startswith(begins)


def test_client_changes_speed_and_volume(speaking: Service, ears: Ears) -> None:
    plain = client(speaking).tts.convert(text=ONE, config=RAW)
    config = RAW.model_copy(update={"prosody": Prosody(speed=1.5, volume=-6)})
    fast = client(speaking).tts.convert(text=ONE, config=config)
    assert ears.which(fast, 16_000) == ONE
    assert len(fast) < 0.8 * len(plain)


def test_client_learns_what_was_wrong(speaking: Service) -> None:
    with pytest.raises(APIError, match="sample_rate: The sample rates of pcm_s16le are") as told:
        client(speaking).tts.convert(text=ONE, format="pcm", config=TTSConfig(sample_rate=1))
    assert told.value.status == 400


def test_client_streams_text(speaking: Service, ears: Ears) -> None:
    spoken = b"".join(client(speaking).tts.stream_websocket(tokens(TURN), config=RAW))
    assert ears.which(spoken, 16_000) == TURN


def test_flush_does_not_break_a_wav_file(speaking: Service, ears: Ears) -> None:
    texts = [f"{ONE.capitalize()} ", FlushEvent(), OTHER.capitalize(), FlushEvent()]
    spoken = b"".join(client(speaking).tts.stream_websocket(texts, format="wav"))
    with wave.open(io.BytesIO(spoken)) as file:
        rate, header = file.getframerate(), 44
    assert ears.which(spoken[header:], rate) == TURN


async def test_asynchronous_client_streams_text(speaking: Service, ears: Ears) -> None:
    async def texts() -> object:
        for token in tokens(ONE):
            yield token

    pieces: list[bytes] = []
    # Its library, httpx-ws, raises if a ping comes while it closes the socket, which is after the
    # last piece.
    closing = pytest.RaisesGroup(wsproto.utilities.LocalProtocolError, flatten_subgroups=True)
    async with AsyncFishAudio(api_key="any", base_url=address(speaking)) as fish:
        try:
            async for piece in fish.tts.stream_websocket(texts(), config=RAW):
                pieces.append(piece)
        except ExceptionGroup as group:
            if not closing.matches(group):
                raise
    assert ears.which(b"".join(pieces), 16_000) == ONE


def test_error_on_the_socket_reaches_the_client(speaking: Service) -> None:
    config = RAW.model_copy(update={"sample_rate": 1})
    with pytest.raises(WebSocketError):
        list(client(speaking).tts.stream_websocket([ONE], config=config))


# -- LiveKit's plugin


async def test_plugin_speaks_turns_on_one_socket(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    voice = plugin(speaking, session)
    for text in (ONE, OTHER):
        speech = await say(voice, *tokens(text))
        assert ears.which(speech.pcm, speech.rate) == text
    await voice.aclose()


async def test_plugin_speaks_over_http(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    voice = plugin(speaking, session, output_format="pcm", sample_rate=24_000)
    async with voice.synthesize(ONE, conn_options=APIConnectOptions(max_retry=0)) as stream:
        speech = await listen(stream)
    assert ears.which(speech.pcm, speech.rate) == ONE


async def test_interruption_frees_the_slot(
    speaking: Service, session: aiohttp.ClientSession, ears: Ears
) -> None:
    voice = plugin(speaking, session, output_format="pcm", sample_rate=24_000)
    async with agent(voice, endless=True) as (conversation, loudspeaker):
        speech = conversation.say(written(LONG))
        await loudspeaker.plays.wait()
        await conversation.interrupt()
        await speech
        speaking.until("the server works no more", "tts_contexts_active ", 0)
