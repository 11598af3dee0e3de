"""One context as a state machine without I/O: events in, commands out.

::

    OPEN ----EndAsked----> ENDING --last sample sent--> CLOSED
      |                      |                             ^
      +------ CancelAsked, Broke --------------------------+

Text becomes utterances; the talker speaks one at a time, and may begin the next while the
codec and the client are still busy with the one before. At most one window is with the
codec. What runs backwards is credit alone: when the listener's lead reaches its limit,
nothing is decoded and no utterance is begun until some of it has been played.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.events import (
    Broke,
    CancelAsked,
    Cancelled,
    Command,
    Decode,
    Done,
    EndAsked,
    Event,
    FlushAsked,
    Flushed,
    NothingToSay,
    PlaybackReported,
    RowsCame,
    SamplesCame,
    SendAudio,
    SetTimer,
    StartTalker,
    StopWork,
    TextAppended,
    TimerRang,
)
from streaming.playback import PlaybackClock
from streaming.report import ContextReport, Stopwatch
from streaming.schedule import PaceBounds, ScheduleSettings
from streaming.segment import Segmenter, SegmentSettings
from streaming.spec import CodecSpec, Samples
from streaming.transcript import Transcript
from streaming.utterance import Mode, Utterance

_NEVER = float("inf")


class State(Enum):
    """Where a context is in its life."""

    OPEN = auto()
    ENDING = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a context is created with. ``bounds`` gives the pace as it is measured just now."""

    codec: CodecSpec
    schedule: ScheduleSettings
    segments: SegmentSettings
    bounds: Callable[[], PaceBounds]
    mode: Mode = "chunked"
    max_lead_s: float = 10.0
    max_text_chars: int = 100_000


