"""The utterances of one context, in a line from text to sound.

Generation runs at the back of the line and sending at its front: the talker works on at
most one utterance, which may be a later one than the codec and the client are busy with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streaming.errors import CapacityError, ErrorCode
from streaming.events import Command, Decode, Flushed, SendAudio, StartTalker, WordsSent
from streaming.playback import PlaybackClock
from streaming.ports import Arrival, TalkerRows
from streaming.report import Stopwatch
from streaming.schedule import PaceBounds, ScheduleSettings
from streaming.spec import CodecSpec, Samples
from streaming.transcript import Transcript
from streaming.utterance import Mode, Utterance
from streaming.words import WordTiming

NEVER = float("inf")
#: The last chunk of an utterance may be half again as large as the largest.
_LARGEST_CHUNKS = 2
#: Rows are left to pile up for a quarter of the time that there is for them, or for half of it
#: where the next chunk is short of so many.
_PATIENCE, _MOST_PATIENCE = 1 / 4, 1 / 2
#: What may be unread however small the lead: the network's delay is not the client's.
_UNREAD_S = 2.0
#: Flushes that may wait for one utterance.
_MOST_FLUSHES = 64


@dataclass(frozen=True, slots=True)
class LineSettings:
    """How speech is made. ``bounds`` gives the pace as it is measured just now; audio may
    run ahead of playback by ``max_lead_s``. The codec's samples are heard ``speed`` times as
    fast as it made them; whoever stretches them comes after the session.
    """

    codec: CodecSpec
    schedule: ScheduleSettings
    bounds: Callable[[], PaceBounds]
    mode: Mode = "chunked"
    max_lead_s: float = 10.0
    speed: float = 1.0

    @property
    def heard_rate(self) -> float:
        """Samples of the codec that are heard in a second."""
        return self.codec.sample_rate * self.speed

    @property
    def frame_s(self) -> float:
        """Seconds in which a frame is heard."""
        return self.codec.frame_s / self.speed


class UtteranceLine:
    """Utterances whose audio has not all been sent. ``now`` is monotonic seconds."""

    def __init__(self, settings: LineSettings, transcript: Transcript) -> None:
        self._settings, self._transcript = settings, transcript
        slack_s = max(0.0, _UNREAD_S - settings.max_lead_s)
        self.playback = PlaybackClock(settings.heard_rate, slack_s)
        self.stopwatch = Stopwatch(settings.heard_rate)
        self._line: deque[Utterance] = deque()
        self._talking: Utterance | None = None
        self._count = 0
        self.sent_samples = self.generated_frames = 0
        #: Whether an utterance was cut at its longest.
        self.cut_off = False

    def __len__(self) -> int:
        return len(self._line)

    @property
    def queued(self) -> int:
        """How many utterances have been added in all."""
        return self._count

    @property
    def head_text_end(self) -> int | None:
        """Where in the context's text the utterance being sent ends, if there is one."""
        return self._line[0].text_end if self._line else None

    # -- what happens

    def add(self, text: str, now: float) -> None:
        """A piece of text is complete."""
        text_end = self._transcript.locate(text)
        self._line.append(Utterance(self._count, text, text_end, now))
        self._count += 1
        self.stopwatch.on_text(now)

    def mark_flush(self, flush_id: str) -> bool:
        """Have a flush told after the last utterance; False if there is none to wait for. Raises
        CapacityError if too many wait for it already.
        """
        if not self._line:
            return False
        waiting = self._line[-1].flush_ids
        if len(waiting) >= _MOST_FLUSHES:
            raise CapacityError(
                ErrorCode.OVERLOADED,
                f"{_MOST_FLUSHES} flushes wait for the same text; this one will not be told.",
            )
        waiting.append(flush_id)
        return True

    def on_rows(self, index: int, batch: TalkerRows, now: float) -> None:
        """The talker made rows; those of another utterance than its present one are late."""
        talking = self._talking
        if talking is None or talking.index != index:
            return
        before = talking.frames
        talking.push(batch)
        self.generated_frames += talking.frames - before
        self.stopwatch.on_rows(batch.came or (Arrival(len(batch.rows), now),))
        self._after_talking(talking)

    def on_asked(self, index: int, now: float) -> None:
        """The talker is asked for that utterance only now: something had to be ready before."""
        if self._talking is not None and self._talking.index == index:
            self.stopwatch.on_talker_start(now, is_first=index == 0)

    def on_nothing(self, index: int) -> None:
        """There is nothing to speak in that utterance."""
        if self._talking is not None and self._talking.index == index:
            self._talking.skip()
            self._after_talking(self._talking)

    def _after_talking(self, talking: Utterance) -> None:
        if talking.generated:
            self.cut_off |= talking.cut_off
            self._talking = None

    def on_samples(
        self, index: int, samples: Samples, now: float, *, is_ending: bool
    ) -> list[Command]:
        """The codec decoded the window in flight; a late result of another is ignored."""
        head = self._line[0] if self._line else None
        if head is None or head.index != index or head.decoding is None:
            return []
        dry_at = self.playback.dry_at
        # A pause that the text itself made, by coming after the end of the last audio, is
        # no underrun.
        continues = head.frames_sent > 0 or head.queued_at < dry_at
        offset, self.sent_samples = self.sent_samples, self.sent_samples + len(samples)
        self.stopwatch.on_audio(samples, max(now, dry_at))
        self.playback.on_sent(len(samples), now, continues=continues)
        head.on_sent(self._settings.bounds(), now)
        words = head.words.on_sent(samples, offset) if head.words else []
        return [
            SendAudio(
                samples,
                offset,
                is_first=offset == 0,
                ends_utterance=head.is_done,
                is_last=is_ending and head.is_done and len(self._line) == 1,
                late=offset > 0 and continues and dry_at < now,
            ),
            *self._tell_words(words),
        ]

    def _tell_words(self, words: Sequence[WordTiming]) -> list[Command]:
        for word in words:
            end = round(word.end_ms * self._settings.heard_rate / 1000)
            self._transcript.on_sent(word.end, min(end, self.sent_samples))
        return [WordsSent(tuple(words))] if words else []

    # -- what can be done now

    def wants_rows(self, now: float) -> bool:
        """Whether the talker should go on: not if what is in hand is more than the lead
        still allows, and enough for the next chunk besides.
        """
        mine = self._settings
        if mine.mode == "whole":
            return True  # nothing can be sent before the last row
        schedule = mine.schedule
        spare = _LARGEST_CHUNKS * schedule.max_chunk_frames
        if self._waits_to_start(now):  # refused rows that it waits for would never come
            spare = max(spare, schedule.max_hold_frames)
        spare += schedule.lookahead_frames
        in_hand_s = self._waiting_frames * mine.frame_s
        credit_s = self.playback.credit_s(now, mine.max_lead_s)
        return in_hand_s < credit_s + spare * mine.frame_s

    def _waits_to_start(self, now: float) -> bool:
        """Whether what comes next may be a start, for which a slow talker needs the most rows."""
        begins = bool(self._line) and self._line[0].frames_sent == 0
        return begins or self.lead_s(now) <= 0

    def lead_s(self, now: float) -> float:
        """Seconds of audio that have been sent and not been played."""
        return self.playback.lead_s(now) if self.sent_samples else 0.0

    def row_patience_s(self, now: float, row_s: float) -> float:
        """How long rows, which come every ``row_s``, may be left to pile up.

        While audio plays: until the next chunk has all that it wants, as far as that leaves time
        to decode what is in hand. While nothing does: until half of what the first chunk is short
        of is there; by then less may be wanted, or rows may come faster.
        """
        mine, talking = self._settings, self._talking
        if mine.mode == "whole" or talking is None:
            return 0.0
        head = self._line[0]
        lead_s = self.lead_s(now)
        if lead_s <= 0 and head.decoding is None:
            return talking.missing_rows(playing=False) / 2 * row_s if talking is head else 0.0
        schedule, bounds = mine.schedule, mine.bounds()
        context = schedule.left_context_frames + schedule.lookahead_frames
        needed_s = bounds.wait_s + bounds.decode_s(context + self._waiting_frames)
        if head.decoding is not None:  # nothing else is decoded before it has been heard of
            lead_s += head.decoding.new_frames * mine.frame_s - needed_s
        spare_s = max(0.0, lead_s - schedule.guard_s - needed_s)
        missing_s = talking.missing_rows(playing=True) * row_s if talking is head else 0.0
        return min(_MOST_PATIENCE * spare_s, max(_PATIENCE * spare_s, missing_s))

    @property
    def _waiting_frames(self) -> int:
        return sum(utterance.waiting_frames for utterance in self._line)

    def clear_sent(self) -> list[Command]:
        """Let the utterances go whose audio has been sent, and tell the flushes after them."""
        commands: list[Command] = []
        while self._line and self._line[0].is_done:
            utterance = self._line.popleft()
            if utterance.words is not None:
                last = utterance.words.finish(cut_off=utterance.cut_off)
                commands += self._tell_words(last)
            self._transcript.on_sent(utterance.text_end, self.sent_samples)
            commands += [Flushed(flush_id) for flush_id in utterance.flush_ids]
        return commands

    def advance(self, now: float) -> tuple[list[Command], float]:
        """Start what can start; return when to ask again about the rest."""
        talk, talk_at = self._start_talker(now)
        decode, decode_at = self._start_decode(now)
        return talk + decode, min(talk_at, decode_at)

    def _start_talker(self, now: float) -> tuple[list[Command], float]:
        """Begin the next utterance if there is credit for it."""
        waiting = next((u for u in self._line if u.started_at is None), None)
        if self._talking is not None or waiting is None:
            return [], NEVER
        mine, playback = self._settings, self.playback
        backlog_s = self._waiting_frames * mine.frame_s
        if backlog_s + playback.lead_s(now) >= mine.max_lead_s:
            room_at = playback.when_credit(now, mine.max_lead_s, backlog_s)
            # While a backlog is being sent, its progress wakes us; the clock alone would not.
            return [], room_at if room_at > now else NEVER
        waiting.start(
            mine.codec,
            mine.schedule,
            mine.mode,
            mine.bounds(),
            playback.dry_at + backlog_s,
            now,
            mine.heard_rate,
        )
        self._talking = waiting
        self.stopwatch.on_talker_start(now, is_first=waiting.index == 0)
        return [StartTalker(waiting.index, waiting.text, waiting.queued_at)], NEVER

    def _start_decode(self, now: float) -> tuple[list[Command], float]:
        """Hand the first utterance's next window to the codec if it is time."""
        head = self._line[0] if self._line else None
        if head is None or head.started_at is None or head.decoding is not None:
            return [], NEVER
        limit_s = self._settings.max_lead_s
        if self.playback.lead_s(now) >= limit_s:
            return [], self.playback.when_credit(now, limit_s, 0.0)
        head.renew(self._settings.bounds)
        step = head.next_step(self.playback.dry_at, now)
        if step.window is None:
            return [], step.wake_at
        return [Decode(head.index, step.window, step.deadline)], NEVER
