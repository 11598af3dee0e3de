"""Map positions in the audio that was sent to the codec's samples, and back.

The two run at different rates, and an encoder adds its delay and silence to each utterance.
What clients report counts what they were sent; the session counts what the codec made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from streaming.word_timing import WordTiming


class Timeline:
    """One context's audio, utterance by utterance.

    ``codec_rate`` and ``sent_rate``: samples heard in a second. ``delay_samples``: the encoder's,
    at ``sent_rate``. Memory grows with the utterances, which the context's text bounds.
    """

    def __init__(self, codec_rate: float, sent_rate: int, delay_samples: int = 0) -> None:
        self._codec_rate, self._sent_rate, self._delay = codec_rate, sent_rate, delay_samples
        self._sent_starts, self._codec_starts = [0], [0]
        self.sent_samples = self._codec_samples = 0

    def add(self, codec_samples: int, sent_samples: int, *, ends_utterance: bool) -> None:
        """``codec_samples`` went into the encoder, and then ``sent_samples`` came out."""
        self._codec_samples += codec_samples
        self.sent_samples += sent_samples
        if ends_utterance:
            self._sent_starts.append(self.sent_samples)
            self._codec_starts.append(self._codec_samples)

    @property
    def late_s(self) -> float:
        """Seconds that the encoder's delay, and its silence so far, put off what is added now."""
        sent_s = (self._sent_starts[-1] + self._delay) / self._sent_rate
        return sent_s - self._codec_starts[-1] / self._codec_rate

    def to_codec(self, sent_samples: int) -> int:
        """The codec's sample played after ``sent_samples``; the nearest to a delay or silence."""
        at = bisect_right(self._sent_starts, sent_samples) - 1
        following = self._codec_starts[at + 1 : at + 2]
        end = following[0] if following else self._codec_samples
        inside = max(0, sent_samples - self._sent_starts[at] - self._delay)
        return min(end, self._codec_starts[at] + round(inside * self._codec_rate / self._sent_rate))


def later(words: Sequence[WordTiming], by_ms: float) -> list[WordTiming]:
    """``words`` by the time of what a decoder makes of their audio: ``by_ms`` after the codec's."""
    return [
        replace(word, start_ms=word.start_ms + by_ms, end_ms=word.end_ms + by_ms) for word in words
    ]
