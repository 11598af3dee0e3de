"""Messages that arrive together are handled in order; messages to clients are sent at once."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from service.dialects.native import NativeDialect
from service.listening import configure_listener
from service.settings import Settings
from service.transport import intake
from service.transport.intake import SLICE_BYTES
from service.transport.websocket_protocol import WebSocketProtocol
from tests.service.live import append, client, gateway, write


@pytest.mark.parametrize("count", [1, 16, 17, 163, 2000])
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
    monkeypatch.setattr(intake, "_TURN_S", 0.0)
    messages = 1600
    async with gateway() as server, client(server.url) as c:
        await c.create()
        before = taken
        write(c, [append("a") for _ in range(messages)])
        while taken < before + messages:
            seen = taken
            await asyncio.sleep(0)
            most = max(most, taken - seen)
    assert 0 < most <= SLICE_BYTES // len(json.dumps(append("a")))


async def test_messages_are_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    receive = WebSocketProtocol.receive

    async def note(protocol: WebSocketProtocol) -> Any:
        received.append(await receive(protocol))
        return received[-1]

    monkeypatch.setattr(WebSocketProtocol, "receive", note)
    async with gateway() as server, client(server.url) as c:
        await c.create()
        write(c, [{"type": "ping", "id": "all"}] * 200)
        for _ in range(200):
            assert await c.next() == {"type": "pong", "id": "all"}
        assert [each["type"] for each in received] == ["websocket.connect"]


async def test_messages_before_close_frame_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(NativeDialect, "on_text", lambda _, text: taken.put_nowait(text))
    async with gateway() as server, client(server.url) as c:
        write(c, [append("a"), append("b")])
        c.socket.protocol.send_close(1000)
        c.socket.transport.write(b"".join(c.socket.protocol.data_to_send()))
        async with asyncio.timeout(60):
            assert [json.loads(await taken.get())["text"] for _ in range(2)] == ["a", "b"]


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
