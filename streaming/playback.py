"""Model of the client's playback: lead, credit and underruns.

Without reports the model assumes that playback starts with the first send, runs in real time and
stalls when no audio is left. A client's report replaces the estimate, and the model continues from
there. ``played`` is a line through an anchor, limited to what was sent::

    played(now) = min(sent, anchor_samples + (now - anchor_s) * sample_rate)

Times are seconds on the caller's clock, which must not run backwards.
"""

from __future__ import annotations

from math import inf

#: A deadline missed by less than this is a rounding error, not an underrun.
_TOLERANCE_S = 1e-6


class PlaybackClock:
    """The playback of one context.

    A report counts from its arrival. Because of the network's delay, the client has by then played
    a little more than ``played_samples``.

    Unread audio cannot have been played. If it is known how much was read (``on_read``), unread
    audio beyond ``unread_slack_s`` counts into the lead. So a client that stalls gets no more
    credit, and one that is far away loses none.
    """

    def __init__(self, sample_rate: float, unread_slack_s: float = 0.0) -> None:
        if sample_rate < 1:
            raise ValueError("sample_rate must be positive")
        self._sample_rate = sample_rate
        #: Samples sent so far.
        self.sent_samples = 0
        #: Unread audio that does not count into the lead.
        self._unread_slack_s = unread_slack_s
        #: Whether only unread audio counts into the lead.
        self._is_lifted = False
        #: Samples that the client has read; None while unknown.
        self._read: int | None = None
        #: Samples that the client has reported as played.
        self._reported = 0
        #: Samples played at ``_anchor_s``.
        self._anchor_samples = 0
        #: Time of the last report, or when playback last began; -inf before the first send.
        self._anchor_s = -inf
        #: Number of sends after the client had run out of audio.
        self.underruns = 0
        #: Total silence before these sends.
        self.underrun_s = 0.0

    @property
    def dry_at(self) -> float:
        """When all sent audio will have been played; -inf before the first send."""
        if not self.sent_samples:
            return -inf
        return self._anchor_s + (self.sent_samples - self._anchor_samples) / self._sample_rate

    def on_sent(self, samples: int, now: float, *, continues: bool = True) -> None:
        """Record that ``samples`` more samples were handed to the client.

        ``continues`` is false if a pause before them is intended, for instance because the text
        came late. Then no underrun is counted. Raises ValueError if ``samples`` < 0.
        """
        if samples < 0:
            raise ValueError("samples must not be negative")
        if not samples:
            return
        if not self.sent_samples:
            self._anchor_s = now
        elif now > (dry_at := self.dry_at):
            if continues and now - dry_at > _TOLERANCE_S:
                self.underruns += 1
                self.underrun_s += now - dry_at
            self._anchor_samples = self.sent_samples
            self._anchor_s = now
        self.sent_samples += samples

    def on_report(self, played_samples: int, now: float, *, at_most: bool = False) -> None:
        """Record that the client has played ``played_samples`` in all; with ``at_most``, that it
        cannot have played more.

        A report lower than an earlier one, or higher than the number sent, is clamped, so that a
        client's mistake neither stops its own audio nor raises its credit.
        """
        if at_most and self.played_samples(now) <= played_samples:
            return
        self._reported = max(self._reported, min(played_samples, self.sent_samples))
        self._anchor_samples = self._reported
        self._anchor_s = max(now, self._anchor_s)

    def on_read(self, read_samples: int) -> None:
        """Record that the client has read ``read_samples`` in all."""
        self._read = max(self._read or 0, min(read_samples, self.sent_samples))

    def lift(self) -> None:
        """Let audio run ahead of playback as far as the client reads it: from now on only unread
        audio counts into the lead.
        """
        self._is_lifted = True

    @property
    def unread_s(self) -> float:
        """Seconds of audio sent and not yet read, as far as is known."""
        return 0.0 if self._read is None else (self.sent_samples - self._read) / self._sample_rate

    @property
    def waits_for_reading(self) -> bool:
        """Whether there is so much unread audio that it counts into the lead."""
        return self.unread_s > self._unread_slack_s

    def played_samples(self, now: float) -> int:
        """Samples played by ``now``, extrapolated from the last report."""
        if not self.sent_samples:
            return 0
        elapsed = max(0.0, now - self._anchor_s)
        return min(self.sent_samples, self._anchor_samples + round(elapsed * self._sample_rate))

    def lead_s(self, now: float) -> float:
        """Seconds of audio sent and not yet played, at least 0."""
        unplayed_s = 0.0 if self._is_lifted else self.dry_at - max(now, self._anchor_s)
        return max(0.0, unplayed_s, self.unread_s - self._unread_slack_s)

    def when_credit(self, now: float, max_lead_s: float, needed_s: float) -> float:
        """Return the time, ``now`` or later, from which the lead plus ``needed_s`` of audio is less
        than ``max_lead_s``.

        If ``needed_s`` exceeds ``max_lead_s``, it waits for an empty buffer, not for ever. A future
        time is slightly late, so that rounding cannot make a caller that asks again then wait once
        more. The time is ``inf`` if only reading by the client helps.
        """
        allowed_s = max(0.0, max_lead_s - needed_s)
        lead_s = self.lead_s(now)
        if not lead_s or lead_s < allowed_s:
            return now
        unread_s = self.unread_s - self._unread_slack_s
        if unread_s > 0 and unread_s >= allowed_s:
            return inf
        return now + lead_s - allowed_s + _TOLERANCE_S
