"""Streaming encoders of compressed files: FLAC, MP3, Ogg Opus, AAC in ADTS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import av
from av.audio.stream import AudioStream

from service.audio.encoder import AudioEncoder, Packet, audio_frame
from service.audio.opus import OPUS_BIT_RATE, OPUS_RATES
from service.audio.pcm import tell_wav_length, to_s16
from streaming.spec import Samples

#: MP3's bit rates in kbit/s by minimum sample rate, for MPEG-1, MPEG-2 and MPEG-2.5.
_MP3_STEPS = {
    32_000: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    16_000: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    0: (8, 16, 24, 32, 40, 48, 56, 64),
}

Choice = range | tuple[int, ...]


def mp3_bit_rates(sample_rate: int) -> Choice:
    """Return all bit rates of MP3 at this sample rate."""
    steps = next(steps for least, steps in _MP3_STEPS.items() if sample_rate >= least)
    return tuple(1000 * step for step in steps)


def opus_bit_rates(sample_rate: int) -> Choice:
    """Return Opus' bit rates, from narrowband speech to libopus' maximum for one channel."""
    return range(6_000, 256_001)


def aac_bit_rates(sample_rate: int) -> Choice:
    """Return AAC's bit rates; a frame has room for six bits per sample."""
    return range(8_000, 6 * sample_rate + 1)


def describe_choice(choice: Choice) -> str:
    """Describe a choice for a message."""
    if isinstance(choice, range):
        return f"from {choice.start} to {choice[-1]}"
    return ", ".join(map(str, choice))


#: Sample rates in Hz of formats without their own list.
SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_WIDE = 32_000


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format for ffmpeg's libraries, with options for low latency."""

    muxer: str
    codec: str
    sample_format: str
    rates: tuple[int, ...] = SAMPLE_RATES
    #: Samples of a decoder before the audio, if the file does not tell it to drop them.
    delay_samples: int = 0
    #: Default bits per second below and from 32 kHz; 0 if the codec is lossless.
    bit_rates: tuple[int, int] = (0, 0)
    muxer_options: dict[str, str] = field(default_factory=dict)
    codec_options: dict[str, str] = field(default_factory=dict)


FLAC = FileFormat(
    "flac",
    "flac",
    "s16",
    # No padding for later tags. Level 2 has blocks of 24 ms, level 5 of 96 ms.
    muxer_options={"metadata_header_padding": "0"},
    codec_options={"compression_level": "2"},
)
MP3 = FileFormat(
    "mp3",
    "libmp3lame",
    "fltp",
    delay_samples=1105,
    bit_rates=(64_000, 128_000),
    # No tag before the first frame, since its length field is not known yet.
    muxer_options={"id3v2_version": "0", "write_xing": "0"},
    codec_options={"reservoir": "0"},
)
OGG_OPUS = FileFormat(
    "ogg",
    "libopus",
    "flt",
    OPUS_RATES,
    bit_rates=(OPUS_BIT_RATE, OPUS_BIT_RATE),
    # Microseconds: one packet per page, instead of a second as usual.
    muxer_options={"page_duration": "20000"},
    codec_options={"frame_duration": "20"},
)
AAC = FileFormat("adts", "aac", "fltp", delay_samples=1024, bit_rates=(64_000, 96_000))


class _Written(bytearray):
    """A write-only file in memory that cannot seek."""

    def write(self, data: bytes) -> int:
        self.extend(data)
        return len(data)


