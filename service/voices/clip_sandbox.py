"""The sandboxed child that decodes one clip: ``python -I clip_sandbox.py RATE ...``.

Clips are untrusted, and audio parsers have had all kinds of vulnerabilities. The clip is therefore
decoded in a process without files, network, children or a view of other processes, and with limited
time. It reads the clip from standard input, and writes a line of JSON and then float32 samples to
standard output. Of this project it imports the checks of a clip's head alone. It imports its
libraries before it drops its privileges.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
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

if __package__:
    from service.voices.clip_head import Refused, check_rate, clip_format
else:  # a script has no package, and only this module of the project
    sys.path.append(os.path.dirname(__file__))
    from clip_head import (  # type: ignore[import-not-found, no-redef]
        Refused,
        check_rate,
        clip_format,
    )

    sys.path.pop()

Floats = npt.NDArray[np.float32]

_CPU_S, _WALL_S = 10, 40
_MEMORY_BYTES = 512 << 20
_NOBODY = 65534
#: The system calls that decoding needs, on x86-64 and on ARM: memory, the open files, time, waiting
#: for threads of the process itself, signals that it gets, and its end.
_CALLS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "mremap": (25, 216), "madvise": (28, 233),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "sched_yield": (24, 124), "futex": (202, 98), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "gettimeofday": (96, 169),
    "getrandom": (318, 278), "getpid": (39, 172), "gettid": (186, 178),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
#: By ``uname``: the column of ``_CALLS``, the audit architecture, and the number of ``seccomp``.
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
_SET_FILTER, _ALL_THREADS = 1, 1
#: Instructions of the filter (linux/bpf_common.h) and what it returns (linux/seccomp.h).
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_KILL_PROCESS, _FAIL, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
#: Standard deviation below which a clip counts as silence: -60 dB.
_SILENCE = 1e-3
#: Share of the loudest channel's level below which a mix of channels has cancelled out.
_CANCELLED = 0.25
#: Samples by which a file that does not tell its padding may be longer than what was encoded: the
#: encoder's delay, and the rest of the last frame. AAC's delay is 2112 samples, or two frames.
_PADDING = {"mp3": 1105 + 1152, "aac": 3 * 1024, "mov": 3 * 1024, "matroska": 3 * 1024}
#: First bytes of tags, which may lie between MP3 files that were joined.
_TAGS = (b"ID3", b"APETAGEX", b"TAG")
#: A WAV's extensible format, with the bits of a sample and how many of them are valid. libav takes
#: the latter for the size of a sample.
_EXTENSIBLE = re.compile(rb"fmt .{4}\xfe\xff.{12}(..)..(..)", re.DOTALL)
#: The allowed demuxers and decoders; libav has hundreds more.
_PCM = ("u8", "s16le", "s24le", "s32le", "f32le", "f64le", "alaw", "mulaw")
_BIG_ENDIAN = ("s8", "s16be", "s24be", "s32be", "f32be", "f64be", "s16le", "alaw", "mulaw")
_CODECS = {
    "wav": frozenset(f"pcm_{layout}" for layout in _PCM),
    "aiff": frozenset(f"pcm_{layout}" for layout in _BIG_ENDIAN),
    "aac": frozenset(("aac",)),
    "mov": frozenset(("aac", "alac", "mp3", "mp3float", "opus", "libopus", "flac", "pcm_s16le")),
    "matroska": frozenset(
        ("opus", "libopus", "vorbis", "libvorbis", "aac", "flac", "mp3", "mp3float", "pcm_s16le")
    ),
    "flac": frozenset(("flac",)),
    "mp3": frozenset(("mp3", "mp3float")),
    "ogg": frozenset(("vorbis", "opus", "libopus", "libvorbis", "flac")),
}


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
    answer: dict[str, object] = {"filtered": filter_system_calls()}
    samples = np.empty(0, np.float32)
    try:
        samples, answer["format"] = read_clip(sys.stdin.buffer.read(wanted.max_bytes + 1), wanted)
        answer["samples"] = len(samples)
    except Refused as refusal:
        answer["refused"] = str(refusal)
    except MemoryError:
        answer["refused"] = "too_large"
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + samples.astype("<f4").tobytes())
    sys.stdout.buffer.flush()


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


def filter_system_calls() -> bool:
    """Refuse all system calls but ``_CALLS`` to all threads of this process, for good.

    A list of refused calls would have to name each way to reach another process (signals, limits,
    affinity, memory, descriptors, shared memory), and those of future kernels. Calls that are not
    allowed fail like calls without permission, so that a library which tries one goes on without.

    Returns:
        False if the kernel or the processor has no such filter.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        return False
    column, architecture, seccomp = _MACHINES[machine]
    numbers = [numbers[column] for numbers in _CALLS.values()]
    program = [
        (_LOAD, 0, 0, 4),  # the architecture, since numbers differ between them
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),  # the call's number
        *((_JUMP_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    head = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
    try:
        call = ctypes.CDLL(None).syscall
        call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 3 + [ctypes.c_void_p]
        return bool(call(seccomp, _SET_FILTER, _ALL_THREADS, ctypes.addressof(head)) == 0)
    except (OSError, AttributeError):
        return False


def read_clip(data: bytes, wanted: Wanted) -> tuple[Floats, str]:
    """Decode to samples at ``wanted.rate``; also return the format. Raises Refused, MemoryError."""
    if len(data) > wanted.max_bytes:
        raise Refused("too_large")
    kind = clip_format(data, wanted.max_s)
    rate = samples = 0
    parts: list[Floats] = []  # [channels, samples], at the clip's own rate
    try:
        for frame in _frames(data, kind):
            rate, samples = rate or frame.sample_rate, samples + frame.samples
            channels = len(frame.layout.channels)
            if frame.sample_rate != rate:
                raise Refused("bad_rate")
            check_rate(rate, channels)
            if samples > wanted.max_s * rate + _PADDING.get(kind, 0):
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


if __name__ == "__main__":
    av.logging.set_level(None)
    main(sys.argv[1:])
