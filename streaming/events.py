"""Events of a context (what happens to it) and commands (what its session wants done)."""

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
    """Something that happens to a context."""


class TextAppended(Event, frozen=True):
    """The client sent text."""

    text: str


class FlushAsked(Event, frozen=True):
    """The client wants what is there spoken now."""

    flush_id: str


class EndAsked(Event, frozen=True):
    """The client will send no more text."""


class CancelAsked(Event, frozen=True):
    """Stop. ``played_samples`` as the client says; ``unsent_samples`` never left the gateway."""

    played_samples: int | None = None
    unsent_samples: int = 0


class PlaybackReported(Event, frozen=True):
    """The listener has heard this many samples, or (``at_most``) no more than that."""

    played_samples: int
    at_most: bool = False


class HoldReleased(Event, frozen=True):
    """A session that was held (``Session.hold``) may ask the talker from now on."""


class LeadLifted(Event, frozen=True):
    """The server is going away: send all audio as soon as it is made, if the client reads it."""


class AudioRead(Event, frozen=True):
    """The client has read so many samples from its connection; later ones may be on their way."""

    samples: int


class RowsReceived(Event, frozen=True):
    """The talker made rows for an utterance. ``row_s`` is what one has taken of late, 0 while that
    is not known.
    """

    utterance: int
    batch: TalkerRows
    row_s: float = 0.0


class TalkerAsked(Event, frozen=True):
    """The talker is asked for an utterance only now: something had to be ready before."""

    utterance: int


class NothingToSay(Event, frozen=True):
    """The talker cannot speak anything in that utterance's text (an emoji, say)."""

    utterance: int


class AudioDecoded(Event, frozen=True):
    """The codec decoded the window in flight of an utterance. ``stats`` is for traces alone."""

    utterance: int
    samples: Samples
    stats: DecodeStats | None = None


class Failed(Event, frozen=True):
    """Talker or codec failed this context."""

    error: TalkwireError


class TimerFired(Event, frozen=True):
    """The time of the last SetTimer has come."""


class Command(Struct, frozen=True):
    """Something that a session wants done."""


class StartTalker(Command, frozen=True):
    """Have this text, complete since ``queued_at``, spoken; answer with RowsReceived, NothingToSay
    or Failed. The first rows are taken as soon as they come, the others as TakeRows says.
    ``delivery`` are control tags to speak it with, from the part of its turn before it.
    """

    utterance: int
    text: str
    queued_at: float
    delivery: str = ""


class StopTalker(Command, frozen=True):
    """Abort the talker's work on an utterance that has no rows yet; StartTalker follows, with more
    text under the same number.
    """

    utterance: int


class TakeRows(Command, frozen=True):
    """Take the utterance's next rows as ``demand`` says."""

    utterance: int
    demand: RowDemand


class PauseTalker(Command, frozen=True):
    """Take no more rows of the utterance, until ResumeTalker: there are enough."""

    utterance: int


class ResumeTalker(Command, frozen=True):
    """Take rows of the utterance again."""

    utterance: int


class StopWork(Command, frozen=True):
    """Abort whatever the talker and the codec do for this context."""


class Decode(Command, frozen=True):
    """Have this window decoded by ``deadline``; answer with AudioDecoded or Failed."""

    utterance: int
    window: DecodeWindow
    deadline: float


class SendAudio(Command, frozen=True):
    """Samples for the client. ``is_first``, ``is_last``: of the context, as far as is known;
    ``late``: the listener ran dry before them, for ``gap_s`` seconds if that was not because the
    client had not read what there was. ``trimmed`` samples of silence before the context's
    first one were left out.
    """

    samples: Samples
    sample_offset: int
    is_first: bool
    ends_utterance: bool
    is_last: bool
    late: bool
    gap_s: float = 0.0
    trimmed: int = 0


class WordsSent(Command, frozen=True):
    """The audio of these words has been sent; they come in order, once each."""

    timings: tuple[WordTiming, ...]


class SetTimer(Command, frozen=True):
    """Ring at ``at``; replaces the timer set before."""

    at: float


class Flushed(Command, frozen=True):
    """Everything before that flush has been sent."""

    flush_id: str


class Cancelled(Command, frozen=True):
    """The context is closed by request. The two texts join up to what was appended."""

    generated_s: float
    sent_s: float
    played_s: float
    text_spoken: str
    text_remaining: str
    report: ContextReport


class Done(Command, frozen=True):
    """The context is closed: everything was sent, or ``error`` says why not."""

    reason: Literal["complete", "length", "error"]
    report: ContextReport
    error: TalkwireError | None = None
