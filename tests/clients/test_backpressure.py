"""Several contexts on one socket: slow readers, failing callbacks and reused context ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import talkwire_client.client
from talkwire_client import protocol
from talkwire_client.audio import count_samples
from talkwire_client.bounded_queue import BoundedQueue
from talkwire_client.client import Client
from talkwire_client.errors import ConnectionLostError, SlowReaderError
from talkwire_client.protocol import AudioHeader
from talkwire_client.speech import MAX_QUEUED_CHUNKS, Speech
from tests.clients.fake_server import Peer, cancelled, drain, fake_server, metrics


async def _one_is_late(peer: Peer) -> None:
    """Send much audio for the second of two contexts, then some for the first."""
    await peer.open_context(1)
    await peer.open_context(2)
    for _ in range(2 * MAX_QUEUED_CHUNKS):
        await peer.audio(2, b"\2\0")
    await peer.audio(1, b"\1\0")
    for _ in range(2):
        message = await peer.receive()
        if isinstance(message, protocol.ContextCancel):
            await peer.say(cancelled(message.context_id), metrics(message.context_id))
        else:
            assert isinstance(message, protocol.ContextEnd)
            await peer.finish(message.context_id)


async def _hear(speech: Speech) -> None:
    chunks = aiter(speech)
    assert (await anext(chunks)).data == b"\1\0"
    await speech.end()
    assert await anext(chunks, None) is None


async def _cancel(speech: Speech) -> None:
    assert await speech.cancel() is not None


@pytest.mark.parametrize("use", [_hear, _cancel])
async def test_slow_reader_fails_when_another_speech_waits(
    use: Callable[[Speech], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talkwire_client.client, "SLOW_READER_TIMEOUT_S", 0.05)
    async with (
        fake_server(_one_is_late) as url,
        Client(url) as client,
        client.speak() as one,
        client.speak() as two,
    ):
        while two.queued_chunks < MAX_QUEUED_CHUNKS:
            await asyncio.sleep(0.01)
        await use(one)
        with pytest.raises(SlowReaderError, match=two.context_id):
            await drain(two)
        assert await two.cancel() == cancelled(two.context_id)


@pytest.mark.parametrize(
    ("options", "chunk"),
    [
        ({"encoding": "opus", "max_lead_ms": 40_000}, b"\x0c"),  # one frame of 20 ms
        ({"encoding": "opus", "frame_ms": 60, "max_lead_ms": 120_000}, b"\x1c"),
        ({"encoding": "pcm_mulaw", "frame_ms": 20, "max_lead_ms": 40_000}, bytes(160)),
        ({"frame_ms": 60}, b"\0\0"),  # the server's largest lead, since its default is unknown
    ],
)
async def test_lead_of_short_chunks_does_not_stop_reading(
    options: dict[str, Any], chunk: bytes
) -> None:
    async def script(peer: Peer) -> None:
        create = await peer.open_context()
        await peer.say(protocol.AudioStarted(create.context_id, create.audio.encoding, 48_000))
        for number in range(2000):
            header = AudioHeader(0, number, number * offset)
            await peer.socket.send(header.pack() + chunk)
        await peer.say(protocol.FlushDone(create.context_id, "f"))
        await peer.finish(create.context_id)

    encoding = protocol.Encoding(options.get("encoding", "pcm_s16le"))
    offset = count_samples(chunk, encoding, 48_000)
    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak(**options) as speech,
    ):
        assert await speech.wait_flushed("f")
        assert speech.queued_chunks == 2000
        assert len(await drain(speech)) == 2000


async def test_writer_of_full_queue_waits_until_item_is_taken() -> None:
    queue: BoundedQueue[int] = BoundedQueue(2)
    for number in range(2):
        await queue.wait_for_room()
        queue.put(number)
    writer = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(0)
    assert not writer.done()
    assert await queue.get() == 0
    async with asyncio.timeout(10):
        await writer


async def test_queue_is_awaited_only_while_its_reader_waits() -> None:
    """Otherwise another speech would be given up for a reader that has stopped to read."""
    queue: BoundedQueue[int] = BoundedQueue(1)
    for is_cancelled in (False, True):
        reader = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        assert queue.is_awaited
        if is_cancelled:
            reader.cancel()
        else:
            queue.put(1)
        await asyncio.wait([reader])
        assert not queue.is_awaited


async def test_connection_loss_is_reported_despite_slow_reader() -> None:
    late = MAX_QUEUED_CHUNKS + 4  # more than the queue holds, but all can be read off the socket

    async def script(peer: Peer) -> None:
        await peer.open_context(1)
        await peer.open_context(2)
        for _ in range(late):
            await peer.audio(2, b"\2\0")
        await peer.socket.close(1011, "worker died")

    async with (
        fake_server(script) as url,
        Client(url) as client,
        client.speak() as one,
        client.speak() as two,
    ):
        with pytest.raises(ConnectionLostError, match="worker died"):
            await drain(one)
        assert await two.cancel() is None
        assert two.queued_chunks == 0


async def test_on_words_error_ends_only_its_speech() -> None:
    calls = []

    async def script(peer: Peer) -> None:
        one, two = await peer.open_context(1), await peer.open_context(2)
        words = [protocol.Word("Hi.", 0, 3, 0.0, 1.0)]
        await peer.audio(1, b"\1\0")
        await peer.say(protocol.Timestamps(one.context_id, words))
        await peer.say(protocol.Timestamps(one.context_id, words))
        await peer.audio(2, b"\2\0")
        await peer.finish(two.context_id)
        assert (await peer.expect(protocol.ContextCancel)).context_id == one.context_id
        await peer.say(cancelled(one.context_id), metrics(one.context_id))

    def on_words(words: Sequence[protocol.Word]) -> None:
        calls.append(words)
        raise LookupError("of the user's callback")

    heard: list[bytes] = []
    async with fake_server(script) as url, Client(url) as client:
        async with client.speak(on_words=on_words) as one, client.speak() as two:
            assert await drain(two) == [b"\2\0"]
            with pytest.raises(LookupError, match="of the user's callback"):
                await drain(one, heard)
        assert one.cancelled is not None
    assert heard == [b"\1\0"]
    assert len(calls) == 1


async def test_client_fault_fails_open_and_new_speeches(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: str) -> None:
        raise LookupError("a fault of ours")

    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.expect(protocol.TextAppend)
        await peer.say(protocol.GoingAway(1))

    async def use(url: str) -> None:
        async with Client(url) as client:
            async with client.speak() as speech:
                monkeypatch.setattr(talkwire_client.client, "_decode", broken)
                await speech.append("Hello.")
                with pytest.raises(ConnectionLostError, match="the client failed"):
                    await drain(speech)
            with pytest.raises(ConnectionLostError):
                await client.speak().__aenter__()

    async with fake_server(script) as url:
        with pytest.raises(LookupError, match="a fault of ours"):
            await use(url)


async def test_context_id_is_reusable_right_after_cancel() -> None:
    async def script(peer: Peer) -> None:
        for handle in range(4):
            create = await peer.open_context(handle)
            await peer.expect(protocol.ContextCancel)
            await peer.say(cancelled(create.context_id))
            await asyncio.sleep(0.05)
            await peer.say(metrics(create.context_id))

    async with fake_server(script) as url, Client(url) as client:
        for _ in range(2):
            async with client.speak(context_id="turn") as speech:
                assert await speech.cancel() is not None
        for _ in range(2):
            async with client.speak(context_id="turn") as speech:
                pass
            assert speech.metrics == metrics("turn")


async def test_speech_that_is_left_while_its_connection_is_slow_frees_its_id() -> None:
    class Slow(Client):
        asked, room = asyncio.Event(), asyncio.Lock()

        async def send(self, message: protocol.ClientMessage) -> None:
            self.asked.set()
            async with self.room:
                await super().send(message)

    async def script(peer: Peer) -> None:
        for handle in range(2):
            create = await peer.open_context(handle)
            await peer.expect(protocol.ContextCancel)
            await peer.say(cancelled(create.context_id), metrics(create.context_id))

    async with fake_server(script) as url, Slow(url) as client:
        async with client.room:
            entering = asyncio.create_task(client.speak(context_id="a").__aenter__())
            await client.asked.wait()
            entering.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([entering])
        assert entering.cancelled()
        async with client.speak(context_id="a"):
            pass
