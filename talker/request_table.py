"""Requests in the talker process, across pauses, and what conversations leave behind.

A request whose consumer does not take its rows is *paused*: the engine lets go of it, and
what is kept is the prompt and the ids of the frames it has made. To resume, the same ids go
in as a prompt. The frame table still holds what they stand for, the noise depends on the
position alone, and the prefix cache has most of the blocks: so the rows go on as if nothing
had happened, at the cost of a short prefill. (If the table has gone round meanwhile, the
epoch check fails the request instead of letting it speak something else.)

To the engine each stretch between pauses is a request of its own, ``handle.stretch``, so
that a late output of an aborted one is recognised.

When an utterance of a conversation has come to its own end, its prompt and the ids of its
frames are kept, and a request that goes on from it starts the same way: on those ids and its own
text after them, in the engine core that made them. The prefix cache has most of their blocks, so
that going on costs hardly more than a prompt of the new text alone.

A ring forgets. A history whose oldest frame the ring has run over is never used
(``ConversationCache`` counts rows for that), and should the ring run over it while a request
waits, the epoch check fails that request before its first row. A history that failed so is
dropped for good: blocks that were computed with stale frames may be in the prefix cache under its
ids.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from talker.frames import FRAME_BASE, FRAME_SPAN
from talker.messages import Generate, NewRows, VoiceRows


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


@dataclass(slots=True)
class RequestState:
    """One request: what was asked, what it goes on from, the ids of its frames so far, and its
    present stretch. ``core`` is the engine core that it runs in; ``since`` is the core's count
    of rows when the first frame that its ids name was made.
    """

    request: Generate
    history: ConversationHistory | None = None
    core: int = 0
    frame_ids: list[int] = field(default_factory=list)
    since: int | None = None
    stretch: int = 0
    paused: bool = False
    #: How many rows at a time the gateway wants, how many it was given or is given now, and those
    #: that are held back until there are enough.
    gathered: int = 1
    given: int = 0
    held: list[NewRows] = field(default_factory=list)
    #: Whether the conversation wants to go on from it.
    is_kept: bool = False

    @property
    def engine_id(self) -> str:
        """The request id of the present stretch."""
        return f"{self.request.handle}.{self.stretch}"

    @property
    def before(self) -> Sequence[int]:
        """The ids that the request's own follow."""
        return self.history.ids if self.history else ()

    @property
    def prompt(self) -> list[int]:
        """All ids that stand before the next frame."""
        return [*self.before, *self.request.ids, *self.frame_ids]

    @property
    def clips(self) -> tuple[VoiceRows, ...]:
        """The reference rows in the prompt, in order."""
        return self.history.clips if self.history else self.request.clips

    @property
    def frames_left(self) -> int:
        """How many more frames may be made."""
        return self.request.max_frames - len(self.frame_ids)

    def note(self, ids: Sequence[int], count: RowCount) -> None:
        """The engine made these; the stop id among them is no frame."""
        frames = [i for i in ids if i >= FRAME_BASE]
        self.frame_ids += frames
        for frame in frames:
            made = count.see(frame)
            if self.since is None:
                self.since = made

    def gather(self, new: NewRows) -> NewRows | None:
        """Rows came, whose frames are noted. Returns all that are held back when they are enough
        or the last, else None. vLLM may give several rows at once, so frames are counted.
        """
        self.held.append(new)
        waiting = len(self.frame_ids) - self.given
        return self.release() if new.finish or waiting >= self.gathered else None

    def release(self) -> NewRows | None:
        """All rows that are held back, as one; None if there are none."""
        held, self.held, self.given = self.held, [], len(self.frame_ids)
        if len(held) < 2:
            return held[0] if held else None
        rows = b"".join(new.rows for new in held)
        spoken = b"".join(new.spoken for new in held)
        return NewRows(self.request.handle, rows, held[-1].finish, spoken)

    def left_behind(self) -> ConversationHistory:
        """The history that the next utterance goes on from."""
        return ConversationHistory(array("i", self.prompt), self.clips, self.core, self.since or 0)

    def resume(self) -> None:
        """A new stretch begins."""
        self.stretch += 1
        self.paused = False


