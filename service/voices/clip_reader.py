"""Decoding of clients' clips, each in a sandboxed child process, a few at a time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ipc.exit_status import describe_exit
from service.admission import Admission
from service.auth.caller import current_caller
from service.voices.clip_head import Refused, clip_format
from streaming.errors import CapacityError, ErrorCode, RequestError, internal_error
from streaming.protocol.field_errors import unsupported
from streaming.spec import Samples

log = logging.getLogger(__name__)
_CHILD = Path(__file__).with_name("clip_sandbox.py")
_WALL_S = 30.0
#: The child's priority: a third of the engines' share of a processor. With much less, a clip would
#: not be decoded in time on a machine whose engines are always busy.
_NICE = 5
#: A client's share of the clips that are read or wait.
_SHARE = 0.5
_RETRY_AFTER_MS = 2000
_HEAD_BYTES = 256
#: Characters in the shortest usual line of base64, each of which may end with two more.
_LEAST_LINE = 30
_OF_URLS = str.maketrans("-_", "+/")
#: The child's only environment variables: those that Python and its libraries may need to load, and
#: one that keeps numpy from starting threads.
_KEPT = ("LD_LIBRARY_PATH", "PYTHONHOME")
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
#: Messages to clients about clips that cannot be used.
REFUSALS = {
    "too_large": "The clip is too large: it may have 10 MiB at most.",
    "unknown_format": "The clip must be WAV, AIFF, FLAC, MP3, AAC, M4A, Ogg, WebM or Matroska.",
    "no_audio": "The clip holds no audio that can be read here.",
    "damaged": "The clip is damaged.",
    "too_short": "The clip is too short: it must have 1 second at least.",
    "too_long": "The clip is too long: it may have 30 seconds at most.",
    "silent": "There is nothing to be heard in the clip.",
    "not_finite": "The clip holds samples that are no numbers.",
    "bad_rate": "The clip's sample rate must be one, and within 8 to 192 kHz.",
    "too_many_channels": "The clip has too many channels: it may have 8 at most, "
    "and 384,000 samples a second in all of them.",
}


class ClipLimits(NamedTuple):
    """Limits of a clip."""

    max_bytes: int = 10 << 20
    min_s: float = 1.0
    max_s: float = 30.0


class ClipReader:
    """Decodes clips to mono samples at ``rate``, ``at_once`` at a time; ``waiting`` may wait. A
    client may have half of them.
    """

    def __init__(
        self,
        rate: int,
        limits: ClipLimits | None = None,
        *,
        at_once: int = 2,
        waiting: int = 14,
        wall_s: float = _WALL_S,
    ) -> None:
        self.limits = limits or ClipLimits()
        self._rate, self._wall_s = rate, wall_s
        self._slots = asyncio.Semaphore(at_once)
        self._places = Admission(at_once + waiting, max_share=_SHARE)
        self._is_filtered = True

    async def read(self, data: bytes) -> Samples:
        """Decode a clip to samples ``[n]``. Raises RequestError (``invalid_audio``), CapacityError,
        BackendError. Cancelling the call kills the child.
        """
        if len(data) > self.limits.max_bytes:
            raise _refusal("too_large")
        try:
            clip_format(data, self.limits.max_s)  # the child looks again
        except Refused as refused:
            raise _refusal(refused) from None
        with self._places.acquire(current_caller()):
            async with self._slots:
                return await self._read(data)

    async def _read(self, data: bytes) -> Samples:
        arguments = map(str, (self._rate, *self.limits))
        try:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-B", str(_CHILD), *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_ENVIRONMENT | {k: v for k in _KEPT if (v := os.environ.get(k))},
                start_new_session=True,
            )
        except OSError as error:  # count_error logs it with the request's id
            raise internal_error() from error
        _lower_priority(child.pid)
        feeding = asyncio.create_task(_feed(child, data))
        try:
            async with asyncio.timeout(self._wall_s):
                answer = await self._listen(child)
                await child.wait()
        except TimeoutError:
            # the child's processor time is limited to less: it was the machine that was too busy
            log.warning("reading a clip took too long")
            raise _busy("Reading the clip took too long.") from None
        finally:
            feeding.cancel()
            if child.returncode is None:
                await asyncio.shield(_end(child))
        if child.returncode:
            log.warning("a clip's reader ended: %s", describe_exit(child.returncode))
            raise _refusal("damaged")
        return self._samples(answer)

    async def _listen(self, child: asyncio.subprocess.Process) -> bytes:
        """Read all output of the child, limited to that of the longest clip."""
        assert child.stdout is not None
        most = _HEAD_BYTES + 4 * int(self._rate * (self.limits.max_s + 1))
        said = bytearray()
        while piece := await child.stdout.read(1 << 16):
            said += piece
            if len(said) > most:
                raise _refusal("too_long")
        return bytes(said)

    def _samples(self, answer: bytes) -> Samples:
        head, _, body = answer.partition(b"\n")
        try:
            told = json.loads(head)
            if not told.get("filtered") and self._is_filtered:
                self._is_filtered = False
                log.warning("clips are decoded unfiltered: the kernel filters no system calls")
            if reason := told.get("refused"):
                raise _refusal(reason)
            samples = np.frombuffer(body, "<f4").astype(np.float32)
            if len(samples) != told["samples"] or not np.isfinite(samples).all():
                raise ValueError
        except (ValueError, KeyError, AttributeError, TypeError):
            log.warning("the answer of a child that read a clip makes no sense")
            raise _refusal("damaged") from None
        return samples


def _lower_priority(pid: int) -> None:
    """Let the engines run first. Where the kernel shares processors among sessions, as it may
    outside of containers, the child's session needs the lower priority too.
    """
    with contextlib.suppress(OSError):
        nice = os.getpriority(os.PRIO_PROCESS, pid) + _NICE  # the kernel takes 19 for more
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICE))


def _busy(message: str) -> CapacityError:
    return CapacityError(ErrorCode.OVERLOADED, message, retry_after_ms=_RETRY_AFTER_MS)


def decode_base64(text: str, max_bytes: int, param: str) -> bytes:
    """Decode a clip from base64, plain or as a ``data:`` URL. Line breaks, URLs' own alphabet and
    missing padding are accepted. Raises RequestError, also for other URLs, since the server fetches
    nothing.
    """
    scheme = text[:16].lower().lstrip()
    if scheme.startswith("data:"):
        _, comma, text = text.partition(",")
        if not comma:
            message = "The data address has no data."
            raise RequestError(ErrorCode.INVALID_AUDIO, message, param=param)
    elif "://" in scheme or scheme.startswith("file:"):
        message = "This server fetches no clips from addresses; send the clip itself in base64."
        raise unsupported(param, message)
    longest = 4 * (max_bytes + 3) // 3 + 4
    if len(text) > longest + longest // _LEAST_LINE:
        raise _refusal("too_large", param)
    text = "".join(text.split()).translate(_OF_URLS).rstrip("=")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        message = "The clip is not valid base64."
        raise RequestError(ErrorCode.INVALID_AUDIO, message, param=param) from error
    if len(data) > max_bytes:
        raise _refusal("too_large", param)
    return data


async def _feed(child: asyncio.subprocess.Process, data: bytes) -> None:
    """Write the clip to the child, which may end before it has read all of it, or any."""
    assert child.stdin is not None
    with contextlib.suppress(ConnectionError, RuntimeError):  # uvloop's for a closed pipe
        child.stdin.write(data)
        await child.stdin.drain()
    child.stdin.close()


async def _end(child: asyncio.subprocess.Process) -> None:
    """Kill the child and wait for it. Its output is read, since asyncio waits for the pipe's end,
    which it does not see while too much is unread.
    """
    assert child.stdout is not None
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    while await child.stdout.read(1 << 16):
        pass
    await child.wait()


def _refusal(reason: object, param: str | None = None) -> RequestError:
    message = REFUSALS.get(str(reason), REFUSALS["damaged"])
    return RequestError(ErrorCode.INVALID_AUDIO, message, param=param)
