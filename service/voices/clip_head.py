"""Checks of a clip's head that need no decoder.

The head of most unusable files says so: other formats, codecs, rates and lengths. Reading it costs
microseconds, a child process that decodes a clip a fifth of a second. Only the first bytes are
read, and whatever they leave open is left to the decoder.
"""

from __future__ import annotations

import re
import struct

#: Accepted sample rates, channels, and samples a second in all channels together.
RATES = range(8000, 192_001)
MAX_CHANNELS = 8
MAX_SAMPLES_PER_S = 384_000
#: How many ID3v2 tags and chunks are skipped, and how many zeros may precede MPEG audio.
_MAX_TAGS, _MAX_CHUNKS, _MAX_ZEROS = 16, 64, 1 << 16
_ZEROS = re.compile(rb"\0{0,%d}+" % _MAX_ZEROS)
#: WAV's codecs: integers, floats, A-law, mu-law, and a format whose codec is named later.
_WAV_CODECS = (1, 3, 6, 7, 0xFFFE)
#: Bytes of the block that begins a FLAC stream, and the bits of its number of samples.
_STREAM_INFO, _TOTAL_BITS = 34, 36
#: The first bytes of Ogg's packets by codec, and the format of the channels and, except for Opus,
#: whose rate is always 48 kHz, the rate after them.
_OGG_HEADS = {b"OpusHead\1": "<B", b"\1vorbis\0\0\0\0": "<BI"}
#: Demuxers of files that describe themselves inside, and what these have at an offset: MP4 (M4A),
#: which phones record, Matroska and WebM, which browsers do, and AIFF.
_CONTAINERS = (
    ("mov", 4, b"ftyp"),
    ("matroska", 0, b"\x1a\x45\xdf\xa3"),
    ("aiff", 8, b"AIFF"),
    ("aiff", 8, b"AIFC"),
)
#: The second byte of AAC in ADTS, which differs from other MPEG audio by its layer of 0 alone.
_ADTS = (b"\xf0", b"\xf1", b"\xf8", b"\xf9")


class Refused(Exception):
    """The clip cannot be used; the argument is one of ``clip_reader.REFUSALS``."""


def clip_format(data: bytes, max_s: float) -> str:
    """Return the demuxer for a clip: ``wav``, ``flac``, ``mp3``, ``ogg``, ``aac`` or one of
    ``_CONTAINERS``. Raises Refused if its first bytes show that it is something else, damaged, or
    longer than ``max_s`` seconds.
    """
    for demuxer, at, sign in _CONTAINERS:
        if data.startswith(sign, at):
            return demuxer
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        _check_wav(data, max_s)
        return "wav"
    if data[:4] == b"OggS":
        _check_ogg(data)
        return "ogg"
    at = _behind_tags(data)
    if data[at : at + 4] == b"fLaC":
        _check_flac(data[at + 4 : at + 8 + _STREAM_INFO], max_s)
        return "flac"
    if data[at : at + 1] == b"\xff":
        if data[at + 1 : at + 2] in _ADTS:
            return "aac"
        _check_mpeg(data[at : at + 4])
    elif data[:3] != b"ID3":
        raise Refused("unknown_format")
    return "mp3"


def check_rate(rate: int, channels: int) -> None:
    """Raise Refused unless a clip of ``channels`` at ``rate`` samples a second is accepted."""
    if rate not in RATES:
        raise Refused("bad_rate")
    if not 1 <= channels <= MAX_CHANNELS or rate * channels > MAX_SAMPLES_PER_S:
        raise Refused("too_many_channels")


def _check_wav(data: bytes, max_s: float) -> None:
    at, frame_bytes, rate = 12, 0, 0
    for _ in range(_MAX_CHUNKS):
        if len(data) < at + 8:
            break
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"data" and frame_bytes:
            held = len(data) - at - 8  # a size of 0 or 4 GiB is that of a recording still written
            if min(size or held, held) > max_s * rate * frame_bytes:
                raise Refused("too_long")
            return
        if name == b"fmt ":
            if len(data) < at + 24:
                break
            fields = struct.unpack_from("<HHIIHH", data, at + 8)
            codec, channels, rate, _, frame_bytes, bits = fields
            if codec not in _WAV_CODECS:
                raise Refused("no_audio")
            check_rate(rate, channels)
            frame_bytes = max(1, frame_bytes, channels * bits // 8)
        at += 8 + size + size % 2
    if not frame_bytes and len(data) < at + 24:
        raise Refused("damaged")


def _check_flac(head: bytes, max_s: float) -> None:
    if len(head) < 4 + _STREAM_INFO or head[0] & 0x7F or head[1:4] != b"\0\0\x22":
        raise Refused("damaged")
    packed = int.from_bytes(head[14:22], "big")  # 20 bits of rate, 3 of channels, 5 of a sample's
    rate = packed >> 44
    check_rate(rate, (packed >> 41 & 7) + 1)
    if packed % (1 << _TOTAL_BITS) > max_s * rate:
        raise Refused("too_long")


def _check_ogg(data: bytes) -> None:
    if len(data) < 28 or data[4] or not data[5] & 2:  # the version, the flag of a first page
        raise Refused("damaged")
    packet = data[27 + data[26] :][:64]
    for name, fields in _OGG_HEADS.items():
        if packet.startswith(name) and len(packet) >= len(name) + struct.calcsize(fields):
            channels, rate = (*struct.unpack_from(fields, packet, len(name)), 48_000)[:2]
            check_rate(rate, channels)


def _check_mpeg(head: bytes) -> None:
    """Check the head of an MPEG frame."""
    if len(head) < 4 or head[1] < 0xE0 or not head[1] & 0x06:
        raise Refused("unknown_format")
    if head[1] & 0x18 == 0x08 or head[2] >= 0xF0 or head[2] & 0x0C == 0x0C:
        raise Refused("damaged")  # a reserved version, bit rate or sample rate


def _behind_tags(data: bytes) -> int:
    """Return the position behind any ID3v2 tags and zeros."""
    at = 0
    for _ in range(_MAX_TAGS):
        head = data[at : at + 10]
        if head[:3] != b"ID3" or len(head) < 10:
            break
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + (10 if head[5] & 0x10 else 0)  # a footer is as long as the header
    zeros = _ZEROS.match(data, at)
    return zeros.end() if zeros else at
