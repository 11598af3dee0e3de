"""The bit rates, in bits per second, that lossy formats can be asked for."""

from __future__ import annotations

#: MP3 has fixed steps for each of its generations: MPEG-1, MPEG-2 and MPEG-2.5.
_MP3_1 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_25 = (8, 16, 24, 32, 40, 48, 56, 64)
_MPEG_1_FROM, _MPEG_2_FROM = 32_000, 16_000
#: libopus takes no more than this for one channel.
_OPUS = range(6_000, 256_001)
_AAC_LEAST, _AAC_BITS_PER_SAMPLE = 8_000, 6

Choice = range | tuple[int, ...]


def mp3_bit_rates(sample_rate: int) -> Choice:
    """All that MP3 has at this sample rate."""
    steps: tuple[int, ...]
    if sample_rate >= _MPEG_1_FROM:
        steps = _MP3_1
    else:
        steps = _MP3_2 if sample_rate >= _MPEG_2_FROM else _MP3_25
    return tuple(1000 * step for step in steps)


def opus_bit_rates(sample_rate: int) -> Choice:
    """From narrowband speech to as much as libopus can use."""
    return _OPUS


def aac_bit_rates(sample_rate: int) -> Choice:
    """AAC's frames have room for six bits per sample."""
    return range(_AAC_LEAST, _AAC_BITS_PER_SAMPLE * sample_rate + 1)


def worded(choice: Choice) -> str:
    """For a message: a list, or a range."""
    if isinstance(choice, range):
        return f"from {choice.start} to {choice[-1]}"
    return ", ".join(map(str, choice))
