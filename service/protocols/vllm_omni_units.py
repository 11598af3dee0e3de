"""What vLLM-Omni's socket has been asked to speak and has not said yet, in order, as messages.

A *flush* is the text up to an ``input.done``; it is spoken in *sentences*, one if the text is
not split. Each sentence is framed by ``audio.start`` and ``audio.done``, each flush ended by
``session.done``.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

from service.audio.whole import tell_length
from streaming.errors import ErrorCode, RequestError, TalkwireError

Messages = list[str | bytes]


@dataclass(slots=True)
class Sentence:
    """``sent_bytes`` have been sent already, ``held`` goes out at its end. One that could not
    even be begun, or has become too long to be held, has its ``failure``, which is told when its
    turn comes.
    """

    flush: int
    index: int
    text: str
    format: str
    sample_rate: int
    streams: bool
    failure: TalkwireError | None = None
    started: bool = False
    sent_bytes: int = 0
    held: bytearray = field(default_factory=bytearray)
    held_samples: int = 0


@dataclass(frozen=True, slots=True)
class _FlushEnd:
    flush: int
    sentences: int


class Units:
    """Sentences in the order in which they are spoken; makes the messages about them. One
    sentence's audio is held up to ``max_held_bytes``.
    """

    def __init__(self, max_held_bytes: int) -> None:
        self._max_held_bytes = max_held_bytes
        self._waiting: deque[Sentence | _FlushEnd] = deque()
        #: Characters of the sentences that wait.
        self.chars = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sentence: Sentence) -> Messages:
        """One more to be spoken; what can be said of it already."""
        self._waiting.append(sentence)
        self.chars += len(sentence.text)
        return self.settled()

    def end_flush(self, flush: int, sentences: int) -> Messages:
        """No more sentences in this flush; what can be said of it already."""
        self._waiting.append(_FlushEnd(flush, sentences))
        return self.settled()

    def audio(self, data: bytes, samples: int) -> Messages:
        """Audio of the first sentence."""
        sentence = self._first()
        if not sentence.streams:
            self._hold(sentence, data, samples)
            return []
        sentence.sent_bytes += len(data)
        return [*self._start(sentence), data]

    def _hold(self, sentence: Sentence, data: bytes, samples: int) -> None:
        if len(sentence.held) + len(data) > self._max_held_bytes:
            sentence.held.clear()
            sentence.failure = RequestError(
                ErrorCode.TEXT_TOO_LONG,
                "The audio of this text is too long for one message: split it, or stream it.",
                param="text",
            )
        if sentence.failure is None:
            sentence.held += data
            sentence.held_samples += samples

    def finish(self) -> Messages:
        """The first sentence has been spoken."""
        sentence = self._first()
        if sentence.failure is not None:
            return self.settled()
        messages = self._start(sentence)
        if sentence.held:
            tell_length(sentence.format, sentence.held, sentence.held_samples)
            sentence.sent_bytes += len(sentence.held)
            messages.append(bytes(sentence.held))
        return [*messages, self._over(sentence, failed=False), *self.settled()]

    def fail(self, error: TalkwireError) -> Messages:
        """The first sentence cannot be spoken to its end."""
        messages = self._failed(self._first(), error)
        return messages + self.settled()

    @property
    def has_sentence(self) -> bool:
        """Whether a sentence waits to be spoken or is being spoken."""
        return any(isinstance(unit, Sentence) for unit in self._waiting)

    def _first(self) -> Sentence:
        first = self._waiting[0]
        assert isinstance(first, Sentence)  # flushes that are over do not wait
        return first

    def _start(self, sentence: Sentence) -> Messages:
        if sentence.started:
            return []
        sentence.started = True
        format_ = {"format": sentence.format, "sample_rate": sentence.sample_rate, "channels": 1}
        return [_message("audio.start", sentence, sentence_text=sentence.text, **format_)]

    def _failed(self, sentence: Sentence, error: TalkwireError) -> Messages:
        partial = {"partial_audio": True, "action": "discard"} if sentence.sent_bytes else {}
        told = error_message(error, **partial)
        return [*self._start(sentence), told, self._over(sentence, failed=True)]

    def _over(self, sentence: Sentence, *, failed: bool) -> str:
        self._waiting.popleft()
        self.chars -= len(sentence.text)
        return _message("audio.done", sentence, total_bytes=sentence.sent_bytes, error=failed)

    def settled(self) -> Messages:
        """What need not wait for audio any more: ends of flushes, and sentences never begun."""
        messages: Messages = []
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, _FlushEnd):
                self._waiting.popleft()
                fields = {"utterance_index": first.flush, "total_sentences": first.sentences}
                messages.append(json.dumps({"type": "session.done", **fields}))
            elif first.failure is not None:
                messages += self._failed(first, first.failure)
            else:
                break
        return messages


def _message(kind: str, sentence: Sentence, **fields: object) -> str:
    place = {"utterance_index": sentence.flush, "sentence_index": sentence.index}
    return json.dumps({"type": kind, **place, **fields})


def error_message(error: TalkwireError, **fields: object) -> str:
    """``code`` and ``param`` are more than vLLM-Omni tells."""
    told: dict[str, object] = {"message": error.message, "code": error.code.value}
    if error.param is not None:
        told["param"] = error.param
    return json.dumps({"type": "error", **told, **fields})
