"""One utterance in progress: takes the talker's rows, returns windows for the codec.

::

    WAITING --start--> GENERATING --last rows--> GENERATED --last window sent--> done
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import numpy as np
import numpy.typing as npt

from streaming.chunk_schedule import ChunkDecision, ChunkSchedule, PaceBounds, ScheduleSettings
from streaming.delay import RowLayout
from streaming.events import Decode
from streaming.ports import TalkerRows
from streaming.report import AUDIBLE
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow, SlidingWindowChunker
from streaming.word_timing import WordTracker
from text.turns import SentencePauses, Shaping

Mode = Literal["chunked", "whole"]
_UNCHANGED = Shaping()
#: Expected frames of an utterance, apart from its characters.
_BASE_FRAMES = 25
#: Expected frames per character. It is an upper estimate, since speech has about 14 characters and
#: 25 frames per second, and matters only if the talker is slower than playback.
_FRAMES_PER_CHARACTER = 2.5


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a context's speech. ``bounds`` returns the pace measured at present, for frames
    that are played at a speed. Audio may run ahead of playback by ``max_lead_s``. The codec's
    samples are played at ``speed`` times their own speed; they are stretched outside the session.
    ``layout``: the talker's row layout. ``trim_samples``: maximum samples of silence that are left
    out at the beginning of a context. ``pauses``: silence between utterances. ``end_silence_s``:
    seconds of silence after which an utterance that was audible is over; 0: never. ``held_back_s``:
    maximum seconds that stretching an utterance to a speed holds back.
    """

    codec: CodecSpec
    schedule: ScheduleSettings
    bounds: Callable[[float], PaceBounds]
    mode: Mode = "chunked"
    max_lead_s: float = 10.0
    speed: float = 1.0
    layout: RowLayout = RowLayout.DELAYED
    trim_samples: int = 0
    pauses: SentencePauses = field(default_factory=SentencePauses)
    end_silence_s: float = 0.0
    held_back_s: Callable[[float], float] = lambda _: 0.0

    @property
    def playback_rate(self) -> float:
        """Codec samples played per second."""
        return self.codec.sample_rate * self.speed

    @property
    def frame_s(self) -> float:
        """Seconds for which a frame is played."""
        return self.codec.frame_s / self.speed

    def at_speed(self, factor: float) -> QueueSettings:
        """Return the settings of an utterance whose samples are stretched by ``factor``, before the
        whole context's are stretched by ``speed``.
        """
        if factor == 1.0:
            return self
        mine = self.schedule
        schedule = replace(
            mine,
            frame_s=mine.frame_s / factor,
            guard_s=mine.guard_s + self.held_back_s(factor) / self.speed,
            incomplete_frames=0,
        )
        return replace(self, schedule=schedule, speed=self.speed * factor)


