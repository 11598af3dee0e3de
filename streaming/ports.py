"""Contracts of a talker and of a codec, as the gateway uses them.

``talker/`` and ``codec/`` implement these, ``service/`` calls them, and neither side knows
the other. Sampling defaults belong to the checkpoint, so ``None`` means "the model's own".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow


@dataclass(frozen=True, slots=True)
class Sampling:
    """How codes are drawn. ``temperature`` 0 is greedy; ``None`` is the model's default.

    Repetition-aware sampling, for models that have it: a code that occurs ``ras_max_repeat`` times
    or more among the last ``ras_win_len`` of its codebook is drawn again; a window of 0 is none.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ras_win_len: int | None = None
    ras_max_repeat: int | None = None


#: Most references of one request.
MAX_REFERENCES = 4


@dataclass(frozen=True, slots=True)
class Reference:
    """A voice to speak with: the codes ``[K, T]`` int16 of a clip of it, delay undone, and
    what is said in the clip, if that is known.
    """

    codes: Codes
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One utterance for the talker.

    ``text`` is the client's text, not a prompt: the talker's own prompt builder turns it
    into ids. ``max_frames`` bounds the generation, in rows: a frame is whole some rows after it
    has begun (``CodecSpec.delay_rows``). ``None`` is the model's default.
    ``reference`` is spoken with instead of ``voice``, where it is given; ``other_references`` are
    those of the text's other speakers, in order, for talkers that know several.
    ``word_timings`` asks for ``TalkerRows.spoken``, where the talker has it.
    ``scene`` describes where and how it is spoken; None is the model's own.
    ``delivery`` are control tags that led the text of which ``text`` is a part; it is spoken with
    them.

    Requests of one ``conversation`` come one after another, and each goes on from what the
    ones before it said, so that voice and prosody carry over; None stands alone. Only what
    came to its own end is gone on from: an utterance that was closed early, failed or was cut
    off by ``max_frames`` leaves the conversation as it was. A talker that cannot go on (its
    process is new, the talk too long) starts over from the last utterance, or from nothing,
    and says no error. ``forget`` ends a conversation.
    """

    request_id: str
    text: str
    voice: str = "default"
    sampling: Sampling = field(default_factory=Sampling)
    max_frames: int | None = None
    reference: Reference | None = None
    other_references: tuple[Reference, ...] = ()
    word_timings: bool = False
    conversation: str | None = None
    delivery: str = ""
    scene: str | None = None


class Arrival(NamedTuple):
    """``rows`` rows came at ``at``, monotonic seconds; none: the talker had been held back until
    then. ``evenly``: they were made one after another since those before and sent together.
    """

    rows: int
    at: float
    evenly: bool = False


@dataclass(frozen=True, slots=True)
class TalkerRows:
    """Rows of one utterance in order. ``rows`` is ``[n, K]`` int16 and still delayed.

    ``finish`` is set on the last one only: ``stop`` when the talker said its end code,
    ``length`` when ``max_frames`` cut it off. The last one may hold no rows. ``spoken`` is
    float32 ``[n]``, for requests with ``word_timings``: the character of the request's text at
    which the frame is that begins with each row, fractions between two; some may be wrong.
    ``came`` says when the rows came, in order; empty: just now.
    """

    rows: Codes
    finish: Literal["stop", "length"] | None = None
    spoken: npt.NDArray[np.float32] | None = None
    came: tuple[Arrival, ...] = ()


class RowDemand(NamedTuple):
    """How a consumer wants its next rows: all that have come ``delay_s`` from now, or else the
    first. A talker that can sends them ``at_once`` at a time from now on, which is cheaper.
    """

    delay_s: float = 0.0
    at_once: int = 1


#: Rows of one utterance as they are made. What is sent to it (``asend``) says how the consumer
#: wants the next ones; None: as before, and at once.
RowGenerator = AsyncGenerator[TalkerRows, RowDemand | None]


class TalkerEngine(Protocol):
    """Makes rows from text. One engine serves many utterances at once."""

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if its voice, its sampling or its scene can never be served,
        whatever the text.
        """

    def check(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request can never be served (text, voice, sampling, scene)."""

    def generate(self, request: SpeechRequest) -> RowGenerator:
        """Yield rows as they are made, until one that has a ``finish``. While none are asked for
        the talker may pause. Closing the generator aborts the request and frees its slot.

        Raises:
            RequestError: The request can never be served.
            BackendError: The talker is down, or could not finish this request.
        """

    def forget(self, conversation: str) -> None:
        """No more requests of that conversation will come. One that is not known, because
        none has come yet, is no error.
        """


@dataclass(frozen=True, slots=True)
class DecodeStats:
    """The cost of one window. ``frames`` counts its context too. ``queue_s`` is receipt by the
    worker to the start of its decoding, ``decode_s`` the time its batches took, ``batch`` the
    windows in the largest of them. ``slack_s``: how long after it was asked for it was wanted.
    """

    frames: int
    new_frames: int
    queue_s: float
    decode_s: float
    batch: int
    slack_s: float


class CodecEngine(Protocol):
    """Makes samples from codes, for many streams at once."""

    @property
    def spec(self) -> CodecSpec:
        """The loaded codec's facts."""

    async def decode(self, window: DecodeWindow, deadline_s: float) -> tuple[Samples, DecodeStats]:
        """Return the samples of the window's new frames, ``[new_frames * hop_length]``, and what
        they took.

        ``deadline_s`` is on the monotonic clock; the earliest deadline is decoded first.
        Cancelling the call drops the work. Raises CapacityError, BackendError.
        """

    @property
    def can_encode(self) -> bool:
        """Whether the codec has an encoder too."""

    @property
    def fingerprint(self) -> str:
        """The same for two codecs if the same codes sound the same with both."""

    async def encode(self, samples: Samples) -> Codes:
        """Return the codes ``[K, ceil(n / hop_length)]`` of a clip ``[n]`` at the codec's rate.

        It has no deadline: windows go before it. Cancelling the call drops the work. Raises
        RequestError (no encoder, no clip that can be encoded), CapacityError, BackendError.
        """


class CodecDecoder(Protocol):
    """The model itself, synchronous: what runs inside the codec worker."""

    @property
    def spec(self) -> CodecSpec:
        """The loaded codec's facts."""

    @property
    def fingerprint(self) -> str:
        """The same for two codecs if the same codes sound the same with both."""

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences: a batch of ``[K, T_i]`` -> ``[T_i * hop_length]`` each."""

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Equal to ``window.trim(decode([window.codes])[0])`` for each window, only cheaper."""