class RequestTable:
    """All requests that the gateway has not seen the end of, by handle; and what conversations
    have left behind. ``slots`` is the size of a frame table, ``cores`` how many engine cores
    there are, each with its own, and ``limit`` how many conversations are remembered.
    """

    def __init__(self, slots: int, cores: int = 1, limit: int = 1024) -> None:
        self._states: dict[int, RequestState] = {}
        self._conversations = ConversationCache(slots, cores, limit)

    @property
    def live(self) -> int:
        """Those that the engine works on."""
        return sum(not state.paused for state in self._states.values())

    def __contains__(self, handle: int) -> bool:
        return handle in self._states

    def add(self, request: Generate) -> RequestState | None:
        """A request has come; None if what it is to go on from is not there."""
        history = None
        if request.goes_on and (history := self._conversations.get(request.conversation)) is None:
            return None
        core = history.core if history else self._idlest_core()
        state = RequestState(request, history, core, since=history.since if history else None)
        state.is_kept = request.conversation > 0
        self._states[request.handle] = state
        return state

    def _idlest_core(self) -> int:
        """Frame ids mean nothing to another core, so it is chosen here, once for each talk."""
        live = Counter(state.core for state in self._states.values() if not state.paused)
        return min(range(len(self._conversations.counts)), key=lambda core: live[core])

    def note(self, state: RequestState, ids: Sequence[int]) -> None:
        """The engine made these ids for that request."""
        state.note(ids, self._conversations.counts[state.core])

    def end(self, handle: int, finish: str) -> None:
        """A request has spoken its last row. One that was cut off is not gone on from: the
        talker has never seen speech that breaks off and then another text.
        """
        state = self.drop(handle)
        if state is not None and state.is_kept and finish == "stop":
            self._conversations.keep(state.request.conversation, state.left_behind())

    def forget(self, conversation: int) -> None:
        """A conversation is over; so much of it as is still under way leaves nothing behind."""
        self._conversations.drop(conversation)
        for state in self._states.values():
            if state.request.conversation == conversation:
                state.is_kept = False

    def lose(self, handle: int) -> bool:
        """A request has met a frame that the table has forgotten. Returns whether it can be
        sent again, without what it went on from; nobody goes on from that any more.
        """
        state = self._states.get(handle)
        if state is None or state.history is None:
            return False
        self._conversations.drop(state.request.conversation)
        return not state.frame_ids

    def drop(self, handle: int) -> RequestState | None:
        """A request has ended or is wanted no more; None if that was known."""
        return self._states.pop(handle, None)

    def pause(self, handle: int) -> RequestState | None:
        """Mark as paused; None if there is nothing to pause."""
        state = self._states.get(handle)
        if state is None or state.paused:
            return None
        state.paused = True
        return state

    def resume(self, handle: int) -> RequestState | None:
        """Begin a new stretch; None if there is nothing to resume."""
        state = self._states.get(handle)
        if state is None or not state.paused:
            return None
        state.resume()
        return state

    def gather(self, handle: int, rows: int) -> None:
        """The gateway wants so many rows at a time from now on."""
        if (state := self._states.get(handle)) is not None:
            state.gathered = rows

    def collect(self, new: NewRows) -> NewRows | None:
        """A request has made rows; returns what of it is to be sent now."""
        ready = self._states[new.handle].gather(new)
        if new.finish:
            self.end(new.handle, new.finish)
        return ready

    def of(self, engine_id: str) -> RequestState | None:
        """The request whose present stretch has this id; None for what is out of date."""
        state = self._states.get(int(engine_id.partition(".")[0]))
        return state if state is not None and state.engine_id == engine_id else None
