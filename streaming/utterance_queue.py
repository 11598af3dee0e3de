"""The queue of a context's utterances, from text to audio.

Pieces of text wait until the talker is about to be asked for them. Only then are the pieces of a
turn joined (streaming/turns.py) and split into utterances by their spoken length, since computing
that length costs more than all other processing of text. Generation runs at the back of the queue
and sending at its front. The talker works on at most one utterance, which may be a later one than
the codec and the client are processing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from streaming.errors import CapacityError, ErrorCode
from streaming.events import (
    Command,
    Event,
    Flushed,
    PauseTalker,
    ResumeTalker,
    RowsReceived,
    SendAudio,
    StartTalker,
    StopTalker,
    TakeRows,
    UtteranceEnded,
    WordsSent,
)
from streaming.playback import PlaybackClock
from streaming.ports import Arrival, RowDemand, TalkerRows
from streaming.report import QUIET, Stopwatch, leading_silence
from streaming.spec import Samples
from streaming.transcript import Transcript
from streaming.turns import PendingText, Piece, TurnSettings
from streaming.utterance import QueueSettings, Utterance
from streaming.word_timing import WordTiming

NEVER = float("inf")
#: Rows to buffer beyond the credit, in largest chunks: the last chunk may have 1.5 times that size.
_LARGEST_CHUNKS = 2
#: Rows are taken after a quarter of the spare time, or up to half of it while the next chunk lacks
#: that many. Taking rows has a fixed cost, as large as that of many rows.
_DELAY_SHARE, _MOST_DELAY_SHARE = 1 / 4, 1 / 2
#: A delay of fewer rows than the first number is not worthwhile. A delay of more rows than the
#: second, or of more seconds than the third, saves nothing more.
_LEAST_ROWS, _MOST_ROWS, _MOST_DELAY_S = 1.5, 32, 0.4
#: Numbers of rows that the talker may send together.
_AT_ONCE = (8, 4)
#: Seconds of audio that may be unread even if ``max_lead_s`` is less, to allow for network delay.
_UNREAD_S = 2.0
#: Maximum number of flushes that may wait for one utterance.
_MOST_FLUSHES = 64


class UtteranceQueue:
    """Utterances whose audio has not all been sent. ``now`` is monotonic seconds.

    ``part`` splits the text of a generation into one or several utterances.
    """

    def __init__(
        self,
        settings: QueueSettings,
        transcript: Transcript,
        part: Callable[[str], list[str]] = lambda text: [text],
        turns: TurnSettings | None = None,
    ) -> None:
        self._settings, self._transcript, self._part = settings, transcript, part
        slack_s = max(0.0, _UNREAD_S - settings.max_lead_s)
        self.playback = PlaybackClock(settings.heard_rate, slack_s)
        self.stopwatch = Stopwatch(settings.heard_rate)
        self._utterances: deque[Utterance] = deque()
        self._pieces = PendingText(turns or TurnSettings())
        self._joins_pieces = turns is not None and turns.max_chars > 0
        #: The pieces that the talker was asked for last, and the number of their first utterance.
        self._asked: list[Piece] = []
        self._asked_from = 0
        #: Number of pieces of text added in all.
        self.queued = 0
        self._talking: Utterance | None = None
        #: Of the talker's current utterance.
        self._is_paused, self._rows_at_once = False, 1
        self._count = 0
        self.generated_frames = self.trimmed_samples = 0
        #: Whether the next window has waited for the client to read.
        self._is_unread = False
        #: Whether no utterance may begin yet.
        self.is_held = False
        #: Whether an utterance was cut off at its maximum length.
        self.cut_off = False

    def __len__(self) -> int:
        return len(self._utterances) + len(self._pieces)

    @property
    def sent_samples(self) -> int:
        """Number of samples sent so far."""
        return self.playback.sent_samples

    @property
    def head_text_end(self) -> int | None:
        """Where the utterance being sent ends in the context's text; None if there is none."""
        return self._utterances[0].text_end if self._utterances else None

    # -- events

    def add(self, text: str, now: float) -> None:
        """Add a complete piece of text."""
        self._pieces.add(text, now)
        self.queued += 1
        self.stopwatch.on_text(now)

    def end_turn(self) -> list[Command]:
        """End the turn: its text is complete. If the talker was asked for part of it and has sent
        no rows yet, it is asked again, with the rest of the turn too.
        """
        asked, talking, was_whole = self._asked, self._talking, self._pieces.has_whole_turn
        if not len(self._pieces):
            if asked:
                asked[-1].ends_turn = True
            self._pieces.end_turn()
            return []
        self._pieces.end_turn()
        if talking is None or talking.rows or asked[-1].ends_turn or not self._joins_pieces:
            return []
        if was_whole:  # the talker was asked for all that fits
            return []
        if self._count > self._asked_from + 1:  # one of several utterances of that text
            return []
        self._utterances.pop()
        self._count -= 1
        self._talking = None
        self._transcript.rewind(talking.text_end - len(talking.text))
        self._pieces.put_back(asked)
        return [StopTalker(talking.index)]

    def mark_flush(self, flush_id: str) -> bool:
        """Attach a flush to the last text, after which it is reported. Returns False if there is no
        text to wait for. Raises CapacityError if too many flushes wait for it already.
        """
        if not len(self):
            return False
        waiting = (self._pieces.last if len(self._pieces) else self._utterances[-1]).flush_ids
        if len(waiting) >= _MOST_FLUSHES:
            raise CapacityError(
                ErrorCode.OVERLOADED,
                f"{_MOST_FLUSHES} flushes wait for the same text; this one will not be told.",
            )
        waiting.append(flush_id)
        return True

    def on_rows(self, index: int, batch: TalkerRows, now: float) -> None:
        """Add rows of the talker's current utterance. Late rows of another one are ignored."""
        talking = self._talking
        if talking is None or talking.index != index:
            return
        before = talking.frames
        talking.push(batch)
        self.generated_frames += talking.frames - before
        self.stopwatch.on_rows(batch.came or (Arrival(len(batch.rows), now),))
        self._after_talking(talking)

    def on_asked(self, index: int, now: float) -> None:
        """Record that the request for this utterance goes to the talker now (see TalkerAsked)."""
        if self._talking is not None and self._talking.index == index:
            self.stopwatch.on_talker_start(now, is_first=index == 0)

    def on_nothing(self, index: int) -> None:
        """Mark this utterance as having nothing to speak."""
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
        """Send the samples of the window in flight. A late result of another one is ignored."""
        head = self._utterances[0] if self._utterances else None
        if head is None or head.index != index or head.decoding is None:
            return []
        dry_at = self.playback.dry_at
        # A pause is no underrun if the text came only after the end of the last audio.
        continues = head.frames_sent > 0 or head.queued_at < dry_at
        late_s = now - dry_at if self.sent_samples and continues else 0.0
        gap_s, self._is_unread = 0.0 if self._is_unread else max(0.0, late_s), False
        trimmed = self._silence_to_trim(samples, is_all=head.decoding.is_last)
        self.trimmed_samples += trimmed
        whole, samples = samples, samples[trimmed:]
        offset = self.sent_samples
        self.stopwatch.on_audio(samples, max(now, dry_at))
        self.playback.on_sent(len(samples), now, continues=continues)
        head.on_sent(now, trimmed)
        words: list[WordTiming] = []
        if head.words is not None:
            at_end = head.is_done and not head.cut_off
            words = head.words.on_sent(whole, offset, trimmed, at_end=at_end)
        if not len(samples):
            return self._tell_words(words)
        head.has_told_end = head.is_done
        return [
            SendAudio(
                samples,
                offset,
                is_first=offset == 0,
                ends_utterance=head.is_done,
                is_last=is_ending and head.is_done and len(self) == 1,
                late=late_s > 0,
                gap_s=gap_s,
                trimmed=self.trimmed_samples,
            ),
            *self._tell_words(words),
        ]

    def _silence_to_trim(self, samples: Samples, *, is_all: bool) -> int:
        """Number of samples to leave out at the start, until the context becomes audible.
        ``is_all``: the utterance has no samples after these.
        """
        left = self._settings.trim_samples - self.trimmed_samples
        if self.sent_samples or left <= 0:
            return 0
        silent = leading_silence(samples, QUIET)
        return 0 if is_all and silent == len(samples) else min(silent, left)

    def silence(self, seconds: float, now: float, *, is_last: bool) -> list[Command]:
        """Send ``seconds`` of silence before any speech. Returns no command for 0 samples."""
        samples = np.zeros(round(seconds * self._settings.heard_rate), np.float32)
        if not len(samples):
            return []
        offset = self.sent_samples
        self.stopwatch.on_audio(samples, now)
        self.playback.on_sent(len(samples), now, continues=False)
        audio = SendAudio(
            samples, offset, is_first=offset == 0, ends_utterance=True, is_last=is_last, late=False
        )
        return [audio]

    def _tell_words(self, words: Sequence[WordTiming]) -> list[Command]:
        for word in words:
            end = round(word.end_ms * self._settings.heard_rate / 1000)
            self._transcript.on_sent(word.end, min(end, self.sent_samples))
        return [WordsSent(tuple(words))] if words else []

    # -- actions

    def pace_talker(self, event: Event, now: float) -> list[Command]:
        """Take rows, pause or resume the talker, after rows of its utterance or during a pause."""
        talking = self._talking
        if talking is None:
            return []
        if not isinstance(event, RowsReceived):
            if not self._is_paused or not self.wants_rows(now):
                return []
            self._is_paused = False
            return [ResumeTalker(talking.index)]
        if event.utterance != talking.index:
            return []
        if not self.wants_rows(now):
            self._is_paused = True
            return [PauseTalker(talking.index)]
        delay_s = min(self.row_delay_s(now, event.row_s), _MOST_ROWS * event.row_s, _MOST_DELAY_S)
        is_heard = self.playback.lead_s(now) > 0
        at_once = rows_at_once(self._rows_at_once, delay_s, event.row_s) if is_heard else 1
        self._rows_at_once = at_once
        demand = RowDemand(delay_s if delay_s > _LEAST_ROWS * event.row_s else 0.0, at_once)
        return [TakeRows(talking.index, demand)]

    def wants_rows(self, now: float) -> bool:
        """Whether the talker should continue. It should not if the audio in hand exceeds the credit
        by more than the next chunk needs.
        """
        mine = self._settings
        if mine.mode == "whole":
            return True  # nothing can be sent before the last row
        schedule = mine.schedule
        spare = _LARGEST_CHUNKS * schedule.max_chunk_frames
        if self._waits_to_start(now):  # else rows that the start waits for would never come
            spare = max(spare, schedule.max_hold_frames)
        spare += schedule.lookahead_frames
        in_hand_s = self._waiting_frames * mine.frame_s
        credit_s = self.playback.credit_s(now, mine.max_lead_s)
        return in_hand_s < credit_s + spare * mine.frame_s

    def _waits_to_start(self, now: float) -> bool:
        """Whether the next chunk may be a start, for which a slow talker needs the most rows."""
        return self._utterances[0].frames_sent == 0 or self.playback.lead_s(now) <= 0

    def row_delay_s(self, now: float, row_s: float) -> float:
        """Seconds for which rows, one every ``row_s`` seconds, need not be taken.

        While audio is playing: until the wanted next chunk is complete, as far as that leaves time
        to decode the frames in hand. While none is playing: until half of the first chunk's missing
        rows have come, since by then fewer may be wanted, or rows may come faster.
        """
        mine, talking = self._settings, self._talking
        if mine.mode == "whole" or talking is None:
            return 0.0
        head = self._utterances[0]
        lead_s = self.playback.lead_s(now)
        if lead_s <= 0 and head.decoding is None:
            return talking.missing_rows(playing=False) / 2 * row_s if talking is head else 0.0
        schedule, bounds = mine.schedule, mine.bounds()
        context = schedule.left_context_frames + schedule.lookahead_frames
        needed_s = bounds.wait_s + bounds.decode_s(context + self._waiting_frames)
        if head.decoding is not None:  # no other window is decoded before it is done
            lead_s += head.decoding.new_frames * mine.frame_s - needed_s
        spare_s = max(0.0, lead_s - schedule.guard_s - needed_s)
        missing_s = talking.missing_rows(playing=True) * row_s if talking is head else 0.0
        return min(_MOST_DELAY_SHARE * spare_s, max(_DELAY_SHARE * spare_s, missing_s))

    @property
    def _waiting_frames(self) -> int:
        return sum(utterance.waiting_frames for utterance in self._utterances)

    def clear_sent(self) -> list[Command]:
        """Remove utterances whose audio has been sent, and report the flushes after them."""
        commands: list[Command] = []
        while self._utterances and self._utterances[0].is_done:
            utterance = self._utterances.popleft()
            if utterance.words is not None:
                last = utterance.words.finish(cut_off=utterance.cut_off)
                commands += self._tell_words(last)
            if utterance.cut_off:
                has_words = utterance.words is not None
                self._transcript.on_cut(utterance.text_end, self.sent_samples, has_words=has_words)
            else:
                self._transcript.on_sent(utterance.text_end, self.sent_samples)
            if not utterance.has_told_end:  # the talker reported the end after the last audio
                commands.append(UtteranceEnded(utterance.index))
            commands += [Flushed(flush_id) for flush_id in utterance.flush_ids]
        return commands

    def advance(self, now: float) -> tuple[list[Command], float]:
        """Start all work that can start. Returns the commands, and when to ask again."""
        talk, talk_at = self._start_talker(now)
        decode, decode_at = self._start_decode(now)
        return talk + decode, min(talk_at, decode_at)

    def _start_talker(self, now: float) -> tuple[list[Command], float]:
        """Start the next utterance if there is credit for it."""
        waiting = next((u for u in self._utterances if not u.is_started), None)
        if self.is_held or self._talking or (waiting is None and not len(self._pieces)):
            return [], NEVER
        mine, playback = self._settings, self.playback
        backlog_s = self._waiting_frames * mine.frame_s
        if backlog_s + playback.lead_s(now) >= mine.max_lead_s:
            room_at = playback.when_credit(now, mine.max_lead_s, backlog_s)
            # While a backlog is being sent, each send asks again; the clock alone would not.
            return [], room_at if room_at > now else NEVER
        waiting = waiting or self._take_text()
        is_trimmed = not self.sent_samples and mine.trim_samples > 0
        waiting.start(mine, playback.dry_at + backlog_s, is_trimmed=is_trimmed)
        self._talking = waiting
        self._is_paused, self._rows_at_once = False, 1
        self.stopwatch.on_talker_start(now, is_first=waiting.index == 0)
        start = StartTalker(waiting.index, waiting.text, waiting.queued_at, waiting.delivery)
        return [start], NEVER

    def _take_text(self) -> Utterance:
        """Split the text of the next generation into utterances and return the first."""
        pieces = self._pieces.take()
        first, whole = pieces[0], self._transcript.covering([piece.text for piece in pieces])
        texts = self._part(whole) or [whole]
        delivery = self._pieces.delivery(texts, first.before)
        parts = [
            Utterance(number, text, self._transcript.locate(text), first.queued_at, tags)
            for number, (text, tags) in enumerate(zip(texts, delivery, strict=True), self._count)
        ]
        parts[-1].flush_ids += [flush_id for piece in pieces for flush_id in piece.flush_ids]
        self._asked, self._asked_from = pieces, self._count
        self._count += len(parts)
        self._utterances += parts
        return parts[0]

    def _start_decode(self, now: float) -> tuple[list[Command], float]:
        """Send the first utterance's next window to the codec if it is time."""
        head = self._utterances[0] if self._utterances else None
        if head is None or not head.is_started or head.decoding is not None:
            return [], NEVER
        limit_s = self._settings.max_lead_s
        if self.playback.lead_s(now) >= limit_s:
            credit_at = self.playback.when_credit(now, limit_s, 0.0)
            self._is_unread |= credit_at == NEVER
            return [], credit_at
        head.renew()
        decode, wake_at = head.next_window(self.playback.dry_at, now)
        return [decode] if decode else [], wake_at


def rows_at_once(present: int, delay_s: float, row_s: float) -> int:
    """Number of rows that the talker should send together.

    This is the largest number of which two batches are generated in ``delay_s``, so that the last
    rows wait for at most half of it. Since the talker must be told of changes, the present number
    is kept if even one batch is generated in that time.

    Args:
        present: Number of rows that it sends together now.
        delay_s: Seconds for which no rows will be taken.
        row_s: Seconds per row; 0 while unknown.
    """
    for rows in _AT_ONCE:
        times = 1 if rows <= present else 2
        if 0 < times * rows * row_s <= delay_s:
            return rows
    return 1
