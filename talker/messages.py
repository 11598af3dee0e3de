"""What the gateway and the talker process say to each other, besides the link's own messages.

Requests are known by a *handle*, a number that the gateway never uses twice, so that two
clients may choose the same request id and a late answer cannot meet the wrong request.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ipc.framing import Alive, Fatal, Progress, Stop


class VoiceRows(msgspec.Struct, frozen=True):
    """A voice's delayed rows, int16 row-major, and the prompt position of the first."""

    rows: bytes
    at: int


class Generate(msgspec.Struct, tag="generate", frozen=True):
    """Speak a prompt. All sampling parameters are decided: no defaults are left to the child."""

    handle: int
    ids: tuple[int, ...]
    max_frames: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    voice: VoiceRows | None = None


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Nobody listens any more. An unknown handle is no error: it has just ended."""

    handle: int


class Pause(msgspec.Struct, tag="pause", frozen=True):
    """Nobody takes the rows: let the engine go on with others. An unknown handle is no error."""

    handle: int


class Resume(msgspec.Struct, tag="resume", frozen=True):
    """Go on where ``pause`` stopped it. An unknown handle is no error."""

    handle: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The child can work. ``phases`` are the seconds that each phase of the start took."""

    num_codebooks: int
    codebook_size: int
    max_positions: int
    max_num_seqs: int
    engine: str
    runner: str
    dtype: str
    phases: dict[str, float]
    versions: dict[str, str]


class NewRows(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one request: ``[n, K]`` int16, row-major. ``finish`` is "" until the last."""

    handle: int
    rows: bytes
    finish: Literal["", "stop", "length"]


class Step(msgspec.Struct, tag="step", frozen=True):
    """What one engine step made.

    ``live`` counts the requests that the engine works on after it, without paused ones.
    ``preempted`` and ``cached`` (prompt positions served by the prefix cache) count since
    the start, and stay 0 unless the engine keeps statistics.
    """

    live: int
    rows: list[NewRows]
    preempted: int = 0
    cached: int = 0


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """One request is over without its end.

    ``refused``: the engine would not take it. ``lost``: its frames were no longer in the
    frame table. ``broken``: anything else that hit it alone.
    """

    handle: int
    reason: Literal["refused", "lost", "broken"]
    live: int


FromGateway = Generate | Abort | Pause | Resume
ToChild = FromGateway | Stop
FromChild = Ready | Step | Failed | Progress | Alive | Fatal
