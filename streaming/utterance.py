"""One utterance in progress: takes the talker's rows, returns windows for the codec.

::

    WAITING --start--> GENERATING --last rows--> GENERATED --last window sent--> done
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
import numpy.typing as npt

from streaming.chunk_schedule import ChunkDecision, ChunkSchedule, PaceBounds, ScheduleSettings
from streaming.delay import RowLayout
from streaming.events import Decode
from streaming.ports import TalkerRows
from streaming.spec import CodecSpec, Codes
from streaming.window import DecodeWindow, SlidingWindowChunker
from streaming.word_timing import WordTracker

Mode = Literal["chunked", "whole"]
#: An upper estimate: speech has about 14 characters and 25 frames per second. It matters only if
#: the talker is slower than playback.
_SHORTEST_FRAMES, _FRAMES_PER_CHARACTER = 25, 2.5


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a context's speech. ``bounds`` returns the pace measured at present. Audio may
    run ahead of playback by ``max_lead_s``. The codec's samples are played at ``speed`` times their
    own speed; they are stretched outside the session. ``layout``: the talker's row layout.
    ``trim_samples``: the most samples of silence that are left out at the beginning of a context.
    """

    codec: CodecSpec
    schedule: ScheduleSettings
    bounds: Callable[[], PaceBounds]
    mode: Mode = "chunked"
    max_lead_s: float = 10.0
    speed: float = 1.0
    layout: RowLayout = RowLayout.DELAYED
    trim_samples: int = 0

    @property
    def heard_rate(self) -> float:
        """Codec samples played per second."""
        return self.codec.sample_rate * self.speed

    @property
    def frame_s(self) -> float:
        """Seconds for which a frame is played."""
        return self.codec.frame_s / self.speed


class Utterance:
    """Text that the talker speaks in one generation, and its frames.

    ``text_end``: where it ends in the context's text. ``flush_ids``: flushes that are done when its
    audio has been sent. ``words``: tracks its words, if the talker reports which part of the text
    its rows speak. ``delivery``: see StartTalker.
    """

    def __init__(
        self, index: int, text: str, text_end: int, queued_at: float, delivery: str = ""
    ) -> None:
        self.index, self.text, self.text_end = index, text, text_end
        self.queued_at, self.delivery = queued_at, delivery
        self.flush_ids: list[str] = []
        self.is_started = False
        self.generated = False
        self.cut_off = False
        #: Whether its last audio was sent as such.
        self.has_told_end = False
        self.rows = 0
        self.frames = 0
        self.frames_sent = 0
        self.decoding: DecodeWindow | None = None
        self.words: WordTracker | None = None

    def start(self, settings: QueueSettings, dry_at: float, *, is_trimmed: bool) -> None:
        """Start the generation. ``dry_at``: when the listener runs out of earlier audio.
        ``is_trimmed``: silence at the beginning will be left out.
        """
        self.is_started = True
        self._settings, codec, schedule = settings, settings.codec, settings.schedule
        self._delay_rows = settings.layout.delay_rows(codec)
        self._reader = settings.layout.reader(codec)
        self._chunker = SlidingWindowChunker(schedule.left_context_frames, codec.history_frames)
        expected = _SHORTEST_FRAMES + int(len(self.text) * _FRAMES_PER_CHARACTER)
        self._schedule = ChunkSchedule(
            schedule,
            settings.bounds(),
            dry_at=dry_at,
            expected_frames=expected,
            is_trimmed=is_trimmed,
        )

    @property
    def is_done(self) -> bool:
        """Whether every frame's samples have been sent."""
        return self.generated and self.decoding is None and self.frames_sent == self.frames

    @property
    def waiting_frames(self) -> int:
        """Number of frames in hand whose samples have not been sent."""
        return self.frames - self.frames_sent

    def missing_rows(self, *, playing: bool) -> int:
        """Number of rows missing until the next chunk can be decoded (see ``missing_frames``)."""
        incomplete = max(0, self._delay_rows - self.rows)
        return self._schedule.missing_frames(playing=playing) + incomplete

    def push(self, batch: TalkerRows) -> None:
        """Add rows from the talker."""
        if self.generated:
            return
        if batch.spoken is not None:
            self._follow(batch.rows, batch.spoken)
        frames = self._reader.push_rows(batch.rows)
        self.rows += len(batch.rows)
        self.frames += len(frames)
        self._chunker.push(frames)
        self._schedule.on_frames(len(frames))
        if batch.finish is not None or self._reader.ended:
            self.cut_off = batch.finish == "length" and not self._reader.ended
            self._finish()

    def _follow(self, rows: Codes, spoken: npt.NDArray[np.float32]) -> None:
        """Track the words of these rows. Each row begins a frame, except those after the end."""
        if self.words is None:
            start = self.text_end - len(self.text)
            mine = self._settings
            self.words = WordTracker(self.text, start, mine.codec, mine.heard_rate)
        self.words.push(spoken[rows[:, 0] < self._settings.codec.codebook_sizes[0]])

    def skip(self) -> None:
        """Mark the utterance as having nothing to speak."""
        self.generated = True

    def _finish(self) -> None:
        self.generated = True
        self._chunker.finish()
        self._schedule.on_finished()

    def renew(self) -> None:
        """Plan the first chunk with newer bounds, since other streams may have begun meanwhile.
        Later chunks get newer bounds with each send.
        """
        if self._settings.mode == "chunked" and not self.frames_sent:
            self._schedule.update_bounds(self._settings.bounds())

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
        is_heard = self.frames_sent and dry_at > -inf  # not all of it was trimmed
        deadline = dry_at if is_heard else max(dry_at, now)
        self._schedule.on_emitted(window.new_frames, decision.lookahead)
        self.decoding = window
        return Decode(self.index, window, deadline), inf

    def on_sent(self, now: float, trimmed_samples: int = 0) -> None:
        """Record that the window in flight was sent, except for its first ``trimmed_samples``, and
        continue with newer bounds.
        """
        if self.decoding is None:
            raise RuntimeError("no window is being decoded")
        new_frames, self.decoding = self.decoding.new_frames, None
        self.frames_sent += new_frames
        self._schedule.update_bounds(self._settings.bounds())
        self._schedule.on_sent(new_frames, now, trimmed_samples / self._settings.heard_rate)
