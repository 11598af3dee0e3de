"""vLLM-Omni's ``WS /v1/audio/speech/stream`` (docs/reference/dialects.md)."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from fastapi import WebSocket

from service.access.rules import GuardedRouter, Rule
from service.auth.keys import Scope
from service.dialects.errors import Refusal, count_error
from service.dialects.vllm_omni.request import NAME, SessionConfig, parse_config
from service.dialects.vllm_omni.speaker import (
    TABLE,
    Sentence,
    Speaker,
    error_fields,
    error_message,
)
from service.runtime import Runtime
from service.transport.websocket import (
    GOING_AWAY,
    NORMAL,
    POLICY,
    Dialect,
    Socket,
    SocketClosing,
    serve_socket,
)
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.protocol.field_errors import invalid_field
from streaming.segmenter import Segmenter, SegmentSettings

refusal = Refusal(TABLE, lambda error, _: error_fields(error))
#: Messages that may wait for a session.config to hold.
_MAX_HELD = 64


class StreamDialect(Dialect):
    """See Dialect."""

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self._config: SessionConfig | None = None
        self._speaker = Speaker(socket, self._go_on)
        self._flush_index = self._sentences = self._chars = 0
        self._segmenter = self._new_segmenter()
        self._text = ""
        self._held: deque[str] = deque()

    # -- the socket

    def on_text(self, text: str) -> None:
        """A message came."""
        if self._held:
            self._hold(text)
            return
        try:
            self._dispatch(text)
        except TalkwireError as error:
            self.tell(error)
            if self._config is None:  # there is nothing to go on with
                raise SocketClosing(POLICY) from error

    def on_tick(self, now: float) -> None:
        """Close what has been idle for too long."""
        is_idle = self.socket.idle_s(now) > self.runtime.settings.session_idle_s
        if is_idle and not self._speaker.is_busy:
            self.tell(CapacityError(ErrorCode.IDLE_TIMEOUT, "No message came."))
            raise SocketClosing(GOING_AWAY)

    def is_settled(self, now: float) -> bool:
        """See Dialect."""
        return not (self._speaker.has_sentence or self._chars)

    def render_error(self, error: TalkwireError) -> str:
        """An ``error`` message."""
        count_error(self.runtime, error, self.socket.session_id, NAME)
        return error_message(error)

    def close(self) -> None:
        """Drop what waits."""
        self._held.clear()
        self._speaker.close()

    # -- messages

    def _dispatch(self, text: str) -> None:
        message = _parsed(text)
        kind = message.get("type")
        if kind == "session.config":
            self._configure(text, message)
        elif self._config is None:
            raise _invalid("The first message is a session.config.", "type")
        elif kind == "input.text":
            self._speaker.require_room()
            self._take(message.get("text", ""))
        elif kind == "input.done":
            self._speaker.require_room()
            self._flush()
        elif kind == "session.close":
            raise SocketClosing(NORMAL)
        else:
            raise RequestError(
                ErrorCode.UNKNOWN_MESSAGE, "This message type is not known.", param="type"
            )

    def _configure(self, text: str, message: dict[str, Any]) -> None:
        if self._chars:
            raise _invalid("Send input.done before another session.config.", "type")
        if self._speaker.is_busy:
            self._hold(text)
            return
        self._config = parse_config(message, self.runtime)

    def _hold(self, text: str) -> None:
        """Keep a message until what is being spoken is over; a close does not wait."""
        if _parsed_kind(text) == "session.close":
            raise SocketClosing(NORMAL)
        if len(self._held) >= _MAX_HELD:
            self.tell(_invalid("Too many messages wait for a session.config."))
            raise SocketClosing(POLICY)
        self._held.append(text)

    def _take(self, text: object) -> None:
        if not isinstance(text, str):
            raise invalid_field("text", text, "a string")
        limit = self.runtime.settings.max_text_chars
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
        self._speaker.end_flush(self._flush_index, self._sentences)
        self._flush_index += 1
        self._sentences = self._chars = 0
        self._segmenter = self._new_segmenter()

    def _speak(self, text: str) -> None:
        config = self._config
        assert config is not None
        sentence = Sentence(
            self._flush_index,
            self._sentences,
            text,
            config.response_format,
            config.encoder(self.runtime.codec.spec.sample_rate).sample_rate,
            config.stream_audio,
            config.warning(self.runtime),
        )
        self._sentences += 1
        self._speaker.speak(sentence, config)

    def _new_segmenter(self) -> Segmenter:
        return Segmenter(SegmentSettings(max_chars=self.runtime.segment_chars))

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
                self.tell(error)


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


def vllm_omni_router(runtime: Runtime) -> GuardedRouter:
    """The route of this dialect."""
    router = GuardedRouter(Rule(Scope.SPEAK, refusal))

    @router.websocket("/v1/audio/speech/stream")
    async def stream(websocket: WebSocket) -> None:
        await serve_socket(websocket, runtime, StreamDialect, refusal)

    return router
