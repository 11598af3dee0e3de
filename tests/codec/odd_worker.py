"""A codec worker with a ``FakeDecoder`` that dies, hangs, fails or is slow when it is told to.

The first code of a window is an order, and so is the first sample of a clip. A slow order takes a
moment or, if the environment variable GATE names a file, until that file exists. The file GATE.read
then gets one byte for each message received.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codec.family import ClipError
from loadtest.fakes.codec import FakeCodec, FakeDecoder, run_worker
from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow

SPEC = CodecSpec(24_000, 6, (1000,) * 2, 3, 3)
DIE, HANG, ERR, SLOW = 999, 998, 997, 996
#: Orders in the first sample of a clip.
CLIP_DIE, CLIP_ERR, CLIP_BAD, CLIP_SLOW = -1.0, -0.5, -0.25, -0.125


def take_time(seconds: float) -> None:
    """Sleep for ``seconds`` or, with GATE, until its file exists."""
    gate = os.environ.get("GATE")
    if gate is None:
        time.sleep(seconds)
    while gate is not None and not os.path.exists(gate):
        time.sleep(0.005)


class NotedInbox(queue.SimpleQueue[Any]):
    """Records each message once the main loop can receive it."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        with Path(os.environ["GATE"] + ".read").open("ab") as read:
            read.write(b".")


class OddDecoder(FakeDecoder):
    """Follows the orders in windows."""

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        orders = {int(window.codes[0, 0]) for window in windows}
        if DIE in orders:
            os._exit(1)
        if HANG in orders:
            time.sleep(3600)
        if ERR in orders:
            raise RuntimeError("told to")
        if SLOW in orders:
            take_time(0.3)
        return super().decode_windows(windows)


class OddEncoder(FakeDecoder):
    """Follows the orders in clips."""

    def encode(self, samples: Samples) -> Codes:
        order = float(samples[0])
        if order == CLIP_DIE:
            os._exit(1)
        if order == CLIP_ERR:
            raise RuntimeError("told to")
        if order == CLIP_BAD:
            raise ClipError("told to")
        if order == CLIP_SLOW:
            take_time(1.0)
        return super().encode(samples)


def find(model: str) -> FakeCodec:
    return FakeCodec(OddDecoder(SPEC), None if model == "deaf" else OddEncoder(SPEC))


if __name__ == "__main__":
    if "GATE" in os.environ:
        vars(queue)["SimpleQueue"] = NotedInbox
    run_worker(find)
