"""Messages of ElevenLabs' sockets, with character alignment, and errors."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field

from service.contexts.socket_output import Message, Revocable, TextRenderer
from service.dialects.elevenlabs.pronunciations import Locators
from service.dialects.elevenlabs.request import NAME, VoiceSettings
from service.errors import ErrorTable
from streaming.errors import ErrorCode, TalkwireError
from streaming.word_timing import WordTiming
from text.surrogates import SurrogateJoiner


def _body(error: TalkwireError, request_id: str) -> dict[str, Any]:
    code, message, name = error.code.value, TABLE.message(error), TABLE.field(error)
    detail = ElevenLabsErrorDetail(
        status=code, code=code, message=message, param=name, request_id=request_id
    )
    return {"detail": detail.model_dump(exclude_none=True)}


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


def error_fields(error: TalkwireError) -> dict[str, Any]:
    """Return the common fields of all sockets' messages for an error."""
    code, close_code = error.code.value, TABLE.close_code(error)
    return {"message": TABLE.message(error), "error": code, "code": close_code}


def error_message(error: TalkwireError, context_id: str | None = None) -> str:
    """Return a socket's message for an error."""
    message = error_fields(error)
    return json.dumps(message if context_id is None else {**message, "contextId": context_id})


class ElevenLabsErrorDetail(BaseModel):
    """The reason of a refusal; ``status`` and ``code`` are equal."""

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
    """Characters of the text and their times. ``edges_ms`` has one entry more than ``chars``, in
    whole milliseconds of playback from the context's first sample. A character lasts from its own
    edge to the next.
    """

    chars: tuple[str, ...]
    edges_ms: tuple[int, ...]

    def relative(self, since_ms: int) -> dict[str, list[Any]]:
        """Return the format of socket messages, relative to ``since_ms``."""
        edges = self.edges_ms
        return {
            "chars": list(self.chars),
            "charStartTimesMs": [edge - since_ms for edge in edges[:-1]],
            "charDurationsMs": [after - before for before, after in pairwise(edges)],
        }

    def in_seconds(self) -> dict[str, list[Any]]:
        """Return the format of HTTP responses, from the beginning."""
        return {
            "characters": list(self.chars),
            "character_start_times_seconds": [edge / 1000 for edge in self.edges_ms[:-1]],
            "character_end_times_seconds": [edge / 1000 for edge in self.edges_ms[1:]],
        }

    def __add__(self, other: CharTimes) -> CharTimes:
        """Concatenate; a gap in between belongs to the last character before it."""
        return CharTimes(self.chars + other.chars, self.edges_ms[:-1] + other.edges_ms)


def _is_symbol(char: str) -> bool:
    return unicodedata.category(char) == "So" and char != "\ufffd"


class Aligner:
    """Returns the characters of one context in order, each once.

    ``append`` must get exactly the context's text, since words have positions in it. Whitespace is
    returned as spaces. Each word is followed by a space, by which clients recognise its end. If
    the text has none yet, the space is lent, and the text's own is skipped when it comes. Symbols
    between words, such as emoji, are left out: Pipecat takes them for words that it does not find,
    and loses those after them. Set ``lends`` to False if the text is complete; then all of it is
    returned.
    """

    def __init__(self, *, lends: bool = True) -> None:
        self._text: str = ""
        self._surrogates = SurrogateJoiner()
        self._at = 0
        #: The end of the characters returned so far.
        self.clock_ms = 0
        self._lends, self._has_lent, self._has_words = lends, False, False

    @property
    def position(self) -> int:
        """The number of characters of the text that have been returned."""
        return self._at

    def append(self, text: str) -> None:
        """Append text. Halves of surrogate pairs become what they become in the session."""
        self._text += self._surrogates.push(text)

    def flush(self) -> None:
        """End the text so far, as a flush and the end of the context do."""
        self._text += self._surrogates.flush()

    def take(self, words: Sequence[WordTiming]) -> CharTimes | None:
        """Return the characters up to the end of ``words``; None if there are none."""
        chars: list[str] = []
        edges = [self.clock_ms]
        for word in words:
            self._skip_lent()
            begin, end = max(self._at, word.start), max(self._at, word.end)
            between = self._shown(self._text[self._at : begin])
            self._spread(chars, edges, between, word.start_ms)
            edges[-1] = max(edges[-1], round(word.start_ms))
            self._spread(chars, edges, self._text[begin:end], word.end_ms)
            self._at = end
            self._add_space(chars, edges)
            self._has_words = True
        self.clock_ms = edges[-1]
        return CharTimes(tuple(chars), tuple(edges)) if chars else None

    def finish(self) -> CharTimes | None:
        """Return the unspoken text after the last word, such as a dash, with no duration. A client
        would otherwise wait for the end of a word that it directly follows.
        """
        self.flush()
        self._skip_lent()
        left = self._text[self._at :]
        rest = self._shown(left)
        if not self._has_words or not rest or (rest != left and rest.isspace()):
            return None
        self._at = len(self._text)
        chars = [" " if char.isspace() else char for char in rest]
        if self._lends and chars[-1] != " ":
            chars.append(" ")
        return CharTimes(tuple(chars), (self.clock_ms,) * (len(chars) + 1))

    def _shown(self, between: str) -> str:
        """Return text between words as the client gets it: of symbols only the space."""
        is_symbols = not any(map(str.isalnum, between)) and any(map(_is_symbol, between))
        if not (self._lends and is_symbols):
            return between
        return "".join(filter(str.isspace, between)) or " "

    def _spread(self, chars: list[str], edges: list[int], text: str, until_ms: float) -> None:
        begin = edges[-1]
        lasts = max(0, round(until_ms) - begin)
        chars += (" " if char.isspace() else char for char in text)
        edges += [begin + lasts * (n + 1) // len(text) for n in range(len(text))]

    def _add_space(self, chars: list[str], edges: list[int]) -> None:
        following = self._text[self._at : self._at + 1]
        # for clients that split at spaces, only a space ends a word
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
    """Any message of a client; its fields determine its meaning. ElevenLabs' other fields have no
    effect.
    """

    text: str | None = None
    context_id: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None,
        # ElevenLabs' guides have the first name, its own client's model of this message the second
        validation_alias=AliasChoices("context_id", "contextId"),
    )
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: Locators | None = None


