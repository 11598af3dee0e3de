"""Requests in the talker process, across pauses, and the histories of conversations.

A request whose consumer does not take its rows is *paused*: it is aborted in the engine, and its
prompt and the ids of its frames so far are kept. To resume, these ids go in as a prompt. The frame
table still holds their codes, the noise depends only on the position, and the prefix cache has most
of the blocks. So the same rows follow as without the pause, at the cost of a short prefill. (If the
table has wrapped meanwhile, the epoch check fails the request instead of letting it speak other
codes.)

The text of a request may arrive while it is spoken, one id of it for each frame. A stretch is then
as long as the ids that are there when it begins, which are all that its sampler needs to know: the
engine ends it by its length, and the next one begins with the ids that have come meanwhile. If none
have come, the request *waits*, in no slot of the engine. When ids come has thus no influence on the
rows.

To the engine each stretch between pauses is a request of its own, with an id that is never used
again, so that a late output of an aborted one is recognised.

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

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from streaming.lru_cache import LruCache
from talker.frames import FRAME_BASE, FRAME_SPAN
from talker.messages import AppendText, Generate, NewRows, VoiceRows


@dataclass(frozen=True, slots=True)
class ConversationHistory:
    """Prompt and frames of a conversation. ``clips`` are the reference rows in it. ``core`` is the
    engine core whose frame table holds the frames, and the only one for which the ids are valid.
    ``since`` is the number of rows that this core had generated before the first frame; None if
    there is no frame.
    """

    ids: array[int] = field(default_factory=lambda: array("i"))
    clips: tuple[VoiceRows, ...] = ()
    core: int = 0
    since: int | None = None


class RowCount:
    """Number of rows that an engine core has generated, by its frame ids, which wrap."""

    def __init__(self) -> None:
        self.rows = 0

    def see(self, frame_id: int) -> int:
        """Count the row with this id. Returns the count. Ids of one step come in any order."""
        ahead = (frame_id - FRAME_BASE - self.rows) % FRAME_SPAN
        if ahead < FRAME_SPAN // 2:
            self.rows += ahead
        return self.rows


class ConversationCache:
    """Histories by conversation, the most recently used ``limit`` of them. ``slots`` is the size of
    each core's frame table.
    """

    def __init__(self, slots: int, cores: int, limit: int) -> None:
        self._slots = slots
        self.counts = [RowCount() for _ in range(cores)]
        self._known: LruCache[int, ConversationHistory] = LruCache(limit)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, conversation: int) -> ConversationHistory | None:
        """Return the conversation's history; None if it is unknown or overwritten in the table."""
        history = self._known.get(conversation)
        if history is None:
            return None
        rows = self.counts[history.core].rows
        since = history.since
        if since is not None and rows - since >= self._slots:
            self.drop(conversation)
            return None
        return history

    def keep(self, conversation: int, history: ConversationHistory) -> None:
        """Store the conversation's history."""
        self._known[conversation] = history

    def drop(self, conversation: int) -> None:
        """Drop a conversation's history; an unknown one is no error."""
        self._known.pop(conversation, None)


#: A request that waits for text begins its next stretch with this many ids, unless these are its
#: last: a stretch costs a short prefill.
_STRETCH_IDS = 4


@dataclass(slots=True)
class RequestState:
    """One request."""

    request: Generate
    #: The history that it continues.
    history: ConversationHistory | None = None
    #: The engine core that it runs in.
    core: int = 0
    #: Ids of its frames so far.
    frame_ids: list[int] = field(default_factory=list)
    #: The core's count of rows at the oldest frame among its ids.
    since: int | None = None
    #: The engine's id of the current stretch: it sees each stretch as a request of its own.
    engine_id: str = ""
    #: Whether the engine has this stretch.
    is_working: bool = False
    paused: bool = False
    #: Ids of the text that go with its frames; None if the text is in the prompt.
    track: list[int] | None = None
    #: Whether more of them will come.
    is_open: bool = False
    #: Maximum number of frames.
    max_frames: int = 0
    #: Number of rows per message that the gateway wants.
    gathered: int = 1
    #: Number of rows sent to it.
    given: int = 0
    #: Rows that are held back until there are enough.
    held: list[NewRows] = field(default_factory=list)
    #: Whether its history is kept for the conversation's next utterance.
    is_kept: bool = False
    #: By when its next rows are wanted.
    deadline_s: float = 0.0

    def __post_init__(self) -> None:
        request = self.request
        self.deadline_s = request.deadline_s
        self.track = None if request.track is None else list(request.track)
        self.is_open, self.max_frames = request.is_open, request.max_frames

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
        """Number of frames that may still be generated."""
        return self.max_frames - len(self.frame_ids)

    @property
    def stretch_frames(self) -> int:
        """Maximum number of frames of a stretch that begins now: while text arrives, one for each
        id that is there.
        """
        if self.track is None or not self.is_open:
            return self.frames_left
        return min(self.frames_left, len(self.track) - len(self.frame_ids))

    @property
    def coming_text(self) -> list[int]:
        """The position at which the next frame is drawn, and the text's ids from that frame on;
        empty if the text is in the prompt.
        """
        if self.track is None:
            return []
        return [len(self.prompt) - 1, *self.track[len(self.frame_ids) :]]

    def note(self, ids: Sequence[int], count: RowCount) -> None:
        """Record ids that the engine generated; the stop id among them is no frame."""
        for frame in ids:
            if frame >= FRAME_BASE:
                self.frame_ids.append(frame)
                rows = count.see(frame)
                if self.since is None:
                    self.since = rows

    def gather(self, new: NewRows) -> NewRows | None:
        """Take new rows, whose frames are recorded already. Returns all rows held back if they are
        enough or the last ones, else None. vLLM may return several rows at once, so frames are
        counted.
        """
        if self.gathered == 1 and not self.held:  # most rows: nothing to hold or to join
            self.given = len(self.frame_ids)
            return new
        self.held.append(new)
        waiting = len(self.frame_ids) - self.given
        return self.release() if new.finish or waiting >= self.gathered else None

    def release(self) -> NewRows | None:
        """Return all rows held back, as one message; None if there are none."""
        held = self.held
        self.held = []
        self.given = len(self.frame_ids)
        if len(held) < 2:
            return held[0] if held else None
        rows = b"".join(new.rows for new in held)
        spoken = b"".join(new.spoken for new in held)
        return NewRows(self.request.handle, rows, held[-1].finish, spoken)

    def release_waiting(self) -> NewRows:
        """Return all rows held back, with the report that the request waits for text."""
        rows = self.release() or NewRows(self.request.handle, b"", "")
        return msgspec.structs.replace(rows, waits=True)

    def left_behind(self) -> ConversationHistory:
        """Return the history that the next utterance continues."""
        return ConversationHistory(array("i", self.prompt), self.clips, self.core, self.since)


