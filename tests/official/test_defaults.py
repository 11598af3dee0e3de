"""Clients with their default voice, model and format, with only the address changed.

Each case is a first attempt of a new user: a text, then texts that cannot be spoken, which must
not end the session, then another text.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import openai as openai_sdk
import pytest
from cartesia import Cartesia
from deepgram import DeepgramClient
from elevenlabs import DialogueInput
from elevenlabs.client import ElevenLabs
from fishaudio import FishAudio
from livekit.agents import inference
from livekit.plugins import cartesia, deepgram, elevenlabs, fishaudio, openai, talkwire
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat_talkwire import TalkwireTTSService

from tests.e2e.live import Service
from tests.official.deepgram_client import environment
from tests.official.livekit_speech import listen, say
from tests.official.pipecat_pipeline import conversation

TEXTS = ["Hello! How can I help you today?", "...", "\N{PARTY POPPER}", "Let me look that up."]
CASES = ("requests: text, `...`, an emoji, text", "a session: text, `...`, an emoji, text")
Tell = Callable[[str, str], None]
#: Less than a second of speech in any of the requested formats.
LEAST_BYTES = 2_000
#: Voices of the vendors' examples, for clients without a default.
RACHEL, GEORGE = "21m00Tcm4TlvDq8ikWAM", "JBFqnCBsd6RMkjVDRZzb"
SONIC = "e07c00bc-4134-4eae-9ea4-1a55fb45746b"
#: A busy machine may take longer than Pipecat waits.
PATIENCE = {"stop_frame_timeout_s": 60.0}


def address(speaking: Service, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{speaking.port}"


# -- official SDKs: one request per text


def openai_python(speaking: Service, text: str) -> bytes:
    with openai_sdk.OpenAI(base_url=address(speaking) + "/v1", api_key="any") as client:
        spoken = client.audio.speech.create(
            model="gpt-4o-mini-tts",
            voice="coral",
            input=text,
            instructions="Speak in a cheerful tone.",
        )
        return spoken.content


def azure_python(speaking: Service, text: str) -> bytes:
    with openai_sdk.AzureOpenAI(
        azure_endpoint=address(speaking), api_version="2025-04-01-preview", api_key="any"
    ) as client:
        return client.audio.speech.create(model="tts-1", voice="alloy", input=text).content


def elevenlabs_python(speaking: Service, text: str) -> bytes:
    client = ElevenLabs(base_url=address(speaking), api_key="any")
    return b"".join(client.text_to_speech.convert(GEORGE, text=text))


def dialogue_python(speaking: Service, text: str) -> bytes:
    client = ElevenLabs(base_url=address(speaking), api_key="any")
    lines = [DialogueInput(text=text, voice_id=voice) for voice in (RACHEL, GEORGE)]
    return b"".join(client.text_to_dialogue.convert(inputs=lines))


def cartesia_python(speaking: Service, text: str) -> bytes:
    client = Cartesia(api_key="any", base_url=address(speaking))
    return client.tts.generate(
        model_id="sonic-3",
        transcript=text,
        voice=SONIC,
        output_format={"container": "wav", "encoding": "pcm_f32le", "sample_rate": 44100},
    ).read()


def deepgram_python(speaking: Service, text: str) -> bytes:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    return b"".join(client.speak.v1.audio.generate(text=text, model="aura-2-thalia-en"))


def flux_python(speaking: Service, text: str) -> bytes:
    client = DeepgramClient(api_key="any", environment=environment(speaking))
    return b"".join(client.speak.v2.audio.generate(text=text, model="flux-alexis-en"))


def fish_python(speaking: Service, text: str) -> bytes:
    return FishAudio(api_key="any", base_url=address(speaking)).tts.convert(text=text)


SDKS: dict[str, Callable[[Service, str], bytes]] = {
    "openai (Python)": openai_python,
    "openai (Python, Azure)": azure_python,
    "elevenlabs (Python)": elevenlabs_python,
    "elevenlabs (Python, dialogue)": dialogue_python,
    "cartesia (Python)": cartesia_python,
    "deepgram-sdk (Python)": deepgram_python,
    "deepgram-sdk (Python, Flux)": flux_python,
    "fish-audio-sdk (Python)": fish_python,
}


@pytest.mark.parametrize("client", SDKS)
def test_sdk_accepts_unspeakable_text_between_texts(
    speaking: Service, client: str, told: Tell
) -> None:
    told(client, CASES[0])
    sizes = [len(SDKS[client](speaking, text)) for text in TEXTS]
    assert all(sizes), sizes
    assert min(sizes[0], sizes[-1]) > max(LEAST_BYTES, sizes[1]), sizes


# -- agent frameworks: one session for all texts


PIPECAT: dict[str, Callable[[Service], Any]] = {
    "Pipecat ElevenLabsTTSService": lambda s: ElevenLabsTTSService(
        api_key="any",
        url=address(s, "ws"),
        settings=ElevenLabsTTSService.Settings(voice=RACHEL),
        **PATIENCE,
    ),
    "Pipecat ElevenLabsDialogueTTSService": lambda s: ElevenLabsDialogueTTSService(
        api_key="any",
        url=address(s, "ws"),
        settings=ElevenLabsDialogueTTSService.Settings(voice=RACHEL),
        **PATIENCE,
    ),
    "Pipecat CartesiaTTSService": lambda s: CartesiaTTSService(
        api_key="any",
        url=address(s, "ws") + "/tts/websocket",
        settings=CartesiaTTSService.Settings(voice=SONIC),
        **PATIENCE,
    ),
    "Pipecat DeepgramTTSService": lambda s: DeepgramTTSService(
        api_key="any", base_url=address(s, "ws"), **PATIENCE
    ),
    "Pipecat DeepgramFluxTTSService": lambda s: DeepgramFluxTTSService(
        api_key="any", url=address(s, "ws") + "/v2/speak", **PATIENCE
    ),
    "Pipecat OpenAITTSService": lambda s: OpenAITTSService(
        api_key="any", base_url=address(s) + "/v1", **PATIENCE
    ),
}


@pytest.mark.parametrize("client", PIPECAT)
async def test_pipecat_session_continues_after_unspeakable_text(
    speaking: Service, client: str, told: Tell
) -> None:
    told(client, CASES[1])
    service = PIPECAT[client](speaking)
    async with conversation(service) as talk:
        for turn, text in enumerate(TEXTS):
            await talk.say(text)
            await talk.until_stopped(turn + 1)
    assert talk.errors() == []
    assert service.is_usable
    if isinstance(service, OpenAITTSService):  # does not close its client
        await service._client.close()
    first, *_, last = (len(talk.pcm(context)) for context in talk.contexts())
    assert min(first, last) > LEAST_BYTES


async def test_pipecat_talkwire_speaks_with_default_settings(speaking: Service, told: Tell) -> None:
    told("Pipecat TalkwireTTSService", "a turn")
    async with conversation(TalkwireTTSService(url=speaking.url)) as talk:
        await talk.say(TEXTS[0])
        await talk.until_stopped(1)
    assert talk.errors() == []
    assert len(talk.pcm()) > LEAST_BYTES


Make = Callable[[Service, aiohttp.ClientSession], Any]
LIVEKIT: dict[str, Make] = {
    "LiveKit elevenlabs.TTS": lambda s, http: elevenlabs.TTS(
        api_key="any", base_url=address(s) + "/v1", http_session=http
    ),
    "LiveKit elevenlabs.TTS (eleven_v3)": lambda s, http: elevenlabs.TTS(
        api_key="any", base_url=address(s) + "/v1", model="eleven_v3", http_session=http
    ),
    "LiveKit cartesia.TTS": lambda s, http: cartesia.TTS(
        api_key="any", base_url=address(s), http_session=http
    ),
    "LiveKit deepgram.TTS": lambda s, http: deepgram.TTS(
        api_key="any", base_url=address(s) + "/v1/speak", http_session=http
    ),
    "LiveKit deepgram.TTSv2": lambda s, http: deepgram.TTSv2(
        api_key="any", base_url=address(s) + "/v2/speak", http_session=http
    ),
    "LiveKit fishaudio.TTS": lambda s, http: fishaudio.TTS(
        api_key="any", base_url=address(s), http_session=http
    ),
    "LiveKit inference.TTS": lambda s, http: inference.TTS(
        "cartesia/sonic-3",
        base_url=address(s),
        api_key="any",
        api_secret="any-text-of-32-characters-or-more",
        http_session=http,
    ),
    "LiveKit openai.TTS": lambda s, http: openai.TTS(api_key="any", base_url=address(s) + "/v1"),
    "LiveKit talkwire.TTS": lambda s, http: talkwire.TTS(url=address(s)),
}
Speak = Callable[[Any, str], Coroutine[Any, Any, Any]]


async def in_pieces(plugin: Any, text: str) -> Any:
    return await say(plugin, text)


async def in_one_piece(plugin: Any, text: str) -> Any:
    async with plugin.synthesize(text) as stream:
        return await listen(stream)


@pytest.mark.parametrize("client", LIVEKIT)
async def test_livekit_session_continues_after_unspeakable_text(
    speaking: Service, session: aiohttp.ClientSession, client: str, told: Tell
) -> None:
    told(client, CASES[1])
    plugin = LIVEKIT[client](speaking, session)
    # LiveKit's OpenAI plugin does not stream text.
    speak = in_pieces if plugin.capabilities.streaming else in_one_piece
    sizes = [len((await speak(plugin, text)).pcm) for text in TEXTS]
    await plugin.aclose()
    assert min(sizes[0], sizes[-1]) > LEAST_BYTES, sizes
