"""What the gateway asks of a talker and of a codec: contracts only.

``talker/`` and ``codec/`` implement these, ``service/`` calls them, and neither side knows
the other. Sampling defaults belong to the checkpoint, so ``None`` means "the model's own".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from streaming.spec import CodecSpec, Codes, Samples
from streaming.window import DecodeWindow


@dataclass(frozen=True, slots=True)
class Sampling:
    """How codes are drawn. ``temperature`` 0 is greedy; ``None`` is the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One utterance for the talker.

    ``text`` is the client's text, not a prompt: the talker's own prompt builder turns it
    into ids. ``max_frames`` bounds the generation; ``None`` is the model's default.
    """

    request_id: str
    text: str
    voice: str = "default"
    language: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_frames: int | None = None


@dataclass(frozen=True, slots=True)
class TalkerRows:
    """Rows of one utterance in order. ``rows`` is ``[n, K]`` int16 and still delayed.

    ``finish`` is set on the last one only: ``stop`` when the talker said its end code,
    ``length`` when ``max_frames`` cut it off. The last one may hold no rows.
    """

    rows: Codes
    finish: Literal["stop", "length"] | None = None


class TalkerEngine(Protocol):
    """Makes rows from text. One engine serves many utterances at once."""

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if its voice or its sampling can never be served, whatever the
        text.
        """

    def check(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request can never be served (text, voice, sampling)."""

    def generate(self, request: SpeechRequest) -> AsyncGenerator[TalkerRows, None]:
        """Yield rows as they are made. Closing the generator aborts the request and frees
        its slot. Raises RequestError or BackendError.
        """


class CodecEngine(Protocol):
    """Makes samples from codes, for many streams at once."""

    @property
    def spec(self) -> CodecSpec:
        """The loaded codec's facts."""

    async def decode(self, window: DecodeWindow, deadline_s: float) -> Samples:
        """Return the samples of the window's new frames, ``[new_frames * hop_length]``.

        ``deadline_s`` is on the monotonic clock; the earliest deadline is decoded first.
        Cancelling the call drops the work. Raises CapacityError, BackendError.
        """


class CodecDecoder(Protocol):
    """The model itself, synchronous: what runs inside the codec worker."""

    @property
    def spec(self) -> CodecSpec:
        """The loaded codec's facts."""

    def decode(self, codes: Sequence[Codes]) -> list[Samples]:
        """Decode whole sequences: a batch of ``[K, T_i]`` -> ``[T_i * hop_length]`` each."""

    def decode_windows(self, windows: Sequence[DecodeWindow]) -> list[Samples]:
        """Equal to ``window.trim(decode([window.codes])[0])`` for each window, only cheaper."""
