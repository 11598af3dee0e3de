"""Contracts of the gateway's engines beyond streaming.ports: lifecycle and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from codec.batching import DecodeCost
from streaming.delay import RowLayout
from streaming.ports import CodecEngine, TalkerEngine
from streaming.segmenter import SpokenLengths


class Running(Protocol):
    """A component with a lifecycle: a child process or a fake."""

    @property
    def is_ready(self) -> bool:
        """Whether it accepts work now."""

    @property
    def outstanding(self) -> int:
        """Number of utterances or windows that it has accepted and not finished."""

    @property
    def restarts(self) -> int:
        """Number of restarts."""

    async def start(self) -> None:
        """Start it, and return once it is ready."""

    async def stop(self) -> None:
        """Stop it."""


class RunningTalker(Running, TalkerEngine, Protocol):
    """A talker with a lifecycle."""

    @property
    def capacity(self) -> int:
        """Maximum number of utterances that it speaks at once."""

    @property
    def live(self) -> int:
        """Number of its utterances that are being spoken; the others wait."""

    @property
    def model_folder(self) -> Path | None:
        """Folder of its checkpoint, if it has one and has started."""

    @property
    def row_layout(self) -> RowLayout:
        """Layout of frames in its rows. It must have started."""

    @property
    def voices(self) -> Sequence[str]:
        """Names of its voices; the first is the default."""

    @property
    def spoken_lengths(self) -> SpokenLengths | None:
        """A function for lengths of text when spelt out; None if it is spoken as written."""

    @property
    def max_references(self) -> int:
        """Maximum number of references of a request, one for each speaker of its text."""

    @property
    def segment_chars(self) -> int | None:
        """The longest text that it speaks well at once; None if only ``max_frames`` limits it."""

    @property
    def max_frames(self) -> int:
        """Maximum length of a generation in rows. It must have started."""

    @property
    def delivery_tags(self) -> Mapping[str, str]:
        """Delivery tags, with the aspect that each sets."""

    @property
    def has_word_timings(self) -> bool:
        """Whether it can report which part of the text each row speaks."""

    @property
    def has_continuity(self) -> bool:
        """Whether an utterance can continue the earlier ones of its conversation."""


class RunningCodec(Running, CodecEngine, Protocol):
    """A codec with a lifecycle."""

    @property
    def cost(self) -> DecodeCost:
        """Cost of decoding a window, measured at the start."""

    @property
    def has_spare_ready(self) -> bool | None:
        """Whether the spare could take over now; None if there is to be no spare."""

    @property
    def takeovers(self) -> int:
        """Number of times that the spare took over from a worker that died."""
