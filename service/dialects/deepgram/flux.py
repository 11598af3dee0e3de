"""Version 2 of Deepgram's socket (Flux), ``WS /v2/speak``.

A *turn* is a complete response: its texts up to a ``Flush``, spoken by one context. Turns are
spoken one after another; later ones wait as text. Messages and codes are those of Deepgram's
published clients (deepgram-sdk 7.17, types of ``speak.v2``).
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import unicodedata
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from websockets.frames import CloseCode

from service import __version__
from service.audio.filters import FASTEST, SLOWEST
from service.contexts.socket_output import Message, Renderer, Revocable
from service.contexts.speech_context import Audio, Output, SpeechContext, Started
from service.dialects.deepgram.messages import TABLE, model_uuid, warning_message
from service.dialects.deepgram.request import SpeakOptions
from service.dialects.deepgram.socket import SpeakDialect, checked_text
from service.errors import parse_json
from service.transport.websocket import Socket
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import Cancelled, Done, Warned
from streaming.protocol.field_errors import invalid_field, missing_field, unknown_field

#: The most turns that wait behind the one that is spoken.
MAX_WAITING = 32


class _Turn(Renderer):
    """A turn: first text that waits, then the context that speaks it. ``ended`` makes the messages
    of its end.
    """

    def __init__(self, ended: Callable[[_Turn, Cancelled | Done], Sequence[Message]]) -> None:
        #: As Deepgram's: it is for logs alone.
        self.speech_id = f"dg_sp_{uuid.uuid4().hex[:12]}"
        self._ended = ended
        #: The text that waits for the turn's beginning.
        self.waiting = ""
        #: Characters so far: all, and without control characters.
        self.characters = self.printable = 0
        #: Whether all its text has come.
        self.is_flushed = False
        self.context: SpeechContext | None = None
        #: How much of the session had been played before it, as far as is known.
        self.begins_ms = 0.0
        #: The client's playback position at its interruption, if it told one.
        self.interrupted_at_ms: float | None = None
        self._samples, self._rate = 0, 1

    @property
    def audio_ms(self) -> float:
        """Milliseconds of audio that were put into the socket's queue."""
        return 1000 * self._samples / self._rate

    def add(self, text: str) -> None:
        """Append text: to what waits, or to the context. Raises CapacityError."""
        if self.context is None:
            self.waiting += text
        else:
            self.context.append(text)
        self.characters += len(text)
        self.printable += sum(unicodedata.category(char) != "Cc" for char in text)

    def render(self, output: Output) -> Sequence[Message]:
        """See Renderer."""
        match output:
            case Started(sample_rate):
                self._rate = sample_rate
            case Audio():
                self._samples += output.samples
                return [Revocable(packet.data, packet.samples) for packet in output.packets]
            case Warned(kind, message):
                return [warning_message(kind.upper(), message)]
            case Cancelled() | Done():
                return self._ended(self, output)
        return []


