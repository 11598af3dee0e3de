"""The contract of audio encoders."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from streaming.spec import Samples


class Packet(NamedTuple):
    """One binary message's worth of audio.

    ``samples``: how many samples a decoder makes of it, at the encoder's output rate.
    ``padding``: how many of these are no audio but an encoder's own: its delay at the front
    of an utterance or a file, silence at the end. Raw Opus has it, and of the files MP3 and
    AAC; the other files tell their decoders to drop it.
    """

    data: bytes
    samples: int
    padding: int = 0


class AudioEncoder(Protocol):
    """Encodes one context's samples, in order.

    ``sample_rate`` is the output's, in Hz. ``inline`` says that ``encode`` takes microseconds
    and may be called on the event loop; the others belong in a thread (see pump.py).
    ``delay_samples`` is by how much what a decoder makes of it lags behind, at ``sample_rate``.
    """

    sample_rate: int
    inline: bool
    delay_samples: int

    def encode(self, samples: Samples) -> list[Packet]:
        """Take mono float32 samples within [-1, 1]; return the packets that are full."""

    def flush(self) -> list[Packet]:
        """Return all that is held back. What has a header and an end (WAV, FLAC, MP3, Ogg, AAC)
        is over then; the others may go on with a next utterance.
        """


class Filter(Protocol):
    """Changes samples on their way to an encoder."""

    def push(self, samples: Samples) -> Samples:
        """Take samples; return what is settled of what becomes of them."""

    def finish(self) -> Samples:
        """Return the rest at the end of an utterance, and begin anew."""


class Fade:
    """Lets the loudness of the first ``fade_samples`` rise linearly from nothing. Later utterances
    of a context are not faded.
    """

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
    """A filter in front of an encoder, whose ``sample_rate`` is what the filter makes. ``inline``:
    whether the filter is quick enough for the event loop.
    """

    def __init__(self, filter_: Filter, encoder: AudioEncoder, *, inline: bool = True) -> None:
        self._filter, self._encoder = filter_, encoder
        self.inline = inline and encoder.inline
        self.sample_rate, self.delay_samples = encoder.sample_rate, encoder.delay_samples

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder; ``samples`` are the filter's."""
        return self._encoder.encode(self._filter.push(samples)) if len(samples) else []

    def flush(self) -> list[Packet]:
        """See AudioEncoder."""
        packets = self._encoder.encode(self._filter.finish())
        return packets + self._encoder.flush()
