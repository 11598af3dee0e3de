"""Messages on ElevenLabs' sockets, the character alignment in them, and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field

from service.contexts.speech_context import TextRenderer
from service.dialects.elevenlabs.request import NAME, VoiceSettings
from service.dialects.errors import ErrorTable
from streaming.errors import ErrorCode, TalkwireError
from streaming.word_timing import WordTiming


def _body(error: TalkwireError, request_id: str) -> dict[str, Any]:
    code = error.code.value
    detail = {"status": code, "code": code, "message": TABLE.message(error)}
    if (name := TABLE.field(error)) is not None:
        detail["param"] = name
    if request_id:
        detail["request_id"] = request_id
    return {"detail": detail}


TABLE = ErrorTable(
    NAME,
    _body,
    lambda _, request_id: {"request-id": request_id},
    statuses={ErrorCode.INVALID_JSON: 422, ErrorCode.INVALID_MESSAGE: 422},
    fields={
        "voice": "voice_id",
        "speed": "voice_settings.speed",
        **dict.fromkeys(("encoding", "sample_rate", "bitrate"), "output_format"),
    },
)


def error_message(error: TalkwireError, context_id: str | None = None) -> str:
    """A socket's message about an error."""
    code, close_code = error.code.value, TABLE.close_code(error)
    message = {"message": TABLE.message(error), "error": code, "code": close_code}
    return json.dumps(message if context_id is None else {**message, "contextId": context_id})


class ElevenLabsErrorDetail(BaseModel):
    """Why a request was refused; ``status`` and ``code`` are the same."""

    status: str
    code: str
    message: str
    param: str | None = None
    request_id: str


class ElevenLabsErrorBody(BaseModel):
    """The body of a refusal."""

    detail: ElevenLabsErrorDetail


@dataclass(frozen=True, slots=True)
class CharTimes:
    """Characters of the text and when each is spoken: ``edges_ms`` has one entry more than
    ``chars``, whole milliseconds of what is heard from the context's first sample; a character
    lasts from its own edge to the next.
    """

    chars: tuple[str, ...]
    edges_ms: tuple[int, ...]

    def relative(self, since_ms: int) -> dict[str, list[Any]]:
        """As the socket's messages have it, relative to ``since_ms``."""
        edges = self.edges_ms
        return {
            "chars": list(self.chars),
            "charStartTimesMs": [edge - since_ms for edge in edges[:-1]],
            "charDurationsMs": [after - before for before, after in pairwise(edges)],
        }

    def in_seconds(self) -> dict[str, list[Any]]:
        """As HTTP answers have it, from the beginning."""
        return {
            "characters": list(self.chars),
            "character_start_times_seconds": [edge / 1000 for edge in self.edges_ms[:-1]],
            "character_end_times_seconds": [edge / 1000 for edge in self.edges_ms[1:]],
        }

    def __add__(self, other: CharTimes) -> CharTimes:
        """Both, one after the other; a gap between them belongs to the first one's last."""
        return CharTimes(self.chars + other.chars, self.edges_ms[:-1] + other.edges_ms)


