"""What goes wrong and what the native client's user is told of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clients.errors import ClientError, ConnectionLostError, ProtocolError, ServerError
from clients.native import NativeClient
from streaming import wire
from streaming.errors import ErrorCode
from tests.clients.fake_server import Peer, cancelled, drain, fake_server, metrics


async def test_a_refused_context_raises_and_leaves_the_others_alone() -> None:
    async def script(peer: Peer) -> None:
        good = await peer.open_context()
        bad = await peer.expect(wire.ContextCreate)
        code = ErrorCode.UNKNOWN_VOICE
        await peer.say(
            wire.Error(code, "No such voice.", "r1", param="voice", context_id=bad.context_id)
        )
        await peer.audio(0, b"\1\0")
        await peer.finish(good.context_id)

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as good,
    ):
        with pytest.raises(ServerError, match=r"unknown_voice \(voice\): No such voice") as caught:
            async with client.context(voice="x"):
                pytest.fail("it was refused")
        assert caught.value.code == ErrorCode.UNKNOWN_VOICE
        assert await drain(good) == [b"\1\0"]


async def test_an_error_that_ends_a_context_comes_after_its_audio() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.audio(0, b"\1\0")
        await peer.say(
            wire.Error(
                ErrorCode.ENGINE_FAILED,
                "The talker failed.",
                "r",
                retryable=True,
                context_id=create.context_id,
                retry_after_ms=500,
            )
        )
        await peer.finish(create.context_id, "error")

    heard: list[bytes] = []
    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as context,
    ):
        with pytest.raises(ServerError) as caught:
            await drain(context, heard)
    assert heard == [b"\1\0"]
    assert (caught.value.retryable, caught.value.retry_after_ms) == (True, 500)


async def test_a_refused_message_does_not_end_the_context_but_speak_reports_it() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.expect(wire.ContextEnd)
        await peer.say(
            wire.Error(ErrorCode.TEXT_TOO_LONG, "Too long.", "r", context_id=create.context_id)
        )
        await peer.audio(0, b"\1\0")
        await peer.finish(create.context_id)

    heard: list[bytes] = []
    async with fake_server(script) as url, NativeClient.connect(url) as client:
        with pytest.raises(ServerError, match="text_too_long"):
            await drain(client.speak("x"), heard)
    assert heard == [b"\1\0"]


async def test_a_text_that_fails_cancels_and_raises_its_own_error() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "Hello "
        raise ZeroDivisionError("the text's own")

    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.expect(wire.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))
        await peer.open_context()  # the same id again: the first is forgotten
        await peer.expect(wire.ContextCancel)
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with fake_server(script) as url, NativeClient.connect(url) as client:
        with pytest.raises(ZeroDivisionError, match="the text's own"):
            await drain(client.speak(pieces(), context_id="a"))
        await client.ping()
        async with client.context(context_id="a"):
            pass


@pytest.mark.parametrize("skip", [1, 2**31])
async def test_a_hole_in_the_audio_is_an_error_and_not_a_click(skip: int) -> None:
    codes = []

    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.audio(0, b"\1\0")
        await peer.audio(0, b"\1\0", skip=skip)
        await peer.socket.wait_closed()
        codes.append(peer.socket.close_code)

    async with fake_server(script) as url, NativeClient.connect(url) as client:
        async with client.context() as context:
            with pytest.raises(ProtocolError, match=f"frame {1 + skip} "):
                await drain(context)
        with pytest.raises(ClientError):
            async with client.context():
                pytest.fail("the socket is closed")
    assert codes == [1002]


@pytest.mark.parametrize("frame", [b"", b"\x11", b"\x21\0" + bytes(12), b"\x11\0\x63\0" + bytes(8)])
async def test_binary_frames_that_are_no_audio_of_ours_are_refused(frame: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.socket.send(frame)

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as context,
    ):
        with pytest.raises(ProtocolError):
            await drain(context)


async def test_a_lost_connection_ends_every_context() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context(0)
        await peer.open_context(1)
        await peer.socket.close(1011, "worker died")

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as one,
        client.context() as two,
    ):
        for context in (one, two):
            with pytest.raises(ConnectionLostError, match="worker died") as caught:
                await drain(context)
            assert caught.value.code == 1011


async def test_what_the_server_said_before_closing_is_what_the_user_is_told() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.say(wire.Error(ErrorCode.SLOW_CONSUMER, "You read too slowly.", "r"))
        await peer.socket.close(1008)

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as context,
    ):
        with pytest.raises(ServerError, match="slow_consumer"):
            await drain(context)


async def test_an_id_in_use_is_refused_here() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.ContextEnd)
        await peer.finish(create.context_id)

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context(context_id="a") as context,
    ):
        with pytest.raises(ValueError, match="in use"):
            async with client.context(context_id="a"):
                pytest.fail("it is in use")
        await context.end()
        assert await drain(context) == []


async def test_a_hole_in_json_audio_is_noticed_too() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(wire.SessionConfigure)
        create = await peer.open_context()
        await peer.say(wire.Audio(create.context_id, 0, 1, 0, 0, b"\1\0"))

    async with fake_server(script) as url:
        with pytest.raises(ProtocolError):
            async with (
                NativeClient.connect(url, framing="json") as client,
                client.context() as context,
            ):
                await drain(context)
