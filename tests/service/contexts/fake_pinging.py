"""A WebSocket that records pings, for tests of acknowledgements."""

from __future__ import annotations

from collections.abc import Callable

from service.transport.websocket_protocol import WebSocketProtocol


class FakePinging(WebSocketProtocol):
    """Records pings; the test answers them."""

    def __init__(self) -> None:  # without a connection
        self.pings: list[bytes] = []
        self.on_pong: Callable[[bytes], bool] | None = None

    def ping(self, payload: bytes) -> None:
        self.pings.append(payload)

    def answer(self, which: int = -1) -> None:
        assert self.on_pong is not None
        self.on_pong(self.pings[which])
