"""A session with a simulated talker, codec and clock."""

from __future__ import annotations

from math import ceil

import numpy as np
from msgspec.structs import replace

from streaming.chunk_schedule import PaceBounds, ScheduleSettings
from streaming.events import (
    AudioDecoded,
    Command,
    Decode,
    EndRequested,
    Event,
    MakeSilence,
    NothingToSay,
    PauseTalker,
    ResumeTalker,
    RowsReceived,
    SendAudio,
    SetTimer,
    StartTalker,
    StopTalker,
    StopWork,
    TakeRows,
    TextAppended,
    TimerFired,
    WordsSent,
)
from streaming.ports import TalkerRows
from streaming.session import Session, SessionSettings
from streaming.spec import CodecSpec, Codes
from streaming.utterance import Mode, QueueSettings
from streaming.word_timing import WordTiming

SPEC = CodecSpec(24_000, 960, (1024,) * 4, 3, 3)
ROW_S = 0.005
EOC = 1025


def settings(
    mode: Mode = "chunked",
    max_lead_s: float = 10.0,
    chars: int = 1000,
    speed: float = 1.0,
    incomplete: int = 0,
    trim_s: float = 0.0,
) -> SessionSettings:
    schedule = ScheduleSettings(
        frame_s=SPEC.frame_s / speed,
        delay_rows=SPEC.num_codebooks - 1,
        left_context_frames=3,
        first_lookahead_frames=2,
        lookahead_frames=3,
        incomplete_frames=incomplete,
    )
    bounds = PaceBounds(ROW_S, 0.0, 0.0, 0.002, 0.0005, trimmed_s=trim_s)
    queue = QueueSettings(
        SPEC, schedule, lambda _: bounds, mode, max_lead_s, speed,
        trim_samples=round(trim_s * SPEC.sample_rate),
        held_back_s=lambda _: 500 / SPEC.sample_rate,
    )  # fmt: skip
    return SessionSettings(queue, max_text_chars=chars)


class Nearest:
    """A stretcher that takes the nearest samples, and holds the newest 500 back."""

    def __init__(self, speed: float) -> None:
        self.speed, self.taken, self.given = speed, np.empty(0, np.float32), 0

    def push(self, samples: np.ndarray, *, is_last: bool) -> np.ndarray:
        self.taken = np.concatenate([self.taken, samples])
        end = ceil(round(len(self.taken) / self.speed, 6))
        final = end if is_last else max(self.given, end - 500)
        at = np.arange(self.given, final) * self.speed
        self.given = final
        return self.taken[np.minimum(at.astype(int), len(self.taken) - 1)]


