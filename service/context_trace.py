"""Follows one context and has its spans written: what a ContextDriver tells of its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from service.trace_spans import CodecTimes, Recorder, UtteranceTimes, WindowTimes, write_utterance
from streaming.events import (
    Cancelled,
    Command,
    Decode,
    Done,
    Event,
    NothingToSay,
    RowsCame,
    SamplesCame,
    SendAudio,
    StartTalker,
    TextAppended,
)
from streaming.ports import Arrival
from streaming.report import ContextReport
from streaming.window import DecodeWindow

#: Windows of an utterance that get spans of their own; the last is always among them.
MAX_WINDOWS = 32
#: Pieces of text whose times are kept while the utterances before them are being spoken.
_MAX_TEXTS = 1024


class ContextTrace:
    """One context's trace. ``answers`` is where the codec's answers are told, by the ``id`` of
    their window; this trace's are there only while they are waited for. An utterance's spans are
    written when it is over, so no more is kept than what is being spoken.
    """

    def __init__(
        self, recorder: Recorder, answers: dict[int, CodecTimes | None], now: float
    ) -> None:
        self._recorder, self._answers = recorder, answers
        self._utterances: dict[int, UtteranceTimes] = {}
        self._texts: deque[float] = deque(maxlen=_MAX_TEXTS)
        self._complete_at = now  # the text of the utterance before
        self._count = 0
        self._is_over = False

    def note(self, event: Event, commands: Sequence[Command], now: float, done_at: float) -> None:
        """An event came at ``now``; at ``done_at`` its commands had been carried out."""
        if self._is_over:
            return
        match event:
            case TextAppended():
                self._texts.append(now)
            case RowsCame(index, batch):
                self._on_rows(index, batch.came or (Arrival(len(batch.rows), now),), batch.finish)
            case NothingToSay(index):
                self._on_nothing(index, now)
        for command in commands:
            match command:
                case StartTalker():
                    self._start(command, now)
                case Decode(index, window):
                    self._on_decode(index, window, now)
                case SendAudio() if isinstance(event, SamplesCame):
                    self._on_audio(event.utterance, command, now, done_at)
                case Cancelled(report=report):
                    self._end("cancelled", report, None, "cancelled", done_at)
                case Done(reason, report, error):
                    code = None if error is None else error.code.value
                    self._end(reason, report, code, code, done_at)

    def _start(self, command: StartTalker, now: float) -> None:
        """Its text began with the first piece after the text before it was complete; or, if
        there is none, with what that piece left over.
        """
        queued_at = min(command.queued_at, now)
        while self._texts and self._texts[0] <= self._complete_at:
            self._texts.popleft()
        text_at = min(self._texts[0] if self._texts else self._complete_at, queued_at)
        self._complete_at = queued_at
        self._utterances[command.utterance] = UtteranceTimes(
            command.utterance, len(command.text), text_at, queued_at, now
        )
        self._count += 1

    def _on_rows(self, index: int, came: Sequence[Arrival], finish: str | None) -> None:
        utterance = self._utterances.get(index)
        if utterance is None:
            return
        if utterance.first_row_at is None:
            utterance.first_row_at = max(came[0].at, utterance.started_at)
        utterance.last_row_at = max(came[-1].at, utterance.first_row_at)
        utterance.rows += sum(arrival.rows for arrival in came)
        utterance.is_generated = utterance.is_generated or finish is not None

    def _on_nothing(self, index: int, now: float) -> None:
        utterance = self._utterances.pop(index, None)
        if utterance is not None:
            utterance.is_empty = True
            write_utterance(self._recorder, utterance, now, None)

    def _on_decode(self, index: int, window: DecodeWindow, now: float) -> None:
        utterance = self._utterances.get(index)
        if utterance is not None:
            utterance.decoding = WindowTimes(window, now)
            self._answers[id(window)] = None

    def _on_audio(self, index: int, audio: SendAudio, now: float, done_at: float) -> None:
        utterance = self._utterances.get(index)
        if utterance is None:
            return
        self._take_answer(utterance)
        if utterance.sent_from is None:
            utterance.sent_from = now
        utterance.sent_to = done_at
        utterance.samples += len(audio.samples)
        if audio.ends_utterance:
            del self._utterances[index]
            write_utterance(self._recorder, utterance, done_at, None)

    def _take_answer(self, utterance: UtteranceTimes) -> None:
        decoding, utterance.decoding = utterance.decoding, None
        if decoding is None:
            return
        decoding.codec = self._answers.pop(id(decoding.window), None)
        if len(utterance.windows) == MAX_WINDOWS:
            utterance.windows.pop()
        utterance.windows.append(decoding)
        utterance.window_count += 1

    def _end(
        self, outcome: str, report: ContextReport, fault: str | None, cut: str | None, now: float
    ) -> None:
        """``cut`` is what unfinished spans say of their end."""
        self._is_over = True
        for utterance in self._utterances.values():
            self._take_answer(utterance)
            write_utterance(self._recorder, utterance, now, cut)
        self._utterances.clear()
        figures: dict[str, str | int | float | None] = {
            "tts.outcome": outcome,
            "tts.characters": report.characters,
            "tts.utterances": self._count,
            "tts.audio_s": report.audio_s,
            "tts.generated_s": report.generated_s,
            "tts.ttfa_s": report.ttfa_s,
            "tts.underruns": report.underruns,
            "tts.underrun_s": report.underrun_s,
        }
        known = {name: value for name, value in figures.items() if value is not None}
        self._recorder.finish(known, fault, now)
