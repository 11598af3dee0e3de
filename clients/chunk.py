"""A chunk of audio, as it came."""

from __future__ import annotations

from typing import NamedTuple

from clients import opus
from streaming.spec import Encoding
from streaming.wire_format import AudioHeader


class AudioChunk(NamedTuple):
    """One binary frame, in the encoding that was asked for (``pcm`` is its usual case).

    ``arrived_s`` is its arrival on ``time.monotonic()``'s clock; ``samples`` is what it decodes
    to, at the rate of the audio.
    """

    pcm: bytes
    header: AudioHeader
    arrived_s: float
    samples: int


def count_samples(data: bytes, encoding: Encoding, sample_rate: int | None) -> tuple[int, int]:
    """How many samples ``data`` decodes to, and how many bytes are left over.

    Raises ValueError if it is no packet, or has no rate yet and needs one.
    """
    if sample_bytes := encoding.sample_bytes:
        return divmod(len(data), sample_bytes)
    if sample_rate is None:
        raise ValueError("audio before audio.started")
    return int(opus.packet_ms(data) * sample_rate / 1000), 0
