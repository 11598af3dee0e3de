"""The sandboxed child that decodes one clip: ``python -I clip_sandbox.py RATE ...``.

Clips are untrusted, and audio parsers have had all kinds of vulnerabilities. The clip is therefore
decoded in a process without files, network or children, and with limited time. It reads the clip
from standard input, and writes a line of JSON and then float32 samples to standard output. It
imports nothing of this project, and imports its libraries before it drops its privileges.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import av
import av.container
import numpy as np
import numpy.typing as npt
import soxr

Floats = npt.NDArray[np.float32]

_CPU_S, _WALL_S = 10, 20
_MEMORY_BYTES = 512 << 20
_NOBODY = 65534
_RATES = range(8000, 192_001)
_MOST_CHANNELS = 8
#: Standard deviation below which a clip counts as silence: -60 dB.
_SILENCE = 1e-3
#: Share of the loudest channel's level below which a mix of channels has cancelled out.
_CANCELLED = 0.25
#: Samples by which an MP3 that does not tell its padding is longer than what was encoded: the
#: encoder's delay, and the rest of the last frame.
_MP3_PADDING = 1105 + 1152
#: First bytes of tags, which may lie between MP3 files that were joined.
_TAGS = (b"ID3", b"APETAGEX", b"TAG")
#: A WAV's extensible format, with the bits of a sample and how many of them are valid. libav takes
#: the latter for the size of a sample.
_EXTENSIBLE = re.compile(rb"fmt .{4}\xfe\xff.{12}(..)..(..)", re.DOTALL)
#: The allowed demuxers and decoders; libav has hundreds more.
_PCM = ("u8", "s16le", "s24le", "s32le", "f32le", "f64le", "alaw", "mulaw")
_CODECS = {
    "wav": frozenset(f"pcm_{layout}" for layout in _PCM),
    "flac": frozenset(("flac",)),
    "mp3": frozenset(("mp3", "mp3float")),
    "ogg": frozenset(("vorbis", "opus", "libopus", "libvorbis", "flac")),
}


class Refused(Exception):
    """The clip cannot be used; the argument is one of ``clip_reader.REFUSALS``."""


class Wanted(NamedTuple):
    """The target of a clip, and its limits."""

    rate: int
    max_bytes: int
    min_s: float
    max_s: float


def main(arguments: list[str]) -> None:
    """Read a clip, decode it and write the answer."""
    wanted = Wanted(int(arguments[0]), int(arguments[1]), float(arguments[2]), float(arguments[3]))
    load_everything()
    give_up_rights()
    try:
        samples, kind = read_clip(sys.stdin.buffer.read(wanted.max_bytes + 1), wanted)
    except Refused as refusal:
        _answer({"refused": str(refusal)}, b"")
    except MemoryError:
        _answer({"refused": "too_large"}, b"")
    else:
        _answer({"format": kind, "samples": len(samples)}, samples.astype("<f4").tobytes())


def load_everything() -> None:
    """Decode a good and a damaged clip of our own, so that the libraries import everything that
    they load lazily. Later they could not open files.
    """
    samples = b"".join(struct.pack("<h", 99 * (n % 200)) for n in range(800))
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16,
                       1, 1, 8000, 16000, 2, 16, b"data", len(samples))  # fmt: skip
    for data in (head + samples, b"fLaC" + bytes(99)):
        with contextlib.suppress(Refused):
            read_clip(data, Wanted(24_000, 1 << 20, 0.01, 1.0))


def give_up_rights() -> None:
    """Drop privileges: no new files, sockets or children, and little time and memory."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
    with contextlib.suppress(OSError, AttributeError):  # after setuid, which would reset the first
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    signal.alarm(_WALL_S)
    limits = {
        resource.RLIMIT_CPU: _CPU_S,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 0,  # the three open files stay; sockets count as files
    }
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:  # missing in some kernels
        in_use = int(file.read().split()[0]) * resource.getpagesize()
        limits[resource.RLIMIT_AS] = in_use + _MEMORY_BYTES
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))


