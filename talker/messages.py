"""Messages between the gateway and the talker process.

Requests are identified by a *handle*, a number that the gateway never reuses. Two clients may thus
choose the same request id, and a late answer cannot reach the wrong request.
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
    """The text's span in a prompt: ``at`` is the index of its first id among ``ids``.

    ``starts`` are the characters of the request's text at which its ids begin, in order, and last
    the text's end: one more than there are ids.
    """

    at: int
    starts: tuple[int, ...]


class Generate(msgspec.Struct, tag="generate", frozen=True):
    """Speak a prompt. All sampling parameters are set; the child has no defaults.

    An utterance of a ``conversation`` (a number from 1 on) is kept if it reaches its own end. If it
    ``continues`` that many kept positions, the ids follow the kept ones, which become the first
    part of the prompt; if there are not exactly so many, the answer is Failed with ``gone``.
    ``clips`` are the rows of voices, and after them those of the last utterance if the prompt
    starts over, in the order of their positions. ``ras_win_len`` 0: no repetition-aware sampling.
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
    continues: int = 0
    ras_win_len: int = 0
    ras_max_repeat: int = 1


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """Forget a conversation, which has ended. An unknown one is no error."""

    conversation: int


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Drop a request. An unknown handle is no error, since the request may just have ended."""

    handle: int


class Pause(msgspec.Struct, tag="pause", frozen=True):
    """Pause a request whose consumer lags, in favour of others. An unknown handle is no error."""

    handle: int


class Resume(msgspec.Struct, tag="resume", frozen=True):
    """Resume a request that ``pause`` stopped. An unknown handle is no error."""

    handle: int


class StreamInterval(msgspec.Struct, tag="stream_interval", frozen=True):
    """Send rows in groups of ``rows`` from now on; 1: each as it is made. A request's last rows are
    sent when it ends, however few they are. An unknown handle is no error.
    """

    handle: int
    rows: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The child is ready. ``phases`` are the seconds that each phase of the start took; ``graphs``
    and ``attention`` describe the engine's configuration.
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

    ``spoken`` is float32 ``[n]``: the character of the text that each row speaks; empty unless the
    request has a ``text``.
    """

    handle: int
    rows: bytes
    finish: Literal["", "stop", "length"]
    spoken: bytes = b""


class Step(msgspec.Struct, tag="step", frozen=True):
    """The rows of one engine step.

    ``live`` is the number of requests in the engine after it, without paused ones. ``preempted``
    and ``cached`` (prompt positions served by the prefix cache) count from the start, and stay 0
    unless the engine keeps statistics.
    """

    live: int
    rows: list[NewRows]
    preempted: int = 0
    cached: int = 0


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """A request failed before its end.

    ``refused``: the engine did not accept it. ``lost``: its frames were no longer in the frame
    table. ``gone``: the history that it continues is not the one there; it may be sent again
    without. ``broken``: any other failure of this request alone.
    """

    handle: int
    reason: Literal["refused", "lost", "gone", "broken"]
    live: int


FromGateway = Generate | Abort | Pause | Resume | Forget | StreamInterval
ToChild = FromGateway | Stop
FromChild = Ready | Step | Failed | Progress | Alive | Fatal
