"""Messages between the gateway and the talker process.

Requests are identified by a *handle*, a number that the gateway never reuses. Two clients may thus
choose the same request id, and a late answer cannot reach the wrong request.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ipc.framing import Alive, Fatal, Progress, Stop


class VoiceRows(msgspec.Struct, frozen=True):
    """Delayed rows of a voice or an utterance, int16 row-major, and the first one's position. If it
    ``is_vector``, it is one position: a speaker's vector, float32.
    """

    rows: bytes
    at: int
    is_vector: bool = False


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
    """

    #: Number of the request.
    handle: int
    #: The prompt, or its part after the kept positions.
    ids: tuple[int, ...]
    #: Maximum length of the generation, in rows.
    max_frames: int
    #: 0 is greedy.
    temperature: float
    top_p: float
    top_k: int
    seed: int
    #: Rows of voices, and after them the rows of the last utterance if the prompt starts over, in
    #: the order of their positions.
    clips: tuple[VoiceRows, ...] = ()
    #: Place of the text, if word timings are wanted.
    text: TextSpan | None = None
    #: Number of the conversation; 0 for none.
    conversation: int = 0
    #: Number of kept positions that the ids follow.
    continues: int = 0
    #: Window of repetition-aware sampling; 0 for none.
    ras_win_len: int = 0
    #: Occurrences in the window from which on a code is drawn again.
    ras_max_repeat: int = 1
    #: The number of first frames that leave out codes of the first codebook, and these codes;
    #: empty: none.
    mask: tuple[int, ...] = ()
    #: Ids of the text after the prompt, one for each frame; None if the text is in the prompt.
    track: tuple[int, ...] | None = None
    #: Whether AppendText will bring more of them.
    is_open: bool = False
    #: By when the listener wants rows, in monotonic seconds: the earliest is spoken first.
    deadline_s: float = 0.0


class AppendText(msgspec.Struct, tag="append_text", frozen=True):
    """Append ids to the text of a request that is open. With ``max_frames``, its new limit, it has
    all of its text. An unknown handle is no error, since the request may just have failed.
    ``deadline_s``: see Generate.
    """

    handle: int
    ids: tuple[int, ...]
    max_frames: int | None = None
    deadline_s: float = 0.0


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
    """Resume a request that ``pause`` stopped. An unknown handle is no error. ``deadline_s``: see
    Generate.
    """

    handle: int
    deadline_s: float = 0.0


class StreamInterval(msgspec.Struct, tag="stream_interval", frozen=True):
    """Send rows in groups of ``rows`` from now on; 1: each row by itself. A request's last rows are
    sent when it ends, however few they are. An unknown handle is no error.
    """

    handle: int
    rows: int


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The child is ready, with this configuration."""

    num_codebooks: int
    codebook_size: int
    #: Maximum prompt plus rows of a request.
    max_positions: int
    #: Maximum number of requests per step.
    max_num_seqs: int
    #: How vLLM is run: ``inprocess`` or ``async``.
    engine: str
    #: Its model runner: ``v1`` or ``v2``.
    runner: str
    dtype: str
    #: Seconds that each phase of the start took.
    phases: dict[str, float]
    #: Versions of the packages that matter.
    versions: dict[str, str]
    #: CUDA graphs.
    graphs: str = "none"
    #: vLLM's name of the attention backend.
    attention: str = "auto"
    #: Whether a step's rows are drawn by Triton kernels.
    step_kernels: bool = False
    #: Positions in the KV cache; None if vLLM measures how many fit.
    kv_positions: int | None = None


class NewRows(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one request: ``[n, K]`` int16, row-major. ``finish`` is "" until the last.

    ``spoken`` is float32 ``[n]``: the character of the text that each row speaks; empty unless the
    request has a ``text``. ``waits``: the request makes no more rows before more text.
    """

    handle: int
    rows: bytes
    finish: Literal["", "stop", "length"]
    spoken: bytes = b""
    waits: bool = False


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


#: Why a request failed. ``refused``: the engine did not accept it. ``lost``: its frames were no
#: longer in the frame table. ``gone``: the history that it continues is not the one there; it may
#: be sent again without. ``logits``: the model computed logits that are not finite. ``code``: a
#: row has a code that its codebook does not have. ``broken``: any other failure of this request.
FailureReason = Literal["refused", "lost", "gone", "logits", "code", "broken"]


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """A request failed before its end, and no other."""

    handle: int
    reason: FailureReason
    live: int


FromGateway = Generate | AppendText | Abort | Pause | Resume | Forget | StreamInterval
ToChild = FromGateway | Stop
FromChild = Ready | Step | Failed | Progress | Alive | Fatal