class FluxDialect(SpeakDialect):
    """See SpeakDialect."""

    def __init__(self, socket: Socket, options: SpeakOptions) -> None:
        super().__init__(socket, options)
        #: The turn that is spoken, and those that wait for its end.
        self._turns: deque[_Turn] = deque()
        #: Milliseconds of the session that have been played when its turns so far have ended.
        self._played_ms = 0.0
        #: The position at the last interruption, behind which no later one may be.
        self._interrupted_ms = 0.0
        #: Characters of all turns that have ended: all, and without control characters.
        self._characters = self._printable = 0
        self._is_closing = False
        #: Whether the client has set the speed.
        self._has_speed = False
        #: Variables of the connection, for what is done outside of its reader.
        self._variables = contextvars.copy_context()

    def open(self) -> None:
        """Send ``Connected``."""
        self._say(
            "Connected",
            request_id=self._request_id,
            model_name=self._options.model,
            model_version=__version__,
            model_uuids=[model_uuid(self._options.speech.voice)],
        )

    def on_text(self, text: str) -> None:
        """Handle a message. An invalid one closes the socket; after a ``Close`` all are ignored."""
        if not self._is_closing:
            super().on_text(text)

    def on_idle(self, context: SpeechContext) -> None:
        """Flush a turn whose client sends nothing, so that it holds no slot."""
        turn = self._turns[0]
        if context is turn.context and not turn.is_flushed:
            message = "The turn waited too long for more text or a Flush, and was flushed."
            self._warn(CapacityError(ErrorCode.IDLE_TIMEOUT, message))
            self._flush(turn)

    def close(self) -> None:
        """Forget the turns that wait."""
        while len(self._turns) > 1:
            self._turns.pop()

    # -- messages of the client

    def _dispatch(self, text: str) -> None:
        match parse_json(text):
            case {"type": "Speak", **fields}:
                self._speak(checked_text(fields.get("text")))
            case {"type": "Flush"}:
                if (turn := self._open_turn) is not None:
                    self._flush(turn)
                else:
                    self._warn_idle()
            case {"type": "Interrupt", **fields}:
                self._interrupt(_offset_ms(fields.get("playback_offset")))
            case {"type": "Configure", **fields}:
                self._configure(fields)
            case {"type": "Close"}:
                self._close()
            case _:
                known = "The messages are Speak, Flush, Interrupt, Configure and Close."
                raise RequestError(ErrorCode.UNKNOWN_MESSAGE, known, param="type")

    @property
    def _open_turn(self) -> _Turn | None:
        """The turn that takes text, if there is one."""
        return self._turns[-1] if self._turns and not self._turns[-1].is_flushed else None

    def _speak(self, text: str) -> None:
        if not text:
            return
        turn, limit = self._open_turn, self.runtime.settings.max_text_chars
        waiting = sum(len(one.waiting) for one in self._turns)
        if len(text) + (waiting or (0 if turn is None else turn.characters)) > limit:
            message = f"A turn, and all that wait, take {limit} characters at most."
            self._warn(RequestError(ErrorCode.TEXT_TOO_LONG, message, param="text"))
            return  # the text was not added, and the turn continues
        if turn is not None:
            turn.add(text)
            return
        if len(self._turns) > MAX_WAITING:
            message = f"{MAX_WAITING} turns are waiting already; wait for SpeechMetadata."
            raise RequestError(ErrorCode.TOO_MANY_CONTEXTS, message)
        turn = _Turn(self._end_messages)
        turn.add(text)
        self._turns.append(turn)
        if len(self._turns) == 1:
            self._begin(turn)

    def _flush(self, turn: _Turn) -> None:
        turn.is_flushed = True
        if turn.context is not None:
            self._say("Flushed", speech_id=turn.speech_id)
            turn.context.end()

    def _interrupt(self, offset_ms: float | None) -> None:
        """Cancel the turn that is spoken. The next one, if any waits, is spoken then."""
        if offset_ms is not None and offset_ms < self._interrupted_ms:
            last = f"{self._interrupted_ms:.0f} ms, the position of the last Interrupt"
            message = f"playback_offset must be at least {last}, not {offset_ms:.0f} ms."
            self.socket.send(warning_message("INVALID_INTERRUPT_OFFSET", message))
            return
        self.socket.drop_audio()  # of earlier turns, whose end may wait for it to be sent
        turn = self._turns[0] if self._turns else None
        if turn is None or turn.context is None:
            if offset_ms is not None:  # what was sent beyond it is never played
                self._interrupted_ms = self._played_ms = min(offset_ms, self._played_ms)
            self._warn_idle()
            return
        turn.is_flushed = True
        turn.interrupted_at_ms = offset_ms
        played_ms = None if offset_ms is None else max(0.0, offset_ms - turn.begins_ms)
        turn.context.cancel(played_ms)

    def _configure(self, fields: Mapping[Any, Any]) -> None:
        """Set the speed of the turns that begin from now on."""
        if others := sorted(fields.keys() - {"speed"}):
            error = unknown_field(others[0], ("speed",), code=ErrorCode.UNSUPPORTED)
            self._say("ConfigureFailure", code="UNSUPPORTED", description=error.message)
            return
        speed = fields.get("speed")
        if speed is not None:
            if isinstance(speed, bool) or not isinstance(speed, int | float):
                raise invalid_field("speed", speed, "a number")
            if not SLOWEST <= speed <= FASTEST:
                told = f"speed must be from {SLOWEST} to {FASTEST}, not {speed!r}."
                reason = {"field": "speed", "value": speed, "description": told}
                self._say("ConfigureFailure", code="SPEED_OUT_OF_RANGE", **reason)
                return
            self._has_speed = True
            speech = self._options.speech
            format_ = replace(speech.format, speed=float(speed))
            self._options = self._options._replace(speech=replace(speech, format=format_))
        applied = {"speed": self._options.speech.format.speed} if self._has_speed else {}
        self._say("ConfigureSuccess", applied=applied)

    def _close(self) -> None:
        """Speak all turns to their ends, then close the socket."""
        self._is_closing = True
        if (turn := self._open_turn) is not None:
            self._flush(turn)
        self._close_if_done()

    # -- turns

    def _begin(self, turn: _Turn) -> None:
        """Open the turn's context. Raises RequestError, CapacityError."""
        turn.begins_ms = self._played_ms
        closed = partial(self._on_closed, turn)
        turn.context = self.socket.speak(self._options.speech, turn, closed)
        self._say("SpeechStarted", speech_id=turn.speech_id)
        text, turn.waiting = turn.waiting, ""
        turn.context.append(text)
        if turn.is_flushed:
            self._flush(turn)

    def _on_closed(self, turn: _Turn) -> None:
        """Speak the next turn, but not within the end of the one before."""
        self._turns.remove(turn)
        self._characters += turn.characters
        self._printable += turn.printable
        loop = asyncio.get_running_loop()
        loop.call_soon(self._go_on, context=self._variables)

    def _go_on(self) -> None:
        turn = self._turns[0] if self._turns else None
        if turn is not None and turn.context is None:
            try:
                self._begin(turn)
            except TalkwireError as error:
                self.close()
                self.tell(error)
                self.socket.finish(TABLE.close_code(error))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._is_closing or self._turns:
            return
        self._say(
            "SessionMetadata",
            total_audio_duration_ms=round(self._played_ms),
            total_input_character_count=self._characters,
            total_billable_character_count=self._printable,
        )
        self.socket.finish(CloseCode.NORMAL_CLOSURE)

    def _end_messages(self, turn: _Turn, end: Cancelled | Done) -> Sequence[Message]:
        """Move the session's position, and return the messages of a turn's end."""
        if isinstance(end, Cancelled):
            offset_ms, sent_ms = turn.interrupted_at_ms, turn.begins_ms + 1000 * end.sent_s
            at_ms = sent_ms if offset_ms is None else min(offset_ms, sent_ms)
            self._played_ms = self._interrupted_ms = at_ms
            parts = {"text_spoken": end.text_spoken, "text_remaining": end.text_remaining}
            told = {} if offset_ms is None else parts
            metadata = _metadata(turn, 1000 * end.generated_s)
            return [
                _message(
                    "SpeechInterrupted", audio_played_ms=round(at_ms), **told, metadata=metadata
                )
            ]
        self._played_ms = turn.begins_ms + turn.audio_ms
        if end.error is not None:
            return self._failed(end.error)
        messages = [_message("SpeechMetadata", **_metadata(turn, turn.audio_ms))]
        if not turn.audio_ms:
            nothing = "There is nothing in the turn's text that can be spoken."
            messages.insert(0, warning_message("NO_SYNTHESIZABLE_TEXT", nothing))
        return messages

    # -- messages of the server

    def _say(self, kind: str, **fields: object) -> None:
        self.socket.send(_message(kind, **fields))

    def _warn_idle(self) -> None:
        self.socket.send(warning_message("NO_ACTIVE_SPEECH", "No turn is open."))


