"""The queue of a context's utterances and pauses, from text to audio.

Pieces of text wait until they are about to be requested of the talker. Only then are the pieces of
a turn joined (text/turns.py) and split into utterances by their spoken length, since computing that
length costs more than all other processing of text. Generation runs at the back of the queue and
sending at its front. The talker works on at most one utterance, which may be a later one than
the codec and the client are processing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np

from streaming.errors import CapacityError, ErrorCode
from streaming.events import (
    AppendText,
    Command,
    EndSilence,
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
from streaming.pause import Pause
from streaming.playback import PlaybackClock
from streaming.ports import Arrival, RowDemand, TalkerRows
from streaming.report import QUIET, Stopwatch, leading_silence
from streaming.spec import Samples
from streaming.transcript import Transcript
from streaming.utterance import QueueSettings, Utterance
from streaming.volume import at_volume
from streaming.word_timing import WordTiming
from text.turns import PendingPause, PendingText, Piece, Shaping, TurnSettings
from text.word_stream import Words

NEVER = float("inf")
#: Rows to buffer beyond the credit, in largest chunks: the last chunk may have 1.5 times that size.
_LARGEST_CHUNKS = 2
#: Rows are taken after this share of the spare time. Taking rows has a fixed cost, as large as that
#: of many rows.
_DELAY_SHARE = 1 / 4
#: Maximum of that share, while the next chunk lacks so many rows.
_MAX_DELAY_SHARE = 1 / 2
#: A delay of fewer rows is not worthwhile.
_MIN_DELAY_ROWS = 1.5
#: A delay of more rows saves nothing more.
_MAX_DELAY_ROWS = 32
#: A delay of more seconds saves nothing more.
_MAX_DELAY_S = 0.4
#: Numbers of rows that the talker may send together.
_AT_ONCE = (8, 4)
#: Seconds of audio that may be unread even if ``max_lead_s`` is less, to allow for network delay.
_UNREAD_S = 2.0
#: Maximum number of flushes that may wait for one utterance.
_MAX_FLUSHES = 64


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
        self._settings = settings
        #: Seconds for which a frame is played.
        self._frame_s = settings.frame_s
        self._transcript = transcript
        #: Splits the text of a generation into utterances.
        self._part = part
        slack_s = max(0.0, _UNREAD_S - settings.max_lead_s)
        #: The listener's playback.
        self.playback = PlaybackClock(settings.playback_rate, slack_s)
        #: Measurements for the context's report.
        self.stopwatch = Stopwatch(settings.playback_rate)
        #: Utterances whose text is split and pauses, in order.
        self._utterances: deque[Utterance | Pause] = deque()
        #: Text that comes after them.
        self._pieces = PendingText(turns or TurnSettings())
        #: Whether pieces of a turn are joined.
        self._joins_pieces = turns is not None and turns.max_chars > 0
        #: The pieces that were requested of the talker last.
        self._requested: list[Piece] = []
        #: Number of the first utterance of these pieces.
        self._requested_from = 0
        #: Number of pieces of text and of pauses added in all.
        self.queued = 0
        #: Number of pauses that came to the utterances.
        self._pauses = 0
        #: The utterance whose text goes on.
        self._open: Utterance | None = None
        #: The utterance that the talker speaks.
        self._talking: Utterance | None = None
        #: Whether the talker has paused it.
        self._is_paused = False
        #: Number of its rows that the talker sends together.
        self._rows_at_once = 1
        #: Number of utterances so far.
        self._count = 0
        #: Samples of all frames generated so far, as they would be sent.
        self.generated_samples = 0.0
        #: Samples of silence left out at the beginning.
        self.trimmed_samples = 0
        #: Samples of pauses sent so far.
        self.pause_samples = 0
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
        """Where the utterance being sent ends in the spoken text; None if there is none."""
        head = self._utterances[0] if self._utterances else None
        return head.text_end if isinstance(head, Utterance) else None

    # -- events

    def add(self, text: str, now: float) -> None:
        """Add a complete piece of text."""
        self._pieces.add(text, now)
        self.queued += 1
        self.stopwatch.on_text(now)

    def add_words(self, words: Sequence[Words], now: float) -> list[Command]:
        """Add text that is spoken while it arrives. Returns what the talker is to be told."""
        commands: list[Command] = []
        for text, ends in words:
            self.queued += 1
            end = self._transcript.locate(text)
            if (open_ := self._open) is None:
                voice, shaping = self._pieces.voice, self.shaping
                self._open = open_ = Utterance(
                    self._count, text, end, now, "", voice, (), shaping, is_open=not ends
                )
                self._utterances.append(open_)
                self._count += 1
                self.stopwatch.on_text(now)
            else:
                open_.append(text, end, now, is_last=ends)
                if open_.is_started and not open_.generated:
                    commands.append(AppendText(open_.index, text, ends))
            if ends:
                self._open = None
        return commands

    @property
    def waits_for_text(self) -> bool:
        """Whether all work waits for more text of an utterance."""
        return self._open is not None and len(self) == 1 and self._open.waits_for_text

    def add_pause(self, seconds: float, text_end: int, now: float) -> None:
        """Add a pause after all text so far. ``text_end``: see Pause. Pauses that follow each other
        directly are one, so that a text of many costs no more than a text.
        """
        self.queued += 1
        last = self._pieces.last if len(self._pieces) else next(reversed(self._utterances), None)
        if isinstance(last, PendingPause | Pause) and last.extend(seconds, text_end):
            return
        pause = PendingPause(seconds, text_end, now)
        if len(self._pieces):
            self._pieces.add_pause(pause)
            return
        if self._requested:
            self._requested[-1].ends_part = True
        self._queue_pauses([pause])

    def end_delivery(self, aspect: str) -> None:
        """Speak the text from here on without the tag in force for this aspect."""
        self._pieces.end_delivery(aspect)
        if not len(self._pieces) and self._requested:
            self._requested[-1].ends_part = True

    @property
    def shaping(self) -> Shaping:
        """What is done to the samples of text that is added from here on."""
        return self._pieces.shaping

    def shape(self, shaping: Shaping) -> None:
        """Change the samples of text that is added from here on so."""
        if shaping != self.shaping and not len(self._pieces) and self._requested:
            self._requested[-1].ends_part = True
        self._pieces.shape(shaping)

    def change_voice(self, voice: str | None) -> None:
        """Speak the text from here on in another voice. The turn before it must have ended."""
        self._pieces.voice = voice

    def _queue_pauses(self, pauses: Sequence[PendingPause]) -> None:
        """Add pauses of which all text before has been queued."""
        self._utterances += map(self._pause, pauses)

    def _pause(self, pause: PendingPause, follower: Utterance | None = None) -> Pause:
        self._pauses += 1
        return Pause(-self._pauses, pause, self._settings.playback_rate, follower)

    def end_turn(self) -> list[Command]:
        """End the turn: its text is complete. If part of it was requested of the talker, which has
        sent no rows yet, it is requested again, with the rest of the turn too.
        """
        requested = self._requested
        talking = self._talking
        was_whole = self._pieces.has_whole_part
        if not len(self._pieces):
            if requested:
                requested[-1].ends_part = True
            self._pieces.end_turn()
            return []
        self._pieces.end_turn()
        if talking is None or talking.rows or requested[-1].ends_part or not self._joins_pieces:
            return []
        if was_whole:  # all that fits was requested
            return []
        if self._count > self._requested_from + 1:  # one of several utterances of that text
            return []
        self._utterances.pop()
        last = self._utterances[-1] if self._utterances else None
        if isinstance(last, Pause) and last.follower is talking:
            self._utterances.pop()
        self._count -= 1
        self._talking = None
        self._transcript.rewind(talking.text_end - len(talking.text))
        self._pieces.put_back(requested)
        return [StopTalker(talking.index)]

    def mark_flush(self, flush_id: str) -> bool:
        """Attach a flush to the last text, after which it is reported. Returns False if there is no
        text to wait for. Raises CapacityError if too many flushes wait for it already.
        """
        if not len(self):
            return False
        waiting = (self._pieces.last if len(self._pieces) else self._utterances[-1]).flush_ids
        if len(waiting) >= _MAX_FLUSHES:
            raise CapacityError(
                ErrorCode.OVERLOADED,
                f"{_MAX_FLUSHES} flushes wait for the same text; this one will not be told.",
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
        self.generated_samples += talking.sent_samples(talking.frames - before)
        self.stopwatch.on_rows(batch.came or (Arrival(len(batch.rows), now),))
        self._after_talking(talking)

    def on_requested(self, index: int, now: float) -> None:
        """Record that the request for this utterance goes to the talker now."""
        if self._talking is not None and self._talking.index == index:
            self.stopwatch.on_talker_start(now, is_first=index == 0)

    def on_nothing(self, index: int) -> None:
        """Mark this utterance as having nothing to speak."""
        if self._talking is not None and self._talking.index == index:
            self._talking.skip()
            self._after_talking(self._talking)

    def _after_talking(self, talking: Utterance) -> None:
        if talking.generated:
            self._talking = None

    def on_samples(
        self,
        index: int,
        samples: Samples,
        now: float,
        *,
        is_ending: bool,
        decoded: Samples | None = None,
    ) -> list[Command]:
        """Send the samples of the window in flight. A late result of another one is ignored.
        ``decoded``: see AudioDecoded.
        """
        head = self._utterances[0] if self._utterances else None
        if head is None or head.index != index or head.decoding is None:
            return []
        dry_at = self.playback.dry_at
        # A pause is no underrun if the text came only after the end of the last audio.
        is_late = isinstance(head, Utterance) and head.was_late
        continues = (head.is_begun and not is_late) or head.queued_at < dry_at
        late_s = now - dry_at if self.sent_samples and continues else 0.0
        gap_s = 0.0 if self._is_unread else max(0.0, late_s)
        self._is_unread = False
        offset = self.sent_samples
        whole = samples if decoded is None else decoded
        trimmed = 0
        if isinstance(head, Utterance):
            is_all = head.decoding is not None and head.decoding.is_last
            trimmed = self._silence_to_trim(samples, is_all=is_all)
            self.trimmed_samples += trimmed
            samples = samples[trimmed:]
        if isinstance(head, Pause):
            self.stopwatch.on_pause(len(samples), max(now, dry_at))
        else:
            self.stopwatch.on_audio(samples, max(now, dry_at))
        self.playback.on_sent(len(samples), now, continues=continues)
        words: tuple[WordTiming, ...] = ()
        commands: list[Command] = []
        if isinstance(head, Pause):
            if not head.is_begun:
                self._transcript.on_sent(head.text_start, offset)
            self.pause_samples += len(samples)
            head.on_sent()
        else:
            head.on_sent(now, trimmed)
            is_running = head is self._talking
            if head.hear(whole) and (is_running or head.cut_off):
                head.end_early()
                self._talking = None if is_running else self._talking
                commands.append(EndSilence(head.index, is_running))
            if head.words is not None:
                at_end = head.is_done and not head.cut_off
                spoken = head.words.on_sent(whole, offset, trimmed, at_end=at_end)
                if head.is_done:
                    spoken += head.words.finish(cut_off=head.cut_off)
                words = self._on_words(spoken)
            if not len(samples):
                return [*commands, WordsSent(words)] if words else commands
            head.has_sent_end = head.is_done
        if isinstance(head, Utterance):
            samples = at_volume(samples, head.shaping.volume)
        return [
            *commands,
            SendAudio(
                samples,
                offset,
                is_first=offset == 0,
                ends_utterance=head.is_done,
                is_last=is_ending and head.is_done and len(self) == 1,
                late=late_s > 0,
                gap_s=gap_s,
                trimmed=self.trimmed_samples,
                words=words,
            ),
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
        samples = np.zeros(round(seconds * self._settings.playback_rate), np.float32)
        if not len(samples):
            return []
        offset = self.sent_samples
        self.stopwatch.on_audio(samples, now)
        self.playback.on_sent(len(samples), now, continues=False)
        audio = SendAudio(
            samples, offset, is_first=offset == 0, ends_utterance=True, is_last=is_last, late=False
        )
        return [audio]

    def _on_words(self, words: Sequence[WordTiming]) -> tuple[WordTiming, ...]:
        """Record that the audio of these words was sent. Returns them as the client's words."""
        for word in words:
            end = round(word.end_ms * self._settings.playback_rate / 1000)
            self._transcript.on_sent(word.end, min(end, self.sent_samples))
        return tuple(map(self._transcript.in_source, words))

    # -- actions

    @property
    def talker_deadline(self) -> float:
        """When the listener will run out of audio without further rows of the utterance that the
        talker speaks, but not before its text came. It is finite.
        """
        talking = self._talking
        if talking is None:  # all frames have come, perhaps before the talker reports the end
            return max(self.playback.dry_at, 0.0)
        in_hand_s = self._backlog_s(talking) + talking.unsent_s
        return max(self.playback.dry_at + in_hand_s, talking.queued_at)

    def pace_talker(self, event: Event, now: float) -> list[Command]:
        """Take rows, pause or resume the talker, after rows of its utterance or during a pause."""
        talking = self._talking
        if talking is None:
            return []
        if not isinstance(event, RowsReceived):
            if not self._is_paused or not self.wants_rows(self.playback.lead_s(now)):
                return []
            self._is_paused = False
            return [ResumeTalker(talking.index)]
        if event.utterance != talking.index:
            return []
        lead_s = self.playback.lead_s(now)
        if not self.wants_rows(lead_s):
            self._is_paused = True
            return [PauseTalker(talking.index)]
        max_delay_s = min(_MAX_DELAY_ROWS * event.row_s, _MAX_DELAY_S)
        delay_s = min(self.row_delay_s(lead_s, event.row_s), max_delay_s)
        at_once = rows_at_once(self._rows_at_once, delay_s, event.row_s) if lead_s > 0 else 1
        self._rows_at_once = at_once
        demand = RowDemand(delay_s if delay_s > _MIN_DELAY_ROWS * event.row_s else 0.0, at_once)
        return [TakeRows(talking.index, demand)]

    def wants_rows(self, lead_s: float) -> bool:
        """Whether the talker should continue. It should not if the audio in hand exceeds the credit
        by more than the next chunk needs. ``lead_s``: see PlaybackClock.
        """
        settings = self._settings
        if settings.mode == "whole":
            return True  # nothing can be sent before the last row
        schedule = settings.schedule
        spare = _LARGEST_CHUNKS * schedule.max_chunk_frames
        # A start may need the most rows, if the talker is slow, and they would never come.
        if lead_s <= 0 or not self._utterances[0].is_begun:
            spare = max(spare, schedule.max_hold_frames)
        spare += schedule.lookahead_frames
        in_hand_s = 0.0
        for other in self._utterances:
            if isinstance(other, Utterance):
                in_hand_s += other.unsent_s
        return in_hand_s < max(0.0, settings.max_lead_s - lead_s) + spare * self._frame_s

    def row_delay_s(self, lead_s: float, row_s: float) -> float:
        """Seconds for which rows, one every ``row_s`` seconds, need not be taken.

        While audio is playing: until the wanted next chunk is complete, as far as that leaves time
        to decode the frames in hand. While none is playing: until half of the first chunk's missing
        rows have come, since by then fewer may be wanted, or rows may come faster.
        """
        settings = self._settings
        talking = self._talking
        if settings.mode == "whole" or talking is None:
            return 0.0
        head = self._utterances[0]
        if lead_s <= 0 and head.decoding is None:
            return talking.missing_rows(playing=False) / 2 * row_s if talking is head else 0.0
        schedule = settings.schedule
        bounds = settings.bounds(settings.speed)
        frames = schedule.lookahead_frames + self._waiting_frames
        needed_s = bounds.wait_s + bounds.decode_s(frames)
        if head.decoding is not None:  # no other window is decoded before it is done
            lead_s += head.decoding_s - needed_s
        spare_s = max(0.0, lead_s - schedule.guard_s - needed_s)
        missing_s = talking.missing_rows(playing=True) * row_s if talking is head else 0.0
        return min(_MAX_DELAY_SHARE * spare_s, max(_DELAY_SHARE * spare_s, missing_s))

    @property
    def _waiting_frames(self) -> int:
        return sum(utterance.waiting_frames for utterance in self._utterances)

    def clear_sent(self) -> list[Command]:
        """Remove utterances whose audio has been sent, and report the flushes after them."""
        commands: list[Command] = []
        while self._utterances and self._utterances[0].is_done:
            utterance = self._utterances.popleft()
            if utterance.words is not None and (
                last := utterance.words.finish(cut_off=utterance.cut_off)
            ):
                commands.append(WordsSent(self._on_words(last)))
            if utterance.cut_off:
                self.cut_off = True
                has_words = utterance.words is not None
                self._transcript.on_cut(utterance.text_end, self.sent_samples, has_words=has_words)
            else:
                self._transcript.on_sent(utterance.text_end, self.sent_samples)
            if isinstance(utterance, Utterance) and not utterance.has_sent_end:
                # The talker reported the end after the last audio.
                commands.append(UtteranceEnded(utterance.index))
            commands += [Flushed(flush_id) for flush_id in utterance.flush_ids]
        return commands

    def advance(self, now: float) -> tuple[list[Command], float]:
        """Start all work that can start. Returns the commands, and when to ask again."""
        speak, speak_at = self._start_talker(now)
        decode, decode_at = self._start_decode(now)
        return speak + decode, min(speak_at, decode_at)

    def _start_talker(self, now: float) -> tuple[list[Command], float]:
        """Start the next utterance if there is credit for it."""
        if self.is_held or self._talking:
            return [], NEVER
        waiting = next(
            (u for u in self._utterances if isinstance(u, Utterance) and not u.is_started), None
        )
        if waiting is None and not len(self._pieces):
            return [], NEVER
        settings = self._settings
        playback = self.playback
        backlog_s = self._backlog_s(waiting)
        if backlog_s + playback.lead_s(now) >= settings.max_lead_s:
            room_at = playback.when_credit(now, settings.max_lead_s, backlog_s)
            # While a backlog is being sent, each send asks again; the clock alone would not.
            return [], room_at if room_at > now else NEVER
        if waiting is None:
            waiting = self._take_text()
            backlog_s = self._backlog_s(waiting)
        is_trimmed = not self.sent_samples and settings.trim_samples > 0
        waiting.start(settings, playback.dry_at + backlog_s, is_trimmed=is_trimmed)
        self._talking = waiting
        self._is_paused = False
        self._rows_at_once = 1
        self.stopwatch.on_talker_start(now, is_first=waiting.index == 0)
        start = StartTalker(
            waiting.index,
            waiting.text,
            waiting.queued_at,
            waiting.delivery,
            waiting.voice,
            waiting.is_open,
        )
        return [start], NEVER

    def _backlog_s(self, until: Utterance | None) -> float:
        """Seconds of audio before an utterance that have not been sent; None: of all."""
        before = takewhile(lambda other: other is not until, self._utterances)
        return sum(other.unsent_s for other in before)

    def _take_text(self) -> Utterance:
        """Split the text of the next generation into utterances and return the first."""
        pieces = self._pieces.take()
        first = pieces[0]
        whole = self._transcript.covering([piece.text for piece in pieces])
        texts = self._part(whole) or [whole]
        delivery = self._pieces.delivery(texts, first.before)
        parts: list[Utterance] = []
        for number, (text, tags) in enumerate(zip(texts, delivery, strict=True), self._count):
            end = self._transcript.locate(text)
            units = self._transcript.substitutes(end - len(text), end)
            parts.append(
                Utterance(
                    number, text, end, first.queued_at, tags, first.voice, units, first.shaping
                )
            )
        pauses = [self._pause_before(part, first) for part in parts]
        parts[-1].flush_ids += [flush_id for piece in pieces for flush_id in piece.flush_ids]
        self._requested = pieces
        self._requested_from = self._count
        self._count += len(parts)
        for part, seconds in zip(parts, pauses, strict=True):
            if seconds > 0:
                begin = part.text_end - len(part.text)
                silence = PendingPause(seconds, begin, part.queued_at, chars=0)
                self._utterances.append(self._pause(silence, part))
            self._utterances.append(part)
        self._queue_pauses(pieces[-1].pauses)
        return parts[0]

    def _pause_before(self, part: Utterance, first: Piece) -> float:
        """Seconds of silence before an utterance, the first of which speaks ``first``.

        They do not depend on when its text came, except in another turn: there the listener hears
        the first word at once if nothing is being played.
        """
        if part.index == self._count and not self._utterances:
            is_late = first.begins_turn and first.queued_at >= self.playback.dry_at
            if is_late or not self.sent_samples:
                return 0.0
        settings = self._settings
        before = self._transcript.before(part.text_end - len(part.text))
        return settings.pauses.after(before) / settings.speed / part.shaping.speed

    def _start_decode(self, now: float) -> tuple[list[Command], float]:
        """Send the first utterance's next window to the codec if it is time, or begin the next part
        of a pause.
        """
        head = self._utterances[0] if self._utterances else None
        if head is None or not head.is_started or head.decoding is not None:
            return [], NEVER
        limit_s = self._settings.max_lead_s
        if self.playback.lead_s(now) >= limit_s:
            credit_at = self.playback.when_credit(now, limit_s, 0.0)
            self._is_unread |= credit_at == NEVER
            return [], credit_at
        if isinstance(head, Pause):
            return [head.next_silence()], NEVER
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
