"""The vendors' clients with API keys, against a service that requires one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import cartesia
import httpx
import openai
import pytest
from cartesia import Cartesia
from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError as DeepgramError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError as ElevenLabsError
from livekit.agents import APIConnectOptions, APIStatusError, inference
from websockets.exceptions import InvalidStatus

from tests.e2e.live import Service, service
from tests.official.livekit_speech import listen

TALKWIRE = Path(__file__).resolve().parents[2] / ".venv/bin/talkwire"
WORDS = "Hello there."


class Guarded:
    """A running service and a valid key."""

    def __init__(self, running: Service, key: str) -> None:
        self.key = key
        self.http, self.ws = (f"{kind}://127.0.0.1:{running.port}" for kind in ("http", "ws"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    create = [str(TALKWIRE), "keys", "create", "--file", str(file), "--tenant", "acme"]
    made = subprocess.run(create, capture_output=True, text=True, check=True)
    with service(program=TALKWIRE, TALKWIRE_API_KEYS_FILE=str(file)) as running:
        yield Guarded(running, made.stdout.strip())


def test_openai_client_sends_its_key(guarded: Guarded) -> None:
    def say(key: str) -> bytes:
        with openai.OpenAI(base_url=f"{guarded.http}/v1", api_key=key, max_retries=0) as client:
            return client.audio.speech.create(model="tts-1", voice="alloy", input=WORDS).content

    assert say(guarded.key)
    with pytest.raises(openai.AuthenticationError) as refused:
        say("another")
    assert refused.value.code == "unauthorized"


def test_elevenlabs_client_sends_its_key(guarded: Guarded) -> None:
    def say(key: str) -> bytes:
        with httpx.Client(timeout=60) as http:
            client = ElevenLabs(base_url=guarded.http, api_key=key, httpx_client=http)
            return b"".join(client.text_to_speech.convert("default", text=WORDS))

    assert say(guarded.key)
    with pytest.raises(ElevenLabsError) as refused:
        say("another")
    assert refused.value.status_code == 401
    assert refused.value.body["detail"]["code"] == "unauthorized"


def test_cartesia_client_sends_its_key_over_http_and_socket(guarded: Guarded) -> None:
    format_ = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}

    def say(key: str) -> bytes:
        with Cartesia(
            api_key=key, max_retries=0, base_url=guarded.http, websocket_base_url=guarded.ws
        ) as client:
            speech = client.tts.generate(
                model_id="sonic-3",
                transcript=WORDS,
                voice={"mode": "id", "id": "default"},
                output_format=format_,
            )
            spoken = bytes(speech.read())
            with client.tts.websocket_connect():
                return spoken

    assert say(guarded.key)
    with pytest.raises(cartesia.AuthenticationError):
        say("another")


def test_deepgram_client_sends_its_key_over_http_and_socket(guarded: Guarded) -> None:
    environment = DeepgramClientEnvironment(
        base=guarded.http, production=guarded.ws, agent=guarded.ws, agent_rest=guarded.http
    )

    def client(key: str) -> DeepgramClient:
        return DeepgramClient(api_key=key, environment=environment)

    with client(guarded.key).speak.v1.connect(model="default", encoding="linear16") as socket:
        socket.send_text(SpeakV1Text(text=WORDS))
        socket.send_flush()
        while not isinstance(socket.recv(), bytes):
            pass
        socket.send_close()
    assert b"".join(client(guarded.key).speak.v1.audio.generate(text=WORDS))
    with (
        pytest.raises(InvalidStatus) as refused,
        client("another").speak.v1.connect(model="default") as _,
    ):
        pytest.fail("it was accepted")
    assert refused.value.response.status_code == 401
    with pytest.raises(DeepgramError) as told:
        b"".join(client("another").speak.v1.audio.generate(text=WORDS))
    assert told.value.status_code == 401
    assert told.value.body["err_code"] == "UNAUTHORIZED"


async def test_livekit_inference_signs_with_its_key(
    guarded: Guarded, session: aiohttp.ClientSession
) -> None:
    async def say(key: str, secret: str) -> bytes:
        voice = inference.TTS(
            "cartesia/sonic-3",
            base_url=guarded.http,
            api_key=key,
            api_secret=secret,
            http_session=session,
        )
        try:
            async with voice.synthesize(
                WORDS, conn_options=APIConnectOptions(max_retry=0)
            ) as stream:
                return (await listen(stream)).pcm
        finally:
            await voice.aclose()

    assert await say(guarded.key, guarded.key)
    other = f"talkwire_{'0' * 64}"
    for key, secret in ((guarded.key, other), (other, guarded.key), (other, other)):
        with pytest.raises(APIStatusError) as refused:
            await say(key, secret)
        assert refused.value.status_code == 401
