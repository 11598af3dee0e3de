"""One context on a socket whose messages are all text: audio travels in base64, with the words
that it speaks. The dialect only words them (``SpokenWording``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.audio.packet import Packet
from service.audio.timeline import later
from service.breath import Breath, SpokenWording
from service.outbox import Item, Outbox
from service.runtime import Runtime
from service.spoken_context import ContextPlan, SpokenContext
from streaming.errors import TalkwireError
from streaming.events import CancelAsked, Done, Flushed, SendAudio
from streaming.playback import PlaybackClock
from streaming.spec import Samples
from streaming.words import WordTiming

_NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class WordedPlan(ContextPlan):
    """``flush_always`` is false where an encoder's flush is heard: it is flushed then only where
    a pause follows anyway.
    """

    flush_always: bool = True


class WordedContext(SpokenContext):
    """A ContextSink with its driver: see SpokenContext."""

    def __init__(
        self,
        runtime: Runtime,
        outbox: Outbox,
        tasks: asyncio.TaskGroup,
        plan: WordedPlan,
        wording: SpokenWording,
        closed: Callable[[], None],
    ) -> None:
        super().__init__(runtime, outbox, tasks, plan, closed)
        self._wording, self._flush_always = wording, plan.flush_always
        self._clock = PlaybackClock(self._heard_rate)
        self._breath = Breath(wording, outbox, plan.handle)
        self._is_unflushed = self._has_text = self._ended_empty = False
        self._late_ms = 0.0

    # -- what the client wants

    def append(self, text: str) -> None:
        """More text. Raises RequestError."""
        super().append(text)
        self._has_text = self._has_text or bool(text.strip())

    def end(self) -> None:
        """No more text. Raises RequestError once the context was ended."""
        if self._has_text:
            super().end()
        else:  # nothing was asked for, so nothing is wrong
            self._ended_empty = True
            self._driver.post(CancelAsked())

    def touch(self) -> None:
        """The client keeps it alive."""
        self._driver.touched_at = time.monotonic()

    # -- how it stands

    @property
    def audio_s(self) -> float:
        """Seconds of audio so far, as heard."""
        return self._clock.sent_samples / self._heard_rate

    def silent_s(self, now: float) -> float:
        """Seconds since the listener has heard all that there is; 0 while there is work to do,
        and before the first audio.
        """
        if not self._clock.sent_samples or not self._driver.is_idle:
            return 0.0
        return max(0.0, now - max(self._clock.dry_at, self._driver.touched_at))

    # -- what the session says: see ContextSink

    def on_audio(self, audio: SendAudio) -> None:
        """Samples to send."""
        self._clock.on_sent(len(audio.samples), self._note_audio(audio))
        pauses = self._flush_always or self._driver.is_idle
        flush = audio.ends_utterance and pauses
        self._is_unflushed = not flush
        self._encode(audio.samples, flush=flush)

    def _encode(self, samples: Samples, *, flush: bool) -> None:
        count = len(samples)
        self._pump.encode(
            samples, lambda packets: self._hold(packets, count, is_end=flush), flush=flush
        )

    def _hold(self, packets: list[Packet], codec_samples: int, *, is_end: bool) -> None:
        self._late_ms = 1000 * self._timeline.late_s  # of these samples, and so of their words
        sent = self._breath.add_audio(packets)
        self._timeline.add(codec_samples, sent, ends_utterance=is_end)

    def words(self, timings: Sequence[WordTiming]) -> None:
        """Words of the audio that was just given; told by what a decoder makes of it."""
        self._pump.after(lambda: self._breath.add_words(later(timings, self._late_ms)))

    def on_flushed(self, flushed: Flushed) -> None:
        """A flush is done."""
        self._pump.after(lambda: self._say(lambda: self._wording.flushed(flushed.flush_id)))

    def on_done(self, done: Done) -> None:
        """The context is closed."""
        if self._is_unflushed:
            self._encode(_NOTHING, flush=True)
        super().on_done(done)

    def _take_back(self) -> int:
        return self._breath.take_back()

    def _say_cancelled(self) -> None:
        if self._ended_empty:
            self._say_done(None)
        else:
            self._say(self._wording.cancelled)

    def _say_done(self, error: TalkwireError | None) -> None:
        self._say(lambda: self._wording.done(error))

    def _say(self, word: Callable[[], list[str]]) -> None:
        self._breath.release()  # what was spoken before is worded before
        for message in word():
            self._outbox.put(Item(message))
