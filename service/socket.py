"""The shell around one WebSocket: a reader, a writer and a housekeeper as sibling tasks.

A dialect only decides what a message means; reading, writing, idling and closing are the
same for all of them and live here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Protocol

from fastapi import WebSocket, WebSocketDisconnect

from service.outbox import Item, Outbox
from service.runtime import Runtime
from streaming.errors import CapacityError, ErrorCode, TalkwireError

log = logging.getLogger(__name__)

NORMAL, GOING_AWAY, POLICY, INTERNAL = 1000, 1001, 1008, 1011
_HOUSEKEEPING_S, _LEAVING_S = 0.5, 0.05
_FLUSH_S = 2.0


class SocketClosing(Exception):
    """The dialect wants the socket closed with this code."""

    def __init__(self, code: int = NORMAL) -> None:
        super().__init__(code)
        self.code = code


class Dialect(Protocol):
    """One wire protocol on one socket. Methods are synchronous; the ``on_`` ones may raise
    SocketClosing.
    """

    def open(self) -> None:
        """The socket is accepted."""

    def on_text(self, text: str) -> None:
        """A text message came."""

    def on_bytes(self, data: bytes) -> None:
        """A binary message came."""

    def on_tick(self, now: float) -> None:
        """Twice a second or so."""

    def on_drain(self, deadline_ms: int) -> None:
        """The server is going away; contexts under way have so long to finish."""

    @property
    def is_idle(self) -> bool:
        """Whether no context has work to do."""

    def word(self, error: TalkwireError) -> str:
        """The message that tells the client about an error of the whole socket."""

    def close(self) -> None:
        """The socket is over: cancel every context."""


class Socket:
    """Runs one accepted WebSocket until either side closes it."""

    def __init__(self, websocket: WebSocket, runtime: Runtime) -> None:
        self._websocket, self._runtime = websocket, runtime
        self.outbox = Outbox(runtime.settings.max_outbox_bytes)
        self._writing_since: float | None = None
        self._code = NORMAL
        self._too_slow = False

    async def run(self, dialect: Dialect, tasks: asyncio.TaskGroup) -> None:
        """Serve until the end. Works inside ``tasks``, where the contexts' tasks live too."""
        dialect.open()
        writer = tasks.create_task(self._write())
        others = [
            tasks.create_task(self._read(dialect)),
            tasks.create_task(self._keep(dialect)),
            tasks.create_task(self._watch_overflow()),
        ]
        try:
            await asyncio.wait({writer, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            dialect.close()
            for task in others:
                task.cancel()
            self.outbox.close(self._last_words(dialect))
            await asyncio.wait({writer}, timeout=_FLUSH_S)
            writer.cancel()
            await self._close()

    async def _read(self, dialect: Dialect) -> None:
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                if (text := message.get("text")) is not None:
                    dialect.on_text(text)
                elif (data := message.get("bytes")) is not None:
                    dialect.on_bytes(data)
        except SocketClosing as closing:
            self._code = closing.code
        except Exception:
            log.exception("connection broke")
            self._code = INTERNAL

    async def _write(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            while (item := await self.outbox.get()) is not None:
                self._writing_since = time.monotonic()
                if isinstance(item.data, str):
                    await self._websocket.send_text(item.data)
                else:
                    await self._websocket.send_bytes(item.data)
                self._writing_since = None

    async def _keep(self, dialect: Dialect) -> None:
        """Notice what no message tells: a writer that does not get on, idle contexts, the
        server's end. That is told to the client, and waits until nobody is spoken to.
        """
        settings = self._runtime.settings
        leave_at: float | None = None
        try:
            while True:
                await self._pause(leave_at is not None)
                now = time.monotonic()
                if self._writing_since is not None:
                    self._too_slow = now - self._writing_since > settings.slow_consumer_s
                if leave_at is None and self._runtime.draining.is_set():
                    dialect.on_drain(round(1000 * settings.drain_s))
                    leave_at = now + settings.drain_s
                if leave_at is not None and (dialect.is_idle or now >= leave_at):
                    raise SocketClosing(GOING_AWAY)
                if self._too_slow:
                    return
                dialect.on_tick(now)
        except SocketClosing as closing:
            self._code = closing.code

    async def _pause(self, is_leaving: bool) -> None:
        """Until the next look round, which the server's end brings forward."""
        if is_leaving:
            await asyncio.sleep(_LEAVING_S)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._runtime.draining.wait(), _HOUSEKEEPING_S)

    async def _watch_overflow(self) -> None:
        await self.outbox.overflowed.wait()
        self._too_slow = True

    def _last_words(self, dialect: Dialect) -> Item | None:
        if not self._too_slow:
            return None
        self._code = POLICY
        error = CapacityError(ErrorCode.SLOW_CONSUMER, "The client reads too slowly for its audio.")
        return Item(dialect.word(error))

    async def _close(self) -> None:
        self._runtime.metrics.closes.labels(str(self._code)).inc()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
            await asyncio.wait_for(self._websocket.close(self._code), _FLUSH_S)
