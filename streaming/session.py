"""One context as a state machine without I/O: events in, commands out.

::

    OPEN ----EndRequested----> ENDING --last sample sent--> CLOSED
      |                          |                             ^
      +------ CancelRequested, Failed -------------------------+

Text becomes utterances and pauses, which wait in a queue (streaming/utterance_queue.py). Only
credit flows backwards: when the listener's lead reaches its limit, no window is decoded and no
utterance is started until some audio has been played. If enough rows are buffered too, the talker
is paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Literal

from streaming.errors import ErrorCode, RequestError, TalkwireError
from streaming.events import (
    AudioDecoded,
    AudioRead,
    Cancelled,
    CancelRequested,
    Command,
    Done,
    EndRequested,
    Event,
    Failed,
    Flushed,
    FlushRequested,
    HoldReleased,
    LeadLifted,
    NothingToSay,
    PlaybackReported,
    RowsReceived,
    SetTimer,
    StopWork,
    TalkerRequested,
    TextAppended,
    TimerFired,
    VoiceChanged,
    Warned,
)
from streaming.report import ContextReport
from streaming.transcript import Transcript
from streaming.utterance import QueueSettings
from streaming.utterance_queue import NEVER, UtteranceQueue
from text.languages import is_mostly_left_out, language_names
from text.markup.elements import (
    Closed,
    Delivery,
    DeliveryEnd,
    Element,
    Ignored,
    Pause,
    Shape,
    Substitute,
    Text,
)
from text.markup.rendering import Rendering
from text.pronunciation.matcher import Pronouncer
from text.pronunciation.rules import RuleSet
from text.segmenter import Segmenter, SegmentSettings
from text.surrogates import SurrogateJoiner
from text.turns import TurnSettings
from text.word_stream import WordStream

#: The longest silence that the pauses of a context make together. They occupy its slot as speech
#: does, at no cost to the client. A text of the default limit takes two hours to speak, and a pause
#: of two seconds after each of its paragraphs adds less than this.
MAX_PAUSES_S = 600.0


class State(Enum):
    """State of a context."""

    OPEN = auto()
    ENDING = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a context. If ``silence_s`` is positive, text in which nothing can be spoken
    yields that many seconds of silence instead of an error. ``only_symbols_silent``: only at the
    end of a context without any letter or digit, such as an emoji.
    """

    queue: QueueSettings
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    turns: TurnSettings = field(default_factory=TurnSettings)
    max_text_chars: int = 100_000
    silence_s: float = 0.0
    only_symbols_silent: bool = False
    #: What the talker's family can render of the markup in the text.
    rendering: Rendering = field(default_factory=Rendering)
    #: Rules for words that are spoken in another way than they are written.
    pronunciations: Sequence[RuleSet] = ()
    #: How each turn is spoken, as far as its text does not say.
    deliveries: Sequence[Delivery] = ()
    #: Whether text is spoken word by word while it arrives, instead of sentence by sentence.
    by_words: bool = False


