"""Requests in the talker process, across pauses, and the histories of conversations.

A request whose consumer does not take its rows is *paused*: it is aborted in the engine, and its
prompt and the ids of its frames so far are kept. To resume, these ids go in as a prompt. The frame
table still holds their codes, the noise depends only on the position, and the prefix cache has most
of the blocks. So the same rows follow as without the pause, at the cost of a short prefill. (If the
table has wrapped meanwhile, the epoch check fails the request instead of letting it speak other
codes.)

To the engine each stretch between pauses is a request of its own, ``handle.stretch``, so that a
late output of an aborted one is recognised.

When an utterance of a conversation has reached its own end, its prompt and the ids of its frames
are kept. A request that continues it starts in the same way: on those ids with its own text after
them, in the engine core that made them. The prefix cache has most of their blocks, so this costs
hardly more than a prompt of the new text alone.

The ring overwrites old frames. A history whose oldest frame has been overwritten is never used
(``ConversationCache`` counts rows for that). If it is overwritten while a request waits, the epoch
check fails that request before its first row. Such a history is dropped for good, since the prefix
cache may have blocks under its ids that were computed with stale frames.
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
    """Prompt and frames of a conversation. ``clips`` are the reference rows in it. ``core`` is the
    engine core whose frame table holds the frames, and the only one for which the ids are valid.
    ``since`` is the number of rows that this core had made when it made the first frame; None if
    there is no frame.
    """

    ids: array[int] = field(default_factory=lambda: array("i"))
    clips: tuple[VoiceRows, ...] = ()
    core: int = 0
    since: int | None = None


class RowCount:
    """Number of rows that an engine core has made, computed from its frame ids, which wrap."""

    def __init__(self) -> None:
        self.made = 0

    def see(self, frame_id: int) -> int:
        """Count the row with this id. Returns the count. Ids of one step come in any order."""
        ahead = (frame_id - FRAME_BASE - self.made) % FRAME_SPAN
        if ahead < FRAME_SPAN // 2:
            self.made += ahead
        return self.made


class ConversationCache:
    """Histories by conversation, the most recently used ``limit`` of them. ``slots`` is the size of
    each core's frame table.
    """

    def __init__(self, slots: int, cores: int, limit: int) -> None:
        self._slots, self._limit = slots, limit
        self.counts = [RowCount() for _ in range(cores)]
        self._known: OrderedDict[int, ConversationHistory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, conversation: int) -> ConversationHistory | None:
        """Return the conversation's history; None if it is unknown or overwritten in the table."""
        history = self._known.get(conversation)
        if history is None:
            return None
        made, since = self.counts[history.core].made, history.since
        if since is not None and made - since >= self._slots:
            self.drop(conversation)
            return None
        self._known.move_to_end(conversation)
        return history

    def keep(self, conversation: int, history: ConversationHistory) -> None:
        """Store the conversation's history."""
        self._known[conversation] = history
        self._known.move_to_end(conversation)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def drop(self, conversation: int) -> None:
        """Drop a conversation's history; an unknown one is no error."""
        self._known.pop(conversation, None)


@dataclass(slots=True)
class RequestState:
    """One request: its message, the history that it continues, the ids of its frames so far, and
    its current stretch. ``core`` is the engine core that it runs in. ``since`` is the core's count
    of rows when it made the oldest frame among its ids.
    """

    request: Generate
    history: ConversationHistory | None = None
    core: int = 0
    frame_ids: list[int] = field(default_factory=list)
    since: int | None = None
    stretch: int = 0
    paused: bool = False
    #: Number of rows per message that the gateway wants, number of rows sent to it, and the rows
    #: that are held back until there are enough.
    gathered: int = 1
    given: int = 0
    held: list[NewRows] = field(default_factory=list)
    #: Whether its history is kept for the conversation's next utterance.
    is_kept: bool = False

    @property
    def engine_id(self) -> str:
        """The request id of the current stretch."""
        return f"{self.request.handle}.{self.stretch}"

    @property
    def before(self) -> Sequence[int]:
        """The history's ids, which precede the request's own."""
        return self.history.ids if self.history else ()

    @property
    def prompt(self) -> list[int]:
        """All ids before the next frame."""
        return [*self.before, *self.request.ids, *self.frame_ids]

    @property
    def clips(self) -> tuple[VoiceRows, ...]:
        """The reference rows in the prompt, in order."""
        return self.history.clips if self.history else self.request.clips

    @property
    def frames_left(self) -> int:
        """Number of frames that may still be made."""
        return self.request.max_frames - len(self.frame_ids)

    def note(self, ids: Sequence[int], count: RowCount) -> None:
        """Record ids that the engine made; the stop id among them is no frame."""
        frames = [i for i in ids if i >= FRAME_BASE]
        self.frame_ids += frames
        for frame in frames:
            made = count.see(frame)
            if self.since is None:
                self.since = made

    def gather(self, new: NewRows) -> NewRows | None:
        """Take new rows, whose frames are recorded already. Returns all rows held back if they are
        enough or the last ones, else None. vLLM may return several rows at once, so frames are
        counted.
        """
        self.held.append(new)
        waiting = len(self.frame_ids) - self.given
        return self.release() if new.finish or waiting >= self.gathered else None

    def release(self) -> NewRows | None:
        """Return all rows held back, as one message; None if there are none."""
        held, self.held, self.given = self.held, [], len(self.frame_ids)
        if len(held) < 2:
            return held[0] if held else None
        rows = b"".join(new.rows for new in held)
        spoken = b"".join(new.spoken for new in held)
        return NewRows(self.request.handle, rows, held[-1].finish, spoken)

    def left_behind(self) -> ConversationHistory:
        """Return the history that the next utterance continues."""
        return ConversationHistory(array("i", self.prompt), self.clips, self.core, self.since)

    def resume(self) -> None:
        """Begin a new stretch."""
        self.stretch += 1
        self.paused = False


