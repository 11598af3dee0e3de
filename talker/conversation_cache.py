"""The conversation cache of the talker process: ids of what was said so far.

When an utterance of a conversation has come to its own end, its prompt and the ids of its
frames are kept: the next one's prompt is those ids and its own text after them. The frame
table holds what they stand for, and the prefix cache most of their blocks, so that going on
costs hardly more than a prompt of the new text alone.

A ring forgets. A history whose oldest frame the ring has run over is never used
(``ConversationCache`` counts rows for that), and should the ring run over it while a request
waits, the epoch check fails that request before its first row. A history that failed so is
dropped for good: blocks that were computed with stale frames may be in the prefix cache under its
ids.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from talker.frames import FRAME_BASE, FRAME_SPAN
from talker.messages import VoiceRows


@dataclass(frozen=True, slots=True)
class ConversationHistory:
    """Prompt and frames of a conversation. ``clips`` are the reference rows in it; ``core`` is
    the engine core whose frame table holds the frames, the only one to which the ids mean
    anything; ``since`` is how many rows that core had made when the first frame was.
    """

    ids: array[int] = field(default_factory=lambda: array("i"))
    clips: tuple[VoiceRows, ...] = ()
    core: int = 0
    since: int = 0


class RowCount:
    """How many rows an engine core has made, as told by its frame ids, which go round."""

    def __init__(self) -> None:
        self.made = 0

    def see(self, frame_id: int) -> int:
        """A row with this id was made; returns the count. Ids of one step come in any order."""
        ahead = (frame_id - FRAME_BASE - self.made) % FRAME_SPAN
        if ahead < FRAME_SPAN // 2:
            self.made += ahead
        return self.made


class ConversationCache:
    """Histories by conversation, the most recently used ``limit`` of them. ``slots`` is the size
    of each core's frame table.
    """

    def __init__(self, slots: int, cores: int, limit: int) -> None:
        self._slots, self._limit = slots, limit
        self.counts = [RowCount() for _ in range(cores)]
        self._known: OrderedDict[int, ConversationHistory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, conversation: int) -> ConversationHistory | None:
        """The conversation's history; None if that is not known, or gone from the table."""
        history = self._known.get(conversation)
        if history is None:
            return None
        if self.counts[history.core].made - history.since >= self._slots:
            self.drop(conversation)
            return None
        self._known.move_to_end(conversation)
        return history

    def keep(self, conversation: int, history: ConversationHistory) -> None:
        """This is what the conversation has said now."""
        self._known[conversation] = history
        self._known.move_to_end(conversation)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def drop(self, conversation: int) -> None:
        """It will not be gone on from; one that is not known is no error."""
        self._known.pop(conversation, None)
