"""The messages on ElevenLabs' sockets: what clients say, and how a context's news are worded."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from service.protocols.elevenlabs_alignment import Aligner
from service.protocols.elevenlabs_errors import error_message
from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.words import WordTiming


class VoiceSettings(Struct, frozen=True):
    """Knobs of ElevenLabs' models. Of them, only ``speed`` is one here."""

    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None


class ClientMessage(Struct, frozen=True):
    """Any message of a client; what it means depends on what is in it. Fields that are not here
    are ElevenLabs' own and have no effect.
    """

    text: str | None = None
    context_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: list[Any] | None = None


_decoder = msgspec.json.Decoder(ClientMessage)


def parse_message(text: str) -> ClientMessage:
    """Read one message. Raises RequestError (``invalid_json``, ``invalid_message``)."""
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise RequestError(
            ErrorCode.INVALID_MESSAGE,
            "A field is of the wrong type or out of range.",
        ) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestError(ErrorCode.INVALID_JSON, "The message is not valid JSON.") from error


class StreamWording:
    """See service.worded_context.SpokenWording. ``context_id`` None: the socket has one context,
    which no message names.

    Alignment travels with the audio that ends it, and counts from where the one before it ended,
    which is what Pipecat adds up. ``sync``: it counts from the context's first sample, which is
    how LiveKit's plugin, the one that asks for ``sync_alignment``, reads it.
    """

    def __init__(self, context_id: str | None, aligner: Aligner, *, sync: bool) -> None:
        self._id, self._aligner, self._sync = context_id, aligner, sync

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """Audio, with the characters that end in it."""
        message: dict[str, Any] = {"audio": base64.b64encode(audio).decode()}
        since_ms = 0 if self._sync else self._aligner.clock_ms
        if (times := self._aligner.take(words)) is not None:
            alignment = times.relative(since_ms)
            message |= {"alignment": alignment, "normalizedAlignment": alignment}
        elif not audio:
            return []
        return [_worded(message, self._id)]

    def flushed(self, flush_id: str) -> list[str]:
        """Theirs tells nothing of a flush."""
        return []

    def done(self, error: TalkwireError | None) -> list[str]:
        """The context's last message, after its error if there was one."""
        last = final_message(self._id)
        return [last] if error is None else [error_message(error, self._id), last]

    def cancelled(self) -> list[str]:
        """The same, so that the client knows that its id is free."""
        return self.done(None)


class SingleWording(StreamWording):
    """On a socket of one context, what comes last is its error or its end."""

    def __init__(self, aligner: Aligner, *, sync: bool) -> None:
        super().__init__(None, aligner, sync=sync)
        #: What ended the context too soon.
        self.failure: TalkwireError | None = None

    def done(self, error: TalkwireError | None) -> list[str]:
        """See SpokenWording."""
        self.failure = error
        return [final_message(None) if error is None else error_message(error)]

    def cancelled(self) -> list[str]:
        """The socket is closing, and has said why."""
        return []


def final_message(context_id: str | None) -> str:
    """Nothing more will come from this context."""
    return _worded({"isFinal": True}, context_id)


def _worded(message: dict[str, Any], context_id: str | None) -> str:
    if context_id is not None:
        message["contextId"] = context_id
    return json.dumps(message, separators=(",", ":"))
