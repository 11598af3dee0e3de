"""Mapping between positions in the sent audio and the codec's samples.

Their rates differ, and an encoder adds its delay and silence to each utterance. Clients report
positions in the sent audio; the session counts the codec's samples.
"""

from __future__ import annotations

from bisect import bisect_right


class Timeline:
    """One context's audio, utterance by utterance.

    ``codec_rate`` and ``sent_rate``: samples per second of playback. ``delay_samples``: the
    encoder's, at ``sent_rate``. Memory grows with the utterances, which the text limit bounds.
    """

    def __init__(self, codec_rate: float, sent_rate: int, delay_samples: int = 0) -> None:
        self._codec_rate, self._sent_rate, self._delay = codec_rate, sent_rate, delay_samples
        self._sent_starts, self._codec_starts = [0], [0]
        self.sent_samples = self._codec_samples = 0

    def add(self, codec_samples: int, sent_samples: int, *, ends_utterance: bool) -> None:
        """Add ``codec_samples`` that the encoder took, and ``sent_samples`` that it returned."""
        self._codec_samples += codec_samples
        self.sent_samples += sent_samples
        if ends_utterance:
            self._sent_starts.append(self.sent_samples)
            self._codec_starts.append(self._codec_samples)

    @property
    def late_s(self) -> float:
        """Seconds by which the encoder's delay, and silence so far, delay the next samples."""
        sent_s = (self._sent_starts[-1] + self._delay) / self._sent_rate
        return sent_s - self._codec_starts[-1] / self._codec_rate

    def to_codec(self, sent_samples: int) -> int:
        """Return the codec's sample at ``sent_samples``; inside padding, the nearest sample."""
        at = bisect_right(self._sent_starts, sent_samples) - 1
        following = self._codec_starts[at + 1 : at + 2]
        end = following[0] if following else self._codec_samples
        inside = max(0, sent_samples - self._sent_starts[at] - self._delay)
        return min(end, self._codec_starts[at] + round(inside * self._codec_rate / self._sent_rate))
