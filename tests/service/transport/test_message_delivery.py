"""Messages that come together: all of them, in order, and others have their turns between them."""

from __future__ import annotations

import asyncio

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from service.dialects.native import NativeDialect
from service.transport.uvicorn_protocols import AT_ONCE
from tests.service.live import append, client, gateway, write


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1, 10 * AT_ONCE + 3])
async def test_messages_that_come_together_are_taken_in_order(count: int) -> None:
    words = [f"word{number} " for number in range(count)]
    async with gateway() as server, client(server.url) as c:
        await c.create()
        # more come while the rest of the first ones wait
        write(c, [append(word) for word in words[: count // 2]])
        await asyncio.sleep(0)
        cancel = {"type": "context.cancel", "context_id": "c"}
        write(c, [*(append(word) for word in words[count // 2 :]), cancel])
        cancelled = await c.until("context.cancelled")
        assert cancelled["text_spoken"] + cancelled["text_remaining"] == "".join(words)


async def test_who_sends_many_at_once_leaves_others_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, most = 0, 0
    on_text = NativeDialect.on_text

    def count(dialect: NativeDialect, text: str) -> None:
        nonlocal taken
        taken += 1
        on_text(dialect, text)

    monkeypatch.setattr(NativeDialect, "on_text", count)
    messages = 100 * AT_ONCE
    async with gateway() as server, client(server.url) as c:
        await c.create()
        before = taken
        write(c, [append("a") for _ in range(messages)])
        while taken < before + messages:
            seen = taken
            await asyncio.sleep(0)
            most = max(most, taken - seen)
    # Those that are handled at once, and then the reader's own turn.
    assert AT_ONCE <= most <= 2 * AT_ONCE


async def test_messages_that_come_one_by_one_never_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queued = list[bool]()
    queue = WebSocketsSansIOProtocol.send_receive_event_to_app

    def note(protocol: WebSocketsSansIOProtocol) -> None:
        queued.append(True)
        queue(protocol)

    async with gateway() as server, client(server.url) as c:
        await c.create()
        monkeypatch.setattr(WebSocketsSansIOProtocol, "send_receive_event_to_app", note)
        for number in range(2 * AT_ONCE):
            await c.send("ping", id=str(number))
            assert await c.next() == {"type": "pong", "id": str(number)}
        assert not queued
        write(c, [{"type": "ping", "id": "all"}] * (AT_ONCE + 1))
        for _ in range(AT_ONCE + 1):
            assert await c.next() == {"type": "pong", "id": "all"}
        assert len(queued) == 1


async def test_messages_in_fragments_are_put_together_and_leave_nothing_behind() -> None:
    async with gateway() as server, client(server.url) as c:
        for pieces in (['{"type":', '"ping",', '"id":"1"}'], ['{"type":"ping","id":"2"}']):
            await c.socket.send(pieces)
        await c.socket.send([b"one", b"two"])
        await c.socket.send('{"type":"ping","id":"3"}')
        assert [await c.next() for _ in range(2)] == [
            {"type": "pong", "id": "1"},
            {"type": "pong", "id": "2"},
        ]
        assert (await c.error())["code"] == "invalid_message"
        assert await c.next() == {"type": "pong", "id": "3"}


async def test_a_fault_in_a_message_ends_the_socket_and_says_no_more_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(dialect: NativeDialect, text: str) -> None:
        raise ZeroDivisionError("nobody's business")

    async with gateway() as server, client(server.url) as c:
        await c.create()
        monkeypatch.setattr(NativeDialect, "on_text", broken)
        write(c, [append("a")] * 3)
        await asyncio.wait_for(c.socket.wait_closed(), 30)
        assert (c.socket.close_code, c.socket.close_reason) == (1011, "")
        await server.until_free()