class RequestTable:
    """All requests that have not ended for the gateway, by handle, and the histories of
    conversations. ``slots`` is the size of each core's frame table, ``cores`` the number of engine
    cores, and ``limit`` the number of histories kept.
    """

    def __init__(self, slots: int, cores: int = 1, limit: int = 1024) -> None:
        self._states: dict[int, RequestState] = {}
        #: Those that the engine works on, by the id of their stretch.
        self._working: dict[str, RequestState] = {}
        self._stretches = itertools.count()
        self._conversations = ConversationCache(slots, cores, limit)

    @property
    def live(self) -> int:
        """Number of requests that the engine works on."""
        return len(self._working)

    @property
    def working(self) -> Iterable[RequestState]:
        """The requests that the engine works on."""
        return self._working.values()

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
        self._continue(state)
        return state

    def _start(self, state: RequestState) -> None:
        """Begin a stretch. The number sets it apart from all others, also of the same handle."""
        state.engine_id = f"{state.request.handle}.{next(self._stretches)}"
        state.is_working = True
        self._working[state.engine_id] = state

    def _continue(self, state: RequestState, ids: int = 1) -> RequestState | None:
        """Begin a stretch if there is text for it: at least so many ids, or all that is left.
        Returns None otherwise.
        """
        if state.is_open and state.stretch_frames < min(ids, state.frames_left):
            return None
        self._start(state)
        return state

    def append(self, message: AppendText) -> RequestState | None:
        """Append text to a request. Returns it if its next stretch begins now."""
        state = self._states.get(message.handle)
        if state is None or state.track is None or not state.is_open:
            return None
        state.track += message.ids
        state.deadline_s = message.deadline_s
        if message.max_frames is not None:
            state.is_open, state.max_frames = False, message.max_frames
        if state.is_working or state.paused:
            return None
        return self._continue(state, _STRETCH_IDS if state.frame_ids else 1)

    def end_stretch(self, state: RequestState) -> RequestState | None:
        """Handle the end of a stretch for which there was no more text. Returns the request if its
        next one begins now, None if it waits.
        """
        self._leave_engine(state)
        return self._continue(state, _STRETCH_IDS)

    def _leave_engine(self, state: RequestState) -> None:
        self._working.pop(state.engine_id, None)
        state.is_working = False

    def _idlest_core(self) -> int:
        """Return the core with the fewest live requests, chosen once per conversation, since frame
        ids are not valid in another core.
        """
        live = Counter(state.core for state in self._working.values())
        return min(range(len(self._conversations.counts)), key=lambda core: live[core])

    def note(self, state: RequestState, ids: Sequence[int]) -> None:
        """Record ids that the engine generated for a request."""
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
        state = self._states.pop(handle, None)
        if state is not None:
            self._working.pop(state.engine_id, None)
        return state

    def pause(self, handle: int) -> RequestState | None:
        """Mark a request as paused; None if it is not in the engine."""
        state = self._states.get(handle)
        if state is None or state.paused:
            return None
        state.paused = True
        if not state.is_working:
            return None
        self._leave_engine(state)
        return state

    def resume(self, handle: int, deadline_s: float = 0.0) -> RequestState | None:
        """Begin a new stretch; None if there is nothing to resume, or no text."""
        state = self._states.get(handle)
        if state is None or not state.paused:
            return None
        state.paused = False
        state.deadline_s = deadline_s
        return self._continue(state)

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
        return self._working.get(engine_id)