class FileEncoder:
    """One file: its header comes with the first packet, its end from ``flush``.

    If the file does not tell decoders to drop the format's delay and the fill of its last block,
    these are the packets' ``padding``::

        decoded   |delay|  the samples  |fill|
        packets   |        |        |        |
    """

    inline = False

    def __init__(self, format_: FileFormat, sample_rate: int, bit_rate: int | None = None) -> None:
        self._format, self.sample_rate = format_, sample_rate
        self._bit_rate = bit_rate or format_.bit_rates[sample_rate >= _WIDE]
        self.delay_samples = format_.delay_samples
        self._written = _Written()
        self._container: av.container.OutputContainer | None = None
        self._taken = self._made = 0
        self._told_made = self._told_audio = 0
        self._is_over = False

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder. Raises ValueError after ``flush``."""
        if self._is_over:
            raise ValueError("the file has ended")
        if not len(samples):
            return []
        sample_format = self._format.sample_format
        packed = to_s16(samples) if sample_format == "s16" else samples.clip(-1.0, 1.0)
        self._mux(audio_frame(packed, self.sample_rate, self._taken, sample_format))
        self._taken += len(samples)
        return self._packets()

    def end_utterance(self) -> list[Packet]:
        """See AudioEncoder."""
        return []

    def flush(self) -> list[Packet]:
        """Return the file's end, or an empty file if there was no audio."""
        if self._is_over:
            return []
        self._is_over = True
        if self._taken:
            self._mux(None)
        self._opened().close()
        return self._packets()

    def __del__(self) -> None:
        """Free an unfinished file. Its container and stream refer to each other, so that they would
        keep the codec's memory until the garbage collector runs.
        """
        if self._container is not None:
            with contextlib.suppress(av.FFmpegError):
                self._container.close()

    def _mux(self, frame: av.AudioFrame | None) -> None:
        """Write a frame or, with None, the samples that the codec holds back."""
        container = self._opened()
        stream = container.streams.audio[0]
        blocks = stream.encode(frame)
        self._made += len(blocks) * (stream.codec_context.frame_size or 0)
        container.mux(blocks)

    def _opened(self) -> av.container.OutputContainer:
        """Return the container, opened at first use, which is too slow for the event loop."""
        if self._container is None:
            self._container = av.open(
                self._written,
                "w",
                format=self._format.muxer,
                container_options={"flush_packets": "1", **self._format.muxer_options},
            )
            options = dict(self._format.codec_options)
            stream = self._container.add_stream(self._format.codec, self.sample_rate, options)
            stream = cast(AudioStream, stream)
            stream.layout, stream.format = "mono", self._format.sample_format
            stream.codec_context.thread_count = 1
            if self._bit_rate:
                stream.bit_rate = self._bit_rate
            self._container.start_encoding()
        return self._container

    def _packets(self) -> list[Packet]:
        """Return the new bytes, with the samples that they decode to, including a delay if any."""
        data = bytes(self._written)
        self._written.clear()
        if not data:
            return []
        delay = self._format.delay_samples
        made = self._made if delay else self._taken
        audio = min(self._taken, max(0, made - delay))
        samples, spoken = made - self._told_made, audio - self._told_audio
        self._told_made, self._told_audio = made, audio
        return [Packet(data, samples, samples - spoken)]


class RestartingEncoder:
    """A sequence of files, a new one after each ``flush``.

    An MP3 decoder plays them as one stream with short silences in between: the encoder's delay
    and the fill of its last block, counted as the packets' ``padding`` (some 30 ms at 44.1 kHz,
    60 ms at 22.05 kHz). An Ogg decoder sees a chained file.
    """

    def __init__(self, make: Callable[[], AudioEncoder]) -> None:
        encoder = make()
        self._make, self._encoder, self.inline = make, encoder, encoder.inline
        self.sample_rate, self.delay_samples = encoder.sample_rate, encoder.delay_samples
        self._is_empty = True

    def encode(self, samples: Samples) -> list[Packet]:
        """See AudioEncoder."""
        if not len(samples):
            return []
        self._is_empty = False
        return self._encoder.encode(samples)

    def end_utterance(self) -> list[Packet]:
        """See AudioEncoder."""
        return self._encoder.end_utterance()

    def flush(self) -> list[Packet]:
        """Return the end of this file; nothing if it has not begun."""
        if self._is_empty:
            return []
        packets = self._encoder.flush()
        self._encoder, self._is_empty = self._make(), True
        return packets


#: Offset in a FLAC file, after the magic, the first block's header and its sizes. The number of
#: samples is the last 36 bits of the eight bytes there.
_FLAC_COUNT_AT, _FLAC_COUNT_BYTES, _FLAC_COUNT_BITS = 18, 8, 36


def tell_length(name: str, file: bytearray, samples: int) -> None:
    """Write the length into ``file``, the complete output of the encoder ``name`` of ``formats.py``
    for ``samples`` samples at its output's rate. Only WAV and FLAC have a length.
    """
    if name == "wav":
        tell_wav_length(file, len(file))
    elif name == "flac":
        place = slice(_FLAC_COUNT_AT, _FLAC_COUNT_AT + _FLAC_COUNT_BYTES)
        other = int.from_bytes(file[place], "big") >> _FLAC_COUNT_BITS << _FLAC_COUNT_BITS
        file[place] = (other | samples).to_bytes(_FLAC_COUNT_BYTES, "big")
