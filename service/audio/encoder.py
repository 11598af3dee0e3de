"""The interface of audio encoders, and filters in front of them."""

from __future__ import annotations

import contextlib
import ctypes
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import av
import numpy as np

from streaming.spec import Samples

# PyAV passes an encoder's input through a filter graph of its own, which starts a thread for each
# processor but gives them nothing to do. With one processor ffmpeg's libraries start none. Their
# functions are found through an extension module that is linked to them.
with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(av._core.__file__).av_cpu_force_count(1)


class Packet(NamedTuple):
    """Encoded audio for one binary message.

    ``samples``: number of decoded samples, at the output's rate. ``padding``: those of them that
    are the encoder's delay before, or silence after, an utterance or a file. Raw Opus, MP3 and AAC
    have padding; other files tell decoders to drop it.
    """

    data: bytes
    samples: int
    padding: int = 0


def audio_frame(
    samples: np.ndarray[Any, Any], sample_rate: int, at: int, format_: str = "flt"
) -> av.AudioFrame:
    """Return mono samples as a frame for ffmpeg's libraries that begins at sample ``at``."""
    frame = av.AudioFrame.from_ndarray(samples[np.newaxis], format=format_, layout="mono")
    frame.sample_rate, frame.pts = sample_rate, at
    frame.time_base = Fraction(1, sample_rate)
    return frame


class AudioEncoder(Protocol):
    """Encodes one context's samples, in order.

    ``sample_rate`` is the output's, in Hz. Decoded audio is delayed by ``delay_samples``. With
    ``inline``, ``encode`` takes microseconds and runs on the event loop, else in a thread.
    """

    sample_rate: int
    inline: bool
    delay_samples: int

    def encode(self, samples: Samples) -> list[Packet]:
        """Take mono float32 samples within [-1, 1]; return the complete packets."""

    def end_utterance(self) -> list[Packet]:
        """Return what filters hold back of an utterance, which ends neither a packet nor a file."""

    def flush(self) -> list[Packet]:
        """Return all that is held back. It ends a file; other formats continue afterwards."""


class Filter(Protocol):
    """Processes samples before an encoder."""

    def push(self, samples: Samples) -> Samples:
        """Take samples; return the output that is final."""

    def finish(self) -> Samples:
        """Return the rest at the end of an utterance, and reset the filter."""


class Fade:
    """Fades in the first ``fade_samples`` of a context linearly."""

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
        """See Filter. Nothing is held back."""
        return np.empty(0, np.float32)


class FilteringEncoder:
    """A filter before an encoder. ``inline``: the filter is fast enough for the event loop.
    ``by_utterance``: it takes each utterance alone, also where the encoder goes on.
    """

    def __init__(
        self,
        filter_: Filter,
        encoder: AudioEncoder,
        *,
        inline: bool = True,
        by_utterance: bool = False,
    ) -> None:
        self._filter, self._encoder, self._by_utterance = filter_, encoder, by_utterance
        self.inline = inline and encoder.inline
        self.sample_rate, self.delay_samples = encoder.sample_rate, encoder.delay_samples

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder. ``samples`` are the filter's input."""
        return self._encoder.encode(self._filter.push(samples)) if len(samples) else []

    def end_utterance(self) -> list[Packet]:
        """See AudioEncoder."""
        rest = self._encoder.encode(self._filter.finish()) if self._by_utterance else []
        return rest + self._encoder.end_utterance()

    def flush(self) -> list[Packet]:
        """See AudioEncoder."""
        return self._encoder.encode(self._filter.finish()) + self._encoder.flush()
