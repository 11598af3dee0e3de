"""Messages between the gateway and the talker process.

Requests are known by a *handle*, a number that the gateway never uses twice, so that two
clients may choose the same request id and a late answer cannot meet the wrong request.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ipc.framing import Alive, Fatal, Progress, Stop


class VoiceRows(msgspec.Struct, frozen=True):
    """Delayed rows of a voice or an utterance, int16 row-major, and the first one's position."""

    rows: bytes
    at: int


class TextSpan(msgspec.Struct, frozen=True):
    """Where the text stands in a prompt: ``at`` is its first id's place among ``ids``.

    ``starts`` are the characters of the request's text at which its ids begin, in order, and
    at last where the text ends: one more than there are ids.
    """

    at: int
    starts: tuple[int, ...]


class Generate(msgspec.Struct, tag="generate", frozen=True):
    """Speak a prompt. All sampling parameters are decided: no defaults are left to the child.

    An utterance of a ``conversation`` (a number from 1 on) is kept when it has come to its own
    end. With ``goes_on`` the ids follow what is kept, which then is the first part of the prompt;
    if it cannot be had, the answer is Failed with ``gone``. ``clips`` are the rows of voices and,
    after them, of the last utterance in a prompt that starts over, in the order in which they
    stand. ``ras_win_len`` 0: repetition is not watched.
    """

    handle: int
    ids: tuple[int, ...]
    max_frames: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    clips: tuple[VoiceRows, ...] = ()
    text: TextSpan | None = None
    conversation: int = 0
    goes_on: bool = False
    ras_win_len: int = 0
    ras_max_repeat: int = 1


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """No more utterances of a conversation will come. An unknown one is no error."""

    conversation: int


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Drop a request. An unknown handle is no error: it has just ended."""

    handle: int


class Pause(msgspec.Struct, tag="pause", frozen=True):
    """Pause a request whose rows are not taken, for others. An unknown handle is no error."""

    handle: int


class Resume(msgspec.Struct, tag="resume", frozen=True):
    """Go on where ``pause`` stopped it. An unknown handle is no error."""

    handle: int


class StreamInterval(msgspec.Struct, tag="stream_interval", frozen=True):
    """Send the rows ``rows`` at a time from now on; 1: each as it is made. The last ones of a
    request come when it ends, however few. An unknown handle is no error.
    """

    handle: int
    rows: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The child can work. ``phases`` are the seconds that each phase of the start took; ``graphs``
    and ``attention`` say in words what the engine was asked for.
    """

    num_codebooks: int
    codebook_size: int
    max_positions: int
    max_num_seqs: int
    engine: str
    runner: str
    dtype: str
    phases: dict[str, float]
    versions: dict[str, str]
    graphs: str = "none"
    attention: str = "auto"
    step_kernels: bool = False


class NewRows(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one request: ``[n, K]`` int16, row-major. ``finish`` is "" until the last.

    ``spoken`` is float32 ``[n]``: at which character of its text each row is; empty unless the
    request has a ``text``.
    """

    handle: int
    rows: bytes
    finish: Literal["", "stop", "length"]
    spoken: bytes = b""


class Step(msgspec.Struct, tag="step", frozen=True):
    """The rows of one engine step.

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
    frame table. ``gone``: what it was to go on from is no longer there; it may be sent again
    without. ``broken``: anything else that hit it alone.
    """

    handle: int
    reason: Literal["refused", "lost", "gone", "broken"]
    live: int


FromGateway = Generate | Abort | Pause | Resume | Forget | StreamInterval
ToChild = FromGateway | Stop
FromChild = Ready | Step | Failed | Progress | Alive | Fatal