class Session:
    """``handle(event, now)`` returns the commands to carry out, in order.

    ``now`` is monotonic seconds. Once CLOSED, late results are ignored. A RequestError is
    raised, and nothing has changed, when the client asks for what its context's state does
    not allow.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._segmenter = Segmenter(settings.segments)
        self._playback = PlaybackClock(settings.codec.sample_rate)
        self._stopwatch = Stopwatch(settings.codec.sample_rate)
        self._transcript = Transcript(settings.codec.sample_rate)
        #: Utterances whose audio has not all been sent; the talker works on at most one.
        self._line: deque[Utterance] = deque()
        self._talking: Utterance | None = None
        self._count = 0
        self._sent_samples = 0
        self._generated_frames = 0
        self._spoke = self._skipped = self._cut_off = False
        self.state = State.OPEN

    @property
    def is_idle(self) -> bool:
        """Whether the context waits for its client."""
        return self.state is State.OPEN and not self._line

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event. Raises RequestError (see above)."""
        if self.state is State.CLOSED:
            return []
        commands: list[Command] = []
        match event:
            case TextAppended(text):
                self._append(text, now)
            case FlushAsked(flush_id):
                self._require_open()
                self._queue(self._segmenter.flush(), now)
                self._mark_flush(flush_id, commands)
            case EndAsked():
                self._require_open()
                self._queue(self._segmenter.flush(), now)
                self.state = State.ENDING
            case CancelAsked():
                return self._cancel(event, now)
            case PlaybackReported(played_samples):
                self._playback.on_report(played_samples, now)
            case RowsCame(index, batch):
                if (talking := self._talking) is not None and talking.index == index:
                    before = talking.frames
                    talking.push(batch)
                    self._generated_frames += talking.frames - before
                    self._after_talking(now)
            case NothingToSay(index):
                if self._talking is not None and self._talking.index == index:
                    self._skipped = True
                    self._talking.skip()
                    self._after_talking(now)
            case SamplesCame(index, samples):
                self._send(index, samples, commands, now)
            case Broke(error):
                return self._close("error", now, error)
            case TimerRang():
                pass
        self._advance(commands, now)
        return commands

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
            utterance = Utterance(self._count, text, self._transcript.locate(text), now)
            self._line.append(utterance)
            self._count += 1
            self._stopwatch.on_text(now)

    def _mark_flush(self, flush_id: str, commands: list[Command]) -> None:
        if self._line:
            self._line[-1].flush_ids.append(flush_id)
        else:
            commands.append(Flushed(flush_id))

    # -- forward

    def _advance(self, commands: list[Command], now: float) -> None:
        """Start whatever can start now, and set the timer for what cannot yet."""
        while self._line and self._line[0].is_done:
            utterance = self._line.popleft()
            self._transcript.on_sent(utterance.text_end, self._sent_samples)
            commands += [Flushed(flush_id) for flush_id in utterance.flush_ids]
        if not self._line and self.state is State.ENDING:
            commands += self._finish(now)
            return
        wake = min(self._start_talker(commands, now), self._start_decode(commands, now))
        if wake < _NEVER:
            commands.append(SetTimer(wake))

    def _start_talker(self, commands: list[Command], now: float) -> float:
        """Begin the next utterance if there is credit for it; else return when to ask again."""
        waiting = next((u for u in self._line if u.started_at is None), None)
        if self._talking is not None or waiting is None:
            return _NEVER
        settings = self._settings
        backlog_s = sum(u.waiting_frames for u in self._line) * settings.codec.frame_s
        if backlog_s + self._playback.lead_s(now) >= settings.max_lead_s:
            room_at = self._playback.when_credit(now, settings.max_lead_s, backlog_s)
            # While a backlog is being sent, its progress wakes us; the clock alone would not.
            return room_at if room_at > now else _NEVER
        dry_at = self._playback.dry_at + backlog_s
        waiting.start(
            settings.codec, settings.schedule, settings.mode, settings.bounds(), dry_at, now
        )
        self._talking = waiting
        self._stopwatch.on_talker_start(now)
        commands.append(StartTalker(waiting.index, waiting.text))
        return _NEVER

    def _start_decode(self, commands: list[Command], now: float) -> float:
        """Hand the first utterance's next window to the codec if it is time, or say when."""
        head = self._line[0] if self._line else None
        if head is None or head.started_at is None or head.decoding is not None:
            return _NEVER
        limit = self._settings.max_lead_s
        if self._playback.lead_s(now) >= limit:
            return self._playback.when_credit(now, limit, 0.0)
        step = head.next_step(self._playback.dry_at, now)
        if step.window is None:
            return step.wake_at
        commands.append(Decode(head.index, step.window, step.deadline))
        return _NEVER

    def _after_talking(self, now: float) -> None:
        if self._talking is not None and self._talking.generated:
            self._stopwatch.on_talker_end(now)
            self._cut_off |= self._talking.cut_off
            self._talking = None

    def _send(self, index: int, samples: Samples, commands: list[Command], now: float) -> None:
        head = self._line[0] if self._line else None
        if head is None or head.index != index or head.decoding is None:
            return  # a late result
        dry_at = self._playback.dry_at
        # A pause that the text itself made, by coming after the end of the last audio, is
        # no underrun.
        continues = head.frames_sent > 0 or head.queued_at < dry_at
        late = bool(self._sent_samples) and continues and dry_at < now
        offset, self._sent_samples = self._sent_samples, self._sent_samples + len(samples)
        self._spoke = True
        self._stopwatch.on_audio(samples, now)
        self._playback.on_sent(len(samples), now, continues=continues)
        head.on_sent(now)
        is_last = self.state is State.ENDING and head.is_done and len(self._line) == 1
        commands.append(
            SendAudio(
                samples,
                offset,
                is_first=offset == 0,
                ends_utterance=head.is_done,
                is_last=is_last,
                late=late,
            )
        )

    # -- the end

    def _finish(self, now: float) -> list[Command]:
        if not self._spoke:
            error = RequestError(
                ErrorCode.INVALID_TEXT, "There is nothing in the text that can be spoken."
            )
            return self._close("error", now, error)
        return self._close("length" if self._cut_off else "complete", now)

    def _close(
        self,
        reason: Literal["complete", "length", "error"],
        now: float,
        error: TalkwireError | None = None,
    ) -> list[Command]:
        self._shut(now)
        return [StopWork(), Done(reason, self._report(), error)]

    def _cancel(self, event: CancelAsked, now: float) -> list[Command]:
        self._shut(now)
        sent = max(0, self._sent_samples - event.unsent_samples)
        if event.played_samples is not None:
            self._playback.on_report(event.played_samples, now)
        played = min(sent, self._playback.played_samples(now))
        pending = self._line[0].text_end if self._line else None
        spoken, remaining = self._transcript.split(played, self._sent_samples, pending)
        seconds = self._settings.codec.seconds
        report = self._report()
        cancelled = Cancelled(
            report.generated_s, seconds(sent), seconds(played), spoken, remaining, report
        )
        return [StopWork(), cancelled]

    def _shut(self, now: float) -> None:
        self._stopwatch.on_talker_end(now)
        self.state = State.CLOSED

    def _report(self) -> ContextReport:
        codec = self._settings.codec
        return self._stopwatch.report(
            sent_samples=self._sent_samples,
            generated_samples=self._generated_frames * codec.hop_length,
            underrun_s=self._playback.underrun_s,
            underruns=self._playback.underruns,
            characters=len(self._transcript.text),
        )
