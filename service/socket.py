"""The shell around one WebSocket: a reader, a writer and a housekeeper as sibling tasks.

A dialect only decides what a message means; reading, writing, idling and closing are the
same for all of them and live here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import Protocol

from fastapi import WebSocket, WebSocketDisconnect

from service.auth.caller import current_caller
from service.heartbeat import together_s
from service.outbox import Item, Outbox
from service.reading import EXTENSION, Reading
from service.runtime import Runtime
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError

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

    def is_settled(self, now: float) -> bool:
        """Whether no context is under way, so that the server may end."""

    def word(self, error: TalkwireError) -> str:
        """The message that tells the client about an error of the whole socket."""

    def close(self) -> None:
        """The socket is over: cancel every context."""


class Socket:
    """Runs one accepted WebSocket until either side closes it."""

    def __init__(self, websocket: WebSocket, runtime: Runtime) -> None:
        self._websocket, self._runtime = websocket, runtime
        self._reading = Reading(websocket.scope.get("extensions", {}).get(EXTENSION))
        self.outbox = Outbox(runtime.settings.max_outbox_bytes, self._reading)
        self._writing_since: float | None = None
        self._code = NORMAL
        self._too_slow = self._is_closing = False
        self._caller = current_caller()
        self._opened_at = time.monotonic()

    def finish(self, code: int = NORMAL) -> None:
        """The dialect has said all that it will say: close once that has been written. Without
        effect while the socket is closing already.
        """
        if not self._is_closing:
            self._code = code
            self.outbox.close()

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
            self._is_closing = True
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
                self._note_written(item)

    def _note_written(self, item: Item) -> None:
        more, now = not self.outbox.is_empty, time.monotonic()
        self._reading.on_written(item.handle, item.samples, len(item.data), now, more=more)

    async def _keep(self, dialect: Dialect) -> None:
        """Notice what no message tells: a writer that does not get on, idle contexts, a key that
        was revoked, the socket's age, the server's end. The last two are told to the client, and
        wait until nobody is spoken to.
        """
        settings = self._runtime.settings
        oldest_s = settings.max_session_s or math.inf
        leave_at: float | None = None
        try:
            while True:
                await self._pause(leave_at is not None)
                now = time.monotonic()
                self._too_slow = self._stuck_s(now) > settings.slow_consumer_s
                is_old = now - self._opened_at >= oldest_s
                if leave_at is None and (is_old or self._runtime.draining.is_set()):
                    dialect.on_drain(round(1000 * settings.drain_s))
                    leave_at = now + settings.drain_s
                if leave_at is not None and (dialect.is_settled(now) or now >= leave_at):
                    raise SocketClosing(GOING_AWAY)
                if self._too_slow or not self._runtime.authority.is_welcome(self._caller):
                    return
                dialect.on_tick(now)
        except SocketClosing as closing:
            self._code = closing.code

    def _stuck_s(self, now: float) -> float:
        """For how long nothing could be written, or nothing of what was written was read."""
        writing_s = 0.0 if self._writing_since is None else now - self._writing_since
        return max(writing_s, self._reading.stuck_s(now))

    async def _pause(self, is_leaving: bool) -> None:
        """Until the next look round, which the server's end brings forward."""
        if is_leaving:
            await asyncio.sleep(_LEAVING_S)
            return
        with contextlib.suppress(TimeoutError):
            pause_s = together_s(_HOUSEKEEPING_S, time.monotonic())
            async with asyncio.timeout(pause_s):  # wait_for would make a task each time
                await self._runtime.draining.wait()

    async def _watch_overflow(self) -> None:
        await self.outbox.overflowed.wait()
        self._too_slow = True

    def _last_words(self, dialect: Dialect) -> Item | None:
        error: TalkwireError | None = None
        if self._too_slow:
            message = "The client reads too slowly for its audio."
            error = CapacityError(ErrorCode.SLOW_CONSUMER, message)
        elif not self._runtime.authority.is_welcome(self._caller):
            error = RequestError(ErrorCode.UNAUTHORIZED, "The API key is not valid any more.")
        if error is None:
            return None
        self._code = POLICY
        return Item(dialect.word(error))

    async def _close(self) -> None:
        self._runtime.metrics.closes.labels(str(self._code)).inc()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError, TimeoutError):
            await asyncio.wait_for(self._websocket.close(self._code), _FLUSH_S)
        # A transport that is closed waits until all is taken, and some clients take nothing.
        patience_s = _FLUSH_S if self._too_slow else self._runtime.settings.slow_consumer_s
        self._reading.give_up_in(patience_s)
