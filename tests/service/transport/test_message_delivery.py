"""Messages that arrive together are handled in order; messages to clients are sent at once."""

from __future__ import annotations

import asyncio
import socket

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from service.dialects.native import NativeDialect
from service.settings import Settings
from service.transport.uvicorn_protocols import AT_ONCE, configure_listener
from tests.service.live import append, client, gateway, write


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1, 10 * AT_ONCE + 3])
async def test_messages_arriving_together_are_handled_in_order(count: int) -> None:
    words = [f"word{number} " for number in range(count)]
    async with gateway() as server, client(server.url) as c:
        await c.create()
        # more arrive while some of the first ones still wait
        write(c, [append(word) for word in words[: count // 2]])
        await asyncio.sleep(0)
        cancel = {"type": "context.cancel", "context_id": "c"}
        write(c, [*(append(word) for word in words[count // 2 :]), cancel])
        cancelled = await c.until("context.cancelled")
        assert cancelled["text_spoken"] + cancelled["text_remaining"] == "".join(words)


async def test_burst_of_messages_leaves_turns_to_other_tasks(
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
    # One batch is handled at once, and another in the reader's own turn.
    assert AT_ONCE <= most <= 2 * AT_ONCE


async def test_single_messages_are_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_message_fragments_are_joined() -> None:
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


async def test_handler_exception_closes_socket_with_1011_and_no_reason(
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


async def test_connections_of_configured_listener_do_not_delay_small_messages() -> None:
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = socket.create_server(("127.0.0.1", 0))
    configure_listener(listener, slow_consumer_s=1.0)
    async with await asyncio.start_server(connected, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await accepted
        writer.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has it")
@pytest.mark.parametrize(("slow_consumer_s", "timeout_ms"), [(604_800, 2**31 - 1), (0.00001, 1)])
def test_listener_accepts_all_allowed_values_of_slow_consumer_s(
    slow_consumer_s: float, timeout_ms: int
) -> None:
    allowed = Settings(slow_consumer_s=slow_consumer_s)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        configure_listener(listener, allowed.slow_consumer_s)
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == timeout_ms