def read_clip(data: bytes, wanted: Wanted) -> tuple[Floats, str]:
    """Decode to samples at ``wanted.rate``; also return the format. Raises Refused, MemoryError."""
    if len(data) > wanted.max_bytes:
        raise Refused("too_large")
    kind = _kind(data)
    rate = samples = 0
    parts: list[Floats] = []  # [channels, samples], at the clip's own rate
    try:
        for frame in _frames(data, kind):
            rate, samples = rate or frame.sample_rate, samples + frame.samples
            channels = len(frame.layout.channels)
            if rate not in _RATES or frame.sample_rate != rate:
                raise Refused("bad_rate")
            if not 1 <= channels <= _MOST_CHANNELS:
                raise Refused("too_many_channels")
            if samples > wanted.max_s * rate + (kind == "mp3") * _MP3_PADDING:
                raise Refused("too_long")
            values = frame.to_ndarray()
            if not frame.format.is_planar:
                values = values.reshape(-1, channels).T
            parts.append(_as_float(values))
            if not np.isfinite(parts[-1]).all():
                raise Refused("not_finite")
    except (Refused, MemoryError):
        raise
    except Exception as error:  # libraries may raise anything for invalid data
        raise Refused("damaged") from error
    if not parts:
        raise Refused("no_audio")
    mono = _mono(parts)[: int(wanted.max_s * rate)]
    if len(mono) < wanted.min_s * rate:
        raise Refused("too_short")
    mono /= max(1.0, float(np.abs(mono).max()))  # floats and lossy formats may exceed 1
    if mono.std(dtype=np.float64) < _SILENCE:  # a constant offset is not heard
        raise Refused("silent")
    if rate != wanted.rate:
        mono = soxr.resample(mono, rate, wanted.rate, quality="HQ").clip(-1.0, 1.0)
    return mono.astype(np.float32), kind


def _mono(parts: list[Floats]) -> Floats:
    """Mix the channels; where they cancel out, as with one inverted, return the loudest."""
    mixed = np.concatenate([part.mean(axis=0, dtype=np.float32) for part in parts])
    count = max(map(len, parts))  # joined files may differ
    if count > 1:
        each = (np.concatenate([part[at % len(part)] for part in parts]) for at in range(count))
        loudest = max(each, key=np.std)
        if mixed.std() < _CANCELLED * loudest.std():
            return loudest
    return mixed


def _kind(data: bytes) -> str:
    """Detect the container by its first bytes, whatever the client calls it."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"OggS":
        return "ogg"
    behind = _behind_tags(data)
    if behind[:4] == b"fLaC":
        return "flac"
    is_mpeg = len(behind) == 4 and behind[0] == 0xFF and behind[1] & 0xE0 == 0xE0
    if is_mpeg and not behind[1] & 0x06:  # AAC in ADTS has no layer
        raise Refused("unknown_format")
    if is_mpeg or data[:3] == b"ID3":
        return "mp3"
    raise Refused("unknown_format")


def _behind_tags(data: bytes) -> bytes:
    """Return the first four bytes after any ID3v2 tags and zeros, or as many as there are."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(head := data[at : at + 10]) == 10:
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + (10 if head[5] & 0x10 else 0)  # a footer is as long as the header
    return data[at:].lstrip(b"\0")[:4]


def _frames(data: bytes, kind: str) -> Iterator[av.AudioFrame]:
    """Yield decoded frames. Damage at the very end, as in a cut recording, is ignored."""
    if kind == "wav" and (bits := _EXTENSIBLE.search(data, 0, 1 << 16)):
        data = data[: bits.start(2)] + bits[1] + data[bits.end(2) :]
    with av.open(io.BytesIO(data), format=kind, metadata_errors="ignore") as container:
        streams = container.streams.audio
        if not streams or streams[0].codec_context.name not in _CODECS[kind]:
            raise Refused("no_audio")
        stream = streams[0]
        stream.codec_context.thread_count = 1
        is_damaged = False
        assert isinstance(container, av.container.InputContainer)
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.FFmpegError:
                is_damaged |= not (kind == "mp3" and bytes(packet).startswith(_TAGS))
                continue
            if frames and is_damaged:
                raise Refused("damaged")
            yield from frames


def _as_float(values: npt.NDArray[Any]) -> Floats:
    """Convert samples of any format to floats of about -1 to 1; NaN stays NaN."""
    kind = values.dtype
    if kind.kind == "f":
        return values.clip(-4.0, 4.0).astype(np.float32)
    middle, scale = (128, 128) if kind == np.uint8 else (0, 1 << (8 * kind.itemsize - 1))
    return ((values.astype(np.float32) - middle) / scale).astype(np.float32)


def _answer(head: dict[str, object], body: bytes) -> None:
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + body)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    av.logging.set_level(None)
    main(sys.argv[1:])
