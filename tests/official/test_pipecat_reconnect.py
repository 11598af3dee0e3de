"""Reconnection of ``pipecat-talkwire``: turns between attempts and after giving up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.services.tts_service import TextAggregationMode
from pipecat.utils.errors import ErrorCategory
from pipecat_talkwire import TalkwireTTSService, wire
from websockets.asyncio.server import Server, ServerConnection, serve

from tests.official.pipecat_pipeline import conversation
from tests.official.pipecat_script import Script, header
from tests.official.turns import ONE, OTHER


async def _serve(script: Script, port: int = 0) -> Server:
    return await serve(script.converse, "127.0.0.1", port, subprotocols=[wire.SUBPROTOCOL])


def _port(server: Server) -> int:
    port: int = next(iter(server.sockets)).getsockname()[1]
    return port


def _service(server: Server, backoff_s: float) -> TalkwireTTSService:
    """Return a service that waits ``backoff_s`` between its attempts to reconnect."""
    return TalkwireTTSService(
        url=f"ws://127.0.0.1:{_port(server)}/",
        reconnect_backoff_min_wait=backoff_s,
        reconnect_backoff_max_wait=backoff_s,
    )


async def test_turn_between_reconnect_attempts_is_spoken() -> None:
    class Slow(Script):
        go = asyncio.Event()

        async def speak(self, socket: ServerConnection, context_id: str, handle: int) -> None:
            await self.go.wait()
            await super().speak(socket, context_id, handle)

    script = Slow()
    server = await _serve(script)
    tts = _service(server, backoff_s=8.0)
    async with conversation(tts) as talk:
        port = _port(server)
        server.close()
        await server.wait_closed()
        await talk.until(lambda: any("attempt 1 failed" in e for e in talk.errors()), "it tried")
        server = await _serve(script, port)
        await talk.say(ONE)
        await talk.until(lambda: bool(script.texts()), "the text was sent")
        assert tts._reconnect_in_progress
        while tts._reconnect_in_progress:
            await asyncio.sleep(0.01)
        script.go.set()
        await talk.until_stopped(1)
        assert talk.pcm() == bytes(4800)
        await talk.say(OTHER)
    assert talk.pcm() == bytes(9600)
    assert script.connections == 2
    server.close()


async def test_turn_that_a_lost_connection_cuts_off_is_reported_once() -> None:
    class Cut(Script):
        async def speak(self, socket: ServerConnection, context_id: str, handle: int) -> None:
            if self.connections > 1:
                return await super().speak(socket, context_id, handle)
            await socket.send(header(handle, 0) + bytes(4800))
            await socket.close()  # in order, and yet the rest of the turn is missing

    script = Cut()
    server = await _serve(script)
    url = f"ws://127.0.0.1:{_port(server)}/"
    async with conversation(TalkwireTTSService(url=url)) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        await talk.say(OTHER)
        await talk.until_stopped(2)
        _cut(server)  # nothing is spoken on it
        while script.connections < 3:
            await asyncio.sleep(0.01)
        await talk.say(ONE)
        await talk.until_stopped(3)
    (error,) = talk.errors()
    assert "1 turn is incomplete" in error
    assert talk.up[0].category is ErrorCategory.CONNECTIVITY
    assert talk.pcm() == bytes(3 * 4800)
    server.close()


async def test_reconnect_continues_after_many_failed_attempts() -> None:
    script = Script()
    server = await _serve(script)
    tts = _service(server, backoff_s=0.05)
    async with conversation(tts) as talk:
        port = _port(server)
        server.close()
        await server.wait_closed()
        # Pipecat itself gives up after the third attempt.
        await talk.until(lambda: any("attempt 4 failed" in e for e in talk.errors()), "it tried")
        assert tts.is_usable
        server = await _serve(script, port)
        await talk.say(ONE)
        await talk.until_stopped(1)
    assert talk.pcm() == bytes(4800)
    server.close()


async def test_service_that_gave_up_speaks_after_settings_are_corrected() -> None:
    class NoSuchVoice(Script):
        async def converse(self, socket: ServerConnection) -> None:
            if self.connections:
                return await super().converse(socket)
            self.connections += 1
            await socket.send(json.dumps(self.greeting))
            create: dict[str, Any] = json.loads(await socket.recv())
            error = {"type": "error", "code": "unknown_voice", "message": "…"}
            await socket.send(json.dumps({**error, "context_id": create["context_id"]}))

    script = NoSuchVoice()
    server = await _serve(script)
    settings = TalkwireTTSService.Settings(voice="nobody")
    tts = TalkwireTTSService(url=f"ws://127.0.0.1:{_port(server)}/", settings=settings)
    async with conversation(tts) as talk:
        await talk.say(ONE)
        await talk.until_stopped(1)
        assert tts._receive_task is not None
        await asyncio.wait([tts._receive_task])  # the server has closed and the service gives up
        assert not tts.is_usable
        better = TalkwireTTSService.Settings(voice="default")
        await talk.queue(TTSUpdateSettingsFrame(delta=better))
        await talk.say(OTHER)
        await talk.until_stopped(2)
    assert talk.pcm() == bytes(4800)
    assert script.texts() == f"{OTHER} "
    server.close()


class Held(TalkwireTTSService):
    """A service that reconnects when the test lets it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(stop_frame_timeout_s=3600, **kwargs)
        self.lost, self.go = asyncio.Event(), asyncio.Event()

    async def _maybe_try_reconnect(self, *args: Any) -> bool:
        self.lost.set()
        await self.go.wait()
        return await super()._maybe_try_reconnect(*args)