class Session:
    """State machine of one context. ``handle(event, now)`` returns the commands to execute.

    Commands are in order. ``now`` is monotonic seconds. Late results are ignored once the state is
    CLOSED. If the present state does not allow a client's request, RequestError is raised and
    nothing changes.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        segments = settings.segments
        self._surrogates = SurrogateJoiner()
        self._markup = settings.rendering.reader()
        self._pronouncer = Pronouncer(settings.pronunciations)
        #: Whether no text of the present turn has come.
        self._begins_turn = True
        #: Kinds of the warnings so far.
        self._warned: set[str] = set()
        #: Seconds of all pauses so far.
        self._paused_s = 0.0
        #: Names of the languages that the voice reads; empty: it follows the text.
        self._languages = language_names(settings.rendering.languages)
        # The queue computes spoken lengths, just before the text is spoken.
        self._segmenter = Segmenter(replace(segments, spoken_lengths=None))
        #: Cuts the text instead, if it is spoken word by word.
        self._words = WordStream(segments.max_chars) if settings.by_words else None
        self._transcript = Transcript(settings.queue.codec.sample_rate)
        max_chars = max(settings.turns.max_chars, segments.max_chars)
        part = replace(segments, max_chars=max_chars).part
        self._queue = UtteranceQueue(settings.queue, self._transcript, part, settings.turns)
        self.state = State.OPEN

    @property
    def is_idle(self) -> bool:
        """Whether the context waits for its client."""
        is_done = not self._queue or self._queue.waits_for_text
        return self.state is State.OPEN and is_done

    @property
    def is_settled(self) -> bool:
        """Whether the context is idle and no incomplete sentence is held back."""
        pending = (self._words or self._segmenter, self._markup, self._pronouncer)
        is_done = self.is_idle and not self._queue
        return is_done and not any(stage.pending_chars for stage in pending)

    @property
    def speed(self) -> float:
        """Playback speed, as a factor of the speed at which the talker spoke."""
        return self._settings.queue.speed

    @property
    def talker_deadline(self) -> float:
        """When the listener will run out of audio without further rows of the talker."""
        return self._queue.talker_deadline

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
            case CancelRequested():
                return self._cancel(event, now)
            case Failed(error):
                return self._close("error", error)
            case AudioRead(samples) if not self._queue.playback.waits_for_reading:
                self._queue.playback.on_read(samples)  # nothing can start by it
                return []
        queued = self._queue.queued
        commands = self._take(event, now)
        if isinstance(event, TextAppended) and self._queue.queued == queued:
            return commands  # only part of a sentence: nothing new can start
        sent = self._queue.clear_sent()
        if sent and any(isinstance(command, Flushed) for command in sent):
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
        match event:  # the most frequent first
            case RowsReceived(utterance=index, batch=batch):
                self._queue.on_rows(index, batch, now)
            case AudioDecoded(index, samples, decoded=decoded):
                ending = self.state is State.ENDING
                return self._queue.on_samples(
                    index, samples, now, is_ending=ending, decoded=decoded
                )
            case TextAppended(text):
                return self._append(text, now)
            case FlushRequested(flush_id):
                self._require_open()
                commands = self._end_turn(now)
                if not self._queue.mark_flush(flush_id):
                    commands += [*self._silence(now), Flushed(flush_id)]
                return commands
            case VoiceChanged(voice):
                self._require_open()
                commands = self._end_turn(now)
                self._queue.change_voice(voice)
                return commands
            case EndRequested():
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
            case NothingToSay(index):
                self._queue.on_nothing(index)
            case TalkerRequested(index):
                self._queue.on_requested(index, now)
            case TimerFired():
                pass  # ``advance`` does the rest
        return []

    # -- text in

    def _require_open(self) -> None:
        if self.state is not State.OPEN:
            raise RequestError(
                ErrorCode.CONTEXT_CLOSED, "The context was ended; it takes no more text."
            )

    def _append(self, text: str, now: float) -> list[Command]:
        self._require_open()
        if len(self._transcript.source) + len(text) > self._settings.max_text_chars:
            raise RequestError(
                ErrorCode.TEXT_TOO_LONG,
                f"A context takes {self._settings.max_text_chars} characters at most; "
                "this text was not added.",
                param="text",
            )
        return self._push(self._surrogates.push(text), now)

    def _push(self, text: str, now: float) -> list[Command]:
        deliveries: list[Element] = []
        if text and self._begins_turn:
            self._begins_turn = False
            deliveries = self._deliveries(self._markup.position)
        self._transcript.receive(text)
        elements = self._pronouncer.push(self._markup.push(text))
        return self._speak(deliveries + elements, now)

    def _deliveries(self, at: int, aspect: str | None = None) -> list[Element]:
        """The deliveries in which turns are spoken, at an offset of the client's text."""
        wanted = (one for one in self._settings.deliveries if aspect in (None, one.aspect))
        return [replace(one, start=at, end=at) for one in wanted]

    def _speak(self, elements: Sequence[Element], now: float) -> list[Command]:
        """Queue what the family speaks for these elements of the text. Returns warnings, and what
        the talker is told at once.
        """
        warnings: list[Command] = []
        rendering = self._settings.rendering
        for element in rendering.render(self._restored(elements)):
            match element:
                case Text(text=text) | Substitute(text=text):
                    self._transcript.append(element)
                    warnings += self._push_spoken(text, now)
                case Pause(seconds=seconds):
                    seconds = min(seconds, room_s := MAX_PAUSES_S - self._paused_s)
                    if element.seconds > room_s:
                        message = f"All pauses together are {MAX_PAUSES_S:g} seconds at most."
                        warnings += self._warn("pause", message)
                    if not seconds:
                        continue
                    self._paused_s += seconds
                    warnings += self._cut(now)
                    end = self._transcript.append_pause(element)
                    self._queue.add_pause(seconds, end, now)
                case DeliveryEnd(aspect=aspect) if rendering.sets(aspect):
                    warnings += self._cut(now)
                    self._queue.end_delivery(aspect)
                case Shape(aspect=aspect, factor=factor):
                    shaping = replace(self._queue.shaping, **{aspect: factor})
                    if shaping != self._queue.shaping:
                        warnings += self._cut(now)
                        self._queue.shape(shaping)
                case Closed(end=end):
                    self._transcript.close(end)
                case Ignored(kind=kind, message=message):
                    warnings += self._warn(kind, message)
        return warnings

    def _restored(self, elements: Iterable[Element]) -> Iterator[Element]:
        """Yield elements; at the end of a delivery also the turn's own, which applies again."""
        for element in elements:
            yield element
            if isinstance(element, DeliveryEnd):
                yield from self._deliveries(element.end, element.aspect)

    def _push_spoken(self, text: str, now: float) -> list[Command]:
        """Queue the part of the spoken text that is ready to be spoken. Returns commands."""
        if self._words is not None:
            return self._queue.add_words(self._words.push(text), now)
        return self._add(self._segmenter.push(text), now)

    def _cut(self, now: float, *, ends_turn: bool = False) -> list[Command]:
        """Queue the spoken text that was held back: the next begins another piece. Returns
        commands.
        """
        if self._words is not None:
            return self._queue.add_words(self._words.cut(), now)
        return self._add(self._segmenter.flush() if ends_turn else self._segmenter.cut(), now)

    def _add(self, texts: list[str], now: float) -> list[Command]:
        """Queue complete pieces of text. Returns warnings."""
        warnings: list[Command] = []
        lengths = self._settings.segments.spoken_lengths
        for text in texts:
            self._queue.add(text, now)
            if lengths is None or not self._languages or "language" in self._warned:
                continue
            if is_mostly_left_out(text, lengths):
                message = f"The voice reads {self._languages}; other letters are left out."
                warnings += self._warn("language", message)
        return warnings

    def _warn(self, kind: str, message: str) -> list[Command]:
        """Return a warning if it is the first of its kind."""
        if kind in self._warned:
            return []
        self._warned.add(kind)
        return [Warned(kind, message)]

    def _end_turn(self, now: float) -> list[Command]:
        warnings = self._push(self._surrogates.flush(), now)
        is_last = self.state is State.ENDING
        rest = self._pronouncer.push(self._markup.flush(is_last=is_last))
        warnings += self._speak(rest + self._pronouncer.flush(), now)
        warnings += self._cut(now, ends_turn=True)
        self._begins_turn = True
        return warnings + self._queue.end_turn()

    # -- the end

    def _silence(self, now: float, *, is_last: bool = False) -> list[Command]:
        """Silence for text in which nothing could be spoken."""
        source = self._transcript.source
        if self._queue.sent_samples or not source.strip():
            return []
        if self._settings.only_symbols_silent and (not is_last or any(map(str.isalnum, source))):
            return []
        return self._queue.silence(self._settings.silence_s, now, is_last=is_last)

    def _finish(self, now: float) -> list[Command]:
        if silence := self._silence(now, is_last=True):
            return silence + self._close("complete")
        if not self._queue.sent_samples:
            message = "There is nothing in the text that can be spoken."
            if self._languages:
                message += f" This voice reads {self._languages}."
            return self._close("error", RequestError(ErrorCode.INVALID_TEXT, message))
        return self._close("length" if self._queue.cut_off else "complete")

    def _close(
        self,
        reason: Literal["complete", "length", "error"],
        error: TalkwireError | None = None,
    ) -> list[Command]:
        return [StopWork(), Done(reason, self._shut(), error)]

    def _cancel(self, event: CancelRequested, now: float) -> list[Command]:
        report = self._shut()
        return [StopWork(), self.cancelled(event, report, now)]

    def cancelled(self, event: CancelRequested, report: ContextReport, now: float) -> Cancelled:
        """Return the answer to a cancel of a closed context, whose audio may not all be sent."""
        queue = self._queue
        sent = max(0, queue.sent_samples - event.unsent_samples)
        if event.played_samples is not None:
            queue.playback.on_report(event.played_samples, now)
        played = min(sent, queue.playback.played_samples(now))
        spoken, remaining = self._transcript.split(played, queue.sent_samples, queue.head_text_end)
        rate = self._settings.queue.playback_rate
        return Cancelled(report.generated_s, sent / rate, played / rate, spoken, remaining, report)

    def _shut(self) -> ContextReport:
        self.state = State.CLOSED
        queue = self._queue
        return queue.stopwatch.report(
            sent_samples=queue.sent_samples,
            generated_samples=round(queue.generated_samples)
            - queue.trimmed_samples
            + queue.pause_samples,
            underrun_s=queue.playback.underrun_s,
            underruns=queue.playback.underruns,
            characters=len(self._transcript.source),
        )
