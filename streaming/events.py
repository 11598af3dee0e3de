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


class VoiceChanged(Event, frozen=True):
    """The text from here on is spoken by another voice; None: by the context's own."""

    voice: str | None


class FlushRequested(Event, frozen=True):
    """The client asks to speak all text received so far."""

    flush_id: str


class EndRequested(Event, frozen=True):
    """The client will send no more text."""


class CancelRequested(Event, frozen=True):
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


class TalkerRequested(Event, frozen=True):
    """The request for an utterance goes to the talker only now, since references were prepared."""

    utterance: int


class NothingToSay(Event, frozen=True):
    """The utterance's text contains nothing that the talker can speak (an emoji, for example)."""

    utterance: int


class AudioDecoded(Event, frozen=True):
    """The codec decoded the utterance's window in flight, or a pause's silence may be sent.
    ``stats`` is for traces only. ``decoded``: the window's samples before they were stretched, if
    they were.
    """

    utterance: int
    samples: Samples
    stats: DecodeStats | None = None
    decoded: Samples | None = None


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
    ``voice``: see VoiceChanged. ``is_open``: whether the text goes on with AppendText, or did so
    before this command; None: it is spoken as a whole text.
    """

    utterance: int
    text: str
    queued_at: float
    delivery: str = ""
    voice: str | None = None
    is_open: bool | None = None


class AppendText(Command, frozen=True):
    """Append this text to that of the utterance, which the talker has been asked for."""

    utterance: int
    text: str
    is_last: bool


class StopTalker(Command, frozen=True):
    """Abort the talker's request for an utterance that has no rows yet. StartTalker follows, with
    more text and the same number.
    """

    utterance: int


class EndSilence(Command, frozen=True):
    """An utterance that has been silent for too long ends with the audio that it has, since its
    text was read. ``is_running``: abort the talker's request, which has not ended by itself.
    """

    utterance: int
    is_running: bool


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
    """Decode this window by ``deadline``. Answered by AudioDecoded or Failed. The samples of an
    utterance whose ``speed`` is not 1 are stretched, and what is held back comes with its last
    window's, which is known to be the last.
    """

    utterance: int
    window: DecodeWindow
    deadline: float
    speed: float = 1.0


class MakeSilence(Command, frozen=True):
    """Make this many samples of silence once there is room for them. Answered by AudioDecoded.
    Pauses have negative numbers.
    """

    utterance: int
    samples: int


class SendAudio(Command, frozen=True):
    """Send samples to the client."""

    samples: Samples
    #: Number of samples of the context before these.
    sample_offset: int
    #: Whether these are the context's first samples.
    is_first: bool
    #: Whether these are the utterance's last samples, as far as is known.
    ends_utterance: bool
    #: Whether these are the context's last samples, as far as is known.
    is_last: bool
    #: Whether the listener had run out of audio.
    late: bool
    #: For how many seconds; 0 if the client had not read the earlier audio.
    gap_s: float = 0.0
    #: Samples of silence that were left out before the context's first sample.
    trimmed: int = 0
    #: Words that end in these samples. Words come in order, each once.
    words: tuple[WordTiming, ...] = ()


class UtteranceEnded(Command, frozen=True):
    """The utterance has ended, and all of its audio had been sent before that was known: its last
    SendAudio did not say so.
    """

    utterance: int


class WordsSent(Command, frozen=True):
    """The audio of these words has been sent earlier, which has become known only now."""

    timings: tuple[WordTiming, ...]


class SetTimer(Command, frozen=True):
    """Send TimerFired at ``at``. Replaces the timer set before."""

    at: float


class Warned(Command, frozen=True):
    """Markup in the text has no effect. ``kind`` is a short name of the reason; each kind is
    reported once. ``message`` is a text for people.
    """

    kind: str
    message: str


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


#: Commands about what the client gets. Nothing follows ``Cancelled`` or ``Done``.
OutputCommand = SendAudio | WordsSent | UtteranceEnded | Flushed | Warned | Cancelled | Done
