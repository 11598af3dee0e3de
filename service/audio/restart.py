"""A file format as a stream that can be flushed in the middle and goes on."""

from __future__ import annotations

from collections.abc import Callable

from service.audio.packet import AudioEncoder, Packet
from streaming.spec import Samples


class RestartingEncoder:
    """Files one after another: what follows a ``flush`` is a new one.

    An MP3 decoder plays them as one stream, with a short silence where they meet: the encoder's
    delay and what fills its last block, which the packets' ``padding`` counts (some 30 ms at
    44.1 kHz, 60 at 22.05). An Ogg decoder sees a chained file.
    """

    def __init__(self, make: Callable[[], AudioEncoder]) -> None:
        self._make, self._encoder = make, make()
        self._is_empty = True

    @property
    def delay_samples(self) -> int:
        """See AudioEncoder."""
        return self._encoder.delay_samples

    @property
    def sample_rate(self) -> int:
        """See AudioEncoder."""
        return self._encoder.sample_rate

    @property
    def inline(self) -> bool:
        """See AudioEncoder."""
        return self._encoder.inline

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder."""
        if not len(samples):
            return []
        self._is_empty = False
        return self._encoder.encode(samples)

    def flush(self) -> list[Packet]:
        """The end of this file; nothing if it has not begun."""
        if self._is_empty:
            return []
        packets = self._encoder.flush()
        self._encoder, self._is_empty = self._make(), True
        return packets
