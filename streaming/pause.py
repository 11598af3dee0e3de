"""A pause in the queue of utterances: silence of an exact length, without the talker and codec."""

from __future__ import annotations

from streaming.events import MakeSilence
from streaming.utterance import Utterance
from text.turns import PendingPause

#: The most silence that is sent at once, so that it keeps to the lead's limit as speech does.
_SLICE_S = 0.5


class Pause:
    """Silence between two utterances.

    Args:
        index: A negative number.
        pause: The pause of which all text before has been queued.
        rate: Samples per second of playback.
        follower: The utterance before which it stands if it is no pause of the text's own. It is
            sent once this has a frame, and not at all if there is nothing to say.
    """

    generated = True
    cut_off = False
    words = None
    waiting_frames = 0

    def __init__(
        self, index: int, pause: PendingPause, rate: float, follower: Utterance | None = None
    ) -> None:
        self.index = index
        self.follower = follower
        self._pause = pause
        #: When it was added.
        self.queued_at = pause.queued_at
        #: Flushes that are done when it has been sent.
        self.flush_ids = pause.flush_ids
        self._rate = rate
        #: Its length.
        self._samples = max(1, round(pause.seconds * rate))
        #: Number of samples sent so far.
        self._sent = 0
        #: Number of samples that are being made.
        self.decoding: int | None = None

    @property
    def is_started(self) -> bool:
        """Whether it may be sent."""
        return self.follower is None or self.follower.frames > 0

    @property
    def text_start(self) -> int:
        """Where it begins in the context's spoken text."""
        return self._pause.text_end - self._pause.chars

    @property
    def text_end(self) -> int:
        """Where it ends in the context's spoken text."""
        return self._pause.text_end

    def extend(self, seconds: float, text_end: int) -> bool:
        """Add a pause that follows directly. Returns False once a part of this one is sent, or if a
        flush waits between them.
        """
        if self.is_begun or self.decoding or not self._pause.extend(seconds, text_end):
            return False
        self._samples = max(1, round(self._pause.seconds * self._rate))
        return True

    @property
    def is_begun(self) -> bool:
        """Whether a part of it has been sent."""
        return self._sent > 0

    @property
    def is_done(self) -> bool:
        """Whether all of it has been sent, or it is not needed."""
        follower = self.follower
        is_needed = follower is None or follower.frames > 0 or not follower.generated
        return self._sent == self._samples or not is_needed

    @property
    def unsent_s(self) -> float:
        """Seconds that have not been sent."""
        return (self._samples - self._sent) / self._rate

    @property
    def decoding_s(self) -> float:
        """Seconds that are being made."""
        return (self.decoding or 0) / self._rate

    def next_silence(self) -> MakeSilence:
        """Return the next part. Call only while none is being made."""
        self.decoding = min(self._samples - self._sent, max(1, round(_SLICE_S * self._rate)))
        return MakeSilence(self.index, self.decoding)

    def on_sent(self) -> None:
        """Record that the part that was being made was sent."""
        self._sent += self.decoding or 0
        self.decoding = None
