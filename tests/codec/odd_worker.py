"""A codec worker with a fake decoder that dies, hangs or errs when it meets certain codes.

It decodes with ``FakeDecoder``. The first code of a window is an order to it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from codec.fake import FakeDecoder
from codec.worker import main
from streaming.spec import CodecSpec, Samples
from streaming.window import DecodeWindow

SPEC = CodecSpec(24_000, 6, 2, 1000, 3)
DIE, HANG, ERR, SLOW = 999, 998, 997, 996


class OddDecoder(FakeDecoder):
    """Obeys the orders."""

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        orders = {int(window.codes[0, 0]) for window in windows}
        if DIE in orders:
            os._exit(1)
        if HANG in orders:
            time.sleep(3600)
        if ERR in orders:
            raise RuntimeError("told to")
        if SLOW in orders:
            time.sleep(0.3)
        return super().decode_windows(windows)


def load(model: str, *, device: str) -> OddDecoder:
    return OddDecoder(SPEC)


if __name__ == "__main__":
    sys.exit(main(load=load))
