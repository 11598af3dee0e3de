"""Valid and invalid messages in random order on the native socket, by hypothesis' state machine.

The application and the connection are real, the engines fake. Answers must be as in
docs/reference/protocol.md: known messages and codes, one end for each context and nothing after
it, and a socket that closes with 1000 and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from streaming.errors import ErrorCode
from streaming.protocol.binary import HEADER_BYTES, AudioHeader
from streaming.protocol.messages import SERVER_MESSAGES
from tests.service.live import Gateway, gateway

KNOWN = {kind.__struct_config__.tag for kind in SERVER_MESSAGES}
CODES = {code.value for code in ErrorCode}
PATIENCE_S = 60
IDS = st.sampled_from(("a", "b", "c", "never"))
TEXT = st.sampled_from(("Hello. ", "One two, three. Four! ", "half a", "", " \n", "...", "<|x|>"))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
TYPES = ("context.create", "text.append", "context.flush", "context.end", "context.cancel",
         "playback", "ping", "nothing.known", "session.created")  # fmt: skip


@contextmanager
def served() -> Iterator[tuple[Gateway, asyncio.AbstractEventLoop]]:
    """Run a gateway in a separate thread, since the state machine is not a coroutine."""
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    started: Future[Gateway] = Future()

    async def serve() -> None:
        try:
            async with gateway(max_contexts_per_session=2, max_text_chars=60) as live:
                started.set_result(live)
                await over.wait()
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield started.result(PATIENCE_S), loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE_S)
        loop.close()


class Context:
    """The state of an open context."""

    def __init__(self, handle: int, text: str) -> None:
        self.handle, self.text = handle, text
        self.sequence = self.offset = 0


class SocketMachine(RuleBasedStateMachine):
    """A socket. ``live`` and ``loop`` are set by the test."""

    live: Gateway
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        opened = connect(self.live.url, compression=None)
        self.socket: ClientConnection = self.stack.enter_context(opened)
        self.open: dict[str, Context] = {}
        #: An id's texts and flushes since it was last created.
        self.texts: dict[str, list[str]] = {}
        self.flushes: dict[str, list[str]] = {}
        #: Number of an id's texts that were sent before its first cancel.
        self.cuts: dict[str, int] = {}
        #: Ids with an error, after which it is not known which texts were accepted.
        self.erred: set[str] = set()
        self.cancelled: set[str] = set()
        self.pings = 0
        self.closed = False
        assert self.next()["type"] == "session.created"

    @initialize(framing=st.sampled_from(("header", "json")))
    def configure(self, framing: str) -> None:
        self.framing = framing
        self.say(type="session.configure", framing=framing)

    # -- client messages

    @rule(id=IDS.filter(lambda id: id != "never"), encoding=st.sampled_from(("pcm_s16le", "mulaw")))
    def create(self, id: str, encoding: str) -> None:
        """Create a context. Answers are read before and after, so that its texts are known."""
        self.settle()
        was_open = id in self.open
        if not was_open:
            self.texts[id], self.flushes[id] = [], []
            self.erred.discard(id)
            self.cuts.pop(id, None)
        self.say(type="context.create", context_id=id, audio={"encoding": encoding})
        self.settle()

    @rule(id=IDS, text=TEXT)
    def append(self, id: str, text: str) -> None:
        self.texts.setdefault(id, []).append(text)
        self.say(type="text.append", context_id=id, text=text)

    @rule(id=IDS)
    def flush(self, id: str) -> None:
        name = f"f{len(self.flushes.setdefault(id, []))}"
        self.flushes[id].append(name)
        self.say(type="context.flush", context_id=id, flush_id=name)

    @rule(id=IDS)
    def end(self, id: str) -> None:
        self.say(type="context.end", context_id=id)

    @rule(id=IDS, played=st.none() | st.floats(-1, 1e9))
    def cancel(self, id: str, played: float | None) -> None:
        self.cuts.setdefault(id, len(self.texts.get(id, [])))
        more = {} if played is None else {"played_ms": played}
        self.say(type="context.cancel", context_id=id, **more)

    @rule(id=IDS, played=st.integers(-1, 1 << 60))
    def report(self, id: str, played: int) -> None:
        self.say(type="playback", context_id=id, played_samples=played)

    @rule(kind=st.sampled_from(TYPES), field=st.text(max_size=9), value=ANYTHING)
    def say_something_odd(self, kind: str, field: str, value: object) -> None:
        self.say(**({"context_id": "odd", field: value} | {"type": kind, "more": value}))

    @rule(data=st.text(max_size=30) | st.binary(max_size=30))
    def say_nonsense(self, data: str | bytes) -> None:
        self.socket.send(data)

    @rule()
    def settle(self) -> None:
        """Read all answers so far."""
        self.pings += 1
        self.say(type="ping", id=f"p{self.pings}")
        while (message := self.next()) != {"type": "pong", "id": f"p{self.pings}"}:
            self.check(message)

    @rule(id=IDS)
    def wait_for_the_end(self, id: str) -> None:
        """End a context if it is open, and read up to its end."""
        self.settle()
        if id in self.open:
            self.end(id)
            while id in self.open:
                self.check(self.next())

    @rule(id=IDS.filter(lambda id: id != "never"), text=TEXT)
    def speak(self, id: str, text: str) -> None:
        """Speak a whole context beside the open ones."""
        self.create(id, "pcm_s16le")
        self.append(id, text)
        self.flush(id)
        self.append(id, "And on. ")
        self.wait_for_the_end(id)

    @rule(id=IDS.filter(lambda id: id != "never"), text=TEXT)
    def interrupt(self, id: str, text: str) -> None:
        """Cancel a context just before, while or just after it speaks."""
        self.create(id, "pcm_s16le")
        self.append(id, text)
        self.append(id, "And on.")
        self.cancel(id, None)
        self.settle()

    # -- server messages

    def say(self, **fields: object) -> None:
        self.socket.send(json.dumps(fields))

    def next(self) -> dict[str, Any]:
        """Return the next message, a binary one as its counterpart in JSON."""
        data = self.socket.recv(PATIENCE_S)
        if isinstance(data, str):
            return dict(json.loads(data))
        header = AudioHeader.unpack(data)
        return {
            "type": "audio",
            "context_id": next(i for i, c in self.open.items() if c.handle == header.handle),
            "handle": header.handle,
            "sequence": header.sequence,
            "size": len(data) - HEADER_BYTES,
        }

    def check(self, message: dict[str, Any]) -> None:
        kind: str = message["type"]
        id: Any = message.get("context_id")
        assert kind in KNOWN - {"session.created", "going_away"}
        if kind == "error":
            assert message["code"] in CODES - {"internal", "engine_failed", "codec_failed"}
            assert message["message"]
            assert message["request_id"]
            if id is not None:
                self.erred.add(id)
        elif kind == "context.created":
            assert id not in self.open
            self.open[id] = Context(message["handle"], "")
            self.cancelled.discard(id)
        elif kind == "metrics" and id in self.cancelled:
            self.cancelled.discard(id)
        elif kind != "pong":
            assert id in self.open, f"{kind} of a context that is not open"
            self.check_context(kind, id, message)

    def check_context(self, kind: str, id: str, message: dict[str, Any]) -> None:
        context = self.open[id]
        if kind == "audio":
            assert message["handle"] == context.handle
            assert message["sequence"] == context.sequence
            context.sequence += 1
        elif kind == "flush.done":
            asked = self.flushes[id]
            assert message["flush_id"] in asked
            asked.remove(message["flush_id"])
        elif kind == "context.cancelled":
            text = message["text_spoken"] + message["text_remaining"]
            texts = self.texts[id]
            # Text after the accepted cancel does not count; earlier cancels may have been refused.
            first = self.cuts.get(id, len(texts))
            whole = ["".join(texts[:n]) for n in range(first, len(texts) + 1)]
            assert text in whole or (id in self.erred and len(text) <= len(whole[-1]))
            del self.open[id]
            self.cancelled.add(id)
        elif kind == "context.done":
            assert message["reason"] in ("complete", "length", "error")
            assert message["reason"] != "error" or id in self.erred
            del self.open[id]

    def teardown(self) -> None:
        try:
            self.settle()
            self.say(type="session.close")
            with suppress(ConnectionClosed):
                while True:
                    self.check(self.next())
            assert self.socket.close_code == 1000
        finally:
            self.stack.close()
        free = asyncio.run_coroutine_threadsafe(self.live.until_free(), self.loop)
        free.result(PATIENCE_S)


FEW = settings(
    max_examples=25,
    stateful_step_count=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def run(chosen: settings) -> None:
    with served() as (live, loop):
        machine = type("Machine", (SocketMachine,), {"live": live, "loop": loop})
        run_state_machine_as_test(machine, settings=chosen)


def test_socket_gives_documented_answers_to_random_messages() -> None:
    run(FEW)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_socket_gives_documented_answers_to_many_random_messages() -> None:
    run(settings(FEW, max_examples=2000, stateful_step_count=60, derandomize=False))
