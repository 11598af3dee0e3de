"""OpenAI's Python client, with only ``base_url`` changed."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator

import openai
import pytest

from tests.e2e.live import Service
from tests.official.ears import Ears
from tests.official.turns import ONE


@pytest.fixture
def client(speaking: Service) -> Iterator[openai.OpenAI]:
    address = f"http://127.0.0.1:{speaking.port}/v1"
    with openai.OpenAI(base_url=address, api_key="any") as client:
        yield client


def test_client_gets_whole_wav(client: openai.OpenAI, ears: Ears) -> None:
    answer = client.audio.speech.create(
        model="tts-1", voice="alloy", input=ONE, response_format="wav"
    )
    with wave.open(io.BytesIO(answer.content)) as file:
        pcm, rate = file.readframes(1 << 30), file.getframerate()
    assert ears.which(pcm, rate) == ONE


def test_client_streams_pcm(client: openai.OpenAI, ears: Ears) -> None:
    request = client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="nova", input=ONE, response_format="pcm"
    )
    with request as answer:
        pieces = list(answer.iter_bytes())
    assert len(pieces) > 1
    assert ears.which(b"".join(pieces)) == ONE


def test_refusals_raise_errors_of_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(model="tts-1", voice="alloy", input=ONE, speed=17.0)
    assert refused.value.param == "speed"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_any_name_of_a_model_speaks(client: openai.OpenAI) -> None:
    """Such as a dated one of OpenAI's; by default the embedded voice answers to all."""
    spoken = client.audio.speech.with_raw_response.create(
        model="gpt-4o-mini-tts-2025-12-15", voice="alloy", input=ONE
    )
    assert "model" in spoken.headers["x-talkwire-ignored"]
