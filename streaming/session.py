"""One context as a state machine without I/O: events in, commands out.

::

    OPEN ----EndAsked----> ENDING --last sample sent--> CLOSED
      |                      |                             ^
      +------ CancelAsked, Failed -------------------------+

Text becomes utterances, which wait in a queue (streaming/utterance_queue.py). Only credit flows
backwards: when the listener's lead reaches its limit, no window is decoded and no utterance is
started until some audio has been played. If enough rows are buffered too, the talker is paused.
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
    HoldReleased,
    LeadLifted,
    NothingToSay,
    PlaybackReported,
    RowsReceived,
    SetTimer,
    StopWork,
    TalkerAsked,
    TextAppended,
    TimerFired,
)
from streaming.report import ContextReport
from streaming.segmenter import Segmenter, SegmentSettings
from streaming.transcript import Transcript
from streaming.turns import TurnSettings
from streaming.utterance import QueueSettings
from streaming.utterance_queue import NEVER, UtteranceQueue


class State(Enum):
    """State of a context."""

    OPEN = auto()
    ENDING = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a context. If ``silence_s`` is positive, text in which nothing can be spoken
    yields that many seconds of silence instead of an error.
    """

    queue: QueueSettings
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    turns: TurnSettings = field(default_factory=TurnSettings)
    max_text_chars: int = 100_000
    silence_s: float = 0.0


class Session:
    """State machine of one context. ``handle(event, now)`` returns the commands to execute.

    Commands are in order. ``now`` is monotonic seconds. Late results are ignored once the state is
    CLOSED. If the present state does not allow a client's request, RequestError is raised and
    nothing changes.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        segments = settings.segments
        # The queue computes spoken lengths, just before the text is spoken.
        self._segmenter = Segmenter(replace(segments, spoken_lengths=None))
        self._transcript = Transcript(settings.queue.codec.sample_rate)
        most = max(settings.turns.max_chars, segments.max_chars)
        part = replace(segments, max_chars=most).part
        self._queue = UtteranceQueue(settings.queue, self._transcript, part, settings.turns)
        self.state = State.OPEN

    @property
    def is_idle(self) -> bool:
        """Whether the context waits for its client."""
        return self.state is State.OPEN and not self._queue

    @property
    def is_settled(self) -> bool:
        """Whether the context is idle and no incomplete sentence is held back."""
        return self.is_idle and not self._segmenter.pending_chars

    @property
    def speed(self) -> float:
        """Playback speed, as a factor of the speed at which the talker spoke."""
        return self._settings.queue.speed

    @property
    def is_whole(self) -> bool:
        """Whether each utterance's audio is sent in one piece."""
        return self._settings.queue.mode == "whole"

    def hold(self) -> None:
        """Accept text, but start no utterance until ``HoldReleased``."""
        self._queue.is_held = True

    def handle(self, event: Event, now: float) -> list[Command]:
        """Process one event and return its commands. Raises RequestError (see the class)."""
        if self.state is State.CLOSED:
            return []
        match event:
            case CancelAsked():
                return self._cancel(event, now)
            case Failed(error):
                return self._close("error", error)
        queued = self._queue.queued
        commands = self._take(event, now)
        if isinstance(event, TextAppended) and self._queue.queued == queued:
            return commands  # only part of a sentence: nothing new can start
        sent = self._queue.clear_sent()
        if any(isinstance(command, Flushed) for command in sent):
            commands += self._silence(now)
        commands += sent
        if not self._queue and self.state is State.ENDING:
            return commands + self._finish(now)
        work, wake_at = self._queue.advance(now)
        commands += work
        if wake_at < NEVER:
            commands.append(SetTimer(wake_at))
        return commands + self._queue.pace_talker(event, now)

    def _take(self, event: Event, now: float) -> list[Command]:
        match event:
            case TextAppended(text):
                self._append(text, now)
            case FlushAsked(flush_id):
                self._require_open()
                again = self._end_turn(now)
                if not self._queue.mark_flush(flush_id):
                    return [*self._silence(now), Flushed(flush_id)]
                return again
            case EndAsked():
                self._require_open()
                self.state = State.ENDING
                return self._end_turn(now)
            case PlaybackReported(played_samples, at_most):
                self._queue.playback.on_report(played_samples, now, at_most=at_most)
            case HoldReleased():
                self._queue.is_held = False
            case LeadLifted():
                self._queue.playback.lift()
            case AudioRead(samples):
                self._queue.playback.on_read(samples)
            case RowsReceived(utterance=index, batch=batch):
                self._queue.on_rows(index, batch, now)
            case NothingToSay(index):
                self._queue.on_nothing(index)
            case TalkerAsked(index):
                self._queue.on_asked(index, now)
            case AudioDecoded(index, samples):
                ending = self.state is State.ENDING
                return self._queue.on_samples(index, samples, now, is_ending=ending)
            case TimerFired():
                pass  # ``advance`` does the rest
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
        self._add(self._segmenter.push(text), now)

    def _add(self, texts: list[str], now: float) -> None:
        for text in texts:
            self._queue.add(text, now)

    def _end_turn(self, now: float) -> list[Command]:
        self._add(self._segmenter.flush(), now)
        return self._queue.end_turn()

    # -- the end

    def _silence(self, now: float, *, is_last: bool = False) -> list[Command]:
        """Silence for text in which nothing could be spoken."""
        if self._queue.sent_samples or not self._transcript.text.strip():
            return []
        return self._queue.silence(self._settings.silence_s, now, is_last=is_last)

    def _finish(self, now: float) -> list[Command]:
        if silence := self._silence(now, is_last=True):
            return silence + self._close("complete")
        if not self._queue.sent_samples:
            error = RequestError(
                ErrorCode.INVALID_TEXT, "There is nothing in the text that can be spoken."
            )
            return self._close("error", error)
        return self._close("length" if self._queue.cut_off else "complete")

    def _close(
        self,
        reason: Literal["complete", "length", "error"],
        error: TalkwireError | None = None,
    ) -> list[Command]:
        return [StopWork(), Done(reason, self._shut(), error)]

    def _cancel(self, event: CancelAsked, now: float) -> list[Command]:
        report = self._shut()
        return [StopWork(), self.cancelled(event, report, now)]

    def cancelled(self, event: CancelAsked, report: ContextReport, now: float) -> Cancelled:
        """Return the answer to a cancel of a closed context, whose audio may not all be sent."""
        queue = self._queue
        sent = max(0, queue.sent_samples - event.unsent_samples)
        if event.played_samples is not None:
            queue.playback.on_report(event.played_samples, now)
        played = min(sent, queue.playback.played_samples(now))
        spoken, remaining = self._transcript.split(played, queue.sent_samples, queue.head_text_end)
        rate = self._settings.queue.heard_rate
        return Cancelled(report.generated_s, sent / rate, played / rate, spoken, remaining, report)

    def _shut(self) -> ContextReport:
        self.state = State.CLOSED
        queue, codec = self._queue, self._settings.queue.codec
        return queue.stopwatch.report(
            sent_samples=queue.sent_samples,
            generated_samples=queue.generated_frames * codec.hop_length - queue.trimmed_samples,
            underrun_s=queue.playback.underrun_s,
            underruns=queue.playback.underruns,
            characters=len(self._transcript.text),
        )