def _offset_ms(offset: object) -> float | None:
    """Parse a ``playback_offset``. Raises RequestError."""
    match offset:
        case None:
            return None
        case {"type": "time_ms", "value": int() | float() as value} if not isinstance(value, bool):
            if not 0 <= value < 2**53:
                allowed = "a number of milliseconds, at least 0"
                raise invalid_field("playback_offset.value", value, allowed)
            return float(value)
        case {"type": "time_ms", "value": value}:
            raise invalid_field("playback_offset.value", value, "a number of milliseconds")
        case {"type": "time_ms"}:
            raise missing_field("playback_offset.value")
        case {"type": kind}:
            raise invalid_field("playback_offset.type", kind, "time_ms")
        case dict():
            raise missing_field("playback_offset.type")
        case _:
            raise invalid_field("playback_offset", offset, "an object")


def _metadata(turn: _Turn, audio_ms: float) -> dict[str, Any]:
    """Return what the ends of turns tell. This server does not count controls in the text."""
    return {
        "speech_id": turn.speech_id,
        "audio_duration_ms": round(audio_ms),
        "input_character_count": turn.characters,
        "billable_character_count": turn.printable,
        "controls_applied": {
            "pronunciations_applied": 0,
            "breaks_applied": 0,
            "pronunciation_warnings": 0,
        },
    }


def _message(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, **fields})
