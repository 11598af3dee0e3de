"""The contract of audio encoders, and what they share."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import av
import numpy as np

from streaming.spec import Samples


class Packet(NamedTuple):
    """One binary message's worth of audio.

    ``samples``: how many a decoder makes of it, at the output's rate. ``padding``: those that are
    the encoder's delay before, or silence after, an utterance or a file. Raw Opus, MP3 and AAC
    have it; other files tell their decoders to drop it.
    """

    data: bytes
    samples: int
    padding: int = 0


def audio_frame(
    samples: np.ndarray[Any, Any], sample_rate: int, at: int, format_: str = "flt"
) -> av.AudioFrame:
    """Mono samples as a frame for ffmpeg's libraries, which begins with sample ``at``."""
    frame = av.AudioFrame.from_ndarray(samples[np.newaxis], format=format_, layout="mono")
    frame.sample_rate, frame.pts = sample_rate, at
    frame.time_base = Fraction(1, sample_rate)
    return frame


class AudioEncoder(Protocol):
    """Encodes one context's samples, in order.

    ``sample_rate`` is the output's, in Hz; a decoder's output lags ``delay_samples`` behind.
    With ``inline`` ``encode`` takes microseconds and runs on the event loop, else in a thread.
    """

    sample_rate: int
    inline: bool
    delay_samples: int

    def encode(self, samples: Samples) -> list[Packet]:
        """Take mono float32 samples within [-1, 1]; return the packets that are full."""

    def flush(self) -> list[Packet]:
        """Return all that is held back. A file is over then; others go on with an utterance."""


class Filter(Protocol):
    """Changes samples on their way to an encoder."""

    def push(self, samples: Samples) -> Samples:
        """Take samples; return what is settled of what becomes of them."""

    def finish(self) -> Samples:
        """Return the rest at the end of an utterance, and begin anew."""


class Fade:
    """Fades the first ``fade_samples`` in linearly; later utterances of a context are not faded."""

    def __init__(self, fade_samples: int) -> None:
        self._gains = np.arange(fade_samples, dtype=np.float32) / max(1, fade_samples)

    def push(self, samples: Samples) -> Samples:
        """See Filter."""
        gains = self._gains[: len(samples)]
        if len(gains):
            samples = samples.copy()
            samples[: len(gains)] *= gains
            self._gains = self._gains[len(gains) :]
        return samples

    def finish(self) -> Samples:
        """See Filter: nothing is held back."""
        return np.empty(0, np.float32)


class FilteringEncoder:
    """A filter in front of an encoder. ``inline``: it is quick enough for the event loop."""

    def __init__(self, filter_: Filter, encoder: AudioEncoder, *, inline: bool = True) -> None:
        self._filter, self._encoder = filter_, encoder
        self.inline = inline and encoder.inline
        self.sample_rate, self.delay_samples = encoder.sample_rate, encoder.delay_samples

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder; ``samples`` are the filter's."""
        return self._encoder.encode(self._filter.push(samples)) if len(samples) else []

    def flush(self) -> list[Packet]:
        """See AudioEncoder."""
        return self._encoder.encode(self._filter.finish()) + self._encoder.flush()
