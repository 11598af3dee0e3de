"""Interfaces of a talker and of a codec, as the gateway uses them.

``talker/`` and ``codec/`` implement them and ``service/`` calls them; neither side knows the other.
Sampling defaults belong to the checkpoint, so ``None`` means the model's default.
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
    """Parameters of sampling. ``temperature`` 0 is greedy; ``None`` is the model's default.

    Repetition-aware sampling, for models that support it: a code that occurs ``ras_max_repeat``
    times or more among the last ``ras_win_len`` of its codebook is drawn again. A window of 0
    disables it.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ras_win_len: int | None = None
    ras_max_repeat: int | None = None


#: Maximum number of references of one request.
MAX_REFERENCES = 4


@dataclass(frozen=True, slots=True)
class Reference:
    """A voice to imitate: the codes ``[K, T]`` int16 of a clip, with the delay undone, and its
    transcript if known.
    """

    codes: Codes
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One utterance for the talker.

    ``text`` is the client's text, not a prompt: the talker's prompt builder turns it into ids.
    ``max_frames`` limits the generation, in rows: a frame is complete some rows after it has begun
    (``CodecSpec.delay_rows``). ``None`` is the model's default. ``reference``, if given, replaces
    ``voice``. ``other_references`` are those of the text's other speakers, in order, for talkers
    that support several. ``word_timings`` asks for ``TalkerRows.spoken``, if the talker supports
    it. ``scene`` describes where and how the text is spoken; None is the model's default.
    ``delivery``: control tags from the text before this part of it, with which it is spoken.

    Requests of one ``conversation`` come one after another, and each continues the ones before it,
    so that voice and prosody carry over; None stands alone. An utterance that was closed early,
    failed or was cut off by ``max_frames`` is not continued and leaves the conversation as it was.
    A talker that cannot continue (its process is new, the conversation too long) starts over from
    the last utterance, or from none, without an error. ``forget`` ends a conversation.
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
    """Arrival of ``rows`` rows at ``at``, monotonic seconds. No rows: the talker had been held back
    until then. ``evenly``: they were generated one after another since the last ones and sent
    together.
    """

    rows: int
    at: float
    evenly: bool = False


@dataclass(frozen=True, slots=True)
class TalkerRows:
    """Rows of one utterance in order. ``rows`` is ``[n, K]`` int16 and still delayed.

    ``finish`` is set on the last batch only: ``stop`` if the talker generated its end code,
    ``length`` if ``max_frames`` cut it off. The last batch may have no rows. ``spoken`` is float32
    ``[n]``, for requests with ``word_timings``: for each row, the character of the request's text
    that is spoken by the frame which begins with it. Fractions are between two characters; some may
    be wrong. ``came``: when the rows came, in order; empty: just now.
    """

    rows: Codes
    finish: Literal["stop", "length"] | None = None
    spoken: npt.NDArray[np.float32] | None = None
    came: tuple[Arrival, ...] = ()


class RowDemand(NamedTuple):
    """A consumer's demand for its next rows: all that have come ``delay_s`` from now, or else the
    first. A talker that can do so sends them ``at_once`` at a time from now on, which is cheaper.
    """

    delay_s: float = 0.0
    at_once: int = 1


#: Rows of one utterance as they are generated. The consumer sends (``asend``) its demand for the
#: next ones; None: without delay, and as many at once as before.
RowGenerator = AsyncGenerator[TalkerRows, RowDemand | None]


class TalkerEngine(Protocol):
    """Generates rows from text. One engine serves many utterances at once."""

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if the voice, sampling or scene can never be served, with any text."""

    def check(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request can never be served (text, voice, sampling, scene)."""

    def generate(self, request: SpeechRequest) -> RowGenerator:
        """Yield rows as they are generated, until a batch with ``finish``. While no rows are
        requested the talker may pause. Closing the generator aborts the request and frees its slot.

        Raises:
            RequestError: The request can never be served.
            CapacityError: Too many utterances wait for the talker.
            BackendError: The talker is down, or could not finish this request.
        """

    def forget(self, conversation: str) -> None:
        """End a conversation: no more requests of it will come. One that is unknown, because it had
        no request yet, is no error.
        """


@dataclass(frozen=True, slots=True)
class DecodeStats:
    """Cost of one window. ``frames`` counts its context too. ``queue_s``: from receipt by the
    worker to the start of decoding. ``decode_s``: time that its batches took. ``batch``: number of
    windows in the largest of them. ``slack_s``: time from the request to its deadline.
    """

    frames: int
    new_frames: int
    queue_s: float
    decode_s: float
    batch: int
    slack_s: float


class CodecEngine(Protocol):
    """Decodes codes to samples, for many streams at once."""

    @property
    def spec(self) -> CodecSpec:
        """Properties of the loaded codec."""

    async def decode(
        self, window: DecodeWindow, deadline_s: float, request_id: str = ""
    ) -> tuple[Samples, DecodeStats]:
        """Return the samples of the new frames, ``[new_frames * hop_length]``, and their cost.

        ``deadline_s`` is on the monotonic clock; the earliest deadline is decoded first. The log
        names a window that fails by ``request_id``. Cancelling the call drops the work. Raises
        CapacityError, BackendError.
        """

    @property
    def can_encode(self) -> bool:
        """Whether the codec has an encoder too."""

    @property
    def fingerprint(self) -> str:
        """Identifier, equal for two codecs if the same codes sound the same with both."""

    async def encode(self, samples: Samples) -> Codes:
        """Return the codes ``[K, ceil(n / hop_length)]`` of a clip ``[n]`` at the codec's rate.

        It has no deadline: windows take precedence. Cancelling the call drops the work. Raises
        RequestError (no encoder, or a clip that cannot be encoded), CapacityError, BackendError.
        """


class CodecDecoder(Protocol):
    """The model itself, synchronous, as it runs in the codec worker."""

    @property
    def spec(self) -> CodecSpec:
        """Properties of the loaded codec."""

    @property
    def fingerprint(self) -> str:
        """Identifier, equal for two codecs if the same codes sound the same with both."""

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences: a batch of ``[K, T_i]`` -> ``[T_i * hop_length]`` each."""

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Return ``window.trim(decode([window.codes])[0])`` for each window, at less cost."""