class World:
    """Simulated talker, codec and clock for one Session, and a record of its commands."""

    def __init__(self, config: SessionSettings, frames: int = 40, silent: int = 0) -> None:
        self.session, self.frames, self.now = Session(config), frames, 0.0
        self.silent = silent  # number of silent frames at the start of each utterance
        self.sent: list[SendAudio] = []
        self.told: list[Command] = []
        self.talked: list[str] = []
        self.delivered: list[str] = []
        self.voices: list[str | None] = []
        self.windows: list[Decode] = []
        self.hold = self.paused = False
        self.taken: list[TakeRows] = []
        self._rows: list[tuple[float, Event]] = []
        self._timer: float | None = None
        self.skipped: set[int] = set()  # numbers of utterances with nothing to say

    def post(self, event: Event) -> None:
        for command in self.session.handle(event, self.now):
            match command:
                case StartTalker(utterance, text):
                    self.talked.append(text)
                    self.delivered.append(command.delivery)
                    self.voices.append(command.voice)
                    if utterance in self.skipped:
                        self._rows.append((self.now, NothingToSay(utterance)))
                    else:
                        self._rows += self._speech(utterance)
                case StopTalker(utterance):
                    del self.talked[-1], self.delivered[-1], self.voices[-1]
                    self._rows = [(at, e) for at, e in self._rows if not is_of(e, utterance)]
                case Decode(utterance, window):
                    self.windows.append(command)
                    samples = np.repeat(window.codes[0], SPEC.hop_length).astype(np.float32)
                    samples = window.trim(samples / np.float32(1024))
                    event = AudioDecoded(utterance, samples)
                    if command.speed != 1.0:
                        if window.first_frame == 0:
                            self._stretch = Nearest(command.speed)
                        sent = self._stretch.push(samples, is_last=window.is_last)
                        event = AudioDecoded(utterance, sent, decoded=samples)
                    self._rows.append((self.now + 0.003, event))
                case MakeSilence(pause, count):
                    made = AudioDecoded(pause, np.zeros(count, np.float32))
                    self._rows.append((self.now, made))
                case TakeRows():
                    self.taken.append(command)
                case PauseTalker():
                    self.paused = True
                case ResumeTalker():
                    self.paused = False
                case SetTimer(at):
                    self._timer = at
                case StopWork():
                    self._rows.clear()
                    self._timer = None
                case SendAudio():
                    self.sent.append(command)
                    self.told.append(command)
                case _:
                    self.told.append(command)

    def _speech(self, utterance: int) -> list[tuple[float, Event]]:
        frames = np.full((self.frames, SPEC.num_codebooks), 100 + utterance, np.int16)
        frames[: self.silent] = 1  # -60 dBFS, as this codec decodes it
        rows = rows_of(frames)
        events: list[tuple[float, Event]] = []
        for number, row in enumerate(rows):
            batch = TalkerRows(row[None], "stop" if number == len(rows) - 1 else None)
            events.append((self.now + ROW_S * (number + 1), RowsReceived(utterance, batch, ROW_S)))
        return events

    def run(self, until: float = 1e9) -> None:
        """Process all events that are due by ``until``."""
        while True:
            self._rows.sort(key=lambda item: item[0])
            next_event = self._rows[0][0] if self._rows and not self.hold else None
            times = [t for t in (next_event, self._timer) if t is not None and t <= until]
            if not times:
                self.now = max(self.now, until if until < 1e9 else self.now)
                return
            self.now = max(self.now, min(times))
            if next_event is not None and next_event <= self.now:
                self.post(self._rows.pop(0)[1])
            else:
                self._timer = None
                self.post(TimerFired())

    @property
    def samples(self) -> int:
        return sum(len(audio.samples) for audio in self.sent)


class Aligned(World):
    """Its talker reports that it speaks each text evenly, from its first frame to its last."""

    def _speech(self, utterance: int) -> list[tuple[float, Event]]:
        length = len(self.talked[utterance])
        events = super()._speech(utterance)
        for number, (_, event) in enumerate(events):
            assert isinstance(event, RowsReceived)
            place = np.array([number * length / self.frames], np.float32)
            events[number] = (
                self.now + ROW_S * (number + 1),
                replace_batch(event, place),
            )
        return events


def streamed(parts: list[str], config: SessionSettings | None = None, **options: int) -> World:
    """A context that has spoken a text, which came in these parts."""
    world = World(config or settings(), **options)
    for part in parts:
        world.post(TextAppended(part))
        world.run(world.now + 0.001)
    world.post(EndRequested())
    world.run()
    return world


def samples(world: World) -> np.ndarray:
    return np.concatenate([audio.samples for audio in world.sent])


def replace_batch(event: RowsReceived, place: np.ndarray) -> RowsReceived:
    return RowsReceived(event.utterance, replace(event.batch, spoken=place), event.row_s)


def is_of(event: Event, utterance: int) -> bool:
    return isinstance(event, RowsReceived) and event.utterance == utterance


def rows_of(frames: Codes) -> Codes:
    total, codebooks = frames.shape
    rows = np.full((total + codebooks, codebooks), EOC, np.int16)
    for k in range(codebooks):
        rows[:k, k] = 1024
        rows[k : k + total, k] = frames[:, k]
    return rows


def words_of(world: World) -> list[WordTiming]:
    """All words in the order of their commands."""
    words = list[WordTiming]()
    for command in world.told:
        match command:
            case SendAudio():
                words += command.words
            case WordsSent(timings):
                words += timings
    return words