class Mute(Script):
    """A server that speaks nothing on its first connection."""

    async def speak(self, socket: ServerConnection, context_id: str, handle: int) -> None:
        if self.connections > 1:
            await super().speak(socket, context_id, handle)


def _cut(server: Server) -> None:
    for socket in server.connections:
        socket.transport.abort()


async def test_turn_that_ends_when_the_connection_is_lost_is_over() -> None:
    script = Mute()
    server = await _serve(script)
    url = f"ws://127.0.0.1:{_port(server)}/"
    tts = Held(url=url, text_aggregation_mode=TextAggregationMode.TOKEN)
    async with conversation(tts) as talk:
        await talk.queue(LLMFullResponseStartFrame(), LLMTextFrame(ONE))
        while not script.texts():
            await asyncio.sleep(0.01)
        _cut(server)
        await tts.lost.wait()
        await talk.queue(LLMFullResponseEndFrame())
        await talk.say(OTHER)
        while OTHER not in script.texts():
            await asyncio.sleep(0.01)
        tts.go.set()
        await talk.until_stopped(2)
    assert len(set(talk.contexts())) == 2
    assert talk.pcm(talk.contexts()[1]) == bytes(4800)
    assert not any("processing frame" in error for error in talk.errors())
    server.close()


async def test_turn_of_lost_connection_ends_if_a_text_reconnects_first() -> None:
    script = Mute()
    server = await _serve(script)
    tts = Held(url=f"ws://127.0.0.1:{_port(server)}/")
    async with conversation(tts) as talk:
        await talk.say(ONE)
        while not any(message["type"] == "context.end" for message in script.heard):
            await asyncio.sleep(0.01)
        _cut(server)
        await tts.lost.wait()
        await talk.say(OTHER)
        while OTHER not in script.texts():
            await asyncio.sleep(0.01)
        tts.go.set()
        await talk.until_stopped(2)
    assert talk.pcm(talk.contexts()[1]) == talk.pcm() == bytes(4800)
    server.close()


async def test_turns_without_server_do_not_end_reconnection() -> None:
    script = Script()
    server = await _serve(script)
    tts = _service(server, backoff_s=0.05)
    async with conversation(tts) as talk:
        port = _port(server)
        server.close()
        await server.wait_closed()
        await talk.until(lambda: any("attempt 1 failed" in e for e in talk.errors()), "it tried")
        for turn in range(4):
            await talk.say(ONE)
            await talk.until_stopped(turn + 1)
        assert tts.is_usable
        server = await _serve(script, port)
        await talk.say(OTHER)
        await talk.until_stopped(5)
    assert talk.pcm() == bytes(4800)
    server.close()


@pytest.mark.parametrize("code", ["overloaded", "engine_restarting", "invalid_text"])
async def test_errors_that_pass_leave_service_usable(code: str) -> None:
    class Failing(Script):
        async def speak(self, socket: ServerConnection, context_id: str, handle: int) -> None:
            if handle >= 4:
                return await super().speak(socket, context_id, handle)
            for kind in ("error", "context.done"):
                told = {"type": kind, "context_id": context_id, "code": code, "message": "No."}
                await socket.send(json.dumps({**told, "reason": "error"}))

    script = Failing()
    server = await _serve(script)
    tts = TalkwireTTSService(url=f"ws://127.0.0.1:{_port(server)}/")
    async with conversation(tts) as talk:
        for turn in range(5):
            await talk.say(ONE)
            await talk.until_stopped(turn + 1)
        assert tts.is_usable
    assert talk.pcm() == bytes(4800)
    assert len(talk.errors()) == 4
    server.close()
