"""The outputs of a context, rendered as the messages of a dialect for a socket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from service.contexts.outbox import Item, Outbox
from service.contexts.speech_context import Audio, Output, Started, Words
from streaming import events
from streaming.errors import TalkwireError
from streaming.word_timing import WordTiming

#: Maximum audio in one text message; a multiple of every sample size.
_PIECE_BYTES = 48 * 1024


class Revocable(NamedTuple):
    """A message that a cancel revokes: ``samples`` samples of audio, or information about it."""

    data: str | bytes
    samples: int = 0


Message = str | bytes | Revocable


def _data(message: Message) -> str | bytes:
    return message.data if isinstance(message, Revocable) else message


class Renderer(ABC):
    """Renders the outputs of one context as messages of a dialect."""

    def opened(self, handle: int, request_id: str) -> None:  # noqa: B027
        """Take the context's handle on its socket, and its id in the logs, before any output."""

    @abstractmethod
    def render(self, output: Output) -> Sequence[Message]:
        """Return the messages for an output, in order."""


class SocketOutput:
    """Puts a context's outputs, rendered by its dialect, into the outbox of its socket. Audio is
    sent at ``sample_rate``. With ``is_whole``, that of an utterance may be too long to be put. With
    ``is_buffered`` no lead limits the audio, only the outbox.
    """

    def __init__(
        self,
        outbox: Outbox,
        handle: int,
        renderer: Renderer,
        sample_rate: int,
        *,
        is_whole: bool = False,
        is_buffered: bool = False,
        context_id: str | None = None,
    ) -> None:
        self._outbox = outbox
        self._handle = handle
        self._renderer = renderer
        self._sample_rate = sample_rate
        self._context_id = context_id
        self._is_whole = is_whole
        self._is_buffered = is_buffered
        #: Samples put so far.
        self._put_samples = 0

    def put(self, output: Output, on_written: Callable[[], None] | None = None) -> None:
        """See OutputSink."""
        messages = self._renderer.render(output)
        if self._is_whole and isinstance(output, Audio):
            self._outbox.require_fit(sum(len(_data(message)) for message in messages))
        for number, message in enumerate(messages, 1):
            if isinstance(message, Revocable):
                data, samples = message
                audio_s, name = samples / self._sample_rate, self._context_id
                item = Item(data, self._handle, samples, audio_s=audio_s, context_id=name)
                self._outbox.put(item)
                self._put_samples += samples
            else:
                is_last = number == len(messages)
                self._outbox.put(Item(message, on_written=on_written if is_last else None))

    def revoke(self) -> int:
        """See OutputSink."""
        return self._put_samples - self._outbox.drop_audio(self._handle)

    async def room(self, given_samples: int) -> None:
        """See OutputSink."""
        if self._is_buffered:
            await self._outbox.room()


class TextRenderer(Renderer):
    """A base class of Renderers whose messages are all text, such as JSON. Those of ``speech`` are
    revocable.
    """

    #: Warnings that the client has not been told.
    _warning = ""

    def take_warning(self) -> dict[str, str]:
        """Return the field ``warning`` with the warnings since the last call; {} if there is none.

        It is for messages with audio, whose unknown fields the vendors' clients ignore. They report
        unknown messages as errors.
        """
        warning, self._warning = self._warning, ""
        return {"warning": warning} if warning else {}

    def speech(self, audio: bytes, words: Sequence[WordTiming]) -> list[str]:
        """Return messages for audio and the words that end in it; either may be empty."""
        raise NotImplementedError

    def flushed(self, flush_id: str) -> Sequence[Message]:
        """Return messages for a flush of which all audio was sent; by default none."""
        return []

    def done(self, error: TalkwireError | None) -> Sequence[Message]:
        """Return messages for the end: all audio was sent, or ``error`` has the reason."""
        raise NotImplementedError

    def cancelled(self) -> list[str]:
        """Return messages for a cancel by the client; by default none."""
        return []

    def render(self, output: Output) -> Sequence[Message]:
        """See Renderer."""
        match output:
            case Audio():
                return list(self._pieces(output))
            case Words():
                return [Revocable(message) for message in self.speech(b"", output.heard())]
            case events.Flushed(flush_id):
                return self.flushed(flush_id)
            case events.Cancelled():
                return self.cancelled()
            case events.Done(error=error):
                return self.done(error)
            case events.Warned(message=message):
                self._warning = f"{self._warning} {message}".lstrip()
                return []
            case Started():
                return []

    def _pieces(self, audio: Audio) -> Iterator[Revocable]:
        """Yield messages of bounded size; words go with the first, samples with a part's last."""
        data, samples, words = audio.data, audio.samples, audio.words.heard()
        if not (data or words):
            return
        left = samples
        for at in range(0, max(1, len(data)), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            is_last = at + _PIECE_BYTES >= len(data)
            count = left if is_last else samples * len(piece) // len(data)
            left -= count
            messages = self.speech(piece, words)
            yield from map(Revocable, messages[:-1])
            yield from (Revocable(last, count) for last in messages[-1:])
            words = []