class Aligner:
    """One context's characters, in order, each once.

    ``append`` has to be told of the text just as it was appended to the context, for words name
    their places in it. Whitespace is given as spaces, and a space after every word, for clients
    know by it that the word is over; where the text has none yet, it is lent, and the text's
    own is left out when it comes. A text that is there as a whole lends nothing (``lends``).
    """

    def __init__(self, *, lends: bool = True) -> None:
        self._text: str = ""
        self._at = 0
        #: Where the characters that were given end.
        self.clock_ms = 0
        self._lends, self._has_lent, self._has_words = lends, False, False

    def append(self, text: str) -> None:
        """More text."""
        self._text += text

    def take(self, words: Sequence[WordTiming]) -> CharTimes | None:
        """The characters up to and with ``words``; None if there are none."""
        chars: list[str] = []
        edges = [self.clock_ms]
        for word in words:
            self._skip_lent()
            begin, end = max(self._at, word.start), max(self._at, word.end)
            self._spread(chars, edges, self._text[self._at : begin], word.start_ms)
            edges[-1] = max(edges[-1], round(word.start_ms))
            self._spread(chars, edges, self._text[begin:end], word.end_ms)
            self._at = end
            self._add_space(chars, edges)
            self._has_words = True
        self.clock_ms = edges[-1]
        return CharTimes(tuple(chars), tuple(edges)) if chars else None

    def finish(self) -> CharTimes | None:
        """The unspoken tail behind the last word, an emoji say: it takes no time. Without it a
        client would wait for the end of a word that it stands right behind.
        """
        self._skip_lent()
        rest = self._text[self._at :]
        if not (rest and self._has_words):
            return None
        self._at = len(self._text)
        chars = [" " if char.isspace() else char for char in rest]
        if self._lends and chars[-1] != " ":
            chars.append(" ")
        return CharTimes(tuple(chars), (self.clock_ms,) * (len(chars) + 1))

    def _spread(self, chars: list[str], edges: list[int], text: str, until_ms: float) -> None:
        begin = edges[-1]
        lasts = max(0, round(until_ms) - begin)
        chars += (" " if char.isspace() else char for char in text)
        edges += [begin + lasts * (n + 1) // len(text) for n in range(len(text))]

    def _add_space(self, chars: list[str], edges: list[int]) -> None:
        following = self._text[self._at : self._at + 1]
        # to those who split at spaces no word ends before anything else
        if not (following.isspace() if following else self._lends):
            return
        self._has_lent = not following
        self._at += len(following)
        chars.append(" ")
        edges.append(edges[-1])

    def _skip_lent(self) -> None:
        if self._has_lent and self._text[self._at : self._at + 1].isspace():
            self._at += 1
        self._has_lent = False


class ClientMessage(BaseModel):
    """Any message of a client; what it means depends on what is in it. Fields that are not here
    are ElevenLabs' own and have no effect.
    """

    text: str | None = None
    context_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: list[Any] | None = None


class StreamRenderer(TextRenderer):
    """See TextRenderer. ``context_id`` None: the socket has one context, which no message names.

    Alignment travels with the audio that ends it, and counts from where the one before it ended,
    which is what Pipecat adds up. ``sync``: it counts from the context's first sample, which is
    how LiveKit's plugin, the one that asks for ``sync_alignment``, reads it.
    """

    def __init__(self, context_id: str | None, *, sync: bool) -> None:
        self._id, self._sync = context_id, sync
        self.aligner = Aligner()
        #: What ended the context too soon.
        self.failure: TalkwireError | None = None

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """Audio, with the characters that end in it."""
        since_ms = 0 if self._sync else self.aligner.clock_ms
        return self._spoken(audio, self.aligner.take(words), since_ms)

    def _spoken(self, audio: bytes, times: CharTimes | None, since_ms: int) -> list[str]:
        message: dict[str, Any] = {"audio": base64.b64encode(audio).decode()}
        if times is not None:
            alignment = times.relative(since_ms)
            message |= {"alignment": alignment, "normalizedAlignment": alignment}
        elif not audio:
            return []
        return [_encoded(message, self._id)]

    def _tail(self) -> list[str]:
        """The text behind the last word."""
        since_ms = 0 if self._sync else self.aligner.clock_ms
        return self._spoken(b"", self.aligner.finish(), since_ms)

    def flushed(self, flush_id: str) -> list[str]:
        """Theirs tells nothing of a flush."""
        return []

    def done(self, error: TalkwireError | None) -> list[str]:
        """The context's last message, after its error if there was one. On a socket of one context
        that is its error or its end.
        """
        self.failure = error
        last = [final_message(self._id)]
        if error is None:
            return self._tail() + last
        return [error_message(error, self._id), *(last if self._id is not None else [])]

    def cancelled(self) -> list[str]:
        """The same, so that the client knows that its id is free; without an id the socket is
        closing, and has said why.
        """
        return [] if self._id is None else [final_message(self._id)]


def final_message(context_id: str | None) -> str:
    """Nothing more will come from this context."""
    return _encoded({"isFinal": True}, context_id)


def _encoded(message: dict[str, Any], context_id: str | None) -> str:
    if context_id is not None:
        message["contextId"] = context_id
    return json.dumps(message, separators=(",", ":"))
