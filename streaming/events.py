"""Events of a context, and the commands of its session."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from streaming.errors import TalkwireError
from streaming.ports import DecodeStats, RowDemand, TalkerRows
from streaming.report import ContextReport
from streaming.spec import Samples
from streaming.window import DecodeWindow
from streaming.word_timing import WordTiming


class Event(Struct, frozen=True):
    """An event of a context."""


class TextAppended(Event, frozen=True):
    """The client sent text."""

    text: str


class FlushAsked(Event, frozen=True):
    """The client asks to speak all text received so far."""

    flush_id: str


class EndAsked(Event, frozen=True):
    """The client will send no more text."""


class CancelAsked(Event, frozen=True):
    """The client cancels the context. ``played_samples``: as the client reports it.
    ``unsent_samples``: samples that have not left the gateway.
    """

    played_samples: int | None = None
    unsent_samples: int = 0


class PlaybackReported(Event, frozen=True):
    """The listener has played this many samples; with ``at_most``, no more than that."""

    played_samples: int
    at_most: bool = False


class HoldReleased(Event, frozen=True):
    """A held session (``Session.hold``) may start utterances from now on."""


class LeadLifted(Event, frozen=True):
    """The server or the socket is about to end: send audio as soon as it is decoded, if the client
    reads it.
    """


class AudioRead(Event, frozen=True):
    """The client has read this many samples in all. Later ones may still be in transit."""

    samples: int


class RowsReceived(Event, frozen=True):
    """The talker generated rows. ``row_s``: recent seconds per row, 0 while unknown."""

    utterance: int
    batch: TalkerRows
    row_s: float = 0.0


class TalkerAsked(Event, frozen=True):
    """The request for an utterance goes to the talker only now, since references were prepared."""

    utterance: int


class NothingToSay(Event, frozen=True):
    """The utterance's text contains nothing that the talker can speak (an emoji, for example)."""

    utterance: int


class AudioDecoded(Event, frozen=True):
    """The codec decoded the utterance's window in flight. ``stats`` is for traces only."""

    utterance: int
    samples: Samples
    stats: DecodeStats | None = None


class Failed(Event, frozen=True):
    """The talker or the codec failed this context."""

    error: TalkwireError


class TimerFired(Event, frozen=True):
    """The time of the last SetTimer has come."""


class Command(Struct, frozen=True):
    """A command of a session."""


class StartTalker(Command, frozen=True):
    """Ask the talker to speak this text, complete since ``queued_at``. Answered by RowsReceived,
    NothingToSay or Failed. The first rows are taken as soon as they come, later ones as TakeRows
    demands. ``delivery``: control tags to speak the text with, from the part of its turn before it.
    """

    utterance: int
    text: str
    queued_at: float
    delivery: str = ""


class StopTalker(Command, frozen=True):
    """Abort the talker's request for an utterance that has no rows yet. StartTalker follows, with
    more text and the same number.
    """

    utterance: int


class TakeRows(Command, frozen=True):
    """Take the utterance's next rows according to ``demand``."""

    utterance: int
    demand: RowDemand


class PauseTalker(Command, frozen=True):
    """Take no more rows of the utterance until ResumeTalker, since enough are buffered."""

    utterance: int


class ResumeTalker(Command, frozen=True):
    """Take rows of the utterance again."""

    utterance: int


class StopWork(Command, frozen=True):
    """Abort all work of the talker and the codec for this context."""


class Decode(Command, frozen=True):
    """Decode this window by ``deadline``. Answered by AudioDecoded or Failed."""

    utterance: int
    window: DecodeWindow
    deadline: float


class SendAudio(Command, frozen=True):
    """Send samples to the client. ``is_first``, ``is_last``: of the context, as far as is known.
    ``late``: the listener had run out of audio; ``gap_s``: for how many seconds, or 0 if the client
    had not read the earlier audio. ``trimmed``: samples of silence that were left out before the
    context's first sample.
    """

    samples: Samples
    sample_offset: int
    is_first: bool
    ends_utterance: bool
    is_last: bool
    late: bool
    gap_s: float = 0.0
    trimmed: int = 0


class UtteranceEnded(Command, frozen=True):
    """The utterance has ended, and all of its audio had been sent before that was known: its last
    SendAudio did not say so.
    """

    utterance: int


class WordsSent(Command, frozen=True):
    """The audio of these words has been sent. Words come in order, each once."""

    timings: tuple[WordTiming, ...]


class SetTimer(Command, frozen=True):
    """Send TimerFired at ``at``. Replaces the timer set before."""

    at: float


class Flushed(Command, frozen=True):
    """All audio of the text before this flush has been sent."""

    flush_id: str


class Cancelled(Command, frozen=True):
    """The context was closed by a cancel. ``text_spoken`` and ``text_remaining`` together are the
    text that was appended.
    """

    generated_s: float
    sent_s: float
    played_s: float
    text_spoken: str
    text_remaining: str
    report: ContextReport


class Done(Command, frozen=True):
    """The context is closed: all audio was sent, or ``error`` says why not."""

    reason: Literal["complete", "length", "error"]
    report: ContextReport
    error: TalkwireError | None = None
