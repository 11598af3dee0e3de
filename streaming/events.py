"""Events of a context (what happens to it) and commands (what its session wants done)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from streaming.errors import TalkwireError
from streaming.ports import DecodeStats, RowDemand, TalkerRows
from streaming.report import ContextReport
from streaming.spec import Samples
from streaming.window import DecodeWindow
from streaming.word_timing import WordTiming


@dataclass(frozen=True, slots=True)
class TextAppended:
    """The client sent text."""

    text: str


@dataclass(frozen=True, slots=True)
class FlushAsked:
    """The client wants what is there spoken now."""

    flush_id: str


@dataclass(frozen=True, slots=True)
class EndAsked:
    """The client will send no more text."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Stop. ``played_samples`` as the client says; ``unsent_samples`` never left the gateway."""

    played_samples: int | None = None
    unsent_samples: int = 0


@dataclass(frozen=True, slots=True)
class PlaybackReported:
    """The listener has heard this many samples, or (``at_most``) no more than that."""

    played_samples: int
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class HoldReleased:
    """A session that was held (``Session.hold``) may ask the talker from now on."""


@dataclass(frozen=True, slots=True)
class LeadLifted:
    """The server is going away: send all audio as soon as it is made, if the client reads it."""


@dataclass(frozen=True, slots=True)
class AudioRead:
    """The client has read so many samples from its connection; later ones may be on their way."""

    samples: int


@dataclass(frozen=True, slots=True)
class RowsReceived:
    """The talker made rows for an utterance. ``row_s`` is what one has taken of late, 0 while that
    is not known.
    """

    utterance: int
    batch: TalkerRows
    row_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TalkerAsked:
    """The talker is asked for an utterance only now: something had to be ready before."""

    utterance: int


@dataclass(frozen=True, slots=True)
class NothingToSay:
    """The talker cannot speak anything in that utterance's text (an emoji, say)."""

    utterance: int


@dataclass(frozen=True, slots=True)
class AudioDecoded:
    """The codec decoded the window in flight of an utterance. ``stats`` is for traces alone."""

    utterance: int
    samples: Samples
    stats: DecodeStats | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Talker or codec failed this context."""

    error: TalkwireError


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the last SetTimer has come."""


Event = (
    TextAppended
    | FlushAsked
    | EndAsked
    | CancelAsked
    | PlaybackReported
    | HoldReleased
    | LeadLifted
    | AudioRead
    | TalkerAsked
    | RowsReceived
    | NothingToSay
    | AudioDecoded
    | Failed
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class StartTalker:
    """Have this text, complete since ``queued_at``, spoken; answer with RowsReceived, NothingToSay
    or Failed. The first rows are taken as soon as they come, the others as TakeRows says.
    ``delivery`` are control tags to speak it with, from the part of its turn before it.
    """

    utterance: int
    text: str
    queued_at: float
    delivery: str = ""


@dataclass(frozen=True, slots=True)
class StopTalker:
    """Abort the talker's work on an utterance that has no rows yet; StartTalker follows, with more
    text under the same number.
    """

    utterance: int


@dataclass(frozen=True, slots=True)
class TakeRows:
    """Take the utterance's next rows as ``demand`` says."""

    utterance: int
    demand: RowDemand


@dataclass(frozen=True, slots=True)
class PauseTalker:
    """Take no more rows of the utterance, until ResumeTalker: there are enough."""

    utterance: int


@dataclass(frozen=True, slots=True)
class ResumeTalker:
    """Take rows of the utterance again."""

    utterance: int


@dataclass(frozen=True, slots=True)
class StopWork:
    """Abort whatever the talker and the codec do for this context."""


@dataclass(frozen=True, slots=True)
class Decode:
    """Have this window decoded by ``deadline``; answer with AudioDecoded or Failed."""

    utterance: int
    window: DecodeWindow
    deadline: float


@dataclass(frozen=True, slots=True)
class SendAudio:
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


@dataclass(frozen=True, slots=True)
class WordsSent:
    """The audio of these words has been sent; they come in order, once each."""

    timings: tuple[WordTiming, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Ring at ``at``; replaces the timer set before."""

    at: float


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything before that flush has been sent."""

    flush_id: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The context is closed by request. The two texts join up to what was appended."""

    generated_s: float
    sent_s: float
    played_s: float
    text_spoken: str
    text_remaining: str
    report: ContextReport


@dataclass(frozen=True, slots=True)
class Done:
    """The context is closed: everything was sent, or ``error`` says why not."""

    reason: Literal["complete", "length", "error"]
    report: ContextReport
    error: TalkwireError | None = field(default=None)


Command = (
    StartTalker
    | StopTalker
    | TakeRows
    | PauseTalker
    | ResumeTalker
    | StopWork
    | Decode
    | SendAudio
    | WordsSent
    | SetTimer
    | Flushed
    | Cancelled
    | Done
)