class Utterance:
    """Text that the talker speaks in one generation, and its frames."""

    def __init__(
        self,
        index: int,
        text: str,
        text_end: int,
        queued_at: float,
        delivery: str = "",
        voice: str | None = None,
        units: Sequence[tuple[int, int]] = (),
        shaping: Shaping = _UNCHANGED,
        *,
        is_open: bool | None = None,
    ) -> None:
        #: Number of the utterance in its context, from 0.
        self.index = index
        self.text = text
        #: Where it ends in the context's spoken text.
        self.text_end = text_end
        #: When its text was complete.
        self.queued_at = queued_at
        #: See StartTalker.
        self.delivery = delivery
        #: See VoiceChanged.
        self.voice = voice
        #: See WordTracker.
        self._units = units
        #: What is done to its samples.
        self.shaping = shaping
        #: Whether its text goes on; None if it is spoken as a whole text.
        self.is_open = is_open
        #: Whether the talker makes no more rows before more text.
        self._waits = False
        #: Whether it had to wait for text.
        self.was_late = False
        #: Samples of silence at the end of its audio so far; None before it was audible.
        self._silence: int | None = None
        #: Flushes that are done when its audio has been sent.
        self.flush_ids: list[str] = []
        #: Whether the talker was asked for it.
        self.is_started = False
        #: Whether the talker has ended.
        self.generated = False
        #: Whether the talker ended at the maximum length.
        self.cut_off = False
        #: Whether its last audio was sent as such.
        self.has_sent_end = False
        #: Number of rows so far.
        self.rows = 0
        #: Number of complete frames so far.
        self.frames = 0
        #: Number of frames whose samples have been sent.
        self.frames_sent = 0
        #: The window in the codec, if any.
        self.decoding: DecodeWindow | None = None
        #: Tracks its words, if the talker reports which part of the text its rows speak.
        self.words: WordTracker | None = None

    def start(self, settings: QueueSettings, dry_at: float, *, is_trimmed: bool) -> None:
        """Start the generation. ``dry_at``: when the listener runs out of earlier audio.
        ``is_trimmed``: silence at the beginning will be left out.
        """
        self.is_started = True
        self._sent_rate = settings.playback_rate
        self._settings = settings = settings.at_speed(self.shaping.speed)
        self._frame_s = settings.frame_s
        codec = settings.codec
        schedule = settings.schedule
        self._delay_rows = settings.layout.delay_rows(codec)
        self._reader = settings.layout.reader(codec)
        self._chunker = SlidingWindowChunker(schedule.left_context_frames, codec.history_frames)
        expected = _BASE_FRAMES + int(len(self.text) * _FRAMES_PER_CHARACTER)
        self._schedule = ChunkSchedule(
            schedule,
            settings.bounds(settings.speed),
            dry_at=dry_at,
            expected_frames=expected,
            is_trimmed=is_trimmed,
        )

    @property
    def is_done(self) -> bool:
        """Whether every frame's samples have been sent."""
        is_sent = self.generated and self.decoding is None and self.frames_sent == self.frames
        return is_sent and not self.is_open

    @property
    def is_begun(self) -> bool:
        """Whether a part of its audio has been sent."""
        return self.frames_sent > 0

    @property
    def waits_for_text(self) -> bool:
        """Whether there is nothing to do for it before more text."""
        return bool(self.is_open) and (self._waits or self.generated) and self.decoding is None

    def append(self, text: str, text_end: int, now: float, *, is_last: bool) -> None:
        """Add text, which ends at ``text_end`` of the context's spoken text."""
        self.text += text
        self.text_end = text_end
        self.is_open = not is_last
        if self._waits:
            self._waits, self.was_late, self.queued_at = False, True, now

    @property
    def decoding_s(self) -> float:
        """Seconds of audio that are being decoded."""
        return self.decoding.new_frames * self._frame_s if self.decoding else 0.0

    @property
    def waiting_frames(self) -> int:
        """Number of frames in hand whose samples have not been sent."""
        return self.frames - self.frames_sent

    @property
    def unsent_s(self) -> float:
        """Seconds of the frames in hand whose samples have not been sent."""
        return self.waiting_frames * self._frame_s if self.is_started else 0.0

    @property
    def _shown_frames(self) -> int:
        """Number of frames that the schedule sees. While the talker speaks, one of a stretched
        utterance is hidden from it: what the stretcher holds back comes with the last window, so
        that must be known to be the last.
        """
        is_hiding = self.shaping.speed != 1.0 and not self.generated
        return max(0, self.frames - is_hiding)

    def hear(self, samples: Samples) -> bool:
        """Take samples as the codec decoded them, just before they are sent. Returns whether it has
        been silent for so long that it is over. Text that arrives is fed one id a frame, and has
        fewer ids than characters, so until then silence may be a pause.
        """
        codec = self._settings.codec
        limit = round(self._settings.end_silence_s * codec.sample_rate)
        if not limit:
            return False
        audible = np.flatnonzero(np.abs(samples) >= AUDIBLE)
        if len(audible):
            self._silence = len(samples) - 1 - int(audible[-1])
        elif self._silence is not None:
            self._silence += len(samples)
        if self._silence is None or self.is_open:
            return False
        unread = 0 if self.is_open is None else len(self.text)
        return min(self._silence, (self.frames_sent - unread) * codec.hop_length) >= limit

    def end_early(self) -> None:
        """End it with the audio that has been sent, in which all of its text was spoken."""
        self.generated = True
        self.cut_off = False
        self.frames = self.frames_sent

    def sent_samples(self, frames: int) -> float:
        """Number of samples that are sent for this many frames."""
        return frames * self._settings.codec.hop_length / self.shaping.speed

    def missing_rows(self, *, playing: bool) -> int:
        """Number of rows missing until the next chunk can be decoded (see ``missing_frames``)."""
        incomplete = max(0, self._delay_rows - self.rows)
        return self._schedule.missing_frames(playing=playing) + incomplete

    def push(self, batch: TalkerRows) -> None:
        """Add rows from the talker."""
        if self.generated:
            return
        self._waits = batch.waits
        if batch.continued is not None:
            self._chunker.continue_from(batch.continued)
        if batch.spoken is not None:
            self._follow(batch.rows, batch.spoken)
        frames = self._reader.push_rows(batch.rows)
        self.rows += len(batch.rows)
        shown = self._shown_frames
        self.frames += len(frames)
        self._chunker.push(frames)
        self._schedule.on_frames(self._shown_frames - shown)
        if batch.finish is not None or self._reader.ended:
            self.cut_off = batch.finish == "length" and not self._reader.ended
            self._finish()

    def _follow(self, rows: Codes, spoken: npt.NDArray[np.float32]) -> None:
        """Track the words of these rows. Each row begins a frame, except those after the end."""
        if self.words is None:
            start = self.text_end - len(self.text)
            settings = self._settings
            self.words = WordTracker(
                self.text,
                start,
                settings.codec,
                self._sent_rate,
                self._units,
                self.shaping.speed,
            )
        self.words.push(spoken[rows[:, 0] < self._settings.codec.codebook_sizes[0]])

    def skip(self) -> None:
        """Mark the utterance as having nothing more to speak."""
        self._finish()

    def _finish(self) -> None:
        shown = self._shown_frames
        self.generated = True
        self._schedule.on_frames(self._shown_frames - shown)
        self._chunker.finish()
        self._schedule.on_finished()

    def renew(self) -> None:
        """Plan the first chunk with newer bounds, since other streams may have begun meanwhile.
        Later chunks get newer bounds with each send.
        """
        if self._settings.mode == "chunked" and not self.frames_sent:
            self._schedule.update_bounds(self._settings.bounds(self._settings.speed))

    def next_window(self, dry_at: float, now: float) -> tuple[Decode | None, float]:
        """Return the next window to decode; if there is none yet, when to ask again. Call only
        while no window is being decoded.
        """
        if self.frames == self._chunker.emitted:
            return None, inf
        if self._settings.mode == "chunked":
            decision = self._schedule.decide(now)
        else:
            decision = ChunkDecision(self.frames if self.generated else 0, 0, inf)
        if not decision.new_frames:
            return None, decision.wake_at
        incomplete = self._reader.incomplete(decision.incomplete)
        window = self._chunker.take(decision.new_frames, decision.lookahead, incomplete)
        is_playing = self.frames_sent and dry_at > -inf  # not all of it was trimmed
        deadline = dry_at if is_playing else max(dry_at, now)
        self._schedule.on_emitted(window.new_frames, decision.lookahead)
        self.decoding = window
        return Decode(self.index, window, deadline, self.shaping.speed), inf

    def on_sent(self, now: float, trimmed_samples: int = 0) -> None:
        """Record that the window in flight was sent, except for its first ``trimmed_samples``, and
        continue with newer bounds.
        """
        if self.decoding is None:
            raise RuntimeError("no window is being decoded")
        new_frames = self.decoding.new_frames
        self.decoding = None
        self.frames_sent += new_frames
        self._schedule.update_bounds(self._settings.bounds(self._settings.speed))
        self._schedule.on_sent(new_frames, now, trimmed_samples / self._sent_rate)
