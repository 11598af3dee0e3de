"""The package ``wyoming``, with which Home Assistant speaks, as its integration uses it."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from tests.e2e.live import service
from tests.official.ears import Ears
from tests.official.turns import ONE, OTHER

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of Wyoming of a service with the embedded voice."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = int(free.getsockname()[1])
    options = ("--wyoming", str(number))
    with service(*options, program=ROOT / ".venv/bin/talkwire", TALKWIRE_UNKNOWN_VOICE="error"):
        yield number


@pytest.fixture
async def client(port: int) -> AsyncIterator[AsyncTcpClient]:
    async with AsyncTcpClient("127.0.0.1", port, read_timeout=60) as connected:
        yield connected


async def answer(client: AsyncTcpClient) -> Event:
    event = await client.read_event()
    assert event is not None, "the server has ended the connection"
    return event


async def speech(client: AsyncTcpClient, end: str) -> tuple[bytes, int]:
    """Return the samples before the event ``end``, and their rate."""
    start = AudioStart.from_event(await answer(client))
    assert (start.width, start.channels) == (2, 1)
    pcm = b""
    while (event := await answer(client)).type != end:
        if AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            assert (chunk.rate, chunk.width, chunk.channels) == (start.rate, 2, 1)
            assert chunk.timestamp == 1000 * (len(pcm) // 2) // start.rate
            pcm += chunk.audio
        else:
            assert AudioStop.is_type(event.type), event
    return pcm, start.rate


async def test_info_has_what_home_assistant_offers(client: AsyncTcpClient) -> None:
    await client.write_event(Describe().event())
    info = Info.from_event(await answer(client))
    (program,) = info.tts
    assert program.installed
    assert program.supports_synthesize_streaming
    assert len(program.voices) >= 5
    assert all(voice.installed and voice.languages == ["en"] for voice in program.voices)
    assert not info.asr
    await client.write_event(Ping(text="here").event())
    assert Pong.from_event(await answer(client)).text == "here"


async def test_whole_and_streamed_texts_are_heard(client: AsyncTcpClient, ears: Ears) -> None:
    await client.write_event(Synthesize(ONE, SynthesizeVoice(name="default")).event())
    assert ears.which(*await speech(client, "audio-stop")) == ONE
    await client.write_event(SynthesizeStart(SynthesizeVoice(language="en-US")).event())
    for word in re.findall(r"\S+\s*", OTHER):
        await client.write_event(SynthesizeChunk(word).event())
    await client.write_event(Synthesize(OTHER).event())
    await client.write_event(SynthesizeStop().event())
    stopped = SynthesizeStopped().event().type
    assert ears.which(*await speech(client, stopped)) == OTHER


async def test_error_is_read_and_ends_connection(client: AsyncTcpClient) -> None:
    await client.write_event(Synthesize(ONE, SynthesizeVoice(name="nobody")).event())
    error = Error.from_event(await answer(client))
    assert error.code == "unknown_voice"
    assert "nobody" in error.text
    assert await client.read_event() is None
