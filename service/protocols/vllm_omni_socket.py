"""vLLM-Omni's socket: text in flushes, one stream of audio.

Its own server does not read while it speaks. This one does: what comes meanwhile is spoken
after it, and a new ``session.config``, with all that follows it, waits until it can hold.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import deque
from typing import Any

from service.binary_context import BinaryContext, BinaryPlan
from service.http_speech import count_error
from service.outbox import Item, Outbox
from service.protocols.vllm_omni_config import NAME, SessionConfig, parse_config
from service.protocols.vllm_omni_units import Messages, Sentence, Units, error_message
from service.runtime import Runtime
from service.socket import GOING_AWAY, NORMAL, POLICY, SocketClosing
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.segment import Segmenter, SegmentSettings

#: Messages that may wait for a session.config to hold.
_MAX_HELD = 64
#: What may wait to be spoken: sentences and ends of flushes, and so many flushes' text.
_MAX_UNITS, _MAX_FLUSHES = 4096, 4


class StreamDialect:
    """See service.socket.Dialect and service.binary_context.BinaryWording."""

    def __init__(self, runtime: Runtime, outbox: Outbox, tasks: asyncio.TaskGroup) -> None:
        self._runtime, self._outbox, self._tasks = runtime, outbox, tasks
        self._session_id = uuid.uuid4().hex
        self._config: SessionConfig | None = None
        self._context: BinaryContext | None = None
        self._contexts = self._flush_index = self._sentences = self._chars = 0
        self._segmenter = self._new_segmenter()
        self._text = ""
        self._units = Units(runtime.settings.max_outbox_bytes // 2)
        self._held: deque[str] = deque()
        self._heard_at = time.monotonic()

    # -- the socket

    def open(self) -> None:
        """The client speaks first."""

    def on_text(self, text: str) -> None:
        """A message came."""
        self._heard_at = time.monotonic()
        if self._held:
            self._hold(text)
            return
        try:
            self._dispatch(text)
        except TalkwireError as error:
            self._say([self.word(error)])
            if self._config is None:  # there is nothing to go on with
                raise SocketClosing(POLICY) from error

    def on_bytes(self, data: bytes) -> None:
        """Clients send no binary messages."""
        self._say([self.word(_invalid("Send JSON text, not binary messages."))])

    def on_tick(self, now: float) -> None:
        """Close what has been idle for too long."""
        if self._context is None and now - self._heard_at > self._runtime.settings.session_idle_s:
            self._say([self.word(CapacityError(ErrorCode.IDLE_TIMEOUT, "No message came."))])
            raise SocketClosing(GOING_AWAY)

    def on_drain(self, deadline_ms: int) -> None:
        """There is no word for it: the socket closes when nothing is being spoken."""

    def is_settled(self, now: float) -> bool:
        """See Dialect."""
        return not (self._units.has_sentence or self._chars)

    def word(self, error: TalkwireError) -> str:
        """An ``error`` message."""
        count_error(self._runtime, error, self._session_id)
        return error_message(error)

    def close(self) -> None:
        """Nobody listens any more."""
        if self._context is not None:
            self._context.cancel()

    # -- messages

    def _dispatch(self, text: str) -> None:
        message = _parsed(text)
        kind = message.get("type")
        if kind == "session.config":
            self._configure(text, message)
        elif self._config is None:
            raise _invalid("The first message is a session.config.", "type")
        elif kind == "input.text":
            self._require_room()
            self._take(message.get("text", ""))
        elif kind == "input.done":
            self._require_room()
            self._flush()
        elif kind == "session.close":
            raise SocketClosing(NORMAL)
        else:
            raise RequestError(
                ErrorCode.UNKNOWN_MESSAGE, "This message type is not known.", param="type"
            )

    def _require_room(self) -> None:
        most = _MAX_FLUSHES * self._runtime.settings.max_text_chars
        if len(self._units) >= _MAX_UNITS or self._units.chars >= most:
            raise CapacityError(
                ErrorCode.OVERLOADED, "Too much waits to be spoken; this message was dropped."
            )

    def _configure(self, text: str, message: dict[str, Any]) -> None:
        if self._chars:
            raise _invalid("Send input.done before another session.config.", "type")
        if self._context is not None:
            self._hold(text)
            return
        self._config = parse_config(message, self._runtime)

    def _hold(self, text: str) -> None:
        """Keep a message until what is being spoken is over; a close does not wait."""
        if _parsed_kind(text) == "session.close":
            raise SocketClosing(NORMAL)
        if len(self._held) >= _MAX_HELD:
            self._say([self.word(_invalid("Too many messages wait for a session.config."))])
            raise SocketClosing(POLICY)
        self._held.append(text)

    def _take(self, text: object) -> None:
        if not isinstance(text, str):
            raise _invalid("input.text has a text.", "text")
        limit = self._runtime.settings.max_text_chars
        if self._chars + len(text) > limit:
            raise RequestError(
                ErrorCode.TEXT_TOO_LONG,
                f"A flush takes {limit} characters at most; this text was not added.",
                param="text",
            )
        self._chars += len(text)
        assert self._config is not None
        if self._config.split_granularity == "none":
            self._text += text
            return
        for sentence in self._segmenter.push(text):
            self._speak(sentence)

    def _flush(self) -> None:
        whole, self._text = self._text.strip(), ""
        for sentence in [whole] if whole else self._segmenter.flush():
            self._speak(sentence)
        self._say(self._units.end_flush(self._flush_index, self._sentences))
        self._flush_index += 1
        self._sentences = self._chars = 0
        self._segmenter = self._new_segmenter()

    def _speak(self, text: str) -> None:
        config = self._config
        assert config is not None
        failure: TalkwireError | None = None
        try:
            context = self._context or self._begin(config)
            context.append(text)
        except TalkwireError as error:
            count_error(self._runtime, error, self._session_id)
            failure = error
        sentence = Sentence(
            self._flush_index,
            self._sentences,
            text,
            config.response_format,
            config.encoder(self._runtime.codec.spec.sample_rate).sample_rate,
            config.stream_audio,
            failure,
        )
        self._sentences += 1
        self._say(self._units.add(sentence))
        if failure is None:
            context.flush(str(self._sentences))
        elif not self._units.has_sentence:  # nobody else would let go of what was begun for it
            asyncio.get_running_loop().call_soon(self._end, self._context)

    def _begin(self, config: SessionConfig) -> BinaryContext:
        runtime, number = self._runtime, self._contexts
        request_id = f"{self._session_id}-{number}"
        plan = BinaryPlan(
            NAME,
            number,
            request_id,
            config.create(request_id, runtime),
            config.encoder(runtime.codec.spec.sample_rate),
            is_kept=not config.stream_audio,
            flush_units=True,
        )
        self._context = BinaryContext(
            runtime, self._outbox, self._tasks, plan, self, lambda: self._on_closed(number)
        )
        self._contexts = number + 1
        return self._context

    def _new_segmenter(self) -> Segmenter:
        return Segmenter(SegmentSettings(max_chars=self._runtime.settings.segment_chars))

    # -- what the context says: see BinaryWording

    def audio(self, data: bytes) -> Messages:
        """Audio of the sentence that is being spoken."""
        return self._units.audio(data)

    def flushed(self, flush_id: str) -> Messages:
        """A sentence is over; after the last one the context is."""
        messages = self._units.finish()
        if not self._units.has_sentence:
            asyncio.get_running_loop().call_soon(self._end, self._context)
        return messages

    def done(self, error: TalkwireError | None) -> Messages:
        """A failure is that of all sentences that were to be spoken."""
        messages: Messages = []
        while error is not None and self._units.has_sentence:
            messages += self._units.fail(error)
        return messages

    def _end(self, context: BinaryContext | None) -> None:
        """Let a context go that has said everything; the next text begins another."""
        if context is not None and context is self._context and not self._units.has_sentence:
            self._context = None
            context.end()
            self._go_on()

    def _on_closed(self, number: int) -> None:
        self._heard_at = time.monotonic()
        if number == self._contexts - 1 and self._context is not None:
            self._context = None
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take up the messages that waited, up to the next one that must."""
        held, self._held = self._held, deque()
        while held:
            text = held.popleft()
            if self._held:
                self._held.append(text)
                continue
            try:
                self._dispatch(text)
            except TalkwireError as error:
                self._say([self.word(error)])

    def _say(self, messages: Messages) -> None:
        for message in messages:
            self._outbox.put(Item(message))


def _parsed(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(ErrorCode.INVALID_JSON, "The message is not JSON.") from error
    if not isinstance(message, dict):
        raise _invalid("A message is an object.")
    return message


def _parsed_kind(text: str) -> object:
    try:
        return _parsed(text).get("type")
    except RequestError:
        return None


def _invalid(message: str, param: str | None = None) -> RequestError:
    return RequestError(ErrorCode.INVALID_MESSAGE, message, param=param)
