"""Utterances that go on from each other, at the gateway's end.

The talker process holds what a conversation has said as ids (``talker.histories``); here is
kept how long that is, and the last utterance itself. An utterance goes on if it can, and what
goes to the process then is its own text alone. Otherwise it starts over: the process is a new
one, or has lost the frames, or the talk would leave less than half of the positions for what
is to come. A talk that starts over begins with the last utterance, whose rows travel like a
voice's; if that is too long as well, with nothing.

Prompts, as ids and rows stand in them::

    first        head <|text|> one <|audio|>
    goes on      head <|text|> one <|audio|> rows of one <|text|> two <|audio|>
    starts over  head <|text|> two <|audio|> rows of two <|text|> three <|audio|>

The family's documentation describes this interleaving and names nothing between the turns.
The rows are those that were spoken but the last, which belongs to no frame and has no frame id:
the delay pattern's T + K - 1, as many as a reference clip has.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import numpy as np

from streaming.ports import TalkerRows
from streaming.spec import Codes
from talker.messages import Generate, VoiceRows
from talker.prompts import MAX_VOICE_ROWS


class Gone(Exception):
    """The process has not kept what a request was to go on from; nothing was made."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An utterance that was spoken: its ids, ``<|text|>`` to ``<|audio|>``, and its delayed rows
    ``[R, K]`` int16.
    """

    ids: tuple[int, ...]
    rows: Codes


@dataclass(frozen=True, slots=True)
class Order:
    """A message for the process. ``turn`` are the ids of its utterance, ``positions`` how long
    the whole prompt is, with what the process holds of it.
    """

    message: Generate
    turn: tuple[int, ...]
    positions: int


class Conversation:
    """What is known here of one conversation. ``number`` is its name to the process; ``held`` is
    how many positions that holds of it, 0 for nothing; ``last`` is what to start over from.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.held = 0
        self.last: Turn | None = None
        self._turn = asyncio.Lock()
        self._losses = 0

    def lose(self) -> None:
        """The process holds nothing of it any more."""
        self.held = 0
        self._losses += 1

    async def speak(
        self,
        order: Callable[[], Order],
        start: Callable[[Generate], AsyncGenerator[TalkerRows, None]],
    ) -> AsyncGenerator[TalkerRows, None]:
        """Speak the next utterance when the one before it has ended. ``order`` is asked again if
        what it went on from turns out to be gone.
        """
        async with self._turn:
            while True:
                chosen, losses, rows = order(), self._losses, list[Codes]()
                try:
                    async with aclosing(start(chosen.message)) as pieces:
                        async for piece in pieces:
                            rows.append(piece.rows)
                            if piece.finish == "stop":  # before the consumer closes us
                                self._keep(chosen, rows, is_held=losses == self._losses)
                            yield piece
                    return
                except Gone:
                    self.lose()

    def _keep(self, spoken: Order, pieces: Sequence[Codes], *, is_held: bool) -> None:
        rows = np.concatenate(pieces)[:-1]
        self.last = Turn(spoken.turn, rows) if 0 < len(rows) <= MAX_VOICE_ROWS else None
        self.held = spoken.positions + len(rows) if is_held else 0


class Conversations:
    """Conversations by name, the most recently used ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[str, Conversation] = OrderedDict()
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, name: str) -> Conversation:
        """The conversation of that name; a new one if there is none."""
        if name not in self._known:
            self._known[name] = Conversation(next(self._numbers))
            if len(self._known) > self._limit:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return self._known[name]

    def forget(self, name: str) -> int | None:
        """It is over; returns its number, None if it is not known."""
        known = self._known.pop(name, None)
        return None if known is None else known.number

    def lose(self) -> None:
        """The process has ended."""
        for conversation in self._known.values():
            conversation.lose()


def continued(
    whole: Generate,
    turn_at: int,
    talk: Conversation,
    max_positions: int,
    longest: int | None = None,
) -> Order:
    """The order for an utterance of ``talk``. ``whole`` is the message that speaks it alone, and
    its own ids begin at ``turn_at``. At most half of the positions go to the prompt, and at most
    ``longest``, the length up to which the model was taught to go on.
    """
    head, turn = whole.ids[:turn_at], whole.ids[turn_at:]
    positions = talk.held + len(turn)
    room = min(max_positions // 2, longest or max_positions)
    if talk.held and positions <= room:
        return _order(whole, talk, turn, turn, positions, max_positions, goes_on=True, voice=None)
    ids, earlier = whole.ids, None
    if talk.last is not None:
        # what stands for the rows does not matter: the engine puts their embeddings there
        rows = talk.last.ids[-1:] * len(talk.last.rows)
        longer = (*head, *talk.last.ids, *rows, *turn)
        if len(longer) <= room:
            codes = np.ascontiguousarray(talk.last.rows, np.int16)
            earlier = VoiceRows(codes.tobytes(), len(head) + len(talk.last.ids))
            ids = longer
    return _order(whole, talk, ids, turn, len(ids), max_positions, earlier=earlier)


def _order(
    whole: Generate,
    talk: Conversation,
    ids: tuple[int, ...],
    turn: tuple[int, ...],
    positions: int,
    max_positions: int,
    **changes: object,
) -> Order:
    text = whole.text
    if text is not None:  # it stands as far from the end as before
        text = msgspec.structs.replace(text, at=text.at + len(ids) - len(whole.ids))
    message = msgspec.structs.replace(
        whole,
        ids=ids,
        text=text,
        max_frames=min(whole.max_frames, max_positions - positions),
        conversation=talk.number,
        **changes,
    )
    return Order(message, turn, positions)
