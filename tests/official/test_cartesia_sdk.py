"""Cartesia's Python client, with only its address changed."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import av
import cartesia
import numpy as np
import pytest
from cartesia import AsyncCartesia, Cartesia

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.ears import Ears
from tests.official.turns import GONE, ONE, OTHER

MODEL, VOICE = "sonic-3", {"mode": "id", "id": "default"}
RAW: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


def addresses(speaking: Service) -> dict[str, str]:
    host = f"127.0.0.1:{speaking.port}"
    return {"base_url": f"http://{host}", "websocket_base_url": f"ws://{host}"}


@pytest.fixture
def client(speaking: Service) -> Iterator[Cartesia]:
    with Cartesia(api_key="any", max_retries=0, **addresses(speaking)) as client:
        yield client


@pytest.fixture
async def aclient(speaking: Service) -> AsyncIterator[AsyncCartesia]:
    async with AsyncCartesia(api_key="any", max_retries=0, **addresses(speaking)) as client:
        yield client


# -- HTTP


def test_bytes_returns_raw_pcm(client: Cartesia, ears: Ears) -> None:
    speech = client.tts.generate(
        model_id=MODEL, transcript=ONE, voice=VOICE, output_format=RAW, language="en"
    )
    assert ears.which(speech.read()) == ONE


@pytest.mark.parametrize(
    "format_",
    [
        {"container": "wav", "encoding": "pcm_f32le", "sample_rate": 44100},
        {"container": "mp3", "sample_rate": 44100, "bit_rate": 128000},
    ],
)
def test_bytes_returns_wav_or_mp3_file(client: Cartesia, ears: Ears, format_: Any) -> None:
    speech = client.tts.generate(
        model_id=MODEL, transcript=OTHER, voice=VOICE, output_format=format_
    )
    with av.open(io.BytesIO(speech.read()), "r") as file:
        frames = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
    assert ears.which(np.concatenate(frames).astype(np.float32), 44100) == OTHER


def test_sse_streams_audio_and_word_timestamps(client: Cartesia, ears: Ears) -> None:
    events = list(
        client.tts.generate_sse(
            model_id=MODEL, transcript=ONE, voice=VOICE, output_format=RAW, add_timestamps=True
        )
    )
    assert events[-1].type == "done"
    assert ears.which(b"".join(e.audio or b"" for e in events if e.type == "chunk")) == ONE
    words = [w for e in events if e.type == "timestamps" for w in e.word_timestamps.words]
    assert words == ONE.split()


def test_voices_are_listed_in_pages(client: Cartesia) -> None:
    assert "default" in [voice.id for voice in client.voices.list(limit=1)]
    assert client.voices.get("default").name == "default"


def test_refusals_raise_errors_of_client(client: Cartesia) -> None:
    with pytest.raises(cartesia.NotFoundError) as refused:
        client.tts.generate(model_id=MODEL, transcript=ONE, voice=GONE, output_format=RAW)
    body: Any = refused.value.body
    assert body["error_code"] == "unknown_voice"
    with pytest.raises(cartesia.BadRequestError):
        client.tts.generate(
            model_id=MODEL,
            transcript=ONE,
            voice="default",
            output_format=RAW,
            generation_config={"volume": 3},
        )


def test_missing_address_raises_error_of_client(client: Cartesia) -> None:
    with pytest.raises(cartesia.NotFoundError) as missing:
        client.datasets.list()
    body: Any = missing.value.body
    assert body["error_code"] == "unsupported"


# -- the socket


def test_socket_speaks_single_request_with_timestamps(client: Cartesia, ears: Ears) -> None:
    socket = client.tts.websocket()
    try:
        spoken = socket.send(
            model_id=MODEL,
            transcript=ONE,
            voice=VOICE,
            output_format=RAW,
            stream=False,
            add_timestamps=True,
        )
    finally:
        socket.close()
    assert ears.which(spoken.audio) == ONE
    assert spoken.word_timestamps["words"] == ONE.split()


def test_socket_context_with_flush_ids_speaks_continuations(client: Cartesia, ears: Ears) -> None:
    with client.tts.websocket_connect() as socket:
        context = socket.context(model_id=MODEL, voice=VOICE, output_format=RAW)
        context.push(ONE + " ")
        context.push("", flush=True)
        context.push(OTHER)
        context.no_more_inputs()
        heard: dict[int, bytes] = {}
        for event in context.receive():
            if event.type == "chunk":
                assert event.flush_id is not None
                heard[event.flush_id] = heard.get(event.flush_id, b"") + (event.audio or b"")
            else:
                assert event.type in ("flush_done", "done")
    assert [ears.which(pcm) for _, pcm in sorted(heard.items())] == [ONE, OTHER]


def test_socket_ignores_defaults_sent_by_no_more_inputs(client: Cartesia, ears: Ears) -> None:
    """``no_more_inputs`` sends default voice and format if the context has none."""
    with client.tts.websocket_connect() as socket:
        context = socket.context()
        context.send(transcript=ONE, voice=VOICE, output_format=RAW)
        context.no_more_inputs()
        pcm = b"".join(e.audio or b"" for e in context.receive() if e.type == "chunk")
    assert ears.which(pcm) == ONE


async def test_socket_cancel_keeps_other_context_speaking(
    aclient: AsyncCartesia, speaking: Service, ears: Ears
) -> None:
    async with aclient.tts.websocket_connect() as socket:
        made: Any = {"model_id": MODEL, "voice": VOICE, "output_format": RAW}
        stopped, other = socket.context(**made), socket.context(**made)
        await stopped.push(" ".join(SENTENCES))
        await stopped.no_more_inputs()
        async for event in stopped.receive():
            if event.type == "chunk":
                break
        await stopped.cancel()
        speaking.until("the server works no more", "tts_contexts_active ", 0)
        await other.push(OTHER)
        await other.no_more_inputs()
        events = [event async for event in other.receive()]
    assert {event.context_id for event in events} == {other._context_id}
    assert ears.which(b"".join(e.audio or b"" for e in events if e.type == "chunk")) == OTHER


async def test_socket_error_names_its_context_and_next_context_speaks(
    aclient: AsyncCartesia, ears: Ears
) -> None:
    async with aclient.tts.websocket_connect() as socket:
        context = socket.context(model_id=MODEL, voice=GONE, output_format=RAW)
        await context.push(ONE, continue_=False)
        (error,) = [event async for event in context.receive()]
        assert (error.type, error.error_code) == ("error", "unknown_voice")
        context = socket.context(model_id=MODEL, voice=VOICE, output_format=RAW)
        await context.push(ONE, continue_=False)
        pcm = b"".join([e.audio async for e in context.receive() if e.type == "chunk"])
        assert ears.which(pcm) == ONE


async def test_dictionary_of_the_client_is_spoken(
    client: Cartesia, aclient: AsyncCartesia, ears: Ears
) -> None:
    made = client.pronunciation_dicts.create(name="words", items=[{"text": "zyx", "alias": ONE}])
    assert client.pronunciation_dicts.retrieve(made.id).items[0].alias == ONE
    speech = client.tts.generate(
        model_id=MODEL,
        transcript="Zyx",
        voice=VOICE,
        output_format=RAW,
        pronunciation_dict_id=made.id,
    )
    assert ears.which(speech.read()) == ONE
    client.pronunciation_dicts.update(made.id, items=[{"text": "zyx", "alias": OTHER}])
    async with aclient.tts.websocket_connect() as socket:
        context = socket.context(
            model_id=MODEL, voice=VOICE, output_format=RAW, pronunciation_dict_id=made.id
        )
        await context.push("Zyx", continue_=False)
        pcm = b"".join([e.audio async for e in context.receive() if e.type == "chunk"])
    assert ears.which(pcm) == OTHER
    assert made.id in [one.id for one in client.pronunciation_dicts.list(limit=1)]
    client.pronunciation_dicts.delete(made.id)
    assert not list(client.pronunciation_dicts.list())
