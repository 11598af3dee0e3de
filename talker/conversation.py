"""Conversations in the gateway: utterances that continue each other.

The talker process holds a conversation's history as ids (``talker.request_table``). This module
keeps its length and the last utterance. If an utterance can continue the history, only its own text
goes to the process. Otherwise the conversation starts over: if the process is a new one, has lost
the frames or kept an utterance whose end was not taken here, or if the history would leave too few
positions for the utterance. It then begins with the last utterance, whose rows travel like a
voice's, or, if that is too long as well, with nothing.

Prompts, as sequences of ids and rows::

    first        head turn one
    continues    head turn one, rows of one, turn two
    starts over  head turn two, rows of two, turn three

A turn is the end of a family's prompt, ``<|text|> one <|audio|>`` in Higgs Audio v3. Some families
have ids between rows and the next turn. The rows are those with a frame id. In the delay pattern
the last row has none: it carries the stop id and belongs to no frame.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import numpy as np

from streaming.lru_cache import LruCache
from streaming.ports import RowDemand, RowGenerator
from streaming.spec import Codes
from talker.messages import Generate, VoiceRows
from talker.prompts import MAX_EARLIER_ROWS


class Gone(Exception):
    """The process has no history, or another, than a request continues; no rows were made."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A spoken utterance: its own ids, and those of its rows ``[R, K]`` int16 that have ids."""

    ids: tuple[int, ...]
    rows: Codes


@dataclass(frozen=True, slots=True)
class Order:
    """A message for the process. ``turn`` are its utterance's ids; ``positions`` is the length of
    the whole prompt, with the history in the process. ``is_delayed``: the last row to arrive
    carries the stop id, so it is in no prompt.
    """

    message: Generate
    turn: tuple[int, ...]
    positions: int
    is_delayed: bool = True


class Conversation:
    """The gateway's state of one conversation. ``number`` identifies it to the process. ``held`` is
    the length in positions of its history there, 0 for none. ``last`` is the utterance with which
    to start over.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.held = 0
        self.last: Turn | None = None
        self._turn = asyncio.Lock()
        self._losses = 0

    def lose(self) -> None:
        """Note that the process has no history of it any more."""
        self.held = 0
        self._losses += 1

    async def speak(
        self,
        order: Callable[[], Order],
        start: Callable[[Generate], RowGenerator],
    ) -> RowGenerator:
        """Speak the next utterance when the one before it has ended. ``order`` is called again if
        the history that it continued turns out to be gone.
        """
        async with self._turn:
            while True:
                chosen = order()
                losses = self._losses
                rows = list[Codes]()
                demand: RowDemand | None = None
                try:
                    async with aclosing(start(chosen.message)) as pieces:
                        while True:
                            piece = await pieces.asend(demand)
                            rows.append(piece.rows)
                            if piece.finish == "stop":  # before the consumer closes us
                                self._keep(chosen, rows, is_held=losses == self._losses)
                            demand = yield piece
                            if piece.finish is not None:
                                return
                except Gone:
                    self.lose()

    def _keep(self, spoken: Order, pieces: Sequence[Codes], *, is_held: bool) -> None:
        rows = np.concatenate(pieces)
        rows = rows[:-1] if spoken.is_delayed else rows
        self.last = Turn(spoken.turn, rows) if 0 < len(rows) <= MAX_EARLIER_ROWS else None
        self.held = spoken.positions + len(rows) if is_held else 0


class Conversations:
    """Conversations by name, the most recently used ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self._known: LruCache[str, Conversation] = LruCache(limit)
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, name: str) -> Conversation:
        """Return the conversation of that name; a new one if there is none."""
        if (known := self._known.get(name)) is None:
            known = self._known[name] = Conversation(next(self._numbers))
        return known

    def forget(self, name: str) -> int | None:
        """Forget a conversation. Returns its number, None if it is not known."""
        known = self._known.pop(name, None)
        return None if known is None else known.number

    def lose(self) -> None:
        """Note that the process has ended."""
        for conversation in self._known.values():
            conversation.lose()


def continued(
    whole: Generate,
    turn_at: int,
    talk: Conversation,
    max_positions: int,
    longest: int | None = None,
    *,
    between: tuple[int, ...] = (),
    is_delayed: bool = True,
) -> Order:
    """Build the order for an utterance of ``talk``. ``whole`` is the message that speaks it alone;
    its own ids begin at ``turn_at``, and those of ``between`` go before them if something was said
    before. The prompt leaves room for the longest utterance, or takes half of the positions if that
    utterance needs more than half. It takes at most ``longest`` positions, the length up to which
    the model was trained to continue.
    """
    head, turn = whole.ids[:turn_at], whole.ids[turn_at:]
    more = (*between, *turn)
    room = max(max_positions // 2, max_positions - whole.max_frames)
    room = min(room, longest or max_positions)
    ids, clips, held = whole.ids, whole.clips, 0
    if talk.held and talk.held + len(more) <= room:
        # the history in the process includes the voices
        ids, clips, held = more, (), talk.held
    elif talk.last is not None:
        # any id will do for the rows: the engine puts their embeddings there
        rows = talk.last.ids[-1:] * len(talk.last.rows)
        longer = (*head, *talk.last.ids, *rows, *more)
        if len(longer) <= room:
            codes = np.ascontiguousarray(talk.last.rows, np.int16)
            earlier = VoiceRows(codes.tobytes(), len(head) + len(talk.last.ids))
            ids = longer
            clips = (*clips, earlier)
    text = whole.text
    positions = held + len(ids)
    if text is not None:  # its distance from the end stays the same
        text = msgspec.structs.replace(text, at=text.at + len(ids) - len(whole.ids))
    message = msgspec.structs.replace(
        whole,
        ids=ids,
        clips=clips,
        text=text,
        max_frames=min(whole.max_frames, max_positions - positions),
        conversation=talk.number,
        continues=held,
    )
    return Order(message, turn, positions, is_delayed)
