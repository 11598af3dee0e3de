"""Version 1 of Deepgram's socket, ``WS /v1/speak``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from websockets.frames import CloseCode

from service import __version__
from service.contexts.socket_output import Message, Revocable
from service.contexts.speech_context import Audio, Output, SpeechContext
from service.dialects.deepgram.messages import model_uuid, warning_message
from service.dialects.deepgram.request import SpeakOptions
from service.dialects.deepgram.socket import SpeakDialect, checked_text
from service.errors import parse_json
from service.transport.turns import Turns
from service.transport.websocket import Socket, SocketClosing
from streaming.errors import CapacityError, ErrorCode, RequestError
from streaming.events import Done, Flushed, Warned
from text.segmenter import CLOSERS, OPENERS, SPACED_MARKS


def joined(before: str, text: str) -> tuple[str, str]:
    """Return ``text`` with missing spaces added, and ``before`` for the next text.

    A space is added before it if a sentence mark precedes, and neither a lower-case letter nor
    the rest of a number follows. One is added after it if it is a whole sentence of several
    words, since the next text may not come for long.
    """
    added = text
    if _ends_sentence(before) and _begins_sentence(before, text):
        added = " " + text
    if len(text.split()) > 1 and _ends_sentence(text) and not _ends_number(text):
        added += " "
    return added, (before + added)[-8:]


def _ends_sentence(text: str) -> bool:
    return text.rstrip("".join(CLOSERS))[-1:] in SPACED_MARKS


def _ends_number(text: str) -> bool:
    return text.rstrip("".join(CLOSERS | SPACED_MARKS))[-1:].isdigit()


def _begins_sentence(before: str, text: str) -> bool:
    first = text[:1]
    if first.isdigit():
        return not _ends_number(before)
    return (first.isalpha() and not first.islower()) or first in OPENERS


class AuraDialect(SpeakDialect):
    """See Dialect. The texts up to a pause are one turn."""

    def __init__(self, socket: Socket, options: SpeakOptions) -> None:
        super().__init__(socket, options)
        self._turns = Turns(socket, self._rendered)
        self._sequence = 0
        self._tail = ""

    def open(self) -> None:
        """Send ``Metadata``."""
        hello = {
            "type": "Metadata",
            "request_id": self._request_id,
            "model_name": self._options.model,
            "model_version": __version__,
            "model_uuid": model_uuid(self._options.speech.voice),
        }
        self.socket.send(json.dumps(hello))

    def on_idle(self, context: SpeechContext) -> None:
        """End an idle turn. Complete sentences were spoken without a flush; other text is lost."""
        if context is not self._turns.context:
            return  # an earlier turn, which has ended
        if not context.driver.has_pending_text:
            self._turns.end()
            return
        self._turns.cancel()
        message = "Text waited too long for a Flush and was dropped."
        self._warn(CapacityError(ErrorCode.IDLE_TIMEOUT, message))

    def _dispatch(self, text: str) -> None:
        match parse_json(text):
            case {"type": "Speak", **fields}:
                self._speak(checked_text(fields.get("text")))
            case {"type": "Flush"} if self._turns.context is None:
                self.socket.send(self._counted("Flushed"))  # nothing to speak
            case {"type": "Flush"}:
                self._tail = ""
                self._turns.flush()
            case {"type": "Clear"}:
                self._turns.cancel()
                self.socket.drop_audio()  # of earlier turns, whose end may wait for it to be sent
                self.socket.send(self._counted("Cleared"))
            case {"type": "Close"}:
                raise SocketClosing(CloseCode.NORMAL_CLOSURE)
            case _:
                known = "The messages are Speak, Flush, Clear and Close."
                raise RequestError(ErrorCode.UNKNOWN_MESSAGE, known, param="type")

    def _speak(self, text: str) -> None:
        is_first = self._turns.context is None
        if not text or (is_first and not text.strip()):
            return
        added, tail = joined("" if is_first else self._tail, text)
        try:
            self._turns.say(added, self._options.speech)
            self._tail = tail
        except RequestError as error:
            if error.code is not ErrorCode.TEXT_TOO_LONG:
                raise
            self._warn(error)  # the text was not added, and the turn continues

    def _rendered(self, output: Output) -> Sequence[Message]:
        match output:
            case Audio():
                return [Revocable(packet.data, packet.samples) for packet in output.packets]
            case Flushed():
                return [self._counted("Flushed")]
            case Warned(kind, message):
                return [warning_message(kind.upper(), message)]
            case Done(error=error) if error is not None:
                return self._failed(error)
            case _:
                return []

    def _counted(self, kind: str) -> str:
        number, self._sequence = self._sequence, self._sequence + 1
        return json.dumps({"type": kind, "sequence_id": number})
