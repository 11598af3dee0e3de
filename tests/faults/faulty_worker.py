"""A codec worker with a LiteralDecoder that is killed or stopped at given steps of its work.

The file named by FAULTS has a line ``STEP COUNT SIGNAL`` for each process that is started: the
signal that the worker sends itself when it reaches STEP for the COUNT-th time. Processes beyond
the last line are not signalled, but every process dies on a window of the voice POISON. The steps,
in the order in which a window passes them::

    received   the window was received
    chosen     ``Decoding`` is about to be sent
    decoding   ``Decoding`` was sent
    decoded    ``Decoded``, with the samples, is about to be sent
    answered   ``Decoded`` was sent
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from codec.messages import Decode, Decoded, Decoding
from ipc.child import ChildLink
from loadtest.fakes.codec import FakeCodec, run_worker
from streaming.spec import Samples
from streaming.window import DecodeWindow
from tests.faults.history import SPEC
from tests.faults.labelled_audio import LiteralDecoder

STEPS = ("received", "chosen", "decoding", "decoded", "answered")
POISON = 666


class Decoder(LiteralDecoder):
    """Kills its process on a window of the voice POISON."""

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        if any(window.codes[0, 0] == POISON for window in windows):
            os._exit(1)
        return super().decode_windows(windows)


class Fate:
    """Decides when this process gets its signal: takes the first line from the file."""

    def __init__(self, file: Path) -> None:
        first, *rest = file.read_text().splitlines() or [""]
        file.write_text("\n".join(rest))
        self._step, count, number = (first or "never 1 9").split()
        self._count, self._signal = int(count), int(number)
        self._seen: Counter[str] = Counter()

    def at(self, step: str) -> None:
        self._seen[step] += 1
        if step == self._step and self._seen[step] == self._count:
            os.kill(os.getpid(), self._signal)


_send, _receive = ChildLink.send, ChildLink.receive


def meet(fate: Fate) -> None:
    """Report the messages on the link to the gateway to ``fate``."""

    def send(self: ChildLink[Any], message: msgspec.Struct) -> None:
        before, after = {Decoding: ("chosen", "decoding"), Decoded: ("decoded", "answered")}.get(
            type(message), ("", "")
        )
        fate.at(before)
        _send(self, message)
        fate.at(after)

    def receive(self: ChildLink[Any], *, wait: bool) -> list[Any]:
        messages = _receive(self, wait=wait)
        for message in messages:
            if isinstance(message, Decode):
                fate.at("received")
        return messages

    ChildLink.send, ChildLink.receive = send, receive  # type: ignore[method-assign]


if __name__ == "__main__":
    meet(Fate(Path(os.environ["FAULTS"])))
    run_worker(lambda model: FakeCodec(Decoder(SPEC)))
