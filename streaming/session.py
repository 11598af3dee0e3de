"""One context as a state machine without I/O: events in, commands out.

::

    OPEN ----EndAsked----> ENDING --last sample sent--> CLOSED
      |                      |                             ^
      +------ CancelAsked, Failed -------------------------+

Text becomes utterances, which wait in a queue (streaming/utterance_queue.py). Only credit flows
backwards: when the listener's lead reaches its limit, nothing is decoded and no utterance is begun
until some of it has been played; and when enough rows are in hand besides, the talker is paused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Literal

from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.events import (
    AudioDecoded,
    AudioRead,
    CancelAsked,
    Cancelled,
    Command,
    Done,
    EndAsked,
    Event,
    Failed,
    FlushAsked,
    Flushed,
    LeadLifted,
    NothingToSay,
    PlaybackReported,
    RowsReceived,
    SetTimer,
    StopWork,
    TalkerAsked,
    TextAppended,
    TimerFired,
    TurnCame,
)
from streaming.report import ContextReport
from streaming.segmenter import Segmenter, SegmentSettings
from streaming.transcript import Transcript
from streaming.turns import TurnSettings
from streaming.utterance_queue import NEVER, QueueSettings, UtteranceQueue


class State(Enum):
    """Where a context is in its life."""

    OPEN = auto()
    ENDING = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a context is created with. With ``silence_s`` text without anything that can be spoken
    is heard as so many seconds of silence, instead of being an error.
    """

    line: QueueSettings
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    turns: TurnSettings = field(default_factory=TurnSettings)
    max_text_chars: int = 100_000
    silence_s: float = 0.0


class Session:
    """``handle(event, now)`` returns the commands to carry out, in order.

    ``now`` is monotonic seconds. Once CLOSED, late results are ignored. A RequestError is
    raised, and nothing has changed, when the client asks for what its context's state does
    not allow.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        segments = settings.segments
        # How long text is in words is asked for just before it is spoken, by the queue.
        self._segmenter = Segmenter(replace(segments, spoken_lengths=None))
        self._transcript = Transcript(settings.line.codec.sample_rate)
        most = max(settings.turns.max_chars, segments.max_chars)
        part = replace(segments, max_chars=most).part
        self._line = UtteranceQueue(settings.line, self._transcript, part, settings.turns)
        self.state = State.OPEN

    @property
    def is_idle(self) -> bool:
        """Whether the context waits for its client."""
        return self.state is State.OPEN and not self._line

    @property
    def is_settled(self) -> bool:
        """The same, when no part of a sentence waits for its rest."""
        return self.is_idle and not self._segmenter.pending_chars

    @property
    def speed(self) -> float:
        """How many times as fast as it was spoken the audio is heard."""
        return self._settings.line.speed

    def hold(self) -> None:
        """Take text, and leave what it costs to make speech of it until ``TurnCame``."""
        self._line.is_held = True

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event. Raises RequestError (see above)."""
        if self.state is State.CLOSED:
            return []
        match event:
            case CancelAsked():
                return self._cancel(event, now)
            case Failed(error):
                return self._close("error", now, error)
        queued = self._line.queued
        commands = self._take(event, now)
        if isinstance(event, TextAppended) and self._line.queued == queued:
            return commands  # part of a sentence: nothing can begin that could not before
        sent = self._line.clear_sent()
        if any(isinstance(command, Flushed) for command in sent):
            commands += self._silence(now)
        commands += sent
        if not self._line and self.state is State.ENDING:
            return commands + self._finish(now)
        work, wake_at = self._line.advance(now)
        commands += work
        if wake_at < NEVER:
            commands.append(SetTimer(wake_at))
        return commands + self._line.pace_talker(event, now)

    def _take(self, event: Event, now: float) -> list[Command]:
        match event:
            case TextAppended(text):
                self._append(text, now)
            case FlushAsked(flush_id):
                self._require_open()
                again = self._end_turn(now)
                if not self._line.mark_flush(flush_id):
                    return [*self._silence(now), Flushed(flush_id)]
                return again
            case EndAsked():
                self._require_open()
                self.state = State.ENDING
                return self._end_turn(now)
            case PlaybackReported(played_samples, at_most):
                self._line.playback.on_report(played_samples, now, at_most=at_most)
            case TurnCame():
                self._line.is_held = False
            case LeadLifted():
                self._line.playback.lift()
            case AudioRead(samples):
                self._line.playback.on_read(samples)
            case RowsReceived(utterance=index, batch=batch):
                self._line.on_rows(index, batch, now)
            case NothingToSay(index):
                self._line.on_nothing(index)
            case TalkerAsked(index):
                self._line.on_asked(index, now)
            case AudioDecoded(index, samples):
                ending = self.state is State.ENDING
                return self._line.on_samples(index, samples, now, is_ending=ending)
            case TimerFired():
                pass  # asking what can be done now is all that is needed
        return []

    # -- text in

    def _require_open(self) -> None:
        if self.state is not State.OPEN:
            raise RequestError(
                ErrorCode.CONTEXT_CLOSED, "The context was ended; it takes no more text."
            )

    def _append(self, text: str, now: float) -> None:
        self._require_open()
        if len(self._transcript.text) + len(text) > self._settings.max_text_chars:
            raise RequestError(
                ErrorCode.TEXT_TOO_LONG,
                f"A context takes {self._settings.max_text_chars} characters at most; "
                "this text was not added.",
                param="text",
            )
        self._transcript.append(text)
        self._queue(self._segmenter.push(text), now)

    def _queue(self, texts: list[str], now: float) -> None:
        for text in texts:
            self._line.add(text, now)

    def _end_turn(self, now: float) -> list[Command]:
        self._queue(self._segmenter.flush(), now)
        return self._line.end_turn()

    # -- the end

    def _silence(self, now: float, *, is_last: bool = False) -> list[Command]:
        """What is heard where there was text, and nothing in it that could be spoken."""
        if self._line.sent_samples or not self._transcript.text.strip():
            return []
        return self._line.silence(self._settings.silence_s, now, is_last=is_last)

    def _finish(self, now: float) -> list[Command]:
        if silence := self._silence(now, is_last=True):
            return silence + self._close("complete", now)
        if not self._line.sent_samples:
            error = RequestError(
                ErrorCode.INVALID_TEXT, "There is nothing in the text that can be spoken."
            )
            return self._close("error", now, error)
        return self._close("length" if self._line.cut_off else "complete", now)

    def _close(
        self,
        reason: Literal["complete", "length", "error"],
        now: float,
        error: TalkwireError | None = None,
    ) -> list[Command]:
        return [StopWork(), Done(reason, self._shut(now), error)]

    def _cancel(self, event: CancelAsked, now: float) -> list[Command]:
        report, line = self._shut(now), self._line
        sent = max(0, line.sent_samples - event.unsent_samples)
        if event.played_samples is not None:
            line.playback.on_report(event.played_samples, now)
        played = min(sent, line.playback.played_samples(now))
        spoken, remaining = self._transcript.split(played, line.sent_samples, line.head_text_end)
        rate = self._settings.line.heard_rate
        cancelled = Cancelled(
            report.generated_s, sent / rate, played / rate, spoken, remaining, report
        )
        return [StopWork(), cancelled]

    def _shut(self, now: float) -> ContextReport:
        self.state = State.CLOSED
        line, codec = self._line, self._settings.line.codec
        return line.stopwatch.report(
            sent_samples=line.sent_samples,
            generated_samples=line.generated_frames * codec.hop_length,
            underrun_s=line.playback.underrun_s,
            underruns=line.playback.underruns,
            characters=len(self._transcript.text),
        )
