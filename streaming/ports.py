"""Interfaces of a talker and of a codec, as the gateway uses them.

``talker/`` and ``codec/`` implement them and ``service/`` calls them; neither side knows the other.
Sampling defaults belong to the checkpoint, so ``None`` means the model's default.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from streaming.delay import RowLayout
from streaming.spec import CodecSpec, Codes, Samples, SpeakerVector
from streaming.window import DecodeWindow
from text.markup.rendering import Rendering
from text.segmenter import SpokenLengths
from text.turns import SentencePauses

#: Longest window of repetition-aware sampling; a model may have a shorter one.
MAX_RAS = 64


class Sampling(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of sampling, which are also a part of native messages. ``temperature`` 0 is
    greedy; ``None`` is the model's default.

    Repetition-aware sampling, for models that support it: a code that occurs ``ras_max_repeat``
    times or more among the last ``ras_win_len`` of its codebook is drawn again. A window of 0
    disables it.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=1, le=1024)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    ras_win_len: Annotated[int, Meta(ge=0, le=MAX_RAS)] | None = None
    ras_max_repeat: Annotated[int, Meta(ge=1, le=MAX_RAS)] | None = None


#: Longest instructions of a request, in characters, as in OpenAI's API.
MAX_INSTRUCTIONS_CHARS = 4096
#: Maximum number of references of one request.
MAX_REFERENCES = 4


@dataclass(frozen=True, slots=True)
class Reference:
    """A voice to imitate: the codes ``[K, T]`` int16 of a clip, with the delay undone, its
    transcript if known, and its speaker's vector if the talker needs one.
    """

    codes: Codes
    text: str | None = None
    vector: SpeakerVector | None = None


class SilenceMask(NamedTuple):
    """Codes of the first codebook that are not drawn in an utterance's first ``frames`` frames."""

    frames: int
    codes: tuple[int, ...]


