"""Connections and errors of ``livekit-plugins-talkwire``, with a scripted server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from livekit.agents import (
    APIConnectionError,
    APIConnectOptions,
    APIError,
    APIStatusError,
    APITimeoutError,
)
from livekit.plugins import talkwire
from livekit.plugins.talkwire.errors import as_api_error
from livekit.plugins.talkwire.words import TimedText
from websockets.exceptions import ConnectionClosed

from talkwire_client import (
    ClientError,
    ConnectionLostError,
    NoServerError,
    ProtocolError,
    RefusedError,
    ServerError,
    SlowReaderError,
    Word,
    protocol,
)
from tests.clients.fake_server import CREATED, LIMITS, Peer, cancelled, fake_server, metrics
from tests.official.livekit_speech import Speech, listen, say
from tests.waiting import until

#: A tenth of a second at 24 kHz.
PCM = bytes(4800)
TEXT = "Hello there."
#: A timeout short enough to wait for, and long enough for a server that answers.
HASTE_S = 0.5


def greeting(**changes: Any) -> protocol.SessionCreated:
    """A greeting of a server with word timings; ``changes`` are limits."""
    limits = msgspec.structs.replace(LIMITS, **changes)
    return msgspec.structs.replace(CREATED, limits=limits, word_timings=True)


class Stage:
    """A server that runs the next of some scripts for each socket."""

    def __init__(self, *scripts: Callable[[Peer], Awaitable[None]]) -> None:
        self._scripts = list(scripts)
        self.connections = 0

    async def play(self, peer: Peer) -> None:
        self.connections += 1
        await self._scripts.pop(0)(peer)


@asynccontextmanager
async def plugin(stage: Stage, **options: Any) -> AsyncIterator[talkwire.TTS]:
    async with fake_server(stage.play, greet=False) as url:
        voice = talkwire.TTS(url=url, **options)
        yield voice
        await voice.aclose()


async def speak(peer: Peer, handle: int = 0) -> str:
    """Answer one speech; return its text."""
    create = await peer.open_context(handle)
    text = ""
    while not isinstance(message := await peer.receive(), protocol.ContextEnd):
        assert isinstance(message, protocol.TextAppend)
        text += message.text
    await peer.audio(handle, PCM)
    await peer.finish(create.context_id)
    return text


def error(code: str, *, retryable: bool, context_id: str | None = None) -> protocol.Error:
    return protocol.Error(code, "Told to.", "r1", retryable, None, context_id, 100)


# -- connections


async def test_server_that_goes_away_is_left_for_another_connection() -> None:
    async def leaving(peer: Peer) -> None:
        await peer.say(greeting())
        await peer.say(protocol.GoingAway(1000))
        await speak(peer)
        with pytest.raises(ConnectionClosed):  # closed once nothing is spoken on it
            await peer.receive()

    async def staying(peer: Peer) -> None:
        await peer.say(greeting())
        await speak(peer)
        await speak(peer, 1)

    stage = Stage(leaving, staying)
    async with plugin(stage) as voice:
        for _ in range(3):
            assert (await say(voice, TEXT)).pcm == PCM
        assert stage.connections == 2


async def test_further_speech_than_socket_may_have_opens_another() -> None:
    both = asyncio.Barrier(2)

    async def full(peer: Peer) -> None:
        await peer.say(greeting(max_contexts=1))
        create = await peer.open_context()
        await both.wait()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, PCM)
        await peer.finish(create.context_id)

    stage = Stage(full, full)
    async with plugin(stage) as voice:
        spoken = await asyncio.gather(say(voice, TEXT), say(voice, TEXT))
        assert [speech.pcm for speech in spoken] == [PCM, PCM]
        assert stage.connections == 2


async def test_resting_text_is_kept_from_being_given_up() -> None:
    async def patient(peer: Peer) -> None:
        await peer.say(greeting(context_idle_s=0.03))
        create = await peer.open_context()
        assert (await peer.expect(protocol.TextAppend)).text == "Hello "
        assert (await peer.expect(protocol.TextAppend)).text == ""
        rested.set()
        while (await peer.expect(protocol.TextAppend)).text != "there.":
            pass
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, PCM)
        await peer.finish(create.context_id)

    rested = asyncio.Event()
    async with plugin(Stage(patient)) as voice, voice.stream() as stream:
        stream.push_text("Hello ")
        await rested.wait()
        stream.push_text("there.")
        stream.end_input()
        assert (await listen(stream)).pcm == PCM


async def test_server_without_word_timings_is_asked_for_none() -> None:
    async def plain(peer: Peer) -> None:
        await peer.say(CREATED)
        create = await peer.open_context()
        assert not create.timestamps
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, PCM)
        await peer.finish(create.context_id)

    async with plugin(Stage(plain)) as voice:
        assert voice.capabilities.aligned_transcript
        speech = await say(voice, TEXT)
        assert (speech.pcm, speech.words) == (PCM, [])
        assert not voice.capabilities.aligned_transcript


async def test_options_and_key_reach_server() -> None:
    created: list[protocol.ContextCreate] = []
    keys: list[str] = []

    async def noting(peer: Peer) -> None:
        assert peer.socket.request is not None
        keys.append(peer.socket.request.headers["Authorization"])
        await peer.say(greeting())
        created.append(await peer.open_context())
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, PCM)
        await peer.finish(created[0].context_id)

    options = {"voice": "narrator", "speed": 1.2, "seed": 7, "max_lead_ms": 3000}
    async with plugin(Stage(noting), api_key="secret", **options) as voice:
        await listen(voice.synthesize(TEXT))
    (create,) = created
    assert keys == ["Bearer secret"]
    assert (create.voice, create.max_lead_ms, create.timestamps) == ("narrator", 3000, True)
    assert (create.audio.speed, create.audio.sample_rate) == (1.2, 24_000)
    assert create.sampling.seed == 7


async def test_cancel_that_is_never_answered_does_not_hold_up_interruption() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.say(greeting())
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.audio(0, PCM)
        await peer.expect(protocol.ContextCancel)
        told.set()
        await closed.wait()  # the answer comes only when the stream is closed
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    told, closed = asyncio.Event(), asyncio.Event()
    reports: list[Any] = []
    async with plugin(Stage(deaf)) as voice:
        voice.on("speech_cancelled", reports.append)
        stream = voice.stream()
        stream.push_text("Hello there. More.")
        await listen(stream, enough=lambda speech: bool(speech.pcm))
        await stream.aclose()
        closed.set()
        await told.wait()
        await until(lambda: reports)  # the plugin's end waits for a second only
    assert [report.text_spoken for report in reports] == ["Hello"]


# -- failures of the server


async def test_refused_speech_is_tried_again_with_all_its_text() -> None:
    texts: list[str] = []

    async def full_at_first(peer: Peer) -> None:
        await peer.say(greeting())
        create = await peer.expect(protocol.ContextCreate)
        await peer.say(error("overloaded", retryable=True, context_id=create.context_id))
        texts.append(await speak(peer))

    async with plugin(Stage(full_at_first)) as voice:
        options = APIConnectOptions(max_retry=1, retry_interval=0.0)
        async with voice.stream(conn_options=options) as stream:
            for piece in ("Hello ", "there."):
                stream.push_text(piece)
            stream.end_input()
            assert (await listen(stream)).pcm == PCM
    assert texts == [TEXT]


async def test_speech_that_failed_after_audio_is_not_spoken_twice() -> None:
    spoken: list[str] = []

    async def failing(peer: Peer) -> None:
        await peer.say(greeting())
        create = await peer.open_context()
        spoken.append(create.context_id)
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, PCM)
        await hearing.wait()
        await peer.say(error("engine_failed", retryable=True, context_id=create.context_id))
        await peer.finish(create.context_id, "error")
        with contextlib.suppress(ConnectionClosed):
            spoken.append((await peer.open_context()).context_id)

    hearing = asyncio.Event()

    def heard(speech: Speech) -> bool:
        hearing.set()
        return False

    stage = Stage(failing)
    async with plugin(stage) as voice, voice.stream() as stream:
        stream.push_text(TEXT)
        stream.end_input()
        with pytest.raises(APIStatusError) as failed:
            await listen(stream, enough=heard)
    assert failed.value.status_code == 500
    assert stage.connections == 1
    assert len(spoken) == 1


@pytest.mark.parametrize("silent_after", ["handshake", "greeting", "create", "text"])
async def test_silent_server_is_a_timeout_at_every_attempt(silent_after: str) -> None:
    async def silent(peer: Peer) -> None:
        with contextlib.suppress(ConnectionClosed):  # it may have given up already
            if silent_after != "handshake":
                await peer.say(greeting())
            if silent_after in ("create", "text"):
                await peer.open_context()
            if silent_after == "text":
                await peer.expect(protocol.TextAppend)
                await peer.expect(protocol.ContextEnd)

    options = APIConnectOptions(max_retry=1, retry_interval=0.0, timeout=HASTE_S)
    for speak_with in ("synthesize", "stream"):
        errors: list[Any] = []
        figures: list[Any] = []
        async with plugin(Stage(silent, silent)) as voice:
            voice.on("error", errors.append)
            voice.on("metrics_collected", figures.append)
            if speak_with == "synthesize":
                stream: Any = voice.synthesize(TEXT, conn_options=options)
            else:
                stream = voice.stream(conn_options=options)
                stream.push_text(TEXT)
                stream.end_input()
            with pytest.raises(APITimeoutError):
                await listen(stream)
            await stream.aclose()
        assert [error.recoverable for error in errors] == [True, False]
        assert figures == []


async def test_pause_of_audio_that_listener_has_is_no_timeout() -> None:
    async def ahead(peer: Peer) -> None:
        await peer.say(greeting())
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.audio(0, PCM * 200)
        await asyncio.sleep(2 * timeout_s)  # far less than the audio that was sent
        await peer.audio(0, PCM)
        await peer.finish(create.context_id)

    timeout_s = 5.0
    options = APIConnectOptions(max_retry=0, timeout=timeout_s)
    async with plugin(Stage(ahead)) as voice:
        speech = await listen(voice.synthesize(TEXT, conn_options=options))
        assert speech.pcm.startswith(PCM * 201)


async def test_text_without_anything_to_hear_is_short_silence() -> None:
    async def wordless(peer: Peer) -> None:
        await peer.say(greeting())
        create = await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.expect(protocol.ContextEnd)
        await peer.finish(create.context_id)

    async with plugin(Stage(wordless)) as voice:
        assert (await say(voice, "<|emotion:awe|>")).pcm == bytes(2 * 4800)


# -- parts


def server_error(code: str, *, retryable: bool) -> ServerError:
    return ServerError(error(code, retryable=retryable))


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("given", "kind", "status", "retryable"),
    [
        (server_error("overloaded", retryable=True), APIStatusError, 429, True),
        (server_error("draining", retryable=True), APIStatusError, 503, True),
        (server_error("engine_failed", retryable=False), APIStatusError, 500, False),
        (server_error("unauthorized", retryable=False), APIStatusError, 401, False),
        (server_error("invalid_text", retryable=False), APIStatusError, 400, False),
        (server_error("of_the_future", retryable=True), APIStatusError, -1, True),
        (server_error("of_the_future", retryable=False), APIStatusError, 400, False),
        (RefusedError(401, "no key"), APIStatusError, 401, False),
        (RefusedError(302, "it redirects"), APIStatusError, 302, False),
        (RefusedError(429, "full", 2.0), APIStatusError, 429, True),
        (RefusedError(503, "loading"), APIStatusError, 503, True),
        (TimeoutError(), APITimeoutError, None, True),
        (caused(NoServerError("none"), TimeoutError()), APITimeoutError, None, True),
        (caused(ProtocolError("no greeting"), TimeoutError()), APITimeoutError, None, True),
        (caused(NoServerError("none"), OSError()), APIConnectionError, None, True),
        (caused(NoServerError("none"), ssl.SSLError()), APIConnectionError, None, False),
        (caused(NoServerError("bad"), ValueError()), APIConnectionError, None, False),
        (ConnectionLostError(1006, ""), APIConnectionError, None, True),
        (ProtocolError("odd"), APIError, None, False),
        (SlowReaderError("slow"), APIError, None, False),
        (ClientError("too long"), APIError, None, False),
        (ValueError("surrogate"), APIError, None, False),
    ],
)
def test_errors_tell_whether_to_try_again(
    given: Exception, kind: type[APIError], status: int | None, retryable: bool
) -> None:
    mapped = as_api_error(given)
    assert type(mapped) is kind
    assert getattr(mapped, "status_code", None) == status
    assert mapped.retryable is retryable
    if str(given):
        assert str(given) in mapped.message


def test_every_code_has_its_documented_status() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/reference/protocol.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\d{3})\b", page, re.M)
    documented = {code: int(status) for codes, status in rows for code in re.findall(r"\w+", codes)}
    assert documented.keys() >= set(protocol.ErrorCode) - {protocol.ErrorCode.SLOW_CONSUMER}
    for code, status in documented.items():
        mapped = as_api_error(server_error(code, retryable=True))
        assert isinstance(mapped, APIStatusError)
        assert mapped.status_code == status, code


def test_timed_text_joins_to_its_source() -> None:
    text = TimedText()
    text.add("Hello ")
    text.add("there. \N{PARTY POPPER}")
    (first,) = text.take([Word("Hello", 0, 5, 0.0, 300.0)])
    (second,) = text.take([Word("there.", 6, 12, 400.0, 700.0)])
    (rest,) = text.take_rest()
    assert first + second + rest == "Hello there. \N{PARTY POPPER}"
    assert (second.start_time, second.end_time) == (0.4, 0.7)
    assert (rest.start_time, rest.end_time) == (0.7, 0.7)
    assert text.take_rest() == []
