"""Raw Opus packets, one per binary message."""

from __future__ import annotations

import numpy as np

from service.audio.opus_frames import OpusFrames
from service.audio.packet import Packet
from streaming.spec import Samples

OPUS_FRAME_MS = (10, 20, 40, 60)
DEFAULT_FRAME_MS = 20


class OpusEncoder:
    """Packets of ``frame_samples``; an utterance's last one is filled up with silence.

    The encoder is never reset, so that a decoder need not be. Its delay is the ``padding`` at
    the front of each utterance, the silence that it is filled up with at the end::

        decoded   |delay|  the utterance's samples  |silence|delay|  the next one's ...
        packets   |      |      |      |      |      |     |      |
    """

    inline = False

    def __init__(self, frames: OpusFrames, sample_rate: int, frame_samples: int) -> None:
        self._frames, self.sample_rate, self._frame = frames, sample_rate, frame_samples
        self.delay_samples = frames.delay_samples
        self._held = np.empty(0, np.float32)
        self._taken = self._made = 0

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder."""
        self._taken += len(samples)
        self._held = np.concatenate([self._held, np.clip(samples, -1.0, 1.0)])
        full = len(self._held) - len(self._held) % self._frame
        frames, self._held = self._held[:full].reshape(-1, self._frame), self._held[full:]
        return [self._pack(frame) for frame in frames]

    def flush(self) -> list[Packet]:
        """The rest of the utterance, with what the encoder's delay holds back."""
        if not self._taken:
            return []
        missing = self._taken + self.delay_samples - self._made
        silence = np.zeros(-(-missing // self._frame) * self._frame - len(self._held), np.float32)
        filled = np.concatenate([self._held, silence]).reshape(-1, self._frame)
        packets = [self._pack(frame, is_rest=True) for frame in filled]
        self._held, self._taken, self._made = self._held[:0], 0, 0
        return packets

    def _pack(self, frame: Samples, *, is_rest: bool = False) -> Packet:
        delay, start = self.delay_samples, self._made
        self._made += self._frame
        audio_end = min(self._made, self._taken + delay) if is_rest else self._made
        audio = max(0, audio_end - max(start, delay))
        return Packet(self._frames.encode(frame), self._frame, self._frame - audio)
