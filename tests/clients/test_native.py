from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing

import pytest

from clients.context import MAX_QUEUED_CHUNKS, AudioChunk
from clients.errors import ClientError, ConnectionLostError, ProtocolError, ServerError
from clients.native import NativeClient
from streaming import wire
from streaming.errors import ErrorCode
from streaming.wire_format import AudioFlags
from tests.clients.fake_server import Peer, cancelled, fake_server, metrics, speak_between


async def drain(chunks: AsyncIterable[AudioChunk], heard: list[bytes] | None = None) -> list[bytes]:
    """Everything that comes; in ``heard``, if given, as far as it came."""
    heard = [] if heard is None else heard
    async for chunk in chunks:
        heard.append(chunk.pcm)
    return heard


async def test_speaks_a_text_and_hands_over_its_audio_in_order() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context(handle=7)
        assert (create.voice, create.sampling.seed) == ("narrator", 3)
        assert (await peer.expect(wire.TextAppend)).text == "Hello there."
        await peer.expect(wire.ContextEnd)
        await peer.audio(7, b"\1\0" * 10, AudioFlags.FIRST)
        await peer.say_raw({"type": "from.the.future", "context_id": create.context_id})
        await peer.audio(7, b"\2\0" * 5)
        await peer.audio(7, b"", AudioFlags.LAST)
        await peer.finish(create.context_id)

    async with fake_server(script) as url, NativeClient.connect(url) as client:
        assert client.created.voices == ["narrator"]
        sampling = wire.SamplingOptions(seed=3)
        chunks = [
            c async for c in client.speak("Hello there.", voice="narrator", sampling=sampling)
        ]
    assert [c.pcm for c in chunks] == [b"\1\0" * 10, b"\2\0" * 5, b""]
    assert [c.samples for c in chunks] == [10, 5, 0]
    assert [c.header.sample_offset for c in chunks] == [0, 10, 15]
    assert chunks[-1].header.flags == AudioFlags.LAST
    assert sorted(c.arrived_s for c in chunks) == [c.arrived_s for c in chunks]


async def test_audio_comes_while_text_is_still_being_written() -> None:
    heard = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "Hello "
        await heard.wait()  # never, if the text were gathered first
        yield "there."

    async with fake_server(speak_between) as url, NativeClient.connect(url) as client:
        async for _ in client.speak(pieces()):
            heard.set()
    assert heard.is_set()


async def test_contexts_of_one_socket_do_not_mix() -> None:
    async def script(peer: Peer) -> None:
        one, two = await peer.open_context(1), await peer.open_context(2)
        for number in range(5):
            await peer.audio(2, bytes([2, 0, number, 0]))
            await peer.audio(1, bytes([1, 0, number, 0]))
        await peer.finish(two.context_id)
        await peer.audio(1, b"\1\0\5\0")
        await peer.finish(one.context_id)

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as one,
        client.context() as two,
    ):
        first, second = [c.pcm async for c in one], [c.pcm async for c in two]
        assert (one.metrics, one.done) == (
            metrics(one.context_id),
            wire.ContextDone(one.context_id, "complete"),
        )
    assert first == [bytes([1, 0, n, 0]) for n in range(6)]
    assert second == [bytes([2, 0, n, 0]) for n in range(5)]


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


async def test_cancel_drops_what_was_not_read_and_frees_the_id() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context(4)
        await peer.audio(4, b"\1\0" * 480)
        assert (await peer.expect(wire.ContextCancel)).played_ms == 20.0
        await peer.audio(4, b"\1\0" * 480)  # on its way when the server heard of it
        await peer.say(cancelled(create.context_id), metrics(create.context_id))
        again = await peer.open_context(5)
        assert again.context_id == create.context_id
        await peer.finish(again.context_id)

    async with fake_server(script) as url, NativeClient.connect(url) as client:
        async with client.context(context_id="a") as context:
            answer = await context.cancel(20.0)
            assert answer is not None
            assert (answer.text_spoken, answer.text_remaining) == ("Hello", " there.")
            assert await drain(context) == []
            assert await context.cancel() == answer
        await client.ping()  # everything sent before the pong has been read
        async with client.context(context_id="a") as context:
            assert await drain(context) == []
        assert context.metrics is not None


async def test_leaving_early_cancels() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.expect(wire.ContextEnd)
        await peer.audio(0, b"\1\0")
        await peer.expect(wire.ContextCancel)
        await peer.say(cancelled(create.context_id))

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        aclosing(client.speak("Hello")) as chunks,
    ):
        await anext(chunks)


async def test_a_late_reader_holds_the_server_back_and_can_still_cancel() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        for _ in range(2 * MAX_QUEUED_CHUNKS):
            await peer.audio(0, b"\1\0")
        await peer.expect(wire.ContextCancel)
        await peer.say(cancelled(create.context_id))

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as context,
    ):
        while context.waiting_chunks < MAX_QUEUED_CHUNKS:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # time to overfill it
        assert context.waiting_chunks == MAX_QUEUED_CHUNKS
        assert await context.cancel() is not None


async def test_a_text_that_fails_cancels_and_raises_its_own_error() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "Hello "
        raise ZeroDivisionError("the text's own")

    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.socket.wait_closed()

    async with fake_server(script) as url, NativeClient.connect(url) as client:
        with pytest.raises(ZeroDivisionError, match="the text's own"):
            await drain(client.speak(pieces()))


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


async def test_json_framing_is_asked_for_and_heard_as_the_same_chunks() -> None:
    async def script(peer: Peer) -> None:
        assert (await peer.expect(wire.SessionConfigure)).framing == "json"
        create = await peer.open_context(handle=3)
        await peer.expect(wire.TextAppend)
        await peer.expect(wire.ContextEnd)
        await peer.say(
            wire.Audio(create.context_id, 3, 0, 0, AudioFlags.FIRST, b"\1\0" * 4),
            wire.Audio(create.context_id, 3, 1, 4, AudioFlags.LAST, b"\2\0"),
        )
        await peer.finish(create.context_id)

    async with fake_server(script) as url, NativeClient.connect(url, framing="json") as client:
        chunks = [chunk async for chunk in client.speak("Hello.")]
    assert [chunk.pcm for chunk in chunks] == [b"\1\0" * 4, b"\2\0"]
    assert [chunk.samples for chunk in chunks] == [4, 1]
    assert [chunk.header.flags for chunk in chunks] == [AudioFlags.FIRST, AudioFlags.LAST]


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
