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

    @property
    def delay_samples(self) -> int:
        """Samples that a decoder gives before the first of the audio."""

    @property
    def sample_rate(self) -> int:
        """Hz of what comes out."""

    @property
    def inline(self) -> bool:
        """Whether ``encode`` is quick enough for the event loop."""

    def encode(self, samples: Samples) -> list[Packet]:
        """Take mono float32 samples within [-1, 1]; return the packets that are full."""

    def flush(self) -> list[Packet]:
        """Return all that is held back. What has a header and an end (WAV, FLAC, MP3, Ogg, AAC)
        is over then; the others may go on with a next utterance.
        """


class FadingEncoder:
    """Lets the loudness of the first ``fade_samples`` rise linearly from nothing, in front of
    ``encoder``. Later utterances of a context are not faded.
    """

    def __init__(self, encoder: AudioEncoder, fade_samples: int) -> None:
        self._encoder, self.inline = encoder, encoder.inline
        self.sample_rate, self.delay_samples = encoder.sample_rate, encoder.delay_samples
        self._gains = np.arange(fade_samples, dtype=np.float32) / max(1, fade_samples)

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder."""
        gains = self._gains[: len(samples)]
        if len(gains):
            samples = samples.copy()
            samples[: len(gains)] *= gains
            self._gains = self._gains[len(gains) :]
        return self._encoder.encode(samples)

    def flush(self) -> list[Packet]:
        """See AudioEncoder."""
        return self._encoder.flush()
