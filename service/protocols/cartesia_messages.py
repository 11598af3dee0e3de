"""How Cartesia words what happens to a context, on the socket and as server-sent events."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from service.http_route import request_fault
from service.protocols.cartesia_errors import error_event
from service.protocols.cartesia_request import ContextRequest
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.words import WordTiming

#: Flushes that the client did not ask for are not told.
OWN_FLUSH = "own"
_PARTIAL, _ALL = 206, 200


def parse_message(text: str) -> ContextRequest:
    """Read one message. Raises RequestError (``invalid_json``, ``invalid_message``)."""
    try:
        return ContextRequest.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        raise request_fault({**fault, "loc": ("body", *fault["loc"])}) from error


def context_of(text: str) -> str | None:
    """The context of a message that could not be read, if that can be."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    context_id = message.get("context_id") if isinstance(message, dict) else None
    return context_id if isinstance(context_id, str) else None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a context that has expired leaves to one of the same id, since they are the same to
    the client: ``heard_s`` is where its audio ends on the clock that the client counts words on,
    ``flush_id`` how many of its flushes were told, and one.
    """

    heard_s: float = 0.0
    flush_id: int = 1


#: Where a context begins that goes on from no other.
AFRESH = Standing()


class EventWording:
    """Messages of one context as objects, which goes on from ``began``."""

    def __init__(self, context_id: str | None, request_id: str, began: Standing = AFRESH) -> None:
        self._id, self._request_id, self._began_s = context_id, request_id, began.heard_s
        self._stepped_at = time.monotonic()
        #: How many flushes were told, and one.
        self.flush_id = began.flush_id

    def _event(self, kind: str, *, done: bool = False, status: int = _PARTIAL) -> dict[str, Any]:
        event = {"type": kind, "done": done, "status_code": status}
        return event if self._id is None else {**event, "context_id": self._id}

    def chunk(self, audio: bytes) -> dict[str, Any]:
        """Audio."""
        now = time.monotonic()
        step_ms, self._stepped_at = 1000 * (now - self._stepped_at), now
        data = base64.b64encode(audio).decode()
        return {**self._event("chunk"), "data": data, "step_time": round(step_ms, 3)}

    def timestamps(self, words: Sequence[WordTiming]) -> dict[str, Any]:
        """Words in the audio; seconds from the context's first sample."""
        times = {
            "words": [word.text for word in words],
            "start": [round(self._began_s + word.start_ms / 1000, 3) for word in words],
            "end": [round(self._began_s + word.end_ms / 1000, 3) for word in words],
        }
        return {**self._event("timestamps"), "word_timestamps": times}

    def flush_done(self) -> dict[str, Any]:
        """All before that flush was sent."""
        flush_id, self.flush_id = self.flush_id, self.flush_id + 1
        return {**self._event("flush_done"), "flush_done": True, "flush_id": flush_id}

    def end(self) -> dict[str, Any]:
        """All was sent."""
        return self._event("done", done=True, status=_ALL)

    def error(self, error: TalkwireError) -> dict[str, Any]:
        """Why not all was sent."""
        return error_event(error, self._id, self._request_id)


class SocketWording:
    """See service.breath.SpokenWording."""

    def __init__(self, context_id: str, request_id: str, began: Standing) -> None:
        self._events = EventWording(context_id, request_id, began)
        #: Whether the context ends without a word: it has only expired.
        self.is_quiet = False

    @property
    def flush_id(self) -> int:
        """How many flushes were told, and one."""
        return self._events.flush_id

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """Words before the audio that they are in: clients lay them over what comes next."""
        events, flush_id = [], self._events.flush_id
        if words:
            events.append(self._events.timestamps(words))
        if audio:
            events.append(self._events.chunk(audio))
        return [_worded({**event, "flush_id": flush_id}) for event in events]

    def flushed(self, flush_id: str) -> list[str]:
        """``flush_done``, for a flush that the client has asked for."""
        return [] if flush_id == OWN_FLUSH else [_worded(self._events.flush_done())]

    def done(self, error: TalkwireError | None) -> list[str]:
        """The context's last message."""
        if self.is_quiet:
            return []
        return [_worded(self._events.end() if error is None else self._events.error(error))]

    def cancelled(self) -> list[str]:
        """Nothing: a cancelled context says no more, and clients take a ``done`` of a context
        that they have forgotten for another's.
        """
        return []


def done_message(context_id: str) -> str:
    """For a context that has nothing to say."""
    return _worded(EventWording(context_id, "").end())


def flush_message(context_id: str, began: Standing) -> str:
    """For a context that has nothing to say, of a flush."""
    return _worded(EventWording(context_id, "", began).flush_done())


def _worded(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def closed_error() -> RequestError:
    """The context was ended by its client."""
    return RequestError(
        ErrorCode.CONTEXT_CLOSED, "The context was ended; it takes no more transcripts."
    )
