"""Messages between the gateway and the recogniser's process; see ipc.framing."""

from __future__ import annotations

import msgspec

from ipc.framing import Alive, Fatal, Progress, Stop


class Hear(msgspec.Struct, tag="hear", frozen=True):
    """A clip to transcribe: mono, float32 little-endian."""

    id: int
    samples: bytes
    sample_rate: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The recogniser is loaded."""


class Heard(msgspec.Struct, tag="heard", frozen=True):
    """The words of a clip; empty if there are none."""

    id: int
    text: str


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """This clip failed, and no other. ``detail`` is for operators."""

    id: int
    detail: str


ToWorker = Hear | Stop
FromWorker = Ready | Heard | Failed | Alive | Progress | Fatal
