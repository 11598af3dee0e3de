"""The native client: what it hears, in order, and how it cancels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from clients.context import MAX_QUEUED_CHUNKS
from clients.native import NativeClient
from streaming import wire
from streaming.wire_format import AudioFlags
from tests.clients.fake_server import Peer, cancelled, drain, fake_server, metrics, speak_between


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
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

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
        await peer.say(cancelled(create.context_id), metrics(create.context_id))

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
        assert await drain(context) == []


async def test_cancel_ends_the_hearing_of_what_the_server_has_long_finished() -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        for _ in range(9):
            await peer.audio(0, b"\1\0")
        await peer.finish(create.context_id)

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as context,
    ):
        while not context.is_over:
            await asyncio.sleep(0.01)
        heard = []
        async for chunk in context:
            heard.append(chunk.pcm)
            assert await context.cancel() is None
        assert heard == [b"\1\0"]


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
