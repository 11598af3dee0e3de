"""The queue of texts that vLLM-Omni's socket speaks one after another.

A *flush* is the text up to an ``input.done``; it is spoken in *sentences*, one if the text is
not split. Each sentence is framed by ``audio.start`` and ``audio.done``, each flush ended by
``session.done``.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from service.audio.containers import tell_length
from service.contexts.options import FlushEncoder, plan_speech
from service.contexts.speech_context import Audio, Message, Output, Revocable, SpeechContext
from service.dialects.errors import ErrorTable, count_error
from service.dialects.vllm_omni.request import NAME, SessionConfig
from service.transport.websocket import Socket
from streaming.errors import CapacityError, ErrorCode, RequestError, TalkwireError
from streaming.events import Done, Flushed

Messages = list[Message]
TABLE = ErrorTable(NAME)


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
    #: Told when its audio begins.
    warning: str | None = None
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
        return [*self._start(sentence), Revocable(data, samples)]

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
            messages.append(Revocable(bytes(sentence.held)))
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
        told = {"format": sentence.format, "sample_rate": sentence.sample_rate, "channels": 1}
        if sentence.warning is not None:
            told["warning"] = sentence.warning
        return [_message("audio.start", sentence, sentence_text=sentence.text, **told)]

    def _failed(self, sentence: Sentence, error: TalkwireError) -> Messages:
        partial = {"partial_audio": True, "action": "discard"} if sentence.sent_bytes else {}
        told = error_message(error, **partial)
        return [*self._start(sentence), told, self._over(sentence, failed=True)]

    def _over(self, sentence: Sentence, *, failed: bool) -> str:
        self._waiting.popleft()
        self.chars -= len(sentence.text)
        return _message("audio.done", sentence, total_bytes=sentence.sent_bytes, error=failed)

    def settled(self) -> Messages:
        """Messages that wait for no more audio: ends of flushes, and sentences never begun."""
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


def error_fields(error: TalkwireError) -> dict[str, object]:
    """An ``error`` message; ``code`` and ``param`` are more than vLLM-Omni tells."""
    told: dict[str, object] = {
        "type": "error",
        "message": TABLE.message(error),
        "code": error.code.value,
    }
    if (name := TABLE.field(error)) is not None:
        told["param"] = name
    return told


def error_message(error: TalkwireError, **fields: object) -> str:
    """The same as text, with more to say of it."""
    return json.dumps({**error_fields(error), **fields})


#: What may wait to be spoken: sentences and ends of flushes, and so many flushes' text.
_MAX_UNITS, _MAX_FLUSHES = 4096, 4


class Speaker:
    """See service.contexts.speech_context.Renderer.

    A context lives until all that there is to say has been said. It takes ``max_text_chars``, as
    a flush does; a sentence that it has no room for, and all after it, wait for the next context,
    which begins when this one has said everything. ``freed`` is called when a context is over.
    """

    def __init__(self, socket: Socket, freed: Callable[[], None]) -> None:
        self._socket, self._runtime, self._freed = socket, socket.runtime, freed
        self._units = Units(self._runtime.settings.max_outbox_bytes // 2)
        self._waiting: deque[tuple[Sentence, SessionConfig]] = deque()
        self._context: SpeechContext | None = None
        self._handle = self._chars = 0
        self._is_full = False

    @property
    def is_busy(self) -> bool:
        """Whether what was asked for is still being spoken."""
        return self._context is not None or bool(self._waiting)

    @property
    def has_sentence(self) -> bool:
        """Whether a sentence waits to be spoken or is being spoken."""
        return self._units.has_sentence

    def require_room(self) -> None:
        """Raises CapacityError if too much waits."""
        most = _MAX_FLUSHES * self._runtime.settings.max_text_chars
        if len(self._units) >= _MAX_UNITS or self._units.chars >= most:
            raise CapacityError(
                ErrorCode.OVERLOADED, "Too much waits to be spoken; this message was dropped."
            )

    def speak(self, sentence: Sentence, config: SessionConfig) -> None:
        """Say it after all that came before."""
        self._say(self._units.add(sentence))
        self._waiting.append((sentence, config))
        self._give()

    def end_flush(self, flush: int, sentences: int) -> None:
        """Say that a flush is over, once it is."""
        self._say(self._units.end_flush(flush, sentences))

    def close(self) -> None:
        """Drop what waits."""
        self._waiting.clear()

    # -- contexts

    def _give(self) -> None:
        """Hand on what waits, as far as there is room."""
        most = self._runtime.settings.max_text_chars
        while self._waiting:
            sentence, config = self._waiting[0]
            context = self._context
            if context is not None and self._chars + len(sentence.text) > most:
                if not self._is_full:
                    self._is_full = True
                    context.end()
                return
            self._waiting.popleft()
            self._hand_on(sentence, config)

    def _hand_on(self, sentence: Sentence, config: SessionConfig) -> None:
        try:
            context = self._context or self._begin(config)
            context.append(sentence.text)
        except TalkwireError as error:
            count_error(self._runtime, error, self._socket.session_id, NAME)
            sentence.failure = error
            self._say(self._units.settled())
            if not self._units.has_sentence:  # nobody else would let go of what was begun for it
                asyncio.get_running_loop().call_soon(self._end, self._context)
            return
        self._chars += len(sentence.text)
        context.flush("sentence")

    def _begin(self, config: SessionConfig) -> SpeechContext:
        runtime, handle = self._runtime, self._socket.new_handle()
        request_id = f"{self._socket.session_id}-{handle}"
        plan = plan_speech(
            runtime,
            NAME,
            request_id,
            config.create(request_id),
            config.encoder(runtime.codec.spec.sample_rate),
            prepare=config.prepare(runtime),
            buffered=not config.stream_audio,
            flush_encoder=FlushEncoder.EACH_FLUSH,
        )
        self._context = self._socket.open_context(
            plan, handle, self, lambda: self._on_closed(handle)
        )
        self._handle, self._chars, self._is_full = handle, 0, False
        return self._context

    def _end(self, context: SpeechContext | None) -> None:
        """Let a context go that has said everything; the next text begins another."""
        if context is not None and context is self._context and not self._units.has_sentence:
            self._context = None
            context.end()
            self._freed()

    def _on_closed(self, handle: int) -> None:
        if handle == self._handle and self._context is not None:
            self._context = None
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._give()
        self._freed()

    # -- what the context says

    def render(self, output: Output) -> Messages:
        """See service.contexts.speech_context.Renderer."""
        match output:
            case Audio():
                packets = output.packets
                return [
                    m for packet in packets for m in self._units.audio(packet.data, packet.samples)
                ]
            case Flushed():
                return self._flushed()
            case Done(error=error) if error is not None:
                return self._failed(error)
            case _:
                return []

    def _flushed(self) -> Messages:
        """A sentence is over; after the last one the context is."""
        messages = self._units.finish()
        if not self._units.has_sentence:
            asyncio.get_running_loop().call_soon(self._end, self._context)
        return messages

    def _failed(self, error: TalkwireError) -> Messages:
        """A failure is that of all sentences that were to be spoken."""
        self._waiting.clear()
        messages: Messages = []
        while self._units.has_sentence:
            messages += self._units.fail(error)
        return messages

    def _say(self, messages: Messages) -> None:
        for message in messages:
            data = message.data if isinstance(message, Revocable) else message
            self._socket.send(data)
