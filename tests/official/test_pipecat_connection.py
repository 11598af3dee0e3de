"""The connection of ``pipecat-talkwire``: loss, refusals, going away; its parser and contexts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.utils.errors import ErrorCategory
from pipecat_talkwire import TalkwireTTSService, wire
from pipecat_talkwire.contexts import Contexts
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.e2e.live import Service
from tests.e2e.sentences import SENTENCES
from tests.official.cable import cable
from tests.official.ears import Ears
from tests.official.pipecat_pipeline import conversation
from tests.official.pipecat_script import Script, header
from tests.official.turns import ONE, OTHER


async def test_lost_connection_ends_only_current_turn(speaking: Service, ears: Ears) -> None:
    async with cable(speaking.port) as (line, url):
        async with conversation(TalkwireTTSService(url=url)) as talk:
            await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(" ".join(SENTENCES)))
            await talk.until(lambda: bool(talk.of(TTSAudioRawFrame)), "it speaks")
            await line.cut()
            await talk.until_stopped(1)
            await talk.queue(LLMTextFrame(" "), LLMFullResponseEndFrame())
            await talk.say(OTHER)
        assert line.connections == 2
    assert ears.which(talk.pcm(talk.contexts()[-1])) == OTHER
    speaking.until("what was lost is not worked on", "tts_contexts_active ", 0)


# -- a scripted server


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    server: Server
    async with serve(script.converse, "127.0.0.1", 0, subprotocols=[wire.SUBPROTOCOL]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/"


async def test_word_timings_are_not_requested_from_older_server() -> None:
    script = Script()
    async with scripted(script) as url:
        tts = TalkwireTTSService(url=url, word_timestamps=True)
        async with conversation(tts) as talk:
            await talk.say(ONE)
    create = script.heard[0]
    assert create["audio"] == {"encoding": "pcm_s16le", "sample_rate": 24_000}
    assert set(create) == {"type", "context_id", "audio"}
    assert [m["type"] for m in script.heard[1:]] == ["text.append", "context.end"]
    assert [frame.text for frame in talk.of(TTSTextFrame)] == [ONE]
    assert talk.pcm() == bytes(4800)
    assert talk.errors() == []


async def test_long_text_is_split_to_server_limit() -> None:
    script = Script()
    text = "\x01\x02" * 1000
    async with scripted(script) as url, conversation(TalkwireTTSService(url=url)) as talk:
        await talk.say(text)
    assert script.texts() == text + " "
    assert all(len(json.dumps(message)) < 2048 for message in script.heard)


async def test_text_outside_of_turns_is_a_turn_of_its_own() -> None:
    script = Script()
    async with scripted(script) as url:
        tts = TalkwireTTSService(url=url, stop_frame_timeout_s=3600)
        async with conversation(tts) as talk:
            await talk.queue(*(AggregatedTextFrame(text, "sentence") for text in (ONE, OTHER)))
            await talk.until_stopped(2)
    assert [m["type"] for m in script.heard] == 2 * ["context.create", "text.append", "context.end"]
    assert talk.pcm() == bytes(9600)


async def test_end_of_pipeline_ends_a_turn_whose_end_has_not_come() -> None:
    script = Script()
    async with scripted(script) as url:
        tts = TalkwireTTSService(url=url, stop_frame_timeout_s=3600)
        async with conversation(tts) as talk:
            await talk.queue(LLMFullResponseStartFrame(), AggregatedTextFrame(ONE, "sentence"))
            while not script.texts():
                await asyncio.sleep(0.01)
    assert [m["type"] for m in script.heard] == ["context.create", "text.append", "context.end"]
    assert talk.pcm() == bytes(4800)


async def test_text_that_cannot_be_sent_ends_its_context_at_server() -> None:
    script = Script()
    async with scripted(script) as url, conversation(TalkwireTTSService(url=url)) as talk:
        await talk.say("Half a pair: \ud83d.")
        await talk.until_stopped(1)
        await talk.say(ONE)
        await talk.until_stopped(2)
    assert any("cannot send text" in error for error in talk.errors())
    types = [m["type"] for m in script.heard]
    assert types[:2] == ["context.create", "context.cancel"]
    assert types[2:] == ["context.create", "text.append", "context.end"]
    assert script.connections == 1


async def test_setting_that_is_no_number_ends_turn_until_it_changes() -> None:
    script = Script()
    settings = TalkwireTTSService.Settings(temperature=math.nan)
    async with scripted(script) as url:
        tts = TalkwireTTSService(url=url, settings=settings)
        async with conversation(tts) as talk:
            await talk.say(ONE)
            await talk.until_stopped(1)
            assert any("cannot send text" in error for error in talk.errors())
            assert all(message["type"] == "context.cancel" for message in script.heard)
            better = TalkwireTTSService.Settings(temperature=0.5)
            await talk.queue(TTSUpdateSettingsFrame(delta=better))
            await talk.say(OTHER)
            await talk.until_stopped(2)
    assert script.texts() == f"{OTHER} "
    assert talk.pcm() == bytes(4800)
    assert script.connections == 1


async def test_going_away_reconnects_after_context_is_done() -> None:
    class Leaving(Script):
        async def speak(self, socket: ServerConnection, context_id: str, handle: int) -> None:
            if self.connections == 1:
                await socket.send('{"type":"going_away","deadline_ms":10000}')
            await super().speak(socket, context_id, handle)

    script = Leaving()
    async with scripted(script) as url, conversation(TalkwireTTSService(url=url)) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        await talk.say(OTHER)
    assert script.connections == 2
    assert script.texts() == f"{ONE} {OTHER} "
    assert talk.pcm() == bytes(9600)
    assert talk.errors() == []


@pytest.mark.parametrize("is_killed", [False, True])
async def test_turn_that_begins_while_server_goes_away_is_spoken_by_next_one(
    is_killed: bool,
) -> None:
    class Leaving(Script):
        go = asyncio.Event()

        async def converse(self, socket: ServerConnection) -> None:
            if self.connections:
                return await super().converse(socket)
            self.connections += 1
            await socket.send(json.dumps(self.greeting))
            while not self.texts():
                message = json.loads(await socket.recv())
                self.heard.append(message)
                if message["type"] == "context.create":
                    created = {"type": "context.created", "handle": 0}
                    await socket.send(json.dumps({**message, **created}))
            await socket.send('{"type":"going_away","deadline_ms":10000}')
            speaking = asyncio.create_task(self.finish(socket, message["context_id"]))
            async for data in socket:
                message = json.loads(data)
                if message["type"] == "context.create":
                    error = {"type": "error", "code": "draining", "message": "…"}
                    await socket.send(json.dumps({**error, "context_id": message["context_id"]}))
            await speaking

        async def finish(self, socket: ServerConnection, context_id: str) -> None:
            await self.go.wait()
            if is_killed:
                socket.transport.abort()
            else:
                await self.speak(socket, context_id, 0)

    script = Leaving()
    async with scripted(script) as url:
        tts = TalkwireTTSService(url=url)
        asked: list[str] = []

        @tts.event_handler("on_tts_request")
        async def request(_: object, context_id: str, text: str) -> None:
            asked.append(text.strip())

        async with conversation(tts) as talk:
            await talk.say(ONE)
            while not tts._leaving:
                await asyncio.sleep(0.01)
            await talk.say(OTHER)
            while OTHER not in asked:
                await asyncio.sleep(0.01)
            script.go.set()
            await talk.until_stopped(2)
    assert script.connections == 2
    assert script.texts() == f"{ONE} {OTHER} "
    assert talk.pcm(talk.contexts()[1]) == bytes(4800)
    assert not any("draining" in error for error in talk.errors())
    if not is_killed:
        assert talk.pcm() == bytes(9600)
        assert talk.errors() == []


async def test_overloaded_server_ends_turn_with_one_error() -> None:
    class Full(Script):
        async def converse(self, socket: ServerConnection) -> None:
            await socket.send(json.dumps(self.greeting))
            async for data in socket:
                message = json.loads(data)
                self.heard.append(message)
                code = "overloaded" if message["type"] == "context.create" else "unknown_context"
                error = {"type": "error", "code": code, "message": "…", "request_id": "r-1"}
                await socket.send(json.dumps({**error, "context_id": message["context_id"]}))

    script = Full()
    async with scripted(script) as url, conversation(TalkwireTTSService(url=url)) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
    assert sum("overloaded" in error and "r-1" in error for error in talk.errors()) == 1
    assert not any("unknown_context" in error for error in talk.errors())
    assert talk.up[0].category is ErrorCategory.RATE_LIMIT


class Narrow(Script):
    """A server of two contexts at a time, which speaks each when the test lets it."""

    def __init__(self, limits: dict[str, int]) -> None:
        super().__init__({**Script().greeting, "limits": {**Script().greeting["limits"], **limits}})
        self.go = asyncio.Semaphore(0)
        self.open = 0
        self.refused = False
        self.speaking: set[asyncio.Task[None]] = set()

    async def converse(self, socket: ServerConnection) -> None:
        self.connections += 1
        self.open = 0
        await socket.send(json.dumps(self.greeting))
        async for data in socket:
            message = json.loads(data)
            self.heard.append(message)
            if message["type"] == "context.create":
                self.open += 1
                self.refused |= self.open > 2
                created = {"type": "context.created", "handle": len(self.heard)}
                await socket.send(json.dumps({**message, **created}))
                speaking = self.speak_later(socket, message["context_id"], len(self.heard))
                self.speaking.add(asyncio.create_task(speaking))

    async def speak_later(self, socket: ServerConnection, context_id: str, handle: int) -> None:
        await self.go.acquire()
        self.open -= 1
        with contextlib.suppress(ConnectionClosed):
            await self.speak(socket, context_id, handle)


@pytest.mark.parametrize("limits", [{"max_contexts": 2}, {"max_contexts": 8, "key_contexts": 2}])
async def test_more_turns_than_contexts_are_spoken_in_order(limits: dict[str, int]) -> None:
    script = Narrow(limits)
    turns = [f"Turn {number}." for number in range(6)]
    async with scripted(script) as url, conversation(TalkwireTTSService(url=url)) as talk:
        for turn in turns:
            await talk.say(turn)
        while sum(message["type"] == "context.end" for message in script.heard) < 2:
            await asyncio.sleep(0.01)
        for count in range(1, len(turns) + 1):
            script.go.release()
            await talk.until_stopped(count)
    assert script.texts() == "".join(f"{turn} " for turn in turns)
    assert talk.pcm() == bytes(4800 * len(turns))
    assert talk.errors() == []
    assert not script.refused


async def test_turn_that_waits_for_a_context_survives_a_lost_connection() -> None:
    script = Narrow({"max_contexts": 2})
    sockets: list[ServerConnection] = []

    async def converse(socket: ServerConnection) -> None:
        sockets.append(socket)
        await script.converse(socket)

    async with serve(converse, "127.0.0.1", 0, subprotocols=[wire.SUBPROTOCOL]) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/"
        tts = TalkwireTTSService(url=url)
        async with asyncio.timeout(60), conversation(tts) as talk:
            for turn in (ONE, ONE, OTHER):
                await talk.say(turn)
            while tts._waiting_context_id is None:
                await asyncio.sleep(0.01)
            sockets[0].transport.abort()
            while OTHER not in script.texts():
                await asyncio.sleep(0.01)
            for _ in range(3):
                script.go.release()
            await talk.until(lambda: talk.pcm() == bytes(4800), "it was spoken")
    assert script.connections == 2


async def test_interruption_cancels_context_that_is_being_opened() -> None:
    """The interruption ends the task that sends the text, here while the connection is slow."""
    sent = asyncio.Event()

    class Slow(TalkwireTTSService):
        async def _send(self, kind: str, **fields: object) -> None:
            await super()._send(kind, **fields)
            if kind == "context.create":
                sent.set()
                await asyncio.Event().wait()

    script = Script()
    async with scripted(script) as url, conversation(Slow(url=url)) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(f"{ONE} {OTHER}"))
        await sent.wait()
        await talk.queue(InterruptionFrame())
    assert [m["type"] for m in script.heard] == ["context.create", "context.cancel"]


async def test_interruption_cancels_context_of_turn_that_pauses() -> None:
    """Pipecat has ended its own context of the turn by then, as nothing arrived for a while."""

    class Begun(Script):
        async def converse(self, socket: ServerConnection) -> None:
            await socket.send(json.dumps(self.greeting))
            async for data in socket:
                message = json.loads(data)
                self.heard.append(message)
                if message["type"] == "context.create":
                    created = {"type": "context.created", "handle": 0}
                    await socket.send(json.dumps({**message, **created}))
                elif message["type"] == "text.append":
                    await socket.send(header(0, 0) + bytes(4800))

    script = Begun()
    async with scripted(script) as url:
        tts = TalkwireTTSService(url=url, stop_frame_timeout_s=3.0)
        async with conversation(tts) as talk:
            await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(f"{ONE} {OTHER}"))
            await talk.until_stopped(1)
            await talk.queue(InterruptionFrame())
    types = [m["type"] for m in script.heard]
    assert types == ["context.create", "text.append", "context.cancel"]
    assert talk.pcm() == bytes(4800)
    assert talk.errors() == []


class Refusing(Script):
    """Refuses every context with ``unknown_voice``."""

    async def converse(self, socket: ServerConnection) -> None:
        self.connections += 1
        await socket.send(json.dumps(self.greeting))
        async for data in socket:
            message = json.loads(data)
            self.heard.append(message)
            if message["type"] == "context.create":
                error = {
                    "type": "error",
                    "code": "unknown_voice",
                    "message": "No.",
                    "param": "voice",
                }
                await socket.send(json.dumps({**error, "context_id": message["context_id"]}))


async def say_for_good(tts: TalkwireTTSService) -> None:
    """Speak three turns; each must end by itself, since the stop timeout is an hour."""
    async with conversation(tts) as talk:
        for turn in range(3):
            await talk.say(ONE, " ", OTHER)
            await talk.until_stopped(turn + 1)
    assert not tts.is_usable
    assert talk.pcm() == b""


async def test_unknown_voice_does_not_block_later_turns() -> None:
    script = Refusing()
    async with scripted(script) as url:
        await say_for_good(TalkwireTTSService(url=url, stop_frame_timeout_s=3600))
    assert len(script.heard) >= 1


async def test_wrong_key_does_not_block_turns() -> None:
    def refuse(socket: ServerConnection, request: Request) -> Response:
        return socket.respond(401, "No.")

    async with serve(Script().converse, "127.0.0.1", 0, process_request=refuse) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{port}/"
        await say_for_good(TalkwireTTSService(url=url, api_key="wrong", stop_frame_timeout_s=3600))


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("ws://127.0.0.1:{port}", []),
        ("wss://localhost:{port}", []),
        ("wss://speech.invalid", [b"CONNECT speech.invalid:443 HTTP/1.1"]),
    ],
)
async def test_proxy_of_environment_is_used_for_tls_to_other_machines(
    url: str, asked: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with (
        await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy,
        serve(Script().converse, "127.0.0.1", 0) as server,
    ):
        address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, address)
        port = next(iter(server.sockets)).getsockname()[1]
        tts = TalkwireTTSService(url=url.format(port=port))
        await tts._connect_websocket()
        await tts._disconnect_websocket()
    assert lines == asked


async def test_unknown_greeting_is_reported_as_error() -> None:
    script = Script({"type": "welcome"})
    async with scripted(script) as url, conversation(TalkwireTTSService(url=url)) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
    assert any("welcome" in error for error in talk.errors())


# -- without a connection


def test_audio_header_is_parsed_and_broken_header_refused() -> None:
    packed = header(65535, 2**32 - 1) + b"\1\2"
    assert wire.read_audio(packed) == wire.Audio(65535, 2**32 - 1, b"\1\2")
    for broken in (packed[:11], b"\x21" + packed[1:], b""):
        with pytest.raises(wire.ProtocolError):
            wire.read_audio(broken)


@pytest.mark.parametrize("data", ["{", "[]", '{"type":1}', "{}", "null"])
def test_invalid_message_is_refused(data: str) -> None:
    with pytest.raises(wire.ProtocolError):
        wire.read(data)
    with pytest.raises(wire.ProtocolError):
        wire.read_greeting(data)


def test_contexts_ignore_audio_of_forgotten_context() -> None:
    contexts = Contexts()
    contexts.add("a")
    contexts.on_created("a", 0)
    assert contexts.forget("a")
    assert contexts.of_handle(0) is None
    assert not contexts.forget("a")
    contexts.on_created("a", 0)  # this message crossed the cancel
    assert contexts.of_handle(0) is None
    contexts.add("b")
    contexts.on_created("b", 0)  # the handle is free again
    assert contexts.of_handle(0) is contexts.get("b") is not None
    contexts.clear()
    assert len(contexts) == 0