class ArrivingText:
    """Text of an utterance that is spoken while it arrives. It is cut so that the pieces' ids,
    joined, are those of the whole text.
    """

    def __init__(self, text: str, *, is_complete: bool = False) -> None:
        #: All text so far.
        self.text = text
        #: Whether that is all of it.
        self.is_complete = is_complete
        #: Called with each addition: the text, and whether it is the last.
        self.listener: Callable[[str, bool], None] | None = None

    def append(self, text: str, *, is_last: bool) -> None:
        """Add text. Raises ValueError after the last."""
        if self.is_complete:
            raise ValueError("no text comes after the last")
        self.text += text
        self.is_complete = is_last
        if self.listener is not None:
            self.listener(text, is_last)


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One utterance for the talker.

    Requests of one ``conversation`` come one after another, and each continues the ones before it,
    so that voice and prosody carry over; None stands alone. An utterance that was closed early,
    failed or was cut off by ``max_frames`` is not continued and leaves the conversation as it was.
    A talker that cannot continue (its process is new, the conversation too long) starts over from
    the last utterance, or from none, without an error. ``forget`` ends a conversation.
    """

    #: Names the request in logs.
    request_id: str
    #: Text to be spoken, with the family's own tags, and not a prompt: the talker's prompt builder
    #: turns it into ids.
    text: str
    #: Name of a voice.
    voice: str = "default"
    sampling: Sampling = field(default_factory=Sampling)
    #: Maximum length of the generation, in rows; None is the model's default. A frame is complete
    #: some rows after it has begun (``CodecSpec.delay_rows``).
    max_frames: int | None = None
    #: A voice to use instead of ``voice``.
    reference: Reference | None = None
    #: Voices of the text's other speakers, in order, for talkers that support several.
    other_references: tuple[Reference, ...] = ()
    #: Whether ``TalkerRows.spoken`` is wanted, if the talker supports it.
    word_timings: bool = False
    #: See above.
    conversation: str | None = None
    #: Control tags from the text before this part of it, with which it is spoken.
    delivery: str = ""
    #: Where and how the text is spoken; None is the model's default.
    scene: str | None = None
    #: How the text is spoken, or which voice speaks it, in words; None is the model's default.
    instructions: str | None = None
    #: One of ``TalkerSpec.languages``; None leaves it to the talker.
    language: str | None = None
    #: The text instead of ``text``, if the talker ``takes_words`` and it is spoken as it arrives.
    arriving: ArrivingText | None = None
    #: Codes that it may not begin with, if the talker ``masks_codes``.
    mask: SilenceMask | None = None
    #: Returns when the listener will run out of audio without its rows, in monotonic seconds. Of
    #: the requests that wait for the talker the earliest is spoken first. None: nobody listens yet.
    deadline: Callable[[], float] | None = field(default=None, compare=False)


class Arrival(NamedTuple):
    """Arrival of ``rows`` rows at ``at``, monotonic seconds. No rows: the talker had been held back
    until then. ``evenly``: they were generated one after another since the last ones and sent
    together.
    """

    rows: int
    at: float
    evenly: bool = False


class TalkerRows(Struct, frozen=True):
    """Rows of one utterance in order. ``rows`` is ``[n, K]`` int16 and still delayed.

    ``finish`` is set on the last batch only: ``stop`` if the talker generated its end code,
    ``length`` if ``max_frames`` cut it off. The last batch may have no rows. ``spoken`` is float32
    ``[n]``, for requests with ``word_timings``: for each row, the character of the request's text
    that is spoken by the frame which begins with it. Fractions are between two characters; some may
    be wrong. ``came``: when the rows came, in order; empty: just now. ``waits``: no more rows come
    before more text. ``continued`` ``[T, K]``, in the first batch only: frames of a reference that
    these continue, so that the codec has to decode them before, for its state alone.
    """

    rows: Codes
    finish: Literal["stop", "length"] | None = None
    spoken: npt.NDArray[np.float32] | None = None
    came: tuple[Arrival, ...] = ()
    waits: bool = False
    continued: Codes | None = None


class RowDemand(NamedTuple):
    """A consumer's demand for its next rows: all that have come ``delay_s`` from now, or else the
    first. A talker that can do so sends them ``at_once`` at a time from now on, which is cheaper.
    """

    delay_s: float = 0.0
    at_once: int = 1


#: Rows of one utterance as they are generated. The consumer sends (``asend``) its demand for the
#: next ones; None: without delay, and as many at once as before.
RowGenerator = AsyncGenerator[TalkerRows, RowDemand | None]


@dataclass(frozen=True, slots=True)
class OwnSpeaker:
    """What is known of a speaker of the talker: its language, as an ISO 639 code, and a description
    for people.
    """

    language: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class TalkerSpec:
    """Properties of a talker, constant after its start."""

    #: Layout of frames in its rows.
    layout: RowLayout
    #: Maximum length of a generation, in rows.
    max_frames: int
    #: Maximum number of references of a request, one for each speaker of its text; 0: it has only
    #: its own voices.
    max_references: int = 1
    #: Whether it has no voice without a reference.
    needs_reference: bool = False
    #: Length of the speaker's vector that a reference has to have, and may be imitated by alone; 0:
    #: references have none.
    vector_size: int = 0
    #: Its own speakers by the voices' names, the default one first.
    speakers: Mapping[str, OwnSpeaker] = field(default_factory=dict)
    #: Whether a request may say in words how to speak, and whether it must, since these words are
    #: all that the voice is made from.
    takes_instructions: bool = False
    needs_instructions: bool = False
    #: Whether a request's text may arrive while it is spoken (``ArrivingText``).
    takes_words: bool = False
    #: Seconds of silence after which an utterance that has been audible is over; 0: it may pause.
    end_silence_s: float = 0.0
    #: Whether it can leave out codes of an utterance's first frames (``SilenceMask``).
    masks_codes: bool = False
    #: The longest text that it speaks well at once; None if only ``max_frames`` limits it.
    segment_chars: int | None = None
    #: Silence between its utterances.
    pauses: SentencePauses = field(default_factory=SentencePauses)
    #: The factor of its own speed at which it speaks if a client does not change the speed.
    default_speed: float = 1.0
    #: Delivery tags, with the aspect that each sets.
    delivery_tags: Mapping[str, str] = field(default_factory=dict)
    #: The marks with which it renders the markup of a text.
    rendering: Rendering = field(default_factory=Rendering)
    #: Whether it can report which part of the text each row speaks.
    has_word_timings: bool = False
    #: Whether an utterance can continue the earlier ones of its conversation.
    has_continuity: bool = False
    #: A function for lengths of text when spelt out; None if text is spoken as written.
    spoken_lengths: SpokenLengths | None = None
    #: Folder of its checkpoint, if it has one.
    folder: Path | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that it reads, as ISO 639 codes; empty: it follows the text."""
        return self.rendering.languages


class TalkerEngine(Protocol):
    """Generates rows from text. One engine serves many utterances at once."""

    @property
    def spec(self) -> TalkerSpec:
        """Properties of the loaded model. Raises RuntimeError before the start."""

    def check_options(self, request: SpeechRequest) -> None:
        """Raise RequestError if the voice, sampling, scene or instructions can never be served,
        with any text.
        """

    def check(self, request: SpeechRequest) -> None:
        """Raise RequestError if the request can never be served (text or options)."""

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
    windows in the largest of them. ``slack_s``: time from the request to its deadline. ``busy_s``:
    the part of ``decode_s`` that was on the processor, if that is known. ``lookahead``: number of
    frames after the new ones.
    """

    frames: int
    new_frames: int
    queue_s: float
    decode_s: float
    batch: int
    slack_s: float
    busy_s: float | None = None
    lookahead: int = 0


class EncodedClip(NamedTuple):
    """An encoded clip: its codes ``[K, T]``, and its speaker's vector if the talker needs one."""

    codes: Codes
    vector: SpeakerVector | None = None


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
        """Identifier, equal for two codecs if the same codes sound the same with both, and vectors
        of speakers mean the same.
        """

    async def encode(self, samples: Samples) -> EncodedClip:
        """Encode a clip ``[n]`` at the codec's rate to codes ``[K, ceil(n / hop_length)]``, and its
        speaker to a vector if the talker's checkpoint has an encoder for that.

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
