"""Contexts of one socket beside each other: a late reader, a failing user, an id used again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

import clients.late
import clients.native
from clients.context import MAX_QUEUED_CHUNKS, ClientContext
from clients.errors import ConnectionLostError, SlowReaderError
from clients.native import NativeClient
from streaming import wire
from streaming.wire_format import parse_client_message
from tests.clients.fake_server import Peer, cancelled, drain, fake_server, metrics


async def _one_is_late(peer: Peer) -> None:
    """Much audio for the second context of two, then some for the first."""
    await peer.open_context(1)
    await peer.open_context(2)
    for _ in range(2 * MAX_QUEUED_CHUNKS):
        await peer.audio(2, b"\2\0")
    await peer.audio(1, b"\1\0")
    for _ in range(2):
        message = parse_client_message(await peer.socket.recv())
        if isinstance(message, wire.ContextCancel):
            await peer.say(cancelled(message.context_id), metrics(message.context_id))
        else:
            assert isinstance(message, wire.ContextEnd)
            await peer.finish(message.context_id)


async def _hear(context: ClientContext) -> None:
    chunks = aiter(context)
    assert (await anext(chunks)).pcm == b"\1\0"
    await context.end()
    assert await anext(chunks, None) is None


async def _cancel(context: ClientContext) -> None:
    assert await context.cancel() is not None


@pytest.mark.parametrize("use", [_hear, _cancel])
async def test_a_context_that_nobody_reads_is_given_up_for_one_that_waits(
    use: Callable[[ClientContext], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients.late, "PATIENCE_S", 0.05)
    async with (
        fake_server(_one_is_late) as url,
        NativeClient.connect(url) as client,
        client.context() as one,
        client.context() as two,
    ):
        while two.waiting_chunks < MAX_QUEUED_CHUNKS:
            await asyncio.sleep(0.01)
        await use(one)
        with pytest.raises(SlowReaderError, match=two.context_id):
            await drain(two)
        assert await two.cancel() == cancelled(two.context_id)


async def test_the_sockets_end_is_told_also_while_a_reader_is_late() -> None:
    late = MAX_QUEUED_CHUNKS + 4  # some more than are held, few enough to be read off the socket

    async def script(peer: Peer) -> None:
        await peer.open_context(1)
        await peer.open_context(2)
        for _ in range(late):
            await peer.audio(2, b"\2\0")
        await peer.socket.close(1011, "worker died")

    async with (
        fake_server(script) as url,
        NativeClient.connect(url) as client,
        client.context() as one,
        client.context() as two,
    ):
        with pytest.raises(ConnectionLostError, match="worker died"):
            await drain(one)
        assert await two.cancel() is None
        assert two.waiting_chunks == 0


async def test_what_on_words_raises_ends_its_own_context_alone() -> None:
    calls = []

    async def script(peer: Peer) -> None:
        one, two = await peer.open_context(1), await peer.open_context(2)
        words = [wire.Word("Hi.", 0, 3, 0.0, 1.0)]
        await peer.audio(1, b"\1\0")
        await peer.say(wire.Timestamps(one.context_id, words))
        await peer.say(wire.Timestamps(one.context_id, words))
        await peer.audio(2, b"\2\0")
        await peer.finish(two.context_id)
        assert (await peer.expect(wire.ContextCancel)).context_id == one.context_id
        await peer.say(cancelled(one.context_id), metrics(one.context_id))

    def on_words(words: Sequence[wire.Word]) -> None:
        calls.append(words)
        raise LookupError("of the user's callback")

    heard: list[bytes] = []
    async with fake_server(script) as url, NativeClient.connect(url) as client:
        async with client.context(on_words=on_words) as one, client.context() as two:
            assert await drain(two) == [b"\2\0"]
            with pytest.raises(LookupError, match="of the user's callback"):
                await drain(one, heard)
        assert one.cancelled is not None
    assert heard == [b"\1\0"]
    assert len(calls) == 1


async def test_nobody_waits_for_a_client_that_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: str) -> None:
        raise LookupError("a fault of ours")

    async def script(peer: Peer) -> None:
        await peer.open_context()
        await peer.expect(wire.TextAppend)
        await peer.say(wire.GoingAway(1))

    async def use(url: str) -> None:
        async with NativeClient.connect(url) as client:
            async with client.context() as context:
                monkeypatch.setattr(clients.native, "parse", broken)
                await context.append("Hello.")
                with pytest.raises(ConnectionLostError, match="the client failed"):
                    await drain(context)
            with pytest.raises(ConnectionLostError):
                await client.context().__aenter__()

    async with fake_server(script) as url:
        with pytest.raises(LookupError, match="a fault of ours"):
            await use(url)


async def test_an_id_may_be_used_again_at_once_and_who_left_early_has_its_metrics() -> None:
    async def script(peer: Peer) -> None:
        for handle in range(4):
            create = await peer.open_context(handle)
            await peer.expect(wire.ContextCancel)
            await peer.say(cancelled(create.context_id))
            await asyncio.sleep(0.05)
            await peer.say(metrics(create.context_id))

    async with fake_server(script) as url, NativeClient.connect(url) as client:
        for _ in range(2):
            async with client.context(context_id="turn") as context:
                assert await context.cancel() is not None
        for _ in range(2):
            async with client.context(context_id="turn") as context:
                pass
            assert context.metrics == metrics("turn")
