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
    """What has a life of its own: a child process, or a fake."""

    @property
    def is_ready(self) -> bool:
        """Whether it can take work now."""

    @property
    def outstanding(self) -> int:
        """Utterances or windows that it was given and has not finished."""

    @property
    def restarts(self) -> int:
        """How often it had to be started again."""

    async def start(self) -> None:
        """Return once it is ready."""

    async def stop(self) -> None:
        """End it."""


class RunningTalker(Running, TalkerEngine, Protocol):
    """A talker that runs."""

    @property
    def capacity(self) -> int:
        """Utterances that it works on at once."""

    @property
    def live(self) -> int:
        """How many of its utterances it works on; the others wait."""

    @property
    def model_folder(self) -> Path | None:
        """Where its checkpoint lies, if it has one and has started."""

    @property
    def row_layout(self) -> RowLayout:
        """How frames lie in its rows. It must have started."""

    @property
    def voices(self) -> Sequence[str]:
        """The voices that it can speak with; the first is the default."""

    @property
    def spoken_lengths(self) -> SpokenLengths | None:
        """A function for how long a text becomes in words; None where it is spoken as written."""

    @property
    def max_references(self) -> int:
        """How many references a request may have, one for each speaker of its text."""

    @property
    def segment_chars(self) -> int | None:
        """The longest text that it says well at once; None for as long as it may speak."""

    @property
    def max_frames(self) -> int:
        """Its longest generation, in rows. It must have started."""

    @property
    def delivery_tags(self) -> Mapping[str, str]:
        """Control tags that colour a whole turn, with the aspect that each sets."""

    @property
    def has_word_timings(self) -> bool:
        """Whether it can tell which part of the text each row speaks."""

    @property
    def has_continuity(self) -> bool:
        """Whether it can go on from what a conversation has said so far."""


class RunningCodec(Running, CodecEngine, Protocol):
    """A codec that runs."""

    @property
    def cost(self) -> DecodeCost:
        """The cost of a window, measured at the start."""

    @property
    def has_spare_ready(self) -> bool | None:
        """Whether another worker could take over right now; None where there is to be none."""

    @property
    def takeovers(self) -> int:
        """How often another worker went on where one had died."""