class RequestTable:
    """All requests that have not ended for the gateway, by handle, and the histories of
    conversations. ``slots`` is the size of each core's frame table, ``cores`` the number of engine
    cores, and ``limit`` the number of histories kept.
    """

    def __init__(self, slots: int, cores: int = 1, limit: int = 1024) -> None:
        self._states: dict[int, RequestState] = {}
        self._conversations = ConversationCache(slots, cores, limit)

    @property
    def live(self) -> int:
        """Number of requests that the engine works on."""
        return sum(not state.paused for state in self._states.values())

    def __contains__(self, handle: int) -> bool:
        return handle in self._states

    def add(self, request: Generate) -> RequestState | None:
        """Add a request. Returns None if the history that it continues is not the one there."""
        history = None
        if request.continues:
            history = self._conversations.get(request.conversation)
            # longer if it has an utterance whose consumer left before it took the last rows
            if history is None or len(history.ids) != request.continues:
                return None
        core = history.core if history else self._idlest_core()
        state = RequestState(request, history, core, since=history.since if history else None)
        state.is_kept = request.conversation > 0
        self._states[request.handle] = state
        return state

    def _idlest_core(self) -> int:
        """Return the core with the fewest live requests, chosen once per conversation, since frame
        ids are not valid in another core.
        """
        live = Counter(state.core for state in self._states.values() if not state.paused)
        return min(range(len(self._conversations.counts)), key=lambda core: live[core])

    def note(self, state: RequestState, ids: Sequence[int]) -> None:
        """Record ids that the engine made for a request."""
        state.note(ids, self._conversations.counts[state.core])

    def end(self, handle: int, finish: str) -> None:
        """End a request that has spoken its last row. If it was cut off, no history is kept, since
        the talker was never trained on speech that breaks off before another text.
        """
        state = self.drop(handle)
        if state is not None and state.is_kept and finish == "stop":
            self._conversations.keep(state.request.conversation, state.left_behind())

    def forget(self, conversation: int) -> None:
        """Forget a conversation. Its requests in flight will leave no history."""
        self._conversations.drop(conversation)
        for state in self._states.values():
            if state.request.conversation == conversation:
                state.is_kept = False

    def lose(self, handle: int) -> bool:
        """Handle a request that met a frame that the table has forgotten. Its history is dropped.
        Returns whether it can be sent again without a history.
        """
        state = self._states.get(handle)
        if state is None or state.history is None:
            return False
        self._conversations.drop(state.request.conversation)
        return not state.frame_ids

    def drop(self, handle: int) -> RequestState | None:
        """Remove a request that has ended or is no longer wanted; None if it is unknown."""
        return self._states.pop(handle, None)

    def pause(self, handle: int) -> RequestState | None:
        """Mark a request as paused; None if there is nothing to pause."""
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
        """Set the number of rows per message that the gateway wants from now on."""
        if (state := self._states.get(handle)) is not None:
            state.gathered = rows

    def collect(self, new: NewRows) -> NewRows | None:
        """Take a request's new rows. Returns the rows to send now."""
        ready = self._states[new.handle].gather(new)
        if new.finish:
            self.end(new.handle, new.finish)
        return ready

    def of(self, engine_id: str) -> RequestState | None:
        """Return the request whose current stretch has this id; None for an outdated stretch."""
        state = self._states.get(int(engine_id.partition(".")[0]))
        return state if state is not None and state.engine_id == engine_id else None