class StreamRenderer(TextRenderer):
    """See TextRenderer. ``context_id`` is None if the socket has only one context. Flushes are not
    reported.

    Alignment is sent with the audio in which it ends. Its times are relative to the end of the
    previous one, as Pipecat expects. With ``sync`` they are relative to the context's first
    sample, as LiveKit's plugin expects, which sets ``sync_alignment``.
    """

    def __init__(self, context_id: str | None, *, sync: bool) -> None:
        self.context_id, self._sync = context_id, sync
        self.aligner = Aligner()
        #: The error that ended the context, if any.
        self.failure: TalkwireError | None = None

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """Return a message with audio and the characters that end in it."""
        since_ms = 0 if self._sync else self.aligner.clock_ms
        return self._spoken(audio, self.aligner.take(words), since_ms)

    def _spoken(self, audio: bytes, times: CharTimes | None, since_ms: int) -> list[str]:
        message = self._message(audio, times, since_ms)
        return [] if message is None else [self._encoded(message)]

    def _message(
        self, audio: bytes, times: CharTimes | None, since_ms: int
    ) -> dict[str, Any] | None:
        """Return a message with audio and characters; None if there are neither."""
        message: dict[str, Any] = {"audio": base64.b64encode(audio).decode()}
        if times is not None:
            alignment = times.relative(since_ms)
            message |= {"alignment": alignment, "normalizedAlignment": alignment}
        elif not audio:
            return None
        if audio:
            message |= self.take_warning()
        return message

    def _tail(self) -> list[Message]:
        """Return a message with the text after the last word."""
        since_ms = 0 if self._sync else self.aligner.clock_ms
        return [Revocable(told) for told in self._spoken(b"", self.aligner.finish(), since_ms)]

    def done(self, error: TalkwireError | None) -> list[Message]:
        """Return the context's last message, after its error if any. A socket of one context gets
        only one of them.
        """
        self.failure = error
        last: list[Message] = [self._final()]
        if error is None:
            return self._tail() + last
        return [self._error(error), *([] if self.context_id is None else last)]

    def cancelled(self) -> list[str]:
        """Return the last message, so that the client knows that the id is free. Without an id, the
        socket is closing, and the reason has been sent.
        """
        return [] if self.context_id is None else [self._final()]

    def _final(self) -> str:
        return final_message(self.context_id)

    def _error(self, error: TalkwireError) -> str:
        return error_message(error, self.context_id)

    def _encoded(self, message: dict[str, Any]) -> str:
        return _encoded(message, self.context_id)


def final_message(context_id: str | None) -> str:
    """Return the last message of a context."""
    return _encoded({"isFinal": True}, context_id)


def _encoded(message: dict[str, Any], context_id: str | None) -> str:
    if context_id is not None:
        message["contextId"] = context_id
    return json.dumps(message, separators=(",", ":"))
